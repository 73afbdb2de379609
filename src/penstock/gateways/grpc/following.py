"""A subscription that reads: which partitions it has, and where it stands in each.

With a group the members share the partitions (``core/groups/shared.py``), and each starts where the group stands, or at the
beginning; without one it has them all, from the beginning. A replay point is where a partition starts that this subscription gets for
the first time, wherever the group stands. Nothing is committed here.

Invariant: a record is only handed out while its partition is this subscription's.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.core.access import Action
from penstock.core.groups.requests import PartitionKey
from penstock.core.reading import Tail
from penstock.core.replica import Replica
from penstock.core.standing import Standing
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.groups import no_partition
from penstock.gateways.settled import settled
from penstock.gateways.standing import standing
from penstock.records.records import Record
from penstock.types import Gateway, GroupId
from penstock.wire.mq.messages import MessageEncoder
from penstock.wire.mq.mq_generated import SubscribeRequest

_MS: Final = 1000
_SECONDS_MAX: Final = 2**62 // _MS

Taken = tuple[Replica, Record]
Standings = Mapping[int, Standing]
"""How partitions that are led elsewhere stood when the subscription began."""


class _Mine:
    """A partition that is this subscription's, and where it stands in it."""

    __slots__ = ("encoder", "next_offset", "replica", "skip_to")

    def __init__(self, replica: Replica, topic: str, next_offset: int) -> None:
        self.replica = replica
        self.encoder: Final = MessageEncoder(topic, replica.topic.topic_id, replica.index)
        self.next_offset = next_offset
        self.skip_to: tuple[int, int] | None = None
        """(ms, offset): no record before this time is wanted, of those before this offset."""

    def wants(self, record: Record) -> bool:
        """Whether the record lies behind the point of a replay."""
        if self.skip_to is None:
            return True
        from_ms, end = self.skip_to
        if record.offset < end and record.timestamp < from_ms:
            return False
        self.skip_to = None
        return True


class Following:
    """One subscription that reads. ``woken`` is set when :meth:`take` may have more, or a refusal."""

    def __init__(self, request: SubscribeRequest, call: Call, standings: Standings) -> None:
        self._call = call
        self._request = request
        self._standings = standings
        self._topic: Topic = call.topic(request.topic, Action.READ)
        self._group = call.group(request.consumer_group, Action.READ) if request.consumer_group else ""
        self._check()
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._mine: dict[int, _Mine] = {}
        self._lost: set[int] = set()
        """Partitions of which nothing can be read here until somebody leads them."""
        self._unbegun: set[int] = set()
        """The same, of which it is not known yet where they are read from."""
        self._replayed: set[int] = set()
        self._deleted = False
        self._replaced = False
        self._is_in_doubt = False
        """Whether this node may speak for the group no more."""
        self._flow = call.broker.meters.flow(self._topic.name, Gateway.GRPC)
        self._tail = Tail((), self.woken.set)
        # What leave needs to find again: two bound methods of one object are equal, but not the same.
        self._on_change = self._share

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
        if request.partitions and self._group:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "the members of a group share all partitions: remove partitions, or consumer_group",
            )

    # -- coming and going

    def open(self) -> None:
        """Take the partitions. PenstockError when that cannot be, and then nothing is open."""
        topics = self._call.broker.topics
        topics.on_deleted.append(self._topic_deleted)
        topics.on_changed.append(self._topic_changed)
        topics.on_partition.append(self._partition_changed)
        try:
            if self._group:
                self._join()
            else:
                for index in self._request.partitions:
                    if not 0 <= index < self._topic.partition_count:
                        raise no_partition(self._topic.name, index, self._topic.partition_count)
                self._have(tuple(self._request.partitions) or tuple(range(self._topic.partition_count)), strict=True)
        except BaseException:
            self.close()
            raise

    def _join(self) -> None:
        followers, key = self._call.serving.followers, (self._group, self._topic.name, self.consumer_id)
        partitions = self._call.broker.groups.shared.join(
            GroupId(self._group),
            self._topic.name,
            self.consumer_id,
            session_timeout_ms=None,
            client=self._call.caller.client,
            on_change=self._on_change,
        )
        if (replace := followers.get(key)) is not None:
            replace()
        followers[key] = self._replace
        self._have(partitions, strict=True)

    def close(self) -> None:
        """Give the partitions to the others."""
        broker = self._call.broker
        self._tail.close()
        topics = broker.topics
        # It may be called for one that was not opened to the end.
        for hooks, hook in ((topics.on_deleted, self._topic_deleted), (topics.on_changed, self._topic_changed)):
            if hook in hooks:
                hooks.remove(hook)
        if self._partition_changed in topics.on_partition:
            topics.on_partition.remove(self._partition_changed)
        if not self._group:
            return
        followers, key = self._call.serving.followers, (self._group, self._topic.name, self.consumer_id)
        if followers.get(key) == self._replace:
            del followers[key]
        try:
            broker.groups.shared.leave(GroupId(self._group), self.consumer_id, self._on_change)
        except PenstockError:
            # The group went before us: its topic is deleted, or the broker stops.
            pass

    # -- what happens meanwhile

    def _replace(self) -> None:
        self._replaced = True
        self.woken.set()

    def _topic_deleted(self, topic: Topic) -> None:
        if topic.topic_id == self._topic.topic_id:
            self._deleted = True
            self.woken.set()

    def _topic_changed(self, topic: Topic) -> None:
        if topic.topic_id != self._topic.topic_id:
            return
        self._topic = topic
        if not self._group and not self._request.partitions:
            self._share(tuple(range(topic.partition_count)))

    def _partition_changed(self, topic: Topic, index: int) -> None:
        if (index in self._lost or index in self._unbegun) and topic.topic_id == self._topic.topic_id:
            self.woken.set()

    def _share(self, partitions: tuple[int, ...]) -> None:
        """The partitions are these now."""
        if not partitions and self._call.broker.cluster is not None:
            self._is_in_doubt = True
            self.woken.set()
        if not self._deleted and not self._replaced:
            self._have(partitions, strict=False)

    def _have(self, partitions: tuple[int, ...], *, strict: bool) -> None:
        for index in set(self._mine).difference(partitions):
            self._lost.discard(index)
            self._tail.remove(self._mine.pop(index).replica)
        self._unbegun.intersection_update(partitions)
        new = [index for index in dict.fromkeys(partitions) if index not in self._mine]
        if not new:
            return
        try:
            starts = self._starts(new, strict=strict)
        except PenstockError:
            if strict:
                raise
            # Told by take: whoever changed the sharing is in the middle of its own work.
            self._deleted = self._topic.name not in self._call.broker.topics
            if self._call.broker.cluster is not None:
                self._unbegun.update(new)
                self._is_in_doubt = bool(self._group)
            self.woken.set()
            return
        self._unbegun.difference_update(new)
        for mine in starts:
            self._mine[mine.replica.index] = mine
            self._tail.add(mine.replica, mine.next_offset)
        self.woken.set()

    # -- where a partition starts

    def _starts(self, indexes: list[int], *, strict: bool) -> list[_Mine]:
        broker, name = self._call.broker, self._topic.name
        committed = {}
        if self._group:
            committed = broker.groups.fetch_offsets(
                GroupId(self._group), [PartitionKey(name, index) for index in indexes]
            )
        starts = []
        for index in indexes:
            replica = broker.observe(name, index)
            found = committed.get(PartitionKey(name, index))
            starts.append(self._start(replica, None if found is None else found.offset, strict=strict))
        return starts

    def _start(self, replica: Replica, committed: int | None, *, strict: bool) -> _Mine:
        """Where a partition is read from. A committed offset past the end is read from once the partition has reached it."""
        first, end = replica.first_offset, self._end(replica)
        mine = _Mine(replica, self._topic.name, 0)
        stands = self._call.stands(replica.index)
        if stands is not None:
            self._replayed.add(replica.index)
            mine.next_offset = max(stands, committed or 0, first)
            return mine
        replay_from = self._replay_start(mine, end, strict=strict)
        start = max(committed or 0, first)
        mine.next_offset = start if replay_from is None else min(max(replay_from, first), end)
        return mine

    def _end(self, replica: Replica) -> int:
        standing = self._standings.get(replica.index)
        return replica.high_watermark if standing is None else max(standing.high_watermark, replica.high_watermark)

    def _replay_start(self, mine: _Mine, end: int, *, strict: bool) -> int | None:
        request, replica = self._request, mine.replica
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
            # What the leader has and this node has not yet is looked at as it comes.
            mine.skip_to = (from_ms, end) if known_end < end else None
            return known_end
        return None

    # -- records

    def take(self, max_records: int, max_bytes: int) -> list[Taken]:
        """What there is; empty when ``woken`` will be set. PenstockError when there will never be more."""
        if self._tail.gone or self._lost:
            self._go_on_elsewhere()
        if self._deleted:
            self._call.serving.require_running()
            raise topic_not_found(self._topic.name)
        if self._replaced:
            raise PenstockError(
                Reason.FENCED_INSTANCE_ID,
                f"Another subscription of {self.consumer_id[:64]!r} replaced this one. Use a unique id for each consumer of a group.",
            )
        if self._is_in_doubt:
            self._check_coordinator()
        if self._unbegun:
            self._begin_late()
        taken = self._tail.take(max_records, max_bytes)
        if self._call.broker.cluster is not None:
            while taken:
                wanted = self._noted(taken)
                if wanted:
                    return wanted
                taken = self._tail.take(max_records, max_bytes)
        if not taken and self._tail.gone:
            return self.take(max_records, max_bytes)
        return taken

    def _noted(self, taken: list[Taken]) -> list[Taken]:
        """Remember where it stands, for when roles change, and leave out what a replay passes over."""
        wanted = []
        for each in taken:
            replica, record = each
            mine = self._mine[replica.index]
            mine.next_offset = record.offset + 1
            if mine.skip_to is None or mine.wants(record):
                wanted.append(each)
        return wanted

    def _go_on_elsewhere(self) -> None:
        """Partitions that were read are not what they were: deleted, or led and copied in other roles."""
        broker, gone = self._call.broker, self._tail.gone
        self._lost.update(replica.index for replica in gone if replica.index in self._mine)
        gone.clear()
        if broker.cluster is None or broker.topics.get_by_id(self._topic.topic_id) is None:
            self._deleted = self._deleted or bool(self._lost)
            return
        for index in sorted(self._lost):
            try:
                replica = broker.observe(self._topic.name, index)
            except PenstockError:
                # A change of the partition's record wakes this again.
                continue
            self._lost.discard(index)
            mine = self._mine[index]
            mine.replica = replica
            self._tail.add(replica, mine.next_offset)

    def _begin_late(self) -> None:
        """Begin with partitions that had no leader when they became this subscription's, each as soon as it has one."""
        for index in sorted(self._unbegun):
            try:
                (mine,) = self._starts([index], strict=False)
            except PenstockError:
                # A change of the partition's record wakes this again.
                continue
            self._unbegun.discard(index)
            self._mine[index] = mine
            self._tail.add(mine.replica, mine.next_offset)

    def _check_coordinator(self) -> None:
        """NOT_COORDINATOR when this node does not speak for the group any more: then the partitions are gone for good."""
        self._is_in_doubt = False
        try:
            self._call.broker.groups.shared.partitions(GroupId(self._group), self._topic.name, self.consumer_id)
        except PenstockError as error:
            self._call.serving.require_running()
            raise PenstockError(
                Reason.NOT_COORDINATOR, "Another node is now the coordinator of the group. Subscribe again."
            ) from error

    def message(self, taken: Taken) -> bytes | None:
        """What the subscriber gets; None when the partition is another member's by now."""
        replica, record = taken
        mine = self._mine.get(replica.index)
        if mine is None or mine.replica is not replica:
            return None
        return mine.encoder.encode(*record)

    @staticmethod
    def place(taken: Taken) -> tuple[int, int]:
        """Where a record lies."""
        return taken[0].index, taken[1].offset

    def sent(self, taken: list[Taken], size_bytes: int) -> None:
        """The client's connection took these."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


def following(request: SubscribeRequest, call: Call, standings: Standings | None = None) -> Following:
    """A subscription that reads, open."""
    found = Following(request, call, standings or {})
    found.open()
    return found


async def standings_for(request: SubscribeRequest, call: Call) -> Standings:
    """What a replay must know of partitions that are led elsewhere: the copy here may be a moment behind.

    What is led here counts as well when it was acknowledged and is not committed yet.
    """
    broker = call.broker
    if not (request.HasField("replay_offset") or request.HasField("replay_timestamp")):
        return {}
    topic = call.topic(request.topic, Action.READ)
    led = (broker.opened(topic.name, index) for index in range(topic.partition_count))
    await settled(*(partition for partition in led if partition is not None))
    if broker.cluster is None:
        return {}
    return {
        index: await standing(broker, topic, index)
        for index in range(topic.partition_count)
        if broker.opened(topic.name, index) is None
    }
