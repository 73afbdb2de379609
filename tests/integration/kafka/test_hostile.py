"""Whatever comes in: a clean close or an error answer, memory that stays bounded, and good clients that do not notice."""

import os
import random
import resource
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateways.kafka.handlers import HANDLERS
from penstock.testing.process import BrokerProcess
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.integration.kafka.conftest import make_topic
from tests.support.kafka_wire import (
    FETCH,
    METADATA,
    PRODUCE,
    RawClient,
    batch,
    encode,
    fetch,
    fetched,
    produce,
    produced,
    values,
)
from tests.support.waiting import eventually
from tests.unit.wire.kafka import oracle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process takes is read from /proc")

MIB = 1024 * 1024
RESIDENT_BYTES_MAX = 200 * MIB
"""An idle broker takes a quarter of that."""
OUTPUT_BYTES_MAX = MIB
MAY_WAIT = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""These may take their time before they answer; a mutated one may ask for a lot of it."""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("victim")
    limits = {
        "limits.connection_pending_output_bytes_max": OUTPUT_BYTES_MAX,
        "groups.offsets_topic_partitions": 1,
        "log.flush": "os",
    }
    with BrokerProcess(folder / "data", limits) as broker:
        yield broker


@pytest.fixture(scope="module")
def topic(victim: BrokerProcess) -> str:
    return make_topic(victim.bootstrap, 2)


@pytest.fixture(autouse=True)
def _unharmed(victim: BrokerProcess, topic: str) -> Iterator[None]:
    """After each test the broker serves, is no larger than it should be, and has met no mistake of its own."""
    before = produce_one(victim.bootstrap, topic)
    yield
    assert victim.running, victim.log_text()
    assert produce_one(victim.bootstrap, topic) > before
    assert resident_bytes(victim.pid) < RESIDENT_BYTES_MAX
    assert "Traceback" not in victim.log_text()


def produce_one(bootstrap: str, topic: str) -> int:
    with RawClient(bootstrap) as client:
        answer = produced(client.ask(PRODUCE, produce(topic, batch(b"good"), partition=1), 9))
    assert answer.error_code == 0
    return answer.base_offset


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def ends(client: RawClient, seconds: float) -> bool:
    """Read whatever comes until the broker closes; False when it is still open after so long a silence."""
    client.socket.settimeout(seconds)
    try:
        while client.socket.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\nAccept: */*\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0" * 64,
        b"\xff" * 64,
        b"\n",
        struct.pack(">i", 2**31 - 1) + b"x" * 1000,
        struct.pack(">i", -(2**31)) + b"x" * 1000,
        struct.pack(">i", 100 * MIB),
    ],
    ids=["HTTP", "TLS", "SSH", "zeros", "ones", "newline", "greatest length", "least length", "length alone"],
)
def test_what_is_not_kafka_is_hung_up_on(victim: BrokerProcess, greeting: bytes) -> None:
    with RawClient(victim.bootstrap) as client:
        client.socket.sendall(greeting)
        client.socket.shutdown(socket.SHUT_WR)
        assert ends(client, 20)


def test_random_bytes_are_hung_up_on(victim: BrokerProcess) -> None:
    rng = random.Random(7)
    for _ in range(100):
        data = rng.randbytes(rng.randrange(1, 3000))
        if rng.random() < 0.7:
            data = struct.pack(">i", len(data)) + data
        with RawClient(victim.bootstrap) as client:
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            assert ends(client, 20)


def test_a_length_that_is_only_said_takes_no_memory(victim: BrokerProcess) -> None:
    before = resident_bytes(victim.pid)
    clients = [RawClient(victim.bootstrap) for _ in range(200)]
    for client in clients:
        client.socket.sendall(struct.pack(">ihhih", 100 * MIB, 0, 9, 1, -1) + bytes(3000))
    produce_one(victim.bootstrap, make_topic(victim.bootstrap, 2))
    # Some tens of kilobytes for each, where a hundred megabytes were announced.
    assert resident_bytes(victim.pid) - before < 40 * MIB
    for client in clients:
        client.reset()


def test_frames_cut_short_by_a_close_or_a_reset_are_forgotten(victim: BrokerProcess, topic: str) -> None:
    frame = encode(PRODUCE, produce(topic, batch(bytes(5000))), 9)
    for cut in [*range(1, 60, 4), 1000, len(frame) - 1]:
        for reset in (False, True):
            client = RawClient(victim.bootstrap)
            client.socket.sendall(frame[:cut])
            client.reset() if reset else client.socket.close()
    with RawClient(victim.bootstrap) as client:
        assert values(fetched(client.ask(FETCH, fetch(topic, 0), 12)).records) == []


CASES = [(API[key], version) for key in HANDLERS for version in range(API[key].min_version, API[key].max_version + 1)]
EXTREMES = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff\xff\xff\xff\x0f",
    b"\x80" * 6,
    b"\0",
    b"\x7f",
)
Change = tuple[int, bytes]


@settings(max_examples=250, deadline=None)
@given(
    case=st.sampled_from(CASES),
    seed=st.integers(0, 10_000),
    changes=st.lists(
        st.tuples(st.integers(12, 500), st.sampled_from(EXTREMES) | st.binary(min_size=1, max_size=2)), max_size=3
    ),
    length=st.sampled_from([0, 0, 0, 0, -1, 1, 5]),
)
def test_mutated_requests_are_answered_or_hung_up_on(
    victim: BrokerProcess, case: tuple, seed: int, changes: list[Change], length: int
) -> None:
    api, version = case
    frame = bytearray(encode(api.key, oracle.random_ours(api, version, "request", seed), version, 1))
    for position, data in changes:
        at = position % len(frame)
        if at > 12:
            frame[at : at + len(data)] = data
    frame[:4] = struct.pack(">i", len(frame) - 4 + length)
    with RawClient(victim.bootstrap) as client:
        client.socket.sendall(frame)
        client.socket.shutdown(socket.SHUT_WR)
        waits = api.key in MAY_WAIT
        if not ends(client, 0.1 if waits else 20):
            assert waits
            client.reset()


def test_a_client_that_never_reads_costs_what_it_is_allowed_to(victim: BrokerProcess) -> None:
    topic = make_topic(victim.bootstrap)
    with RawClient(victim.bootstrap) as client:
        for _ in range(8):
            client.ask(PRODUCE, produce(topic, batch(bytes(1_000_000))), 9)
    before = resident_bytes(victim.pid)
    silent = [RawClient(victim.bootstrap, receive_buffer_bytes=4096) for _ in range(8)]
    request = encode(FETCH, fetch(topic, 0, partition_max_bytes=1_000_000), 12)
    for client in silent:
        client.socket.sendall(request * 50)
    # They asked for 400 MB. What is not taken stays with the broker, up to the bound and one answer more each.
    produce_one(victim.bootstrap, make_topic(victim.bootstrap, 2))
    held = resident_bytes(victim.pid) - before
    assert held < len(silent) * (OUTPUT_BYTES_MAX + 4_000_000)
    first = silent[0]
    for _ in range(50):
        assert len(fetched(first.answer(FETCH, 12)[1]).records) > 900_000
    for client in silent:
        client.reset()


def test_two_thousand_connections_come_and_go(victim: BrokerProcess, topic: str) -> None:
    before = open_files(victim.pid)
    frame = encode(METADATA, MetadataRequest(), 12)
    for number in range(2000):
        client = RawClient(victim.bootstrap)
        client.socket.sendall(frame[: number % len(frame)])
        if number % 3:
            client.reset()
        else:
            client.socket.close()
    eventually(lambda: open_files(victim.pid) <= before + 2, what="all connections are closed")
    assert produce_one(victim.bootstrap, topic)


def test_a_thousand_readers_wait_together(victim: BrokerProcess) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"this process may open {hard} files, and the test needs 1000 connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    topic = make_topic(victim.bootstrap)
    try:
        clients = [RawClient(victim.bootstrap) for _ in range(1000)]
        for client in clients:
            client.send(FETCH, fetch(topic, 0, max_wait_ms=60_000), 12)
        with RawClient(victim.bootstrap) as writer:
            writer.ask(PRODUCE, produce(topic, batch(b"to all")), 9)
        for client in clients:
            assert values(fetched(client.answer(FETCH, 12)[1]).records) == [b"to all"]
            client.socket.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_frame_over_the_limit_and_a_silent_client_are_hung_up_on_as_configured(tmp_path: Path) -> None:
    bounds = {
        "limits.request_bytes_max": 10_000,
        "limits.connections_max": 3,
        "limits.connection_idle_ms_max": 1000,
        "groups.offsets_topic_partitions": 1,
    }
    with BrokerProcess(tmp_path / "data", bounds) as broker:
        with RawClient(broker.bootstrap) as client:
            client.socket.sendall(struct.pack(">i", 10_001))
            assert client.closed_by_peer()
        silent = [RawClient(broker.bootstrap) for _ in range(3)]
        # Each of them is known to the broker once it was answered.
        for client in silent:
            client.ask(METADATA, MetadataRequest(), 1)
        with RawClient(broker.bootstrap) as client:
            assert client.closed_by_peer()
        for client in silent:
            assert client.closed_by_peer()
            client.socket.close()
        with RawClient(broker.bootstrap) as client:
            assert client.ask(METADATA, MetadataRequest(), 1).brokers
