"""Four clients behind one face each for producing and consuming, so that a test can put any two of them together.

A record's partition is always given, so that two clients' partitioners do not matter. All waiting is the clients' own,
bounded by a deadline.
"""

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiokafka
import confluent_kafka
import kafka

from tests.support.waiting import Deadline

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int = field(default=-1, compare=False)


Producer = Callable[..., None]
Consumer = Callable[..., list[Record]]


def produce_confluent(bootstrap: str, topic: str, records: Sequence[Record], **config: object) -> None:
    failures: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
        if error is not None:
            failures.append(str(error))

    settings: dict[str, object] = {"bootstrap.servers": bootstrap, "linger.ms": 20, "message.max.bytes": 10_000_000}
    if "compression" in config:
        settings["compression.type"] = config["compression"]
    if config.get("idempotent"):
        settings["enable.idempotence"] = True
    producer = confluent_kafka.Producer(settings)
    for record in records:
        timestamp: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            on_delivery=delivered,
            **timestamp,
        )
        producer.poll(0)
    left = producer.flush(SECONDS)
    assert failures == []
    assert left == 0, f"{left} records were not acknowledged"


def consume_confluent(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
    deadline = Deadline(SECONDS, f"{count} records of {topic} for confluent-kafka")
    found: list[Record] = []
    try:
        while len(found) < count:
            message: Any = consumer.poll(deadline.left)
            if message is None:
                continue
            assert message.error() is None, message.error()
            headers = tuple((name, value) for name, value in message.headers() or [])
            found.append(
                Record(
                    message.value(),
                    message.key(),
                    headers,
                    message.timestamp()[1],
                    message.partition(),
                    message.offset(),
                )
            )
    finally:
        consumer.close()
    return found


def produce_kafka_python(bootstrap: str, topic: str, records: Sequence[Record], **config: object) -> None:
    compression = config.get("compression", "none")
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=20,
        acks="all",
        compression_type=None if compression == "none" else compression,
        enable_idempotence=bool(config.get("idempotent", False)),
        max_request_size=10_000_000,
    )
    try:
        sent = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )
            for record in records
        ]
        producer.flush(SECONDS)
        for future in sent:
            future.get(SECONDS)
    finally:
        producer.close()


def consume_kafka_python(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, check_crcs=True)
    where = kafka.TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.seek(where, offset)
    deadline = Deadline(SECONDS, f"{count} records of {topic} for kafka-python")
    found: list[Record] = []
    try:
        while len(found) < count:
            for messages in consumer.poll(timeout_ms=int(min(1.0, deadline.left) * 1000)).values():
                found.extend(
                    Record(m.value, m.key, tuple(m.headers), m.timestamp, m.partition, m.offset) for m in messages
                )
    finally:
        consumer.close()
    return found[:count]


def produce_aiokafka(bootstrap: str, topic: str, records: Sequence[Record], **config: object) -> None:
    async def run() -> None:
        compression = config.get("compression", "none")
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            linger_ms=20,
            acks="all",
            compression_type=None if compression == "none" else compression,
            enable_idempotence=bool(config.get("idempotent", False)),
            max_request_size=10_000_000,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def consume_aiokafka(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
    async def run() -> list[Record]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, check_crcs=True)
        await consumer.start()
        try:
            where = aiokafka.TopicPartition(topic, partition)
            consumer.assign([where])
            consumer.seek(where, offset)
            found: list[Record] = []
            while len(found) < count:
                m = await consumer.getone()
                found.append(Record(m.value, m.key, tuple(m.headers), m.timestamp, m.partition, m.offset))
            return found
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(run(), SECONDS))


def run_kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """What kcat wrote; AssertionError with what it complained about when it failed."""
    path = shutil.which("kcat")
    assert path is not None, "ask for the kcat fixture"
    done = subprocess.run([path, *arguments], input=stdin, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def produce_kcat(bootstrap: str, topic: str, records: Sequence[Record], **config: object) -> None:
    """kcat gives all records of a run the same headers and no timestamps, and its values are lines of text."""
    partitions = {record.partition for record in records}
    headers = {record.headers for record in records}
    assert len(headers) == 1, "kcat gives all records the same headers"
    (shared,) = headers
    flags = [word for name, value in shared for word in ("-H", f"{name}={(value or b'').decode()}")]
    flags += ["-X", "enable.idempotence=true"] if config.get("idempotent") else []
    flags += ["-z", str(config["compression"])] if config.get("compression", "none") != "none" else []
    for partition in sorted(partitions):
        chosen = [record for record in records if record.partition == partition]
        lines = b"".join((record.key or b"") + b"\t" + (record.value or b"") + b"\n" for record in chosen)
        run_kcat("-P", "-b", bootstrap, "-t", topic, "-p", str(partition), "-K", "\t", "-Z", *flags, stdin=lines)


def consume_kcat(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Record]:
    out = run_kcat(
        *("-C", "-q", "-b", bootstrap, "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count)),
        *("-X", "check.crcs=true", "-f", "%p %o %T %K %S\\n%h\\n%k%s\\n"),
    )
    found: list[Record] = []
    while out:
        first, headers_line, rest = out.split(b"\n", 2)
        number, at, timestamp, key_length, value_length = map(int, first.split())
        key = rest[:key_length] if key_length >= 0 else None
        rest = rest[max(key_length, 0) :]
        value = rest[:value_length] if value_length >= 0 else None
        out = rest[max(value_length, 0) + 1 :]
        pairs = [pair.partition(b"=") for pair in headers_line.split(b",") if pair]
        found.append(Record(value, key, tuple((n.decode(), v) for n, _, v in pairs), timestamp, number, at))
    assert len(found) == count
    return found


PRODUCERS: dict[str, Producer] = {
    "confluent": produce_confluent,
    "kafka-python": produce_kafka_python,
    "aiokafka": produce_aiokafka,
    "kcat": produce_kcat,
}
CONSUMERS: dict[str, Consumer] = {
    "confluent": consume_confluent,
    "kafka-python": consume_kafka_python,
    "aiokafka": consume_aiokafka,
    "kcat": consume_kcat,
}
PYTHON_CLIENTS = ("confluent", "kafka-python", "aiokafka")
