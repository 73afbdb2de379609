"""What the producer does when a broker says no, or says nothing."""

import socket
import threading

import pytest

from penstock.client import Acks, BrokerRefused, Cluster, ConnectionLost, Producer
from penstock.client.batches import BatchSender
from penstock.client.producer import BATCH_BYTES
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.kafka.produce_generated import (
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from tests.support.scripted_broker import CLOSE

UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE, OUT_OF_ORDER, DUPLICATE = 3, 6, 10, 45, 46


class Log:
    """Answers produces: with the next of the planned error codes (or CLOSE), and then with success."""

    def __init__(self, *plan) -> None:
        self._plan = list(plan)
        self.batches = []

    def __call__(self, request):
        step = self._plan.pop(0) if self._plan else 0
        if step is CLOSE:
            return CLOSE
        topics = []
        for topic in request.topic_data:
            parts = []
            for part in topic.partition_data:
                self.batches.append((part.index, bytes(part.records), step))
                parts.append(ProduceResponsePartition(index=part.index, error_code=step, base_offset=len(self.batches)))
            topics.append(ProduceResponseTopic(name=topic.name, partition_responses=parts))
        return ProduceResponse(responses=topics)

    def sequences(self, *codes):
        return [read_header(data).base_sequence for _, data, code in self.batches if code in codes]

    def values(self):
        return [record.value for _, data, code in self.batches if not code for record in read_records(data, 1 << 30)]


def cluster_of(broker, timeout_ms=60_000):
    return Cluster(broker.bootstrap, timeout_ms=timeout_ms)


def _produce(cluster) -> None:
    Producer(cluster, auto_create=False).produce("t", b"x")


def _send_batch(cluster) -> None:
    builder = BatchBuilder()
    builder.add(1000, None, b"x")
    with BatchSender(cluster) as sender:
        sender.send("t", 0, builder.build(), 1)


def full(number):
    """A record that fills a batch by itself."""
    return b"%d" % number + bytes(BATCH_BYTES)


def test_records_are_gathered_until_the_flush(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        producer = Producer(cluster)
        for number in range(10):
            producer.send("t", b"%d" % number)
        assert log.batches == []
        producer.flush()
        assert producer.records_sent == 10
    assert len(log.batches) == 1
    assert log.values() == [b"%d" % number for number in range(10)]


def test_a_full_batch_leaves_by_itself(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster, Producer(cluster) as producer:
        for number in range(7):
            producer.send("t", full(number))
    assert len(log.batches) == 7
    assert log.sequences(0) == list(range(7))


def test_leaving_the_block_flushes_unless_an_error_came(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        good, bad = Producer(cluster), Producer(cluster)
        good.send("t", b"in")
        bad.send("t", b"out")
        good.__exit__(None, None, None)
        bad.__exit__(ValueError, ValueError(), None)
    assert log.values() == [b"in"]


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_TOPIC], ids=["moved", "has not heard of it yet"])
def test_a_moments_refusal_is_tried_again_with_the_same_number(scripted, code) -> None:
    log = Log(code, code)
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        assert Producer(cluster, auto_create=False).produce("t", b"x") == (0, 3)
    assert log.sequences(code, 0) == [0, 0, 0]


def test_batches_behind_a_failed_one_are_sent_again_behind_it(scripted) -> None:
    # The first fails; the broker then refuses those already on their way, for there is a gap before them.
    log = Log(NOT_LEADER, OUT_OF_ORDER, OUT_OF_ORDER, OUT_OF_ORDER, OUT_OF_ORDER)
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster, Producer(cluster) as producer:
        for number in range(8):
            producer.send("t", full(number))
    assert log.sequences(0) == list(range(8))


def test_a_lost_connection_is_no_lost_record_with_idempotence(scripted) -> None:
    log = Log(0, CLOSE, 0)
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster, Producer(cluster) as producer:
        for number in range(4):
            producer.send("t", full(number))
    assert sorted(set(log.sequences(0))) == list(range(4))


@pytest.mark.parametrize("acks", Acks)
def test_a_leader_that_has_died_is_waited_for_until_another_leads(scripted, acks) -> None:
    log, taken = Log(), threading.Event()

    def produce(request):
        answer = log(request)
        taken.set()
        return None if acks is Acks.NONE else answer

    broker = scripted({ApiKey.PRODUCE: produce})
    with socket.create_server(("127.0.0.1", 0)) as unused:
        gone = unused.getsockname()[1]
    leaders = iter([2, 2])

    def metadata(_):
        part = MetadataResponsePartition(partition_index=0, leader_id=next(leaders, 1))
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port), MetadataResponseBroker(2, "127.0.0.1", gone)],
            topics=[MetadataResponseTopic(name="t", partitions=[part])],
        )

    broker.handlers[ApiKey.METADATA] = metadata
    with cluster_of(broker) as cluster, Producer(cluster, acks=acks) as producer:
        producer.send("t", b"a")
        producer.flush()
        assert producer.records_sent == 1
        assert taken.wait(10)
    assert log.values() == [b"a"]


@pytest.mark.parametrize("send", [_produce, _send_batch], ids=["records", "batches"])
def test_a_partition_that_has_no_leader_yet_is_waited_for(scripted, send) -> None:
    leaders = [-1, -1, 1, -1, 1]

    def metadata(_):
        part = MetadataResponsePartition(partition_index=0, leader_id=leaders.pop(0) if leaders else 1)
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port)],
            controller_id=1,
            topics=[MetadataResponseTopic(name="t", partitions=[part])],
        )

    log = Log()
    broker = scripted({ApiKey.PRODUCE: log, ApiKey.METADATA: metadata})
    with cluster_of(broker) as cluster:
        send(cluster)
        # It goes away between two of them, too.
        cluster.forget()
        send(cluster)
    assert leaders == []
    assert log.values() == [b"x", b"x"]


def test_a_duplicate_is_a_success(scripted) -> None:
    with cluster_of(scripted({ApiKey.PRODUCE: Log(DUPLICATE)})) as cluster:
        assert Producer(cluster).produce("t", b"x") == (0, 1)


def test_without_idempotence_a_lost_request_is_told_and_not_sent_twice(scripted) -> None:
    log = Log(CLOSE)
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster, pytest.raises(ConnectionLost):
        Producer(cluster, acks=Acks.LEADER).produce("t", b"x")
    assert log.batches == []


def test_a_refusal_for_good_is_told_at_once(scripted) -> None:
    log = Log(TOO_LARGE)
    with (
        cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster,
        pytest.raises(BrokerRefused, match="MESSAGE_TOO_LARGE"),
    ):
        Producer(cluster).produce("t", b"x")
    assert len(log.batches) == 1


def test_a_refusal_that_lasts_is_told_when_the_time_is_over(scripted, pauses) -> None:
    with (
        cluster_of(scripted({ApiKey.PRODUCE: Log(*[NOT_LEADER] * 1000)}), timeout_ms=10_000) as cluster,
        pytest.raises(BrokerRefused, match="NOT_LEADER_OR_FOLLOWER"),
    ):
        Producer(cluster).produce("t", b"x")


def test_nothing_is_awaited_with_acks_0(scripted) -> None:
    broker = scripted({ApiKey.PRODUCE: lambda _: None})
    with cluster_of(broker) as cluster, Producer(cluster, acks=Acks.NONE) as producer:
        for number in range(3):
            producer.send("t", full(number))
        assert producer.records_sent == 3


def test_an_idempotent_producer_needs_acks_all(scripted) -> None:
    with cluster_of(scripted({})) as cluster, pytest.raises(ValueError, match="acks=all"):
        Producer(cluster, acks=Acks.LEADER, idempotent=True)


def test_the_partition_is_the_one_given_then_the_keys_then_the_next_in_turn(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log}, partitions=4)) as cluster, Producer(cluster) as producer:
        assert [producer.send("t", b"v") for _ in range(5)] == [0, 1, 2, 3, 0]
        assert producer.send("t", b"v", key=b"anna", partition=3) == 3
        assert {producer.send("t", b"v", key=b"anna") for _ in range(5)} == {3}
        assert producer.send("t", b"v", key=b"") == 1, "an empty key is no key"


def test_a_partition_that_is_not_there_is_told_with_its_first_record(scripted) -> None:
    with cluster_of(scripted({}, partitions=2)) as cluster, pytest.raises(BrokerRefused, match="has partitions 0 to 1"):
        Producer(cluster).send("t", b"v", partition=2)


def test_each_acknowledged_batch_is_reported(scripted) -> None:
    seen = []
    with (
        cluster_of(scripted({ApiKey.PRODUCE: Log()}, partitions=2)) as cluster,
        Producer(cluster, on_delivery=seen.append) as producer,
    ):
        producer.send("t", b"a", partition=0)
        producer.send("t", b"b", partition=1)
        producer.send("t", b"c", partition=1)
    assert [tuple(delivery) for delivery in seen] == [("t", 0, 1, 1), ("t", 1, 2, 2)]
