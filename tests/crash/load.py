"""Clients that go on producing and committing while the broker dies, and remember what they were promised."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping

import confluent_kafka
import kafka
import kafka.errors

from tests.support.waiting import Deadline

IN_FLIGHT_MAX = 300
"""Records sent and not acknowledged: bounds a round, and is more than one batch for each partition."""
BURST_RECORDS = 100


class Producing:
    """Base of the two producers: numbers each partition's records 0, 1, 2, ... and counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: Iterable[int]) -> None:
        self.bootstrap, self.topic, self.partitions = bootstrap, topic, list(partitions)
        self.sent: dict[int, int] = defaultdict(int)
        self.failed: list[str] = []
        self.crashed: BaseException | None = None
        self._acknowledged: dict[int, set[int]] = defaultdict(set)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait until everything sent was acknowledged or given up."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(90)
        assert not self._thread.is_alive(), "the producer did not come to an end"
        if self.crashed is not None:
            raise self.crashed

    def acknowledged(self) -> dict[int, set[int]]:
        """What the broker promised to keep up to now, by partition."""
        with self._changed:
            return {partition: set(numbers) for partition, numbers in self._acknowledged.items()}

    def wait_for_more(self, count: int, seconds: float = 60.0) -> None:
        """Return once ``count`` more records were acknowledged."""
        deadline = Deadline(seconds, f"{count} more records acknowledged to {type(self).__name__}")
        with self._changed:
            goal = self._count() + count
            while self._count() < goal:
                if self.crashed is not None:
                    raise self.crashed
                self._changed.wait(min(1.0, deadline.left))

    def run(self) -> None:
        raise AssertionError("each client has its own")

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - it is raised again in stop()
            self.crashed = error

    def _count(self) -> int:
        return sum(len(numbers) for numbers in self._acknowledged.values())

    def _note(self, partition: int, number: int, error: object) -> None:
        with self._changed:
            if error is None:
                self._acknowledged[partition].add(number)
            else:
                self.failed.append(f"{partition}/{number}: {error}")
            self._changed.notify_all()

    def _unanswered(self) -> int:
        return sum(self.sent.values()) - self._count() - len(self.failed)


class ConfluentProducing(Producing):
    """Idempotent, all replicas: librdkafka sends again for as long as it takes, so nothing may fail in the end."""

    more: Mapping[str, int] = {}
    """What a test wants otherwise of librdkafka."""

    pause_seconds = 0.0
    """A break after every :data:`BURST_RECORDS`, for long runs that read everything again and again."""

    def key(self, number: int) -> bytes | None:
        """The key of a record; none unless a subclass has one."""
        return None

    def run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 40,
                "message.timeout.ms": 0,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
                **self.more,
            }
        )
        for turn in itertools.count():
            if self._stopping.is_set():
                break
            while self._unanswered() >= IN_FLIGHT_MAX and not self._stopping.is_set():
                producer.poll(0.05)
            partition = self.partitions[turn % len(self.partitions)]
            number = self.sent[partition]
            self.sent[partition] += 1

            def noted(error, _message, partition=partition, number=number) -> None:
                self._note(partition, number, error)

            producer.produce(self.topic, b"%d" % number, self.key(number), partition=partition, on_delivery=noted)
            producer.poll(0)
            if self.pause_seconds and turn % BURST_RECORDS == 0:
                self._stopping.wait(self.pause_seconds)
        left = producer.flush(60)
        assert left == 0, f"{left} records were still not acknowledged after a minute with the broker up"


class KeyedProducing(ConfluentProducing):
    """For a compacted topic: most records replace an earlier one, some have a key of their own and must stay for good."""

    KEYS = 17
    LASTING_EVERY = 8

    def key(self, number: int) -> bytes | None:
        return b"lasting %d" % number if number % self.LASTING_EVERY == 0 else b"%d" % (number % self.KEYS)


class KafkaPythonProducing(Producing):
    """Idempotent too; what it gives up may or may not be in the log."""

    def run(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=1,
            batch_size=500,
            retry_backoff_ms=20,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=200,
            max_block_ms=60_000,
            delivery_timeout_ms=60_000,
            request_timeout_ms=20_000,
        )
        try:
            for turn in itertools.count():
                if self._stopping.is_set():
                    break
                with self._changed:
                    while self._unanswered() >= IN_FLIGHT_MAX and not self._stopping.is_set():
                        self._changed.wait(0.5)
                partition = self.partitions[turn % len(self.partitions)]
                number = self.sent[partition]
                self.sent[partition] += 1
                future = producer.send(self.topic, b"%d" % number, partition=partition)
                future.add_callback(lambda _meta, p=partition, n=number: self._note(p, n, None))
                future.add_errback(lambda error, p=partition, n=number: self._note(p, n, error))
            producer.flush(60)
        finally:
            producer.close(timeout=5)


class Committing:
    """A consumer that reads along and commits; it remembers the last commit that the broker confirmed."""

    def __init__(self, bootstrap: str, topic: str, group: str, partition: int) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.where = confluent_kafka.TopicPartition(topic, partition)
        self.confirmed = -1
        self.attempted = -1
        self.crashed: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the consumer did not come to an end"
        if self.crashed is not None:
            raise self.crashed

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - it is raised again in stop()
            self.crashed = error

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "enable.auto.commit": False,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        start = confluent_kafka.TopicPartition(self.where.topic, self.where.partition, 0)
        consumer.assign([start])
        try:
            while not self._stopping.is_set():
                messages = [m for m in consumer.consume(50, timeout=0.1) if m.error() is None]
                if not messages:
                    continue
                self.attempted = messages[-1].offset() + 1
                wanted = confluent_kafka.TopicPartition(self.where.topic, self.where.partition, self.attempted)
                try:
                    consumer.commit(offsets=[wanted], asynchronous=False)
                except confluent_kafka.KafkaException:
                    continue  # the broker is away: this commit was not confirmed
                self.confirmed = self.attempted
        finally:
            consumer.close()


def committed_offset(bootstrap: str, topic: str, group: str, partition: int) -> int:
    """What the broker says the group has committed; -1 for nothing."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, partition)], timeout=30)
    finally:
        consumer.close()
    assert found.error is None
    return max(found.offset, -1)


def read_all(bootstrap: str, topic: str, partition: int) -> list[int]:
    """The numbers in a partition, from its start to its end now."""
    numbers, offsets, low, high = read_with_offsets(bootstrap, topic, partition)
    assert offsets == list(range(low, high)), "offsets have a gap or a double"
    return numbers


def read_with_offsets(bootstrap: str, topic: str, partition: int) -> tuple[list[int], list[int], int, int]:
    """The numbers in a partition and their offsets, and where it starts and ends."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "check.crcs": True}
    )
    where = confluent_kafka.TopicPartition(topic, partition)
    try:
        low, high = consumer.get_watermark_offsets(where, timeout=30)
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, low)])
        deadline = Deadline(60, f"{high - low} records of {topic}/{partition}")
        numbers: list[int] = []
        offsets: list[int] = []
        while not offsets or offsets[-1] < high - 1:
            if low == high:
                break
            message = consumer.poll(deadline.left)
            if message is None:
                continue
            assert message.error() is None, message.error()
            numbers.append(int(message.value()))
            offsets.append(message.offset())
    finally:
        consumer.close()
    return numbers, offsets, low, high


def check_compacted(bootstrap: str, topic: str, promised: set[int]) -> None:
    """Nothing but compaction took records of :class:`KeyedProducing`.

    Each is at the offset that it was sent to, and the only one of a key is there.
    """
    numbers, offsets, _, high = read_with_offsets(bootstrap, topic, 0)
    assert numbers == offsets, f"{topic} has doubles or gaps"
    assert high > max(promised, default=-1), f"{topic} lost its end"
    lasting = {number for number in promised if number % KeyedProducing.LASTING_EVERY == 0}
    assert lasting <= set(numbers), f"{topic} lost {sorted(lasting - set(numbers))[:5]}"


def check_kept(bootstrap: str, topic: str, promised: Mapping[int, set[int]]) -> None:
    """What was promised is there, once and in order, and nothing else is in between."""
    for partition, numbers in promised.items():
        found = read_all(bootstrap, topic, partition)
        assert found == list(range(len(found))), f"{topic}/{partition} has doubles or gaps"
        lost = numbers - set(found)
        assert not lost, f"{topic}/{partition} lost {len(lost)} acknowledged records, first {min(lost)}"
