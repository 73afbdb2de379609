"""The real client: librdkafka as the confluent-kafka package brings it.

Two ways in. By the library itself, through ctypes and its batch calls, where Python does nothing per record: what a broker gives to the
clients of any language. And by the package's own Python classes, where making an object per record is most of the cost: what a Python
program sees. Settings are the client's defaults, but for the queue lengths that a throughput test needs.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.bench.faults import BenchError

_CALL_RECORDS = 10_000
_QUEUE_RECORDS = 1_000_000
_STALL_S_MAX = 30.0
_FLUSH_S_MAX = 60
_PRODUCER, _CONSUMER = 0, 1
_ANY_PARTITION = -1
_COPY = 2  # the library copies the value, as it does under every language binding
_BEGINNING = -2


@dataclass(frozen=True, slots=True)
class InPlan:
    """What to produce."""

    bootstrap: str
    topic: str
    acks: str
    value_bytes: int
    warmup_s: float
    seconds: float
    records_max: int
    on_start: Callable[[], None]

    @property
    def settings(self) -> dict[str, str]:
        """Client settings."""
        return {
            "bootstrap.servers": self.bootstrap,
            "acks": self.acks,
            "queue.buffering.max.messages": str(_QUEUE_RECORDS),
        }


@dataclass(frozen=True, slots=True)
class OutPlan:
    """What to consume: `records` lie in the topic, and are read over and over until the time is up."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    warmup_s: float
    seconds: float
    on_start: Callable[[], None]

    @property
    def settings(self) -> dict[str, str]:
        """Client settings."""
        return {
            "bootstrap.servers": self.bootstrap,
            "queued.min.messages": str(_QUEUE_RECORDS),
            "group.id": "penstock-bench",
        }


def is_installed() -> bool:
    """Whether confluent-kafka is there."""
    try:
        _package()
    except BenchError:
        return False
    return True


def _package() -> ModuleType:
    try:
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise BenchError(
            "the client rows need confluent-kafka: pip install confluent-kafka, or leave them out with --only"
        ) from error


# By the Python classes.


def produce_by_python(plan: InPlan) -> int:
    """Produce record by record; how many were acknowledged in the measured stretch."""
    producer: Any = _package().Producer(plan.settings)
    failures: list[str] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    value = b"v" * plan.value_bytes

    def stretch(seconds: float, records_max: int) -> int:
        sent = 0
        end = time.perf_counter() + seconds
        while sent < records_max and time.perf_counter() < end:
            for _ in range(1000):
                try:
                    producer.produce(plan.topic, value, on_delivery=on_delivery)
                except BufferError:
                    producer.poll(0.01)
                else:
                    sent += 1
            producer.poll(0)
        if producer.flush(_FLUSH_S_MAX) or failures:
            raise BenchError(f"the client could not deliver its records: {failures[0] if failures else 'no answer'}")
        return sent

    stretch(plan.warmup_s, plan.records_max // 4)
    plan.on_start()
    return stretch(plan.seconds, plan.records_max - plan.records_max // 4)


def consume_by_python(plan: OutPlan) -> int:
    """Consume in lists of messages; how many arrived in the measured stretch."""
    package = _package()
    consumer: Any = package.Consumer(plan.settings | {"enable.auto.commit": "false"})

    def rewind() -> None:
        consumer.assign([package.TopicPartition(plan.topic, partition, 0) for partition in range(plan.partitions)])

    def take() -> int:
        messages = consumer.consume(_CALL_RECORDS, 0.1)
        if messages and (error := messages[-1].error()):
            raise BenchError(f"the client could not consume: {error}")
        return len(messages)

    try:
        return _read_over_and_over(plan, rewind, take)
    finally:
        consumer.close()


def _read_over_and_over(plan: OutPlan, rewind: Callable[[], None], take: Callable[[], int]) -> int:
    """Warm up, then count what `take` gives until the time is up, from the beginning again whenever all was read."""

    def stretch(seconds: float) -> int:
        rewind()
        total = in_pass = 0
        now = time.perf_counter()
        end, last_seen = now + seconds, now
        while now < end:
            count = take()
            now = time.perf_counter()
            if count:
                last_seen = now
            elif now - last_seen > _STALL_S_MAX:
                raise BenchError(f"the client got nothing for {_STALL_S_MAX:.0f} s: see the broker's log")
            total += count
            in_pass += count
            if in_pass >= plan.records:
                in_pass = 0
                rewind()
        return total

    stretch(plan.warmup_s)
    plan.on_start()
    return stretch(plan.seconds)


# By the library.


class _Message(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("payload_bytes", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_bytes", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("opaque", ctypes.c_void_p),
    )


_P, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "rd_kafka_conf_new": (_P, []),
    "rd_kafka_conf_set": (_INT, [_P, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "rd_kafka_new": (_P, [_INT, _P, _TEXT, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_P]),
    "rd_kafka_topic_new": (_P, [_P, _TEXT, _P]),
    "rd_kafka_topic_destroy": (None, [_P]),
    "rd_kafka_produce_batch": (_INT, [_P, ctypes.c_int32, _INT, _P, _INT]),
    "rd_kafka_outq_len": (_INT, [_P]),
    "rd_kafka_poll": (_INT, [_P, _INT]),
    "rd_kafka_flush": (_INT, [_P, _INT]),
    "rd_kafka_queue_new": (_P, [_P]),
    "rd_kafka_queue_destroy": (None, [_P]),
    "rd_kafka_consume_start_queue": (_INT, [_P, ctypes.c_int32, ctypes.c_int64, _P]),
    "rd_kafka_consume_stop": (_INT, [_P, ctypes.c_int32]),
    "rd_kafka_consume_callback_queue": (_INT, [_P, _INT, _P, _P]),
}


def _load() -> Any:
    """The shared library inside the installed package."""
    home = Path(str(_package().__file__)).resolve().parent
    places = (home.parent / "confluent_kafka.libs", home / ".dylibs", home.parent / "confluent_kafka.dylibs")
    for place in places:
        for path in sorted(place.glob("librdkafka*")):
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            return library
    raise BenchError(
        "this confluent-kafka does not bring its own librdkafka: leave out the librdkafka rows with --only"
    )


class _Handle:
    """One client instance with one topic."""

    def __init__(self, kind: int, settings: dict[str, str], topic: str) -> None:
        self.library = _load()
        reason = ctypes.create_string_buffer(512)
        conf = self.library.rd_kafka_conf_new()
        for key, value in settings.items():
            if self.library.rd_kafka_conf_set(conf, key.encode(), value.encode(), reason, len(reason)):
                raise BenchError(f"librdkafka does not take {key}={value}: {reason.value.decode()}")
        self.client = self.library.rd_kafka_new(kind, conf, reason, len(reason))
        if not self.client:
            raise BenchError(f"librdkafka did not start: {reason.value.decode()}")
        self.topic = self.library.rd_kafka_topic_new(self.client, topic.encode(), None)

    def close(self) -> None:
        """Give everything back and end the library's threads."""
        self.library.rd_kafka_topic_destroy(self.topic)
        self.library.rd_kafka_destroy(self.client)


def produce_by_library(plan: InPlan) -> int:
    """Produce by batch calls; how many records left the queue in the measured stretch."""
    handle = _Handle(_PRODUCER, plan.settings, plan.topic)
    library = handle.library
    value = ctypes.create_string_buffer(b"v" * plan.value_bytes, plan.value_bytes)
    messages = (_Message * _CALL_RECORDS)()
    for message in messages:
        message.payload = ctypes.addressof(value)
        message.payload_bytes = plan.value_bytes

    def stretch(seconds: float, records_max: int) -> int:
        sent = 0
        end = time.perf_counter() + seconds
        while sent < records_max and time.perf_counter() < end:
            if library.rd_kafka_outq_len(handle.client) > _QUEUE_RECORDS - _CALL_RECORDS:
                library.rd_kafka_poll(handle.client, 2)
                continue
            sent += library.rd_kafka_produce_batch(handle.topic, _ANY_PARTITION, _COPY, messages, _CALL_RECORDS)
            library.rd_kafka_poll(handle.client, 0)
        if library.rd_kafka_flush(handle.client, _FLUSH_S_MAX * 1000):
            raise BenchError("librdkafka could not deliver its records in a minute: see the broker's log")
        return sent

    try:
        stretch(plan.warmup_s, plan.records_max // 4)
        plan.on_start()
        return stretch(plan.seconds, plan.records_max - plan.records_max // 4)
    finally:
        handle.close()


def consume_by_library(plan: OutPlan) -> int:
    """Consume by a callback in C that does nothing; how many records it was called for in the measured stretch."""
    handle = _Handle(_CONSUMER, plan.settings, plan.topic)
    library = handle.library
    queue = library.rd_kafka_queue_new(handle.client)
    # A Python callback would cost more than the client and the broker together. `abs` takes its arguments in registers, touches no memory,
    # and returns something that the library ignores.
    ignore = ctypes.cast(ctypes.CDLL(None).abs, _P)
    running: list[int] = []

    def stop() -> None:
        while running:
            library.rd_kafka_consume_stop(handle.topic, running.pop())

    def rewind() -> None:
        stop()
        for partition in range(plan.partitions):
            if library.rd_kafka_consume_start_queue(handle.topic, partition, _BEGINNING, queue):
                raise BenchError("librdkafka did not start to consume")
            running.append(partition)

    try:
        return _read_over_and_over(
            plan, rewind, lambda: int(library.rd_kafka_consume_callback_queue(queue, 100, ignore, None))
        )
    finally:
        stop()
        library.rd_kafka_queue_destroy(queue)
        handle.close()
