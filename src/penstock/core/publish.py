"""Taking records that come one by one, for the gateways that do not send batches: where they go, and when they count.

The partition is the one that was asked for, else the key's (by Kafka's hash, so a key lands in the same place through every
API), else the next one in turn. The records of one call become one batch per partition: the more a call has, the cheaper each.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.access import Action, Caller
from penstock.core.partition import Partition
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.records.batch import Compression
from penstock.records.builder import BatchBuilder
from penstock.records.partitioner import RoundRobin, murmur2
from penstock.records.records import Headers
from penstock.types import Acks, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_RECORD_OVERHEAD_BYTES: Final = 40
"""At least what lengths, deltas and attributes of one record take in a batch."""
_HEADER_OVERHEAD_BYTES: Final = 10
_CACHED_KEY_BYTES_MAX: Final = 64
_CACHED_KEYS: Final = 16_384


class NewRecord(NamedTuple):
    """A record on its way in. Without a timestamp it gets the time at which it came."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Placed(NamedTuple):
    """Where a record is now."""

    partition: int
    offset: int
    timestamp_ms: int


Results = list[Placed | PenstockError]
"""One for each record, in their order."""
PublishDone = Callable[[Results], None]


def record_id(topic: str, partition: int, offset: int) -> str:
    """What a record is called by people and APIs."""
    return f"{topic}/{partition}@{offset}"


class _Call:
    """One call under way: answered when the last of its batches is."""

    __slots__ = ("_done", "left", "results")

    def __init__(self, count: int, done: PublishDone) -> None:
        self.results: list[Placed | PenstockError | None] = [None] * count
        self.left = 1
        self._done = done

    def settle(self, places: Sequence[int], reason: Reason | None) -> None:
        """A batch is where it was wanted, or never will be: then its records are nowhere."""
        if reason is not None:
            error = PenstockError(reason)
            for at in places:
                self.results[at] = error
        self.end_one()

    def end_one(self) -> None:
        """One thing less to wait for."""
        self.left -= 1
        if not self.left:
            self._done(self.results)  # type: ignore[arg-type]  # every place is filled by now


class Publisher:
    """Appends for gateways."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._turns: dict[TopicName, RoundRobin] = {}

    def publish(self, caller: Caller, topic: str, records: Sequence[NewRecord], acks: Acks, done: PublishDone) -> None:
        """Append the records; ``done`` is told of each once it counts as ``acks`` says. PenstockError when all are refused."""
        broker = self._broker
        if not broker.access.allows_all:
            broker.access.require_topic(caller, Action.WRITE, topic)
        found = broker.topics.require(topic)
        if found.internal:
            raise PenstockError(
                Reason.INVALID_TOPIC, f"{topic} is the broker's own topic; publish to a topic of your own"
            )
        if acks is Acks.ALL and found.config.min_insync_replicas > 1:
            raise PenstockError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"topic {topic} wants {found.config.min_insync_replicas} replicas in sync and has 1; lower its "
                "min.insync.replicas or publish with acks=leader",
            )
        call = _Call(len(records), done)
        now_ms = broker.clock.now_ms()
        if len(records) == 1:
            chosen = self._choose(found, records[0], call.results, 0)
            by_partition = {} if chosen is None else {chosen: [0]}
        else:
            by_partition = self._share_out(found, records, call.results)
        for index, places in by_partition.items():
            self._append(caller, found, index, places, records, call, acks, now_ms)
        call.end_one()

    def choose_partition(self, topic: Topic, record: NewRecord) -> int:
        """Where a record goes. UNKNOWN_TOPIC_OR_PARTITION when it asks for a partition that is not there."""
        index = record.partition
        if index is not None:
            if not 0 <= index < topic.partition_count:
                raise PenstockError(
                    Reason.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic.name} has no partition {index}; it has 0 to {topic.partition_count - 1}",
                )
            return index
        if record.key:
            hashed = _hash(record.key) if len(record.key) <= _CACHED_KEY_BYTES_MAX else murmur2(record.key)
            return (hashed & 0x7FFFFFFF) % topic.partition_count
        turn = self._turns.get(topic.name)
        if turn is None:
            turn = self._turns[topic.name] = RoundRobin()
        return turn.partition(topic.partition_count)

    def forget_topic(self, topic: TopicName) -> None:
        """The topic is deleted."""
        self._turns.pop(topic, None)

    def _choose(
        self, topic: Topic, record: NewRecord, results: list[Placed | PenstockError | None], at: int
    ) -> int | None:
        try:
            return self.choose_partition(topic, record)
        except PenstockError as error:
            results[at] = error
            return None

    def _share_out(
        self, topic: Topic, records: Sequence[NewRecord], results: list[Placed | PenstockError | None]
    ) -> dict[int, list[int]]:
        by_partition: dict[int, list[int]] = {}
        for at, record in enumerate(records):
            index = self._choose(topic, record, results, at)
            if index is not None:
                places = by_partition.get(index)
                if places is None:
                    by_partition[index] = [at]
                else:
                    places.append(at)
        return by_partition

    def _append(
        self,
        caller: Caller,
        topic: Topic,
        index: int,
        places: list[int],
        records: Sequence[NewRecord],
        call: _Call,
        acks: Acks,
        now_ms: int,
    ) -> None:
        """The records of one partition, in as few batches as may be."""
        try:
            partition = self._broker.partition(topic.name, index)
        except PenstockError as error:
            for at in places:
                call.results[at] = error
            return
        bytes_max = topic.config.max_message_bytes
        builder = BatchBuilder()
        first = 0
        for position, at in enumerate(places):
            key, value, headers, _, timestamp_ms = records[at]
            if builder.count and builder.size_bytes + _size(key, value, headers) > bytes_max:
                self._append_batch(caller, partition, builder, places[first:position], records, call, acks, now_ms)
                builder = BatchBuilder()
                first = position
            builder.add(now_ms if timestamp_ms is None else timestamp_ms, key, value, headers)
        self._append_batch(caller, partition, builder, places[first:] if first else places, records, call, acks, now_ms)

    def _append_batch(
        self,
        caller: Caller,
        partition: Partition,
        builder: BatchBuilder,
        places: list[int],
        records: Sequence[NewRecord],
        call: _Call,
        acks: Acks,
        now_ms: int,
    ) -> None:
        results = call.results
        topic = partition.topic
        batch = builder.build(compression=topic.config.compression or Compression.NONE)
        try:
            offset = partition.append(batch, now_ms)
        except PenstockError as error:
            for at in places:
                results[at] = error
            return
        index, stamps = partition.index, partition.stamps
        for at in places:
            given_ms = records[at].timestamp_ms
            results[at] = Placed(index, offset, now_ms if given_ms is None or stamps else given_ms)
            offset += 1
        self._broker.meters.took_in(topic.name, caller.gateway, len(places), len(batch))
        if acks is Acks.NONE:
            return
        call.left += 1
        settle = partial(call.settle, places)
        if acks is Acks.LEADER:
            partition.when_written(offset, settle)
        else:
            partition.when_committed(offset, settle)


@lru_cache(maxsize=_CACHED_KEYS)
def _hash(key: bytes) -> int:
    return murmur2(key)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        # A character takes four bytes at the most.
        size += _HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"")
    return size
