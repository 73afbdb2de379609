"""A subscription that reads: which partitions it has, and where it is in each. Records are read on this node, whichever node leads them.

With a group, it is a member of it at the group's coordinator: the members share the partitions (``core/groups/shared.py``), and each
starts at the committed offset, or at the beginning. Without a group it has all partitions, from the beginning. A replay point is where
a partition starts that this subscription gets for the first time, whatever the group has committed. Nothing is committed here.

Invariant: a record is only sent while its partition is this subscription's. When the coordinator moves, nothing is sent until the
subscription is a member again, and each partition that it still has continues after the last record that was sent.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.core.operations.door import ELSEWHERE
from penstock.core.partitions.reading import Tail
from penstock.core.partitions.replica import Replica
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.coordinated import CoordinatedStream
from penstock.gateways.grpc.errors import no_partition, topic_not_found
from penstock.operations.groups import Assignment, Membership
from penstock.operations.topics import DescribePartition
from penstock.records.records import Record
from penstock.types import Gateway
from penstock.wire.mq.messages import MessageEncoder
from penstock.wire.mq.mq_generated import SubscribeRequest

_MS: Final = 1000
_SECONDS_MAX: Final = 2**62 // _MS
_NOT_YET: Final = ELSEWHERE | {Reason.UNKNOWN_TOPIC_OR_PARTITION}
"""Why a partition cannot be read here until its record changes: it has no leader, or is not known here yet."""

Taken = tuple[Replica, Record]


class _Place:
    """A partition of this subscription, and where it is in it."""

    __slots__ = ("_encode_any", "committed", "encode", "index", "last", "replica", "skip_to", "start")

    def __init__(self, topic: Topic, index: int, committed: int) -> None:
        self.index: Final = index
        self.committed: Final = committed
        self._encode_any: Final = MessageEncoder(topic.name, topic.topic_id, index).encode
        self.encode: Callable[..., bytes | None] = self._encode_any
        """The message with a record; None if a replay passes over it."""
        self.start: int | None = None
        """None until something of the partition can be read here."""
        self.last: Record | None = None
        """The last record that was sent, or passed over."""
        self.replica: Replica | None = None
        """None while nothing of it can be read here."""
        self.skip_to: tuple[int, int] | None = None

    @property
    def next_offset(self) -> int | None:
        """Where it is read on."""
        return self.start if self.last is None else self.last.offset + 1

    def skip(self, skip_to: tuple[int, int] | None) -> None:
        """(ms, offset): pass over records before this time, of those before this offset."""
        self.skip_to = skip_to
        self.encode = self._encode_any if skip_to is None else self._encode_wanted

    def _encode_wanted(self, *record: Any) -> bytes | None:
        offset, timestamp = record[:2]
        from_ms, end = self.skip_to or (0, 0)
        if offset < end and timestamp < from_ms:
            return None
        self.skip(None)
        return self._encode_any(*record)


class Following:
    """One subscription that reads. ``woken`` is set when :meth:`take` may have more, or a refusal."""

    def __init__(self, request: SubscribeRequest, call: Call, topic: Topic, ends: Mapping[int, int]) -> None:
        """``ends``: where the partitions ended for their leaders when the subscription began, if a replay needs it."""
        self._call = call
        self._request = request
        self._ends = ends
        self._topic = topic
        self._check()
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._membership: CoordinatedStream[Assignment] | None = None
        if request.consumer_group:
            membership = Membership(
                credit=0, group=request.consumer_group, topic=topic.name, consumer_id=self.consumer_id
            )
            self._membership = CoordinatedStream(call, membership, self._assigned, self.woken, self._pause)
        self._assignment: Assignment | None = None
        """The partitions that it has from now on; :meth:`take` begins with those that are new."""
        self._places: dict[int, _Place] = {}
        self._paused: dict[int, _Place] = {}
        """Those that it had when the coordinator moved."""
        self._waiting: set[int] = set()
        """Partitions of which nothing can be read here yet, or any more until they have another leader."""
        self._replayed: set[int] = set()
        self._is_open = False
        self._deleted = False
        self._flow = call.broker.meters.flow(topic.name, Gateway.GRPC)
        self._tail = Tail((), self.woken.set)

    def _check(self) -> None:
        request = self._request
        if request.HasField("replay_offset") and request.HasField("replay_timestamp"):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "replay_offset and replay_timestamp are both set: set only one of them",
            )
        if request.replay_offset < 0:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE, f"replay_offset is {request.replay_offset}; the first offset is 0"
            )
        if not 0 <= request.replay_timestamp <= _SECONDS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"replay_timestamp is {request.replay_timestamp}; use seconds since 1970"
            )
        if request.partitions and request.consumer_group:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "the members of a group share all partitions: remove partitions, or consumer_group",
            )
        count = self._topic.partition_count
        for index in request.partitions:
            if not 0 <= index < count:
                raise no_partition(self._topic.name, index, count)

    # -- coming and going

    async def ready(self) -> None:
        """Have the partitions, or have them again once the coordinator has moved. PenstockError when that cannot be."""
        if self._membership is not None:
            try:
                await self._membership.ready()
            except PenstockError as error:
                raise self._refusal(error) from error
        if self._is_open:
            return
        self._is_open = True
        topics = self._call.broker.topics
        topics.on_deleted.append(self._topic_deleted)
        topics.on_changed.append(self._topic_changed)
        topics.on_partition.append(self._partition_changed)
        if self._membership is None:
            self._assign_all(self._request.partitions or range(self._topic.partition_count))
        self._begin_assigned(strict=True)

    def _refusal(self, error: PenstockError) -> PenstockError:
        if error.reason is Reason.FENCED_INSTANCE_ID:
            return PenstockError(
                error.reason,
                f"Another subscription of {self.consumer_id[:64]!r} replaced this one. "
                "Use a unique id for each consumer of a group.",
            )
        if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
            return topic_not_found(self._topic.name)
        return error

    def close(self) -> None:
        """Give the partitions to the others."""
        self._tail.close()
        if self._membership is not None:
            self._membership.close()
        if self._is_open:
            self._is_open = False
            topics = self._call.broker.topics
            topics.on_deleted.remove(self._topic_deleted)
            topics.on_changed.remove(self._topic_changed)
            topics.on_partition.remove(self._partition_changed)

    # -- what happens meanwhile

    def _topic_deleted(self, topic: Topic) -> None:
        if topic.topic_id == self._topic.topic_id:
            self._deleted = True
            self.woken.set()

    def _topic_changed(self, topic: Topic) -> None:
        if topic.topic_id != self._topic.topic_id:
            return
        self._topic = topic
        if self._membership is None and not self._request.partitions:
            self._assign_all(range(topic.partition_count))
        self.woken.set()

    def _partition_changed(self, topic: Topic, index: int) -> None:
        if index in self._waiting and topic.topic_id == self._topic.topic_id:
            self.woken.set()

    def _assign_all(self, partitions: Iterable[int]) -> None:
        self._assigned((Assignment(tuple(dict.fromkeys(partitions))),))

    def _assigned(self, assignments: Sequence[Assignment]) -> None:
        """The partitions are these now. Others are left at once."""
        self._assignment = assignments[-1]
        for index in set(self._places).difference(self._assignment.partitions):
            self._waiting.discard(index)
            if (replica := self._places.pop(index).replica) is not None:
                self._tail.remove(replica)
        self.woken.set()

    def _pause(self) -> None:
        """Who has which partition is not known until the subscription is a member again."""
        self._tail.close()
        self._paused.update(self._places)
        self._places = {}
        self._waiting.clear()
        self._assignment = None

    # -- where a partition starts

    def _begin_assigned(self, *, strict: bool) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return
        for index in assignment.partitions:
            if index not in self._places:
                place = self._places[index] = _Place(self._topic, index, assignment.offsets.get(index, 0))
                had = self._paused.get(index)
                if had is not None and had.next_offset is not None:
                    place.start = max(had.next_offset, place.committed)
                    place.skip(had.skip_to)
                self._begin(place, strict=strict)
        self._paused = {}

    def _begin(self, place: _Place, *, strict: bool) -> None:
        """Read a partition on, or from its start, as soon as something of it can be read here."""
        try:
            replica = self._call.broker.observe(self._topic.name, place.index)
        except PenstockError as error:
            if error.reason not in _NOT_YET:
                raise
            replica = None
        if replica is None or replica.gone:
            # A change of the partition's record wakes this again.
            self._waiting.add(place.index)
            return
        self._waiting.discard(place.index)
        if place.start is None:
            place.start = self._start(place, replica, strict=strict)
        place.replica = replica
        self._tail.add(replica, place.next_offset or 0)

    def _start(self, place: _Place, replica: Replica, *, strict: bool) -> int:
        """Where a partition is read from. A committed offset past the end is read from once the partition has reached it."""
        first, end = replica.first_offset, max(self._ends.get(replica.index, 0), replica.high_watermark)
        replay_from = self._replay_start(place, replica, end, strict=strict)
        return max(place.committed, first) if replay_from is None else min(max(replay_from, first), end)

    def _replay_start(self, place: _Place, replica: Replica, end: int, *, strict: bool) -> int | None:
        request = self._request
        if replica.index in self._replayed:
            return None
        self._replayed.add(replica.index)
        if request.HasField("replay_offset"):
            if request.replay_offset > end and strict:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"replay_offset is {request.replay_offset}, and {self._topic.name}/{replica.index} ends at {end}; use an offset from 0 to {end}",
                )
            return request.replay_offset
        if request.HasField("replay_timestamp"):
            from_ms, known_end = request.replay_timestamp * _MS, replica.high_watermark
            found = replica.log.offset_for_time(from_ms, known_end)
            if found is not None:
                return found.offset
            # Records that only the leader has yet are looked at as they come.
            place.skip((from_ms, end) if known_end < end else None)
            return known_end
        return None

    # -- records

    def take(self, max_records: int, max_bytes: int) -> list[Taken]:
        """What there is; empty when ``woken`` will be set. PenstockError when there will never be more."""
        if self._deleted:
            raise topic_not_found(self._topic.name)
        self._begin_assigned(strict=False)
        for index in sorted(self._waiting):
            self._begin(self._places[index], strict=False)
        while True:
            taken = self._tail.take(max_records, max_bytes)
            if taken or not self._tail.gone:
                return taken
            self._read_elsewhere()

    def _read_elsewhere(self) -> None:
        """Partitions that were read are led and copied in other roles now, or deleted."""
        gone = self._tail.gone.copy()
        self._tail.gone.clear()
        for replica in gone:
            place = self._places.get(replica.index)
            if place is not None and place.replica is replica:
                place.replica = None
                self._begin(place, strict=False)

    def message(self, taken: Taken) -> bytes | None:
        """What the subscriber gets; None when the partition is not this subscription's any more, or a replay passes over the record."""
        replica, record = taken
        place = self._places.get(replica.index)
        if place is None or place.replica is not replica:
            return None
        place.last = record
        return place.encode(*record)

    def sent(self, taken: list[Taken], size_bytes: int) -> None:
        """The client's connection took these."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


async def ends_for(request: SubscribeRequest, call: Call) -> Mapping[int, int]:
    """Where the partitions end for their leaders, if it is a replay: a copy here may be a moment behind."""
    if not (request.HasField("replay_offset") or request.HasField("replay_timestamp")):
        return {}
    broker, count = call.broker, call.broker.topics.require(request.topic).partition_count
    asked = (DescribePartition(request.topic, index) for index in range(count))
    found = await asyncio.gather(*(broker.do(each, call.caller) for each in asked))
    return {index: offsets.high_watermark for index, offsets in enumerate(found)}
