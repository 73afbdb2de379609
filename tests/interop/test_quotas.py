"""Clients over their quotas: they are told for how long, wait by themselves, and lose nothing."""

import json
from collections.abc import Callable, Iterator

import kafka
import pytest
from confluent_kafka import Consumer, Producer

from penstock.client import Cluster
from penstock.client.quota_admin import QuotaAdmin

SECONDS_MAX = 60
SIZE, COUNT = 10_000, 30
RATE = 20_000
"""Ten seconds of it pass at once, and the rest is throttled for some five seconds."""

pytestmark = pytest.mark.usefixtures("is_penstock")


class Throttled:
    """The throttle times in the statistics of librdkafka."""

    def __init__(self) -> None:
        self.longest_ms = 0

    def __call__(self, statistics: str) -> None:
        for broker in json.loads(statistics)["brokers"].values():
            self.longest_ms = max(self.longest_ms, broker.get("throttle", {}).get("max", 0))


@pytest.fixture
def limited(bootstrap: str, unique: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """A client id with these quotas."""
    set_here: list[tuple[dict[str, str | None], list[str]]] = []
    with Cluster(bootstrap) as cluster:
        admin = QuotaAdmin(cluster)

        def make(**quotas: float) -> str:
            client_id = unique("limited")
            admin.alter({"client-id": client_id}, dict(quotas))
            set_here.append(({"client-id": client_id}, list(quotas)))
            return client_id

        yield make
        for entity, keys in set_here:
            admin.remove(entity, keys)


def fill(bootstrap: str, topic: str, client_id: str = "fast", throttled: Throttled | None = None) -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "statistics.interval.ms": 100,
            "stats_cb": throttled or Throttled(),
        }
    )
    for number in range(COUNT):
        producer.produce(
            topic, bytes([number]) * SIZE, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(SECONDS_MAX) == 0
    producer.poll(0.2)
    assert failures == []


def test_a_producer_is_throttled_and_everything_arrives(
    bootstrap: str, new_topic: Callable[..., str], limited: Callable[..., str]
) -> None:
    topic, throttled = new_topic(), Throttled()
    fill(bootstrap, topic, limited(producer_byte_rate=RATE), throttled)
    assert throttled.longest_ms > 0
    assert read(bootstrap, topic, "fast", Throttled()) == [bytes([number]) * SIZE for number in range(COUNT)]


def read(bootstrap: str, topic: str, client_id: str, throttled: Throttled) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": throttled,
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < COUNT:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"only {len(found)} records arrived"
            assert message.error() is None
            found.append(message.value())
        consumer.poll(0.2)
    finally:
        consumer.close()
    return found


def test_a_consumer_is_throttled_and_everything_arrives(
    bootstrap: str, new_topic: Callable[..., str], limited: Callable[..., str]
) -> None:
    topic, throttled = new_topic(), Throttled()
    fill(bootstrap, topic)
    wanted = [bytes([number]) * SIZE for number in range(COUNT)]
    assert read(bootstrap, topic, limited(consumer_byte_rate=RATE), throttled) == wanted
    assert throttled.longest_ms > 0


def test_kafka_python_is_throttled_too_and_everything_arrives(
    bootstrap: str, new_topic: Callable[..., str], limited: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    client_id = limited(producer_byte_rate=RATE, consumer_byte_rate=RATE)
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id=client_id, batch_size=0)
    for number in range(COUNT):
        producer.send(topic, bytes([number]) * SIZE)
    producer.flush(SECONDS_MAX)
    producer.close()
    assert "ProduceResponse throttled by broker" in caplog.text
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        client_id=client_id,
        auto_offset_reset="earliest",
        consumer_timeout_ms=SECONDS_MAX * 1000,
        max_partition_fetch_bytes=3 * SIZE,
    )
    found = [next(consumer).value for _ in range(COUNT)]
    consumer.close()
    assert found == [bytes([number]) * SIZE for number in range(COUNT)]
    assert "FetchResponse throttled by broker" in caplog.text
