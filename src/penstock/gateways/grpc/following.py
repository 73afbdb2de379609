"""A subscription that reads: which partitions it has, and where it stands in each.

With a group the members share the partitions (``core/groups/shared.py``), and each starts where the group stands, or at the
beginning; without one it has them all, from the beginning. A replay point is where a partition starts that this subscription gets for
the first time, wherever the group stands. Nothing is committed here.

Invariant: a record is only handed out while its partition is this subscription's.
"""

import asyncio
from typing import Final

from penstock.core.access import Action
from penstock.core.groups.requests import PartitionKey
from penstock.core.partition import Partition
from penstock.core.reading import Tail
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.groups import no_partition
from penstock.records.records import Record
from penstock.types import Gateway, GroupId
from penstock.wire.mq.messages import MessageEncoder
from penstock.wire.mq.mq_generated import SubscribeRequest

_MS: Final = 1000
_SECONDS_MAX: Final = 2**62 // _MS

Taken = tuple[Partition, Record]


class Following:
    """One subscription that reads. ``woken`` is set when :meth:`take` may have more, or a refusal."""

    def __init__(self, request: SubscribeRequest, call: Call) -> None:
        self._call = call
        self._request = request
        self._topic: Topic = call.topic(request.topic, Action.READ)
        self._group = call.group(request.consumer_group, Action.READ) if request.consumer_group else ""
        self._check()
        self.consumer_id: Final = request.consumer_id or f"grpc-{call.broker.entropy.uuid()}"
        self.woken: Final = asyncio.Event()
        self._mine: dict[int, tuple[Partition, MessageEncoder]] = {}
        self._replayed: set[int] = set()
        self._deleted = False
        self._replaced = False
        self._flow = call.broker.meters.flow(self._topic.name, Gateway.GRPC)
        self._tail = Tail((), self.woken.set)
        # What leave needs to find again: two bound methods of one object are equal, but not the same.
        self._on_change = self._share

    def _check(self) -> None:
        request = self._request
        if request.HasField("replay_offset") and request.HasField("replay_timestamp"):
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "replay_offset and replay_timestamp are both given: a replay starts at one of them",
            )
        if request.replay_offset < 0:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE, f"replay_offset is {request.replay_offset}; the first offset is 0"
            )
        if not 0 <= request.replay_timestamp <= _SECONDS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"replay_timestamp is {request.replay_timestamp}; give seconds since 1970"
            )
        if request.partitions and self._group:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                "the members of a group share all partitions: leave partitions out, or consumer_group",
            )

    # -- coming and going

    def open(self) -> None:
        """Take the partitions. PenstockError when that cannot be, and then nothing is open."""
        topics = self._call.broker.topics
        topics.on_deleted.append(self._topic_deleted)
        topics.on_changed.append(self._topic_changed)
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

    def _share(self, partitions: tuple[int, ...]) -> None:
        """The partitions are these now."""
        if not self._deleted and not self._replaced:
            self._have(partitions, strict=False)

    def _have(self, partitions: tuple[int, ...], *, strict: bool) -> None:
        for index in set(self._mine).difference(partitions):
            self._tail.remove(self._mine.pop(index)[0])
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
            self.woken.set()
            return
        for partition, offset in starts:
            self._mine[partition.index] = (partition, MessageEncoder(self._topic.name, partition.index))
            self._tail.add(partition, offset)
        self.woken.set()

    # -- where a partition starts

    def _starts(self, indexes: list[int], *, strict: bool) -> list[tuple[Partition, int]]:
        broker, name = self._call.broker, self._topic.name
        committed = {}
        if self._group:
            committed = broker.groups.fetch_offsets(
                GroupId(self._group), [PartitionKey(name, index) for index in indexes]
            )
        starts = []
        for index in indexes:
            partition = broker.partition(name, index)
            offset = self._replay_start(partition, strict=strict)
            if offset is None:
                stands = committed.get(PartitionKey(name, index))
                offset = partition.log.start_offset if stands is None else stands.offset
            starts.append((partition, min(max(offset, partition.log.start_offset), partition.high_watermark)))
        return starts

    def _replay_start(self, partition: Partition, *, strict: bool) -> int | None:
        request, end = self._request, partition.high_watermark
        if partition.index in self._replayed:
            return None
        self._replayed.add(partition.index)
        if request.HasField("replay_offset"):
            if request.replay_offset > end and strict:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"replay_offset is {request.replay_offset}, and {self._topic.name}/{partition.index} ends at {end}; "
                    f"give an offset from 0 to {end}",
                )
            return request.replay_offset
        if request.HasField("replay_timestamp"):
            found = partition.log.offset_for_time(request.replay_timestamp * _MS, end)
            return end if found is None else found.offset
        return None

    # -- records

    def take(self, max_records: int, max_bytes: int) -> list[Taken]:
        """What there is; empty when ``woken`` will be set. PenstockError when there will never be more."""
        if self._deleted or self._tail.gone:
            self._call.serving.require_running()
            raise topic_not_found(self._topic.name)
        if self._replaced:
            raise PenstockError(
                Reason.FENCED_INSTANCE_ID,
                f"Another subscription of {self.consumer_id[:64]!r} took this one's place. "
                "Give every consumer of a group an id of its own.",
            )
        taken = self._tail.take(max_records, max_bytes)
        if not taken and self._tail.gone:
            return self.take(max_records, max_bytes)
        return taken

    def message(self, taken: Taken) -> bytes | None:
        """What the subscriber gets; None when the partition is another member's by now."""
        partition, record = taken
        mine = self._mine.get(partition.index)
        if mine is None or mine[0] is not partition:
            return None
        return mine[1].encode(*record)

    def sent(self, taken: list[Taken], size_bytes: int) -> None:
        """The client's connection took these."""
        self._flow.records_out += len(taken)
        self._flow.bytes_out += size_bytes


def following(request: SubscribeRequest, call: Call) -> Following:
    """A subscription that reads, open."""
    found = Following(request, call)
    found.open()
    return found
