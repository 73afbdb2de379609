"""What the tests of the sink have in common: everything a topic holds, read by a Kafka client that waits for no commit."""

import uuid
from dataclasses import dataclass

import confluent_kafka

from tests.support.waiting import Deadline

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a client saw it."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    offset: int
    timestamp_ms: int


def seen_in(bootstrap: str, topic: str) -> list[Seen]:
    """Every record that a reader of uncommitted ones is given, partition by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
            "fetch.message.max.bytes": 10_000_000,
        }
    )
    deadline = Deadline(SECONDS, f"all records of {topic}")
    found: list[Seen] = []
    try:
        partitions = consumer.list_topics(topic, timeout=deadline.left).topics[topic].partitions
        ends = {}
        for partition in sorted(partitions):
            place = confluent_kafka.TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(place, timeout=deadline.left)
            if low < high:
                ends[partition] = high
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
        while ends:
            message = consumer.poll(deadline.left)
            if message is None:
                continue
            assert message.error() is None, message.error()
            found.append(
                Seen(
                    message.value(),
                    message.key(),
                    tuple((name, value) for name, value in message.headers() or []),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                )
            )
            if message.offset() + 1 >= ends[message.partition()]:
                del ends[message.partition()]
    finally:
        consumer.close()
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values_in(bootstrap: str, topic: str) -> list[bytes | None]:
    """Values alone, sorted: what was written, however often."""
    return sorted((record.value for record in seen_in(bootstrap, topic)), key=lambda value: value or b"")
