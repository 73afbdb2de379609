"""The partitions that one follower copies from this node over one connection: what it has of each, and what it must be sent.

A fetch at an offset means that the follower has all records below it, which is counted at once. Records that were sent are not sent again
until the follower fetches at their end. A session checks only partitions with news, so quiet partitions cost nothing. A new high watermark
alone can wait a moment, to be sent together with something else.

Replicas that are being added, and throttled ones that are not in sync, come last in a response, a little at a time, and no faster than
the node's budget for them. So in-sync replicas do not wait for them.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from penstock.core.cluster.in_sync import KNOWS_ALL
from penstock.core.cluster.replicas import Replicas, TopicIdPartition
from penstock.core.cluster.throttle import ByteBudget
from penstock.core.partitions.partition import Partition
from penstock.core.topics.topics import Topics
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.ports import Clock
from penstock.types import NO_OFFSET, Buffer, NodeId

NEWCOMER_BYTES_MAX: Final = MIB
"""Limit per response for partitions with a limited rate, which is how long in-sync replicas may wait for them."""

OnFetched = Callable[[Partition], None]
"""Called when a follower that is not in sync has made progress."""


class PartitionFetch(NamedTuple):
    """A follower's fetch of one partition."""

    offset: int
    leader_epoch: int
    last_epoch: int
    high_watermark: int
    bytes_max: int
    log_start: int = 0
    known_epoch: int = KNOWS_ALL
    """The partition's epoch in which it knows that it is a replica; :data:`~penstock.core.cluster.in_sync.OBSERVES` if it is not one."""


class Copied(NamedTuple):
    """The response for one partition: an error, where the logs diverge, or the next records."""

    place: TopicIdPartition
    reason: Reason | None = None
    diverging: tuple[int, int] | None = None
    records: Buffer = b""
    high_watermark: int = NO_OFFSET
    start_offset: int = NO_OFFSET


class _FetchedPartition:
    """One partition of a session."""

    __slots__ = ("asked", "is_sent", "partition", "place", "sent_high_watermark", "sent_start", "since", "wake")

    def __init__(self, place: TopicIdPartition, woken: Callable[["_FetchedPartition"], None]) -> None:
        self.place: Final = place
        self.wake: Final = partial(woken, self)
        self.partition: Partition | None = None
        self.asked: PartitionFetch | None = None
        self.since = 0
        """The number of the first request for the copy that the follower has now. Responses to earlier requests leave it out."""
        self.is_sent = False
        """Something was sent, and the follower has not fetched at its end yet."""
        self.sent_high_watermark = NO_OFFSET
        self.sent_start = 0
        """The start of the log as last sent."""


class CopySession:
    """The session of one follower. ``on_news`` is called when there may be something to send; it may be called often."""

    def __init__(
        self,
        node_id: NodeId,
        node_epoch: int,
        replicas: Replicas,
        topics: Topics,
        clock: Clock,
        on_fetched: OnFetched,
        on_news: Callable[[], None],
    ) -> None:
        self.node_id: Final = node_id
        self.node_epoch: Final = node_epoch
        self._replicas = replicas
        self._topics = topics
        self._clock = clock
        self._on_fetched = on_fetched
        self._on_news = on_news
        self.question = 0
        """The number of the follower's last request. Set before :meth:`ask`."""
        self.has_passed_over = False
        """Whether the last :meth:`collect` left something out that belongs to a later response."""
        self._wanted: dict[TopicIdPartition, _FetchedPartition] = {}
        self._news: dict[_FetchedPartition, None] = {}
        self._held: dict[_FetchedPartition, None] = {}
        """News of partitions with a limited rate: they wait for their share."""

    def __len__(self) -> int:
        return len(self._wanted)

    # Requests.

    def ask(self, topic_id: UUID, index: int, asked: PartitionFetch) -> None:
        """The follower has all records below the offset, and fetches the next ones."""
        place = TopicIdPartition(topic_id, index)
        wanted = self._wanted.get(place)
        if wanted is None:
            wanted = self._wanted[place] = _FetchedPartition(place, self._woken)
        if _is_another_copy(wanted.asked, asked):
            wanted.since = self.question
        wanted.asked = asked
        wanted.is_sent = False
        wanted.sent_high_watermark = asked.high_watermark
        try:
            partition = self._led(wanted, asked)
            parts = asked.last_epoch >= 0 and self._diverging(partition, asked) is not None
        except PenstockError:
            # The response will have the error.
            self._news[wanted] = None
            return
        if parts or not partition.log.start_offset <= asked.offset <= partition.log.next_offset:
            self._news[wanted] = None
        if not parts:
            self._count(partition, asked)
            self._note(wanted)

    def forget(self, topic_id: UUID, index: int) -> None:
        """The follower no longer copies this partition."""
        wanted = self._wanted.pop(TopicIdPartition(topic_id, index), None)
        if wanted is not None:
            self._news.pop(wanted, None)
            self._held.pop(wanted, None)
            if wanted.partition is not None:
                wanted.partition.unwatch_writes(wanted.wake)

    def close(self) -> None:
        """The follower is gone."""
        for place in list(self._wanted):
            self.forget(*place)

    def _led(self, wanted: _FetchedPartition, asked: PartitionFetch) -> Partition:
        partition = wanted.partition
        if partition is None or partition.gone:
            topic = self._topics.require_id(wanted.place.topic_id)
            partition = self._replicas.leader(topic, wanted.place.partition)
            if wanted.partition is not None:
                wanted.partition.unwatch_writes(wanted.wake)
            wanted.partition = partition
            partition.watch_writes(wanted.wake)
        if partition.in_sync.rules.counted_by_epoch:
            partition.check_epoch(asked.leader_epoch)
        return partition

    def _count(self, partition: Partition, asked: PartitionFetch) -> None:
        in_sync = partition.in_sync
        if not 0 <= asked.offset <= partition.log.next_offset:
            return
        now_ms = self._clock.monotonic_ms()
        log_end = partition.log.next_offset
        if in_sync.fetched(
            self.node_id,
            self.node_epoch,
            asked.offset,
            log_end,
            now_ms,
            log_start=asked.log_start,
            known_epoch=asked.known_epoch,
        ):
            partition.recount()
            if in_sync.agreed.get(self.node_id) != self.node_epoch:
                self._on_fetched(partition)

    # Responses.

    def _woken(self, wanted: _FetchedPartition) -> None:
        if wanted not in self._news and wanted not in self._held and self._note(wanted):
            self._on_news()

    def _note(self, wanted: _FetchedPartition) -> bool:
        """Note whether there is something to send."""
        if not self._has_news(wanted):
            return False
        self._news[wanted] = None
        return True

    def _has_news(self, wanted: _FetchedPartition) -> bool:
        partition, asked = wanted.partition, wanted.asked
        if partition is None or asked is None or partition.gone:
            return True
        if partition.log.start_offset > wanted.sent_start or partition.high_watermark > wanted.sent_high_watermark:
            return True
        return not wanted.is_sent and asked.offset < self._end(partition)

    def _end(self, partition: Partition) -> int:
        """How far this follower may read: a replica up to the end of the written records, an observer up to the high watermark."""
        if self.node_id in partition.in_sync.replicas:
            return partition.log.written_offset
        return partition.high_watermark

    def collect(self, bytes_max: int, question: int | None = None) -> list[Copied]:
        """The response to a request, by its number, or to the last one: at most about ``bytes_max``, but at least one whole batch.

        What does not fit comes first in the next response.
        """
        number = self.question if question is None else question
        found: list[Copied] = []
        left = bytes_max
        self.has_passed_over = False
        for wanted in list(self._news):
            if left <= 0:
                break
            if wanted.since > number:
                self.has_passed_over = True
                continue
            del self._news[wanted]
            if self._budget(wanted) is not None:
                self._held[wanted] = None
                continue
            copied = self._copied(wanted, left, first=left == bytes_max)
            if copied is not None:
                found.append(copied)
                left -= len(copied.records)
        if self._held and left > 0:
            found += self._collect_held(left, number)
        return found

    def _budget(self, wanted: _FetchedPartition) -> ByteBudget | None:
        """The budget for this partition; None if its rate is not limited."""
        partition = wanted.partition
        if partition is None or not partition.in_sync.is_outside(self.node_id):
            return None
        throttle = self._replicas.sending.budget(partition.topic.config, partition.index)
        if throttle is not None:
            return throttle
        return self._replicas.moving_budget if partition.in_sync.is_newcomer(self.node_id) else None

    def _collect_held(self, bytes_max: int, number: int) -> list[Copied]:
        """News of partitions with a limited rate, as far as their budgets allow. The rest waits for the next request, which comes soon."""
        found: list[Copied] = []
        now_ms = self._clock.monotonic_ms()
        left = allowed = min(bytes_max, NEWCOMER_BYTES_MAX)
        for wanted in list(self._held):
            if left <= 0:
                break
            if wanted.since > number:
                self.has_passed_over = True
                continue
            budget = self._budget(wanted)
            room = left if budget is None else min(left, budget.left(now_ms))
            if room <= 0:
                continue
            del self._held[wanted]
            copied = self._copied(wanted, room, first=left == allowed)
            if copied is not None:
                found.append(copied)
                left -= len(copied.records)
                if budget is not None:
                    budget.take(len(copied.records))
        return found

    @property
    def has_news(self) -> bool:
        """Whether :meth:`collect` may find something."""
        return bool(self._news)

    @property
    def holds_back(self) -> bool:
        """Whether a partition waits for its share of a limited rate."""
        return bool(self._held)

    def _copied(self, wanted: _FetchedPartition, left: int, *, first: bool) -> Copied | None:
        asked = wanted.asked
        if asked is None:
            return None
        try:
            partition = self._led(wanted, asked)
            diverging = None if asked.last_epoch < 0 else self._diverging(partition, asked)
            records: Buffer = b""
            log, end = partition.log, self._end(partition)
            if diverging is None:
                if not log.start_offset <= asked.offset <= log.next_offset:
                    raise PenstockError(Reason.OFFSET_OUT_OF_RANGE)
                if not wanted.is_sent and asked.offset < end:
                    records = log.read(asked.offset, min(asked.bytes_max, left), end, at_least_one=first).data
                    if not records:
                        # It did not fit into this response.
                        self._news[wanted] = None
        except PenstockError as error:
            wanted.is_sent = True
            start = wanted.partition.log.start_offset if wanted.partition is not None else NO_OFFSET
            return Copied(wanted.place, error.reason, start_offset=start)
        has_moved = partition.high_watermark > wanted.sent_high_watermark or log.start_offset > wanted.sent_start
        if not records and diverging is None and not has_moved:
            return None
        wanted.is_sent = wanted.is_sent or bool(records) or diverging is not None
        wanted.sent_high_watermark = partition.high_watermark
        wanted.sent_start = log.start_offset
        return Copied(wanted.place, None, diverging, records, partition.high_watermark, log.start_offset)

    @staticmethod
    def _diverging(partition: Partition, asked: PartitionFetch) -> tuple[int, int] | None:
        """Where the follower's log diverges from this one, if it does."""
        if asked.offset < partition.log.start_offset:
            return None
        epoch, end_offset = partition.end_offset_for(asked.last_epoch)
        if epoch < 0:
            # The follower has batches of an epoch that this leader does not know.
            raise PenstockError(Reason.UNKNOWN_LEADER_EPOCH)
        if epoch < asked.last_epoch or end_offset < asked.offset:
            return epoch, end_offset
        return None


def _is_another_copy(before: PartitionFetch | None, asked: PartitionFetch) -> bool:
    """Whether the follower has another copy than before, or truncated it, so that it cannot use the responses to earlier requests."""
    return (
        before is None
        or asked.offset < before.offset
        or asked.leader_epoch != before.leader_epoch
        or (asked.known_epoch < 0) != (before.known_epoch < 0)
    )
