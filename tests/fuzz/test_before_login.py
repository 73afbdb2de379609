"""What strangers may send before the login, with mistakes, at every door: a broker process survives it, changes nothing, and serves good clients meanwhile.

``FRAMES`` is the number of messages with mistakes for each door, ``SEED`` what they are made from: make fuzz FRAMES=1000000 SEED=7.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.process import BrokerProcess
from tests.fuzz import doors
from tests.fuzz.crowd import Crowd
from tests.support.cluster_processes import NodeProcess
from tests.support.etcd import running_etcd
from tests.support.secured import SecuredProcess

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux", reason="what a process takes is read from /proc, and 127.0.0.0/8 is this machine"
    ),
    pytest.mark.timeout(0),
]

FRAMES = int(os.environ.get("FRAMES", "20000"))
SEED = os.environ.get("SEED", "14")
ENCRYPTED = 0.25
"""The share of the messages that are sent inside TLS, which costs more and finds less."""
MIB = 1024 * 1024
GROWTH_BYTES_MAX = 128 * MIB
"""However many messages there are: a connection with TLS takes up to half a megabyte, and what is remembered of failures is bounded."""
LOG_BYTES_MAX = MIB // 8
"""However many messages there are, but without the first failed logins of each address: here every stranger has its own."""
LIMITS = {
    # The rate of handshakes is not what is tested here.
    "limits.handshake_rate_max": 0,
}
PEERS_AT_ONCE = 40
"""Fewer strangers than a node has places for."""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredProcess]:
    with SecuredProcess(tmp_path_factory.mktemp("fuzzed"), LIMITS, tls=request.param) as broker:
        status, body = broker.ask("POST", "/v1/topics", {"name": "kept", "partitions": 1})
        assert status == 201, body
        for door in ("kafka", "http", "tcp", "grpc"):
            broker.enter(door)
        yield broker


def is_unharmed(broker: BrokerProcess, log_bytes: int, door: str) -> None:
    """It runs, has met no mistake of its own, and said little."""
    said = broker.log_text()[log_bytes:]
    assert broker.running, said[-5000:]
    # grpcio prints a trace of its own where a client leaves before it is refused.
    trace = "src/penstock/" if door == "grpc" else "Traceback"
    for word in (trace, "internal error", "Task was destroyed", "never retrieved"):
        assert word not in said, said[max(0, said.index(word) - 500) :][:5000]
    if door != "grpc":
        assert sum(len(line) for line in said.splitlines() if "login failed:" not in line) < LOG_BYTES_MAX


def assault(broker: SecuredProcess, door: str, crowd: Crowd) -> None:
    state, size, log_bytes = broker.state(), broker.resident_bytes(), len(broker.log_text())
    assert crowd.run() >= crowd.frames
    assert crowd.checks > 0
    broker.enter(door)
    is_unharmed(broker, log_bytes, door)
    assert broker.state() == state
    print(
        f"{door}: {crowd.sent} messages, {crowd.begun} connections, {crowd.checks} logins, {len(broker.log_text()) - log_bytes} bytes of log"
    )
    growth = broker.resident_bytes() - size
    print(f"{growth / MIB:.1f} MiB more")
    assert growth < GROWTH_BYTES_MAX, f"{growth / MIB:.0f} MiB more after {crowd.sent} messages"


@pytest.mark.parametrize("door", ["kafka", "http", "tcp", "grpc"])
def test_no_message_before_the_login_does_harm(broker: SecuredProcess, door: str) -> None:
    frames = int(FRAMES * (ENCRYPTED if broker.context else 1 - ENCRYPTED))
    conversation = getattr(doors, door)
    check = lambda: broker.enter(door)  # noqa: E731
    crowd = Crowd([broker.place(door)], conversation, f"{SEED} {door}", frames, context=broker.context, check=check)
    assault(broker, door, crowd)


@pytest.mark.parametrize("broker", [pytest.param(True, id="tls")], indirect=True)
def test_no_beginning_of_a_handshake_does_harm(broker: SecuredProcess) -> None:
    places = [broker.place(door) for door in ("kafka", "http", "tcp", "grpc")]
    crowd = Crowd(places, doors.hello, f"{SEED} hello", FRAMES, check=lambda: broker.enter("kafka"))
    assault(broker, "kafka", crowd)


def test_no_message_to_the_listener_of_nodes_does_harm(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd, NodeProcess(tmp_path / "data", 1, etcd.urls, gateways=False) as node:
        host, _, port = node.addresses["peer"].rpartition(":")
        crowd = Crowd([(host, int(port))], doors.peer, f"{SEED} peer", FRAMES, at_once=PEERS_AT_ONCE)
        size = _resident_bytes(node.pid)
        assert crowd.run() >= FRAMES
        is_unharmed(node, 0, "peer")
        assert _resident_bytes(node.pid) - size < GROWTH_BYTES_MAX


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
