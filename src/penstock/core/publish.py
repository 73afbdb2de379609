"""Publishes single records, for gateways without batches: chooses partitions, builds batches, and acknowledges.

The partition is the requested one, else the key's (by Kafka's hash, so a key has the same partition through every API), else the next
one in turn. The records of one turn of the event loop become one batch per partition, whichever callers sent them: under load, each
record costs less.

The log accepts or refuses a batch as a whole, so everything for which it could refuse one record (size, missing key, timestamp) is
checked before.

A batch for a partition that another node leads is also built here, and appended there (``cluster/remote.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.partitions.partition import Partition
from penstock.core.security.access import Caller
from penstock.core.security.lanes import authorise_lane
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import PUBLISHED_BATCH_BYTES_MAX, RECORD_HEADERS_MAX
from penstock.operations.operation import Action
from penstock.ports import Flusher
from penstock.records.batch import HEADER_BYTES, Compression
from penstock.records.builder import BatchBuilder
from penstock.records.partitioner import RoundRobin, murmur2
from penstock.records.records import Headers
from penstock.types import Acks, Gateway, TimestampType, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_RECORD_OVERHEAD_BYTES: Final = 40
"""At least the size of the lengths, deltas and attributes of a record in a batch."""
_HEADER_OVERHEAD_BYTES: Final = 10
_CACHED_KEY_BYTES_MAX: Final = 64
_CACHED_KEYS: Final = 16_384


class NewRecord(NamedTuple):
    """A record to publish. Without a timestamp it gets the present time."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Placed(NamedTuple):
    """The place of a published record."""

    partition: int
    offset: int
    timestamp_ms: int


Results = list[Placed | PenstockError]
"""One per record, in order."""
PublishDone = Callable[[Results], None]


def record_id(topic: str, partition: int, offset: int) -> str:
    """The id of a record in APIs and texts."""
    return f"{topic}/{partition}@{offset}"


class _Call:
    """One call, which is answered with the last of its batches."""

    __slots__ = ("acks", "caller", "done", "is_timed", "left", "records", "results", "size_bytes", "unplaced")

    def __init__(self, caller: Caller, records: Sequence[NewRecord], acks: Acks, done: PublishDone) -> None:
        self.caller = caller
        self.records = records
        self.acks = acks
        self.done = done
        self.results: list[Placed | PenstockError | None] = [None] * len(records)
        self.left = 1
        # Records that are not in a batch yet.
        self.unplaced = len(records)
        # Whether a record has a timestamp.
        self.is_timed = False
        # At least the size of all its records in a batch.
        self.size_bytes = 0

    def refuse(self, places: Sequence[int], error: PenstockError) -> None:
        """These records were not published."""
        for at in places:
            self.results[at] = error
        self.placed(len(places))

    def placed(self, count: int) -> None:
        """This many are in a batch, or refused. When all are, they are dropped: a slow disk must not keep them in memory."""
        self.unplaced -= count
        if self.unplaced <= 0:
            self.records = ()

    def end_one(self) -> None:
        """One of the expected events has happened."""
        self.left -= 1
        if not self.left:
            self.done(self.results)  # type: ignore[arg-type]  # every place is filled by now


_Piece = tuple[_Call, list[int]]
"""Some records of a call, by their places in it."""


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A partition that another node leads."""

    topic: Topic
    index: int

    def __hash__(self) -> int:
        return hash((self.topic.name, self.index))

    @property
    def stamps(self) -> bool:
        """Whether the leader sets the timestamps of its records, which is about the present time."""
        return self.topic.config.timestamp_type is TimestampType.LOG_APPEND_TIME


_STRENGTH: Final = (Acks.NONE, Acks.LEADER, Acks.ALL)
_ELSEWHERE: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class Publisher:
    """Appends for gateways."""

    def __init__(self, broker: "Broker", flusher: Flusher) -> None:
        self._broker = broker
        self._flusher = flusher
        self._turns: dict[TopicName, RoundRobin] = {}
        self._gathered: dict[Partition | _Elsewhere, list[_Piece]] = {}

    def publish(
        self,
        caller: Caller,
        topic: str,
        records: Sequence[NewRecord],
        acks: Acks,
        done: PublishDone,
        *,
        counts: bool = True,
    ) -> None:
        """Append the records; ``done`` gets the results once ``acks`` is satisfied. PenstockError if all are refused.

        ``counts``: whether they count for the caller's quota.
        """
        broker = self._broker
        access = broker.access
        if broker.audit.records_data or (
            not access.allows_all and (caller.principal, caller.client, caller.groups, topic) not in access.writers
        ):
            authorise_lane(broker, caller, Action.WRITE, topic)
            access.note_writer(caller, topic)
        found = broker.topics.require(topic)
        if found.internal and caller.gateway is not Gateway.INTERNAL:
            raise PenstockError(Reason.INVALID_TOPIC, f"{topic} is an internal topic; publish to another topic")
        if acks is Acks.ALL and found.min_in_sync > found.replication_factor:
            raise PenstockError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"Topic {topic} requires {found.min_in_sync} in-sync replicas, but has {found.replication_factor} replicas; lower its min.insync.replicas, add replicas, or send with acks=leader",
            )
        call = _Call(caller, records, acks, done)
        shares = self._share_out(found, call)
        if counts and broker.quotas.is_on:
            broker.quotas.produced(caller, call.size_bytes)
        for index, places in shares.items():
            self._gather(found, index, call, places)
        call.end_one()

    def _share_out(self, topic: Topic, call: _Call) -> dict[int, list[int]]:
        """The records of each partition. Invalid records get their result here."""
        by_partition: dict[int, list[int]] = {}
        needs_key = topic.config.is_compacted
        plain_bytes_max = topic.config.max_message_bytes - HEADER_BYTES - _RECORD_OVERHEAD_BYTES
        has_one = topic.partition_count == 1
        size_bytes = _RECORD_OVERHEAD_BYTES * len(call.records)
        for at, record in enumerate(call.records):
            key, value, headers, index, timestamp_ms = record
            content_bytes = (len(key) if key else 0) + (len(value) if value else 0)
            size_bytes += content_bytes
            try:
                index = 0 if has_one and index is None else self.choose_partition(topic, record)
                # Nearly every record is plain and needs no more checks.
                if headers or timestamp_ms is not None or needs_key or content_bytes > plain_bytes_max:
                    call.is_timed = call.is_timed or timestamp_ms is not None
                    size_bytes += _headers_size(headers)
                    self.check(topic, record)
            except PenstockError as error:
                # The traceback would keep all records in memory.
                call.results[at] = error.with_traceback(None)
                call.unplaced -= 1
                continue
            places = by_partition.get(index)
            if places is None:
                by_partition[index] = [at]
            else:
                places.append(at)
        call.size_bytes = size_bytes
        return by_partition

    def choose_partition(self, topic: Topic, record: NewRecord) -> int:
        """The partition of a record. UNKNOWN_TOPIC_OR_PARTITION if it requests one that does not exist."""
        index = record.partition
        if index is not None:
            if not 0 <= index < topic.partition_count:
                raise PenstockError(
                    Reason.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic.name} has no partition {index}; it has 0 to {topic.partition_count - 1}",
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
        """The topic was deleted."""
        self._turns.pop(topic, None)

    def check(self, topic: Topic, record: NewRecord) -> None:
        """Refuse a record for which the log would refuse the whole batch."""
        config = topic.config
        key, value, headers, _, timestamp_ms = record
        size = HEADER_BYTES + _size(key, value, headers)
        if size > config.max_message_bytes:
            # The estimate is too high. Close to the limit, compute the exact size.
            alone = BatchBuilder()
            alone.add(0, key, value, headers)
            size = alone.size_bytes
        if size > config.max_message_bytes:
            raise PenstockError(
                Reason.RECORDS_TOO_LARGE,
                f"A record that takes {size} bytes is over the topic's max.message.bytes of {config.max_message_bytes}; "
                "send smaller records or raise this setting of the topic",
            )
        if len(headers) > RECORD_HEADERS_MAX:
            raise PenstockError(
                Reason.INVALID_RECORD,
                f"A record has at most {RECORD_HEADERS_MAX} headers, not {len(headers)}; send fewer",
            )
        if key is None and config.is_compacted:
            raise PenstockError(
                Reason.INVALID_RECORD, f"Topic {topic.name} is compacted: every record needs a key", [(0, "no key")]
            )
        if timestamp_ms is not None and config.timestamp_type is not TimestampType.LOG_APPEND_TIME:
            now_ms = self._broker.clock.now_ms()
            after_ms, before_ms = config.timestamp_after_max_ms, config.timestamp_before_max_ms
            if timestamp_ms < 0 or timestamp_ms - now_ms > after_ms or now_ms - timestamp_ms > before_ms:
                raise PenstockError(
                    Reason.INVALID_TIMESTAMP,
                    f"Timestamp {timestamp_ms} is too far from the broker's clock ({now_ms}); send milliseconds since 1970, or no timestamp",
                )

    def _gather(self, topic: Topic, index: int, call: _Call, places: list[int]) -> None:
        partition: Partition | _Elsewhere
        peers = self._broker.peers
        if peers.is_waiting and peers.holds(topic, index):
            partition = _Elsewhere(topic, index)
        else:
            try:
                partition = self._broker.partition(topic.name, index)
                if call.acks is Acks.ALL:
                    partition.check_in_sync()
            except PenstockError as error:
                if error.reason not in _ELSEWHERE:
                    call.refuse(places, error)
                    return
                partition = _Elsewhere(topic, index)
        call.left += 1
        if not self._gathered:
            self._flusher.gather(self._append_gathered)
        pieces = self._gathered.get(partition)
        if pieces is None:
            self._gathered[partition] = [(call, places)]
        else:
            pieces.append((call, places))

    def _append_gathered(self) -> None:
        broker = self._broker
        gathered, self._gathered = self._gathered, {}
        for partition, pieces in gathered.items():
            target, topic = partition, partition.topic
            is_gone = isinstance(partition, Partition) and partition.gone
            if is_gone and broker.topics.get_by_id(topic.topic_id) is not None:
                # Another node became the leader in this turn.
                target = _Elsewhere(topic, partition.index)
            self._append(target, pieces)

    def _append(self, partition: Partition | _Elsewhere, pieces: list[_Piece]) -> None:
        """Append the records of one partition in this turn, in as few batches as possible."""
        now_ms = self._broker.clock.now_ms()
        bytes_max = min(partition.topic.config.max_message_bytes, PUBLISHED_BATCH_BYTES_MAX)
        builder = BatchBuilder()
        batched: list[_Piece] = []
        for call, places in pieces:
            if builder.size_bytes + call.size_bytes <= bytes_max:
                # Nearly always all of it fits: the size of each record does not matter.
                records = call.records if len(places) == len(call.records) else [call.records[at] for at in places]
                for key, value, headers, _, timestamp_ms in records:
                    builder.add(now_ms if timestamp_ms is None else timestamp_ms, key, value, headers)
                batched.append((call, places))
                continue
            first = 0
            for position, at in enumerate(places):
                key, value, headers, _, timestamp_ms = call.records[at]
                if builder.count and builder.size_bytes + _size(key, value, headers) > bytes_max:
                    if position > first:
                        # The rest of this piece goes to another batch.
                        call.left += 1
                        batched.append((call, places[first:position]))
                        first = position
                    self._append_batch(partition, builder, batched, now_ms)
                    builder, batched = BatchBuilder(), []
                builder.add(now_ms if timestamp_ms is None else timestamp_ms, key, value, headers)
            batched.append((call, places[first:] if first else places))
        self._append_batch(partition, builder, batched, now_ms)

    def _append_batch(
        self, partition: Partition | _Elsewhere, builder: BatchBuilder, pieces: list[_Piece], now_ms: int
    ) -> None:
        batch = builder.build(compression=partition.topic.config.compression or Compression.NONE)
        if isinstance(partition, _Elsewhere):
            acks = max((call.acks for call, _ in pieces), key=_STRENGTH.index)
            done = partial(self._sent, partition, pieces, (builder.count, len(batch)), now_ms)
            self._broker.peers.produce(partition.topic, partition.index, batch, acks, done)
            return
        try:
            if partition.gone:
                raise PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {partition.topic.name} was deleted")
            offset = partition.append(batch, now_ms, is_sound=True, keys_checked=True)
        except PenstockError as error:
            _refuse(pieces, error)
            return
        _place(partition, pieces, offset, now_ms)
        awaiting: dict[Acks, list[_Piece]] = {}
        for piece in pieces:
            awaiting.setdefault(piece[0].acks, []).append(piece)
        offset += builder.count
        self._count(partition, pieces, builder.count, len(batch))
        for acks, waiting in awaiting.items():
            settle = partial(_settle, waiting)
            if acks is Acks.ALL:
                partition.when_committed(offset, settle)
            elif acks is Acks.LEADER:
                partition.when_written(offset, settle)
            else:
                partition.acknowledged_offset = max(partition.acknowledged_offset, offset)
                settle(None)

    def _sent(
        self,
        partition: _Elsewhere,
        pieces: list[_Piece],
        count_and_bytes: tuple[int, int],
        now_ms: int,
        offset: int | PenstockError,
    ) -> None:
        """Another node has appended a batch, or failed."""
        if isinstance(offset, PenstockError):
            _refuse(pieces, offset)
            return
        _place(partition, pieces, offset, now_ms)
        self._count(partition, pieces, *count_and_bytes)
        for call, _ in pieces:
            call.end_one()

    def _count(self, partition: Partition | _Elsewhere, pieces: list[_Piece], count: int, size: int) -> None:
        """Count a batch. If its records came through several gateways, its bytes are divided by records."""
        meters, name = self._broker.meters, partition.topic.name
        gateway = pieces[0][0].caller.gateway
        if all(call.caller.gateway is gateway for call, _ in pieces):
            meters.took_in(name, gateway, count, size)
            return
        for call, places in pieces:
            meters.took_in(name, call.caller.gateway, len(places), size * len(places) // count)


def _place(partition: Partition | _Elsewhere, pieces: list[_Piece], offset: int, now_ms: int) -> None:
    """Set the results of the records of a batch."""
    index, stamps = partition.index, partition.stamps
    for call, places in pieces:
        if len(places) == len(call.records) and (stamps or not call.is_timed):
            end = offset + len(places)
            call.results = [Placed(index, each, now_ms) for each in range(offset, end)]
            offset = end
        else:
            for at in places:
                given_ms = call.records[at].timestamp_ms
                call.results[at] = Placed(index, offset, now_ms if given_ms is None or stamps else given_ms)
                offset += 1
        call.placed(len(places))


def _refuse(pieces: list[_Piece], error: PenstockError) -> None:
    for call, places in pieces:
        call.refuse(places, error)
        call.end_one()


def _settle(pieces: list[_Piece], reason: Reason | None) -> None:
    """The acks of a batch are satisfied, or have failed."""
    if reason in _ELSEWHERE:
        # The batch may also be in the new leader's log: publishing it again may publish it twice.
        reason = Reason.LINK_LOST
    for call, places in pieces:
        if reason is not None:
            call.refuse(places, PenstockError(reason))
        call.end_one()


@lru_cache(maxsize=_CACHED_KEYS)
def _hash(key: bytes) -> int:
    return murmur2(key)


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """A quick estimate of a record's size in a batch that is never too small."""
    size = _RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    return size + _headers_size(headers) if headers else size


def _headers_size(headers: Headers) -> int:
    # A character takes at most four bytes.
    return sum(_HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"") for name, content in headers)
