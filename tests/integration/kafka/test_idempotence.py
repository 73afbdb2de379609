"""Idempotent producers over the wire: a batch that is sent twice is stored once, also by a broker that was restarted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Reason
from penstock.testing.broker import BrokerThread
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest
from tests.integration.kafka.conftest import make_topic
from tests.support.kafka_node import reason_of
from tests.support.kafka_wire import FETCH, PRODUCE, RawClient, batch, fetch, fetched, produce, produced, values

SEQUENCE_MAX = 2**31 - 1
Outcome = tuple[Reason | None, int]


class Producer:
    """One producer id on one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.connect(bootstrap)
        self.id = self.client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(None, 1000), 5).producer_id

    def connect(self, bootstrap: str) -> None:
        self.client = RawClient(bootstrap)

    def send(self, sequence: int, count: int = 1, epoch: int = 0) -> Outcome:
        data = batch(
            *(b"%d" % (sequence + n) for n in range(count)),
            producer_id=self.id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        answer = produced(self.client.ask(PRODUCE, produce(self.topic, data), 9))
        return reason_of(answer.error_code), answer.base_offset

    def stored(self) -> list[bytes | None]:
        return values(fetched(self.client.ask(FETCH, fetch(self.topic, 0), 12)).records)


@pytest.fixture
def producer(penstock_broker: BrokerThread) -> Iterator[Producer]:
    made = Producer(penstock_broker.bootstrap, make_topic(penstock_broker.bootstrap))
    yield made
    made.client.socket.close()


def test_each_of_the_last_five_batches_is_known_again(producer: Producer) -> None:
    first = [producer.send(2 * n, count=2) for n in range(6)]
    assert first == [(None, 2 * n) for n in range(6)]
    assert [producer.send(2 * n, count=2) for n in range(1, 6)] == first[1:]
    assert producer.send(0, count=2) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.stored() == [b"%d" % n for n in range(12)]


def test_a_gap_and_a_different_cut_are_refused(producer: Producer) -> None:
    producer.send(0, count=3)
    assert producer.send(4) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.send(0, count=2) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.send(1, count=2) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.send(3) == (None, 3)


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_at_0(producer: Producer) -> None:
    assert producer.send(0, epoch=3) == (None, 0)
    assert producer.send(1, epoch=2) == (Reason.INVALID_PRODUCER_EPOCH, -1)
    assert producer.send(1, epoch=4) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.send(0, epoch=4) == (None, 1)
    assert producer.send(1, epoch=3) == (Reason.INVALID_PRODUCER_EPOCH, -1)
    assert producer.send(0, epoch=4) == (None, 1)


def test_sequence_numbers_start_again_after_the_greatest(producer: Producer) -> None:
    assert producer.send(SEQUENCE_MAX - 2) == (None, 0)
    # The numbers of this batch are the last two and then 0.
    wrapping = producer.send(SEQUENCE_MAX - 1, count=3)
    assert wrapping == (None, 1)
    assert producer.send(1, count=2) == (None, 4)
    assert producer.send(SEQUENCE_MAX - 1, count=3) == (None, 1)
    assert producer.send(1, count=2) == (None, 4)
    assert producer.send(0) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert producer.send(3) == (None, 6)


@pytest.mark.parametrize("flush", ["os", "sync"])
def test_a_restart_forgets_nothing(tmp_path: Path, flush: str) -> None:
    with BrokerThread(tmp_path / "data", {"log.flush": flush}) as broker:
        topic = make_topic(broker.bootstrap)
        producer = Producer(broker.bootstrap, topic)
        first = [producer.send(n) for n in range(7)]
        assert producer.send(0, epoch=1) == (None, 7)
        producer.client.socket.close()
        broker.restart()
        producer.connect(broker.bootstrap)
        assert producer.send(0, epoch=1) == (None, 7)
        assert producer.send(7) == (Reason.INVALID_PRODUCER_EPOCH, -1)
        assert producer.send(2, epoch=1) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
        assert producer.send(1, epoch=1) == (None, 8)
        second = Producer(broker.bootstrap, topic)
        assert second.id != producer.id
        assert len(producer.stored()) == len(first) + 2
        for each in (producer, second):
            each.client.socket.close()


def test_a_pipeline_that_is_sent_again_is_stored_once(producer: Producer) -> None:
    """As a client does whose connection broke: it sends all that was not answered again, in order."""
    batches = [batch(b"%d" % n, producer_id=producer.id, producer_epoch=0, base_sequence=n) for n in range(5)]
    for _ in range(3):
        for data in batches:
            producer.client.send(PRODUCE, produce(producer.topic, data), 9)
    offsets = [produced(producer.client.answer(PRODUCE, 9)[1]).base_offset for _ in range(15)]
    assert offsets == [0, 1, 2, 3, 4] * 3
    assert len(producer.stored()) == 5
