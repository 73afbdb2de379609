"""A subscription that reads: its partitions, and its position in each. Records are read on this node, whichever node leads them.

With a group, the subscription is a member of it at the group's coordinator. The members share the partitions
(``core/groups/shared.py``), and each partition is read from its committed offset, or from the beginning. Without a group, all
partitions are read from the beginning. A replay sets another starting point for each partition that is assigned to the subscription
for the first time. The subscription commits nothing.

Invariant: a record is only sent while its partition is assigned to this subscription. When the coordinator moves, nothing is sent until
the subscription is a member again, and each partition that it still has continues after the last record that was sent.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.core.operations.door import ELSEWHERE
from penstock.core.operations.open_streams import KeptRight
from penstock.core.partitions.reading import Tail
from penstock.core.partitions.replica import Replica
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.coordinated import CoordinatedStream
from penstock.gateways.grpc.errors import no_partition, topic_not_found
from penstock.operations.groups import MemberAssignment, Membership
from penstock.operations.records import FollowTopic
from penstock.operations.topics import DescribePartition
from penstock.records.records import Record
from penstock.types import Gateway
from penstock.wire.mq.messages import MessageEncoder
from penstock.wire.mq.mq_generated import SubscribeRequest

_MS: Final = 1000
_SECONDS_MAX: Final = 2**62 // _MS
_NOT_YET: Final = ELSEWHERE | {Reason.UNKNOWN_TOPIC_OR_PARTITION}
"""The errors of a partition that cannot be read here yet, because it has no leader or is not known on this node."""

Taken = tuple[Replica, Record]


class _Position:
    """A partition of this subscription, and its position."""

    __slots__ = ("_encode_any", "committed", "encode", "index", "last", "replica", "skip_to", "start")

    def __init__(self, topic: Topic, index: int, committed: int) -> None:
        self.index: Final = index
        self.committed: Final = committed
        self._encode_any: Final = MessageEncoder(topic.name, topic.topic_id, index).encode
        self.encode: Callable[..., bytes | None] = self._encode_any
        """The message with a record; None if a replay skips it."""
        self.start: int | None = None
        """None until the partition can be read here."""
        self.last: Record | None = None
        """The last record that was sent, or skipped."""
        self.replica: Replica | None = None
        """None while the partition cannot be read here."""
        self.skip_to: tuple[int, int] | None = None

    @property
    def next_offset(self) -> int | None:
        """The next offset to read."""
        return self.start if self.last is None else self.last.offset + 1

    def skip(self, skip_to: tuple[int, int] | None) -> None:
        """(ms, offset): of the records before the offset, skip those before the time."""
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
    """One subscription that reads."""

    def __init__(self, request: SubscribeRequest, call: GrpcCall, topic: Topic, ends: Mapping[int, int]) -> None:
        """``ends``: the ends of the partitions when the subscription began, as their leaders report them, if a replay needs them."""
        self._call = call
        self._request = request
        self._ends = ends
        self._topic = topic
        self._right = KeptRight(call.broker, FollowTopic(topic.name), call.caller)
        self._check()
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._membership: CoordinatedStream[MemberAssignment] | None = None
        if request.consumer_group:
            membership = Membership(
                credit=0, group=request.consumer_group, topic=topic.name, consumer_id=self.consumer_id
            )
            self._membership = CoordinatedStream(call, membership, self._assigned, self.woken, self._pause)
        self._assignment: MemberAssignment | None = None
        """A new assignment, which :meth:`take` has not applied yet."""
        self._positions: dict[int, _Position] = {}
        self._paused: dict[int, _Position] = {}
        """The positions when the coordinator moved."""
        self._waiting: set[int] = set()
        """Partitions that cannot be read here until their records change."""
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
                "The members of a group share all partitions: remove partitions, or consumer_group",
            )
        count = self._topic.partition_count
        for index in request.partitions:
            if not 0 <= index < count:
                raise no_partition(self._topic.name, index, count)

    # -- opening and closing

    async def ready(self) -> None:
        """Join the group, or join it again after its coordinator has moved. PenstockError if that fails."""
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
        """Leave the group, and stop reading."""
        self._tail.close()
        if self._membership is not None:
            self._membership.close()
        if self._is_open:
            self._is_open = False
            topics = self._call.broker.topics
            topics.on_deleted.remove(self._topic_deleted)
            topics.on_changed.remove(self._topic_changed)
            topics.on_partition.remove(self._partition_changed)

    # -- changes

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
        self._assigned((MemberAssignment(tuple(dict.fromkeys(partitions))),))

    def _assigned(self, assignments: Sequence[MemberAssignment]) -> None:
        """The assignment has changed. Partitions that were taken away are left at once."""
        self._assignment = assignments[-1]
        for index in set(self._positions).difference(self._assignment.partitions):
            self._waiting.discard(index)
            if (replica := self._positions.pop(index).replica) is not None:
                self._tail.remove(replica)
        self.woken.set()

    def _pause(self) -> None:
        """Stop reading until the subscription is a member again, since its assignment is unknown."""
        self._tail.close()
        self._paused.update(self._positions)
        self._positions = {}
        self._waiting.clear()
        self._assignment = None

    # -- where a partition starts

    def _begin_assigned(self, *, strict: bool) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is None:
            return
        for index in assignment.partitions:
            if index not in self._positions:
                position = self._positions[index] = _Position(self._topic, index, assignment.offsets.get(index, 0))
                had = self._paused.get(index)
                if had is not None and had.next_offset is not None:
                    position.start = max(had.next_offset, position.committed)
                    position.skip(had.skip_to)
                self._begin(position, strict=strict)
        self._paused = {}

    def _begin(self, position: _Position, *, strict: bool) -> None:
        """Read a partition from its position as soon as it can be read here."""
        try:
            replica = self._call.broker.observe(self._topic.name, position.index)
        except PenstockError as error:
            if error.reason not in _NOT_YET:
                raise
            replica = None
        if replica is None or replica.gone:
            # It is tried again when the record of the partition changes.
            self._waiting.add(position.index)
            return
        self._waiting.discard(position.index)
        if position.start is None:
            position.start = self._start(position, replica, strict=strict)
        position.replica = replica
        self._tail.add(replica, position.next_offset or 0)

    def _start(self, position: _Position, replica: Replica, *, strict: bool) -> int:
        """The offset at which a partition starts. It may be past the end if it was committed there."""
        first, end = replica.first_offset, max(self._ends.get(replica.index, 0), replica.high_watermark)
        replay_from = self._replay_start(position, replica, end, strict=strict)
        return max(position.committed, first) if replay_from is None else min(max(replay_from, first), end)

    def _replay_start(self, position: _Position, replica: Replica, end: int, *, strict: bool) -> int | None:
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
            # Records that only the leader has are checked as they arrive.
            position.skip((from_ms, end) if known_end < end else None)
            return known_end
        return None

    # -- records

    def take(self, max_records: int, max_bytes: int) -> list[Taken]:
        """The next records; if there are none, ``woken`` will be set. PenstockError if there will never be more."""
        self._right.check()
        if self._deleted:
            raise topic_not_found(self._topic.name)
        self._begin_assigned(strict=False)
        for index in sorted(self._waiting):
            self._begin(self._positions[index], strict=False)
        while True:
            taken = self._tail.take(max_records, max_bytes)
            if taken or not self._tail.gone:
                return taken
            self._read_elsewhere()

    def _read_elsewhere(self) -> None:
        """Continue with partitions whose replica on this node has changed its role, or was deleted."""
        gone = self._tail.gone.copy()
        self._tail.gone.clear()
        for replica in gone:
            position = self._positions.get(replica.index)
            if position is not None and position.replica is replica:
                position.replica = None
                self._begin(position, strict=False)

    def message(self, taken: Taken) -> bytes | None:
        """The message for the client; None if the partition was taken away, or a replay skips the record."""
        replica, record = taken
        position = self._positions.get(replica.index)
        if position is None or position.replica is not replica:
            return None
        position.last = record
        return position.encode(*record)

    def sent(self, taken: list[Taken], size_bytes: int) -> None:
        """The connection accepted these records."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


async def ends_for(request: SubscribeRequest, call: GrpcCall) -> Mapping[int, int]:
    """For a replay: the ends of the partitions as their leaders report them, since the copies on this node may lack the last records."""
    if not (request.HasField("replay_offset") or request.HasField("replay_timestamp")):
        return {}
    broker, count = call.broker, call.broker.topics.require(request.topic).partition_count
    asked = (DescribePartition(request.topic, index) for index in range(count))
    found = await asyncio.gather(*(broker.do(each, call.caller) for each in asked))
    return {index: offsets.high_watermark for index, offsets in enumerate(found)}
