"""Rows of a real client: librdkafka, as part of the confluent-kafka package.

It is used in two ways: through ctypes and its batch calls, where Python does nothing per record, for the speed of a client in any language;
and through the Python classes of the package, which make an object per record, for the speed of a Python program. All settings are the
client's defaults, except for the queue lengths, which a throughput test needs.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.bench.context import RowContext, Workload, WorkloadKind
from penstock.bench.faults import BenchError
from penstock.bench.lanes import preload
from penstock.bench.rows import Meter, Row
from penstock.bench.workloads import MIB, WORKLOADS

_CALL_RECORDS = 10_000
_QUEUE_RECORDS = 1_000_000
_PRELOAD_RECORDS_MAX = 2_000_000
_STALL_S_MAX = 30.0
_FLUSH_S_MAX = 60
_PRODUCER, _CONSUMER = 0, 1
_ANY_PARTITION = -1
_COPY = 2  # the library copies the value, as it does under every language binding
_BEGINNING = -2


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
            "The client rows require confluent-kafka; run pip install confluent-kafka, or leave them out with --only"
        ) from error


def _produced(context: RowContext, stretch: Callable[[float, int], int]) -> Row:
    """Warm up, then measure how many records `stretch` delivers in this many seconds, of at most this many."""
    options = context.options
    records_max = options.requests_max()
    meter = Meter(context.pid)
    stretch(options.warmup_s, records_max // 4)
    meter.start()
    delivered = stretch(options.seconds, records_max - records_max // 4)
    row = context.row(meter, records=delivered)
    # A client reports a record that it gives up on to a callback only, which would cost too much here: the topic shows it.
    context.check_stored(delivered)
    return row


def _consumed(
    context: RowContext, partitions: int, records: int, rewind: Callable[[], None], take: Callable[[], int]
) -> Row:
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
                raise BenchError(f"The client received nothing for {_STALL_S_MAX:.0f} s; see the broker's log")
            total += count
            in_pass += count
            if in_pass >= records * partitions:
                in_pass = 0
                rewind()
        return total

    meter = Meter(context.pid)
    stretch(context.options.warmup_s)
    meter.start()
    return context.row(meter, records=stretch(context.options.seconds))


def _stored(context: RowContext) -> tuple[int, int]:
    """Fill the topic for a consumer; how many partitions it has, and how many records each."""
    options, partitions = context.options, len(context.topic.leaders)
    batch, records = context.batch(context.workload.batch_bytes)
    count = max(1, min(_PRELOAD_RECORDS_MAX, options.requests_max()) // records // partitions)
    preload(context.cluster, context.topic, batch, count)
    return partitions, count * records


def _producer_settings(context: RowContext) -> dict[str, str]:
    return {
        "bootstrap.servers": str(context.endpoints.kafka),
        "acks": str(context.acks),
        "queue.buffering.max.messages": str(_QUEUE_RECORDS),
    }


def _consumer_settings(context: RowContext) -> dict[str, str]:
    return {
        "bootstrap.servers": str(context.endpoints.kafka),
        "queued.min.messages": str(_QUEUE_RECORDS),
        "group.id": "penstock-bench",
    }


# By the Python classes.


def produce_by_python(context: RowContext) -> Row:
    """Produce record by record."""
    producer: Any = _package().Producer(_producer_settings(context))
    failures: list[str] = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    name, value = context.topic.name, context.value.encode()

    def stretch(seconds: float, records_max: int) -> int:
        sent = 0
        end = time.perf_counter() + seconds
        while sent < records_max and time.perf_counter() < end:
            for _ in range(1000):
                try:
                    producer.produce(name, value, on_delivery=on_delivery)
                except BufferError:
                    producer.poll(0.01)
                else:
                    sent += 1
            producer.poll(0)
        if producer.flush(_FLUSH_S_MAX) or failures:
            raise BenchError(f"The client could not deliver its records: {failures[0] if failures else 'no answer'}")
        return sent

    return _produced(context, stretch)


def consume_by_python(context: RowContext) -> Row:
    """Consume in lists of messages."""
    package = _package()
    partitions, records = _stored(context)
    consumer: Any = package.Consumer(_consumer_settings(context) | {"enable.auto.commit": "false"})

    def rewind() -> None:
        consumer.assign([package.TopicPartition(context.topic.name, partition, 0) for partition in range(partitions)])

    def take() -> int:
        messages = consumer.consume(_CALL_RECORDS, 0.1)
        if messages and (error := messages[-1].error()):
            raise BenchError(f"The client could not consume: {error}")
        return len(messages)

    try:
        return _consumed(context, partitions, records, rewind, take)
    finally:
        consumer.close()


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


def _load() -> ctypes.CDLL:
    """The shared library inside the installed package."""
    home = Path(str(_package().__file__)).resolve().parent
    for place in (home.parent / "confluent_kafka.libs", home / ".dylibs", home.parent / "confluent_kafka.dylibs"):
        for path in sorted(place.glob("librdkafka*")):
            library = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            return library
    raise BenchError(
        "The installed confluent-kafka does not include librdkafka; leave out the librdkafka rows with --only"
    )


class _Handle:
    """One client instance with one topic; the library's threads end with the block."""

    def __init__(self, kind: int, settings: dict[str, str], topic: str) -> None:
        self.library = _load()
        reason = ctypes.create_string_buffer(512)
        conf = self.library.rd_kafka_conf_new()
        for key, value in settings.items():
            if self.library.rd_kafka_conf_set(conf, key.encode(), value.encode(), reason, len(reason)):
                raise BenchError(f"Cannot set {key}={value} in librdkafka: {reason.value.decode()}")
        self.client = self.library.rd_kafka_new(kind, conf, reason, len(reason))
        if not self.client:
            raise BenchError(f"Cannot start librdkafka: {reason.value.decode()}")
        self.topic = self.library.rd_kafka_topic_new(self.client, topic.encode(), None)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.library.rd_kafka_topic_destroy(self.topic)
        self.library.rd_kafka_destroy(self.client)


def produce_by_library(context: RowContext) -> Row:
    """Produce by batch calls."""
    value_bytes = context.options.value_bytes
    value = ctypes.create_string_buffer(context.value.encode(), value_bytes)
    messages = (_Message * _CALL_RECORDS)()
    for message in messages:
        message.payload = ctypes.addressof(value)
        message.payload_bytes = value_bytes
    with _Handle(_PRODUCER, _producer_settings(context), context.topic.name) as handle:
        library = handle.library

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
                raise BenchError("Records of librdkafka were not delivered within a minute; see the broker's log")
            return sent

        return _produced(context, stretch)


def consume_by_library(context: RowContext) -> Row:
    """Consume by a callback in C that does nothing; its calls are counted."""
    partitions, records = _stored(context)
    # A Python callback would cost more than the client and the broker together. `abs` takes its arguments in registers, touches no memory,
    # and returns something that the library ignores.
    ignore = ctypes.cast(ctypes.CDLL(None).abs, _P)
    with _Handle(_CONSUMER, _consumer_settings(context), context.topic.name) as handle:
        library = handle.library
        queue = library.rd_kafka_queue_new(handle.client)
        running: list[int] = []

        def stop() -> None:
            while running:
                library.rd_kafka_consume_stop(handle.topic, running.pop())

        def rewind() -> None:
            stop()
            for partition in range(partitions):
                if library.rd_kafka_consume_start_queue(handle.topic, partition, _BEGINNING, queue):
                    raise BenchError("Cannot start to consume with librdkafka")
                running.append(partition)

        def take() -> int:
            return int(library.rd_kafka_consume_callback_queue(queue, 100, ignore, None))

        try:
            return _consumed(context, partitions, records, rewind, take)
        finally:
            stop()
            library.rd_kafka_queue_destroy(queue)


def _client(name: str, title: str, run: Callable[[RowContext], Row], batch_bytes: int = 0) -> Workload:
    return Workload(name, title, WorkloadKind.CLIENT, run, batch_bytes=batch_bytes, has_acks=not batch_bytes)


CLIENT_WORKLOADS = (
    _client("librdkafka-in", "librdkafka produces 100 B records", produce_by_library),
    _client("librdkafka-out", "librdkafka consumes 100 B records", consume_by_library, MIB),
    _client("confluent-in", "confluent-kafka (Python) produces 100 B records", produce_by_python),
    _client("confluent-out", "confluent-kafka (Python) consumes 100 B records", consume_by_python, MIB),
)
ALL_WORKLOADS = (*WORKLOADS[:-1], *CLIENT_WORKLOADS, WORKLOADS[-1])
"""In the order of the tables: the deliveries come last."""
