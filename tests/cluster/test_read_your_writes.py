"""What a Kafka producer was acknowledged with acks=1 counts in the answers of the other APIs, at its leader and at every other node."""

import http.client
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import grpc
import pytest
from confluent_kafka.admin import NewTopic

from penstock.address import parse_address
from penstock.limits import SETTLE_MS_MAX
from penstock.testing.process import BrokerProcess
from penstock.wire.mq import mq_generated as mq
from tests.conformance.tinymq.client import Tinymq
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.waiting import eventually

ROUNDS = 15
SECONDS_MAX = 60.0
TOPIC = "orders"
SERVICE = "/mq.MessageQueueService"


class Producer:
    """A client of Kafka's, with acks=1."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0, "log_level": 0}
        )

    def produce(self, n: int) -> None:
        """Record ``n``, at offset ``n``."""
        told: list[Any] = []
        self._producer.produce(TOPIC, b"%d" % n, partition=0, on_delivery=lambda *answer: told.append(answer))
        self._producer.flush(SECONDS_MAX)
        ((error, message),) = told
        assert error is None
        assert message.offset() == n


class Readers:
    """Clients of the other APIs of one node. Each answer is the offset of the last record that it knows of."""

    def __init__(self, addresses: dict[str, str], stack: ExitStack) -> None:
        where = parse_address(addresses["http"])
        self._http = http.client.HTTPConnection(where.host, where.port, timeout=SECONDS_MAX)
        stack.callback(self._http.close)
        self._tcp = Tinymq(addresses["tcp"])
        stack.callback(self._tcp.close)
        self._channel = grpc.insecure_channel(addresses["grpc"])
        stack.callback(self._channel.close)

    def _get(self, path: str) -> Any:
        self._http.request("GET", f"/topics/{TOPIC}/partitions/0/{path}")
        return json.loads(self._http.getresponse().read())

    def http_offsets(self, _: int) -> int:
        return int(self._get("offsets")["high_watermark"]) - 1

    def http_messages(self, n: int) -> int:
        return max((message["offset"] for message in self._get(f"messages?offset={n}")["messages"]), default=-1)

    def tcp_metrics(self, _: int) -> int:
        return int(self._tcp.data("metrics", topic=TOPIC, partition=0)["endOffset"]) - 1

    def tcp_fetch(self, n: int) -> int:
        records = self._tcp.data("fetch", topic=TOPIC, partition=0, offset=n)["records"]
        return max((record["offset"] for record in records), default=-1)

    def tcp_commit(self, n: int) -> int:
        answer = self._tcp.ask("commit", groupId="lines", topic=TOPIC, partition=0, offset=n + 1)
        return n if answer["ok"] else -1

    def grpc_commit(self, n: int) -> int:
        """What is past the end cannot be committed."""
        request = mq.CommitOffsetRequest(topic=TOPIC, consumer_group="mq", offset=n + 1)
        commit = self._channel.unary_unary(f"{SERVICE}/CommitOffset")
        try:
            commit(request.SerializeToString(), timeout=SECONDS_MAX)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.OUT_OF_RANGE, error
            return -1
        return n

    def grpc_replay(self, n: int) -> int:
        """Nor can be read from past the end."""
        request = mq.SubscribeRequest(topic=TOPIC, consumer_group="replay", replay_offset=n + 1)
        subscribe = self._channel.unary_stream(f"{SERVICE}/Subscribe")
        stream = subscribe(request.SerializeToString(), timeout=SECONDS_MAX)
        try:
            return n if "consumer-id" in dict(stream.initial_metadata()) else -1
        finally:
            stream.cancel()


ASKED: dict[str, Callable[[Readers, int], int]] = {
    name: getattr(Readers, name)
    for name in (
        "http_offsets",
        "http_messages",
        "tcp_metrics",
        "tcp_fetch",
        "tcp_commit",
        "grpc_commit",
        "grpc_replay",
    )
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_every_api_counts_the_record_that_was_acknowledged_before(tmp_path: Path, stack: ExitStack) -> None:
    free = "127.0.0.1:0"
    broker = stack.enter_context(BrokerProcess(tmp_path / "data", http=free, tcp=free, grpc=free))
    readers, producer = Readers(broker.addresses, stack), Producer(broker.bootstrap)
    readers._tcp.data("createTopic", topic=TOPIC)
    number, missed = 0, []
    for name, ask in ASKED.items():
        for _ in range(ROUNDS):
            producer.produce(number)
            if ask(readers, number) != number:
                missed.append((name, number))
            number += 1
    assert missed == []


def test_every_api_of_another_node_counts_the_record_that_was_acknowledged_before(
    tmp_path: Path, etcd: Etcd, stack: ExitStack
) -> None:
    cluster = stack.enter_context(ClusterProcesses(tmp_path, etcd.urls))
    cluster.create(NewTopic(TOPIC, 1, 3))
    leader = cluster.leader(TOPIC)
    other = next(node for number, node in cluster.nodes.items() if number != leader)
    readers, producer = Readers(other.addresses, stack), Producer(cluster.bootstrap)
    number, missed, counted = 0, [], dict.fromkeys(ASKED, 0)
    for name, ask in ASKED.items():
        for _ in range(ROUNDS):
            producer.produce(number)
            began = time.monotonic()
            answer = ask(readers, number)
            # Followers that a busy machine stops for so long are not waited for.
            if answer != number and (time.monotonic() - began) * 1000 < SETTLE_MS_MAX:
                missed.append((name, number))
            counted[name] += answer == number
            number += 1
    assert missed == []
    assert 0 not in counted.values(), counted


def test_a_reader_does_not_wait_for_a_follower_that_is_away(tmp_path: Path, etcd: Etcd, stack: ExitStack) -> None:
    # A follower that is missing stays in the in-sync set for much longer than the test takes.
    slow = {"cluster.lag_ms_max": 600_000, "cluster.lease_ms": 60_000}
    cluster = stack.enter_context(ClusterProcesses(tmp_path, etcd.urls, settings=slow))
    cluster.create(NewTopic(TOPIC, 1, replica_assignment=[[1, 2, 3]]))
    leader, follower = cluster.nodes[1], cluster.nodes[3]
    assert cluster.leader(TOPIC) == 1
    readers, producer = Readers(leader.addresses, stack), Producer(leader.bootstrap)
    producer.produce(0)
    eventually(lambda: readers.http_offsets(0) == 0, SECONDS_MAX, "the first record is replicated")
    os.kill(follower.pid, signal.SIGSTOP)
    try:
        producer.produce(1)
        answers = {name: ask(readers, 1) for name, ask in ASKED.items() if name not in ("tcp_commit", "grpc_commit")}
    finally:
        os.kill(follower.pid, signal.SIGCONT)
    assert {name for name, answer in answers.items() if answer == 1} == set(), "it is not committed"
    eventually(lambda: readers.http_offsets(1) == 1, SECONDS_MAX, "the follower has it")
