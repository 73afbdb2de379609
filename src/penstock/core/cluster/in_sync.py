"""What the leader of a partition knows of its followers: how far each is, who is in sync, and what that makes committed.

The agreed set is the metadata store's. Who is about to join counts as a member already; who is about to leave counts until the
store has agreed. So whatever becomes of a change whose answer is late or lost, nothing was called committed that a member of
the set might lack.

Invariant: a follower's ``end`` is what its last fetch in this leader's epoch said that it has for good, as a replica. A node may have had another copy of the partition
before: as an observer, or as a replica that it was not to be for a while. What it said of that, not knowing that it is a replica from now on, does not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.records import PartitionRecord
from penstock.types import NodeId

NOT_YET: Final = -1
"""Nothing more is committed."""
OBSERVES: Final = -1
"""What an observer knows of being a replica."""
KNOWS_ALL: Final = 2**63 - 1


class FollowerProgress:
    """One follower, as far as this leader has heard of it."""

    __slots__ = ("caught_up_ms", "end", "epoch", "fetched_ms", "leader_end", "since", "start")

    def __init__(self, now_ms: int, since: int) -> None:
        self.epoch = -1
        """Its node epoch; -1 before its first fetch."""
        self.since = since
        """The partition's epoch by which it became a replica, as far as this leader knows; 0 when it was in sync as this leader began."""
        self.end = 0
        self.start = 0
        """Where its log begins."""
        self.fetched_ms = now_ms
        self.leader_end = 0
        """Where the leader's log ended at its last fetch."""
        self.caught_up_ms = now_ms
        """When it last had everything that there was."""


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A change of the in-sync set that the leader wants to be agreed on."""

    joining: Mapping[int, int]
    """Nodes with their node epochs."""
    leaving: tuple[int, ...]


class InSync:
    """The followers of one partition in one leader epoch. Times are monotonic."""

    __slots__ = (
        "_node_id",
        "_pending",
        "_progress",
        "adding",
        "agreed",
        "eligible",
        "epoch_start",
        "leader_end",
        "min_in_sync",
        "replicas",
        "rules",
        "start_promised",
    )

    def __init__(
        self,
        node_id: NodeId,
        record: PartitionRecord,
        *,
        log_end: int,
        leader_end: int,
        min_in_sync: int,
        now_ms: int,
        log_start: int = 0,
        partition_epoch: int = 0,
        rules: Rules = ALL,
    ) -> None:
        self._node_id = node_id
        self.rules: Final = rules
        self.min_in_sync = min_in_sync
        self.epoch_start: Final = log_end
        """Where the log ended when this epoch began: who has not got so far has not got everything that older leaders promised."""
        self.start_promised = log_start
        """What lies before it was deleted, and somebody was told so, perhaps by an older leader: nobody joins who has it still."""
        self.leader_end = leader_end
        """What the leader itself has for good."""
        self.agreed: dict[int, int] = {}
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.eligible: tuple[int, ...] = ()
        self._pending: InSyncChange | None = None
        self._progress: dict[int, FollowerProgress] = {}
        self.agree(record, now_ms, partition_epoch)
        for node in self.agreed:
            # They count already. Of any other this leader may have missed that it was no replica for a while.
            if node in self._progress:
                self._progress[node].since = 0

    # The agreed set.

    def agree(self, record: PartitionRecord, now_ms: int, epoch: int) -> None:
        """This is agreed now, by the partition's epoch."""
        self.agreed = dict(record.isr)
        self.replicas = record.replicas
        self.adding = record.adding
        self.eligible = record.elr
        for node in record.replicas:
            if node != self._node_id and node not in self._progress:
                self._progress[node] = FollowerProgress(now_ms, epoch)
        for node in [node for node in self._progress if node not in record.replicas]:
            del self._progress[node]

    @property
    def is_below_min(self) -> bool:
        """Whether too few are in sync for acks=all."""
        return len(self.agreed) < self.min_in_sync

    @property
    def has_followers(self) -> bool:
        """Whether other nodes have replicas."""
        return len(self.replicas) > 1

    @property
    def count(self) -> int:
        """How many are in sync, as agreed."""
        return len(self.agreed)

    def is_newcomer(self, node: int) -> bool:
        """Whether a node is being given a replica, and has not caught up: nobody waits for it."""
        return node in self.adding and node not in self.agreed

    def is_outside(self, node: int) -> bool:
        """Whether a node has a replica that is not in sync."""
        return node not in self.agreed and node in self.replicas

    def begin(self, change: InSyncChange) -> None:
        """A change is on its way to the store."""
        assert self._pending is None, "one change at a time"
        self._pending = change

    def settle(self) -> None:
        """What became of the change is known, and :meth:`agree` has been told what is agreed."""
        self._pending = None

    @property
    def is_changing(self) -> bool:
        """Whether a change is on its way."""
        return self._pending is not None

    # What followers say.

    def fetched(
        self,
        node: int,
        node_epoch: int,
        offset: int,
        log_end: int,
        now_ms: int,
        *,
        log_start: int = 0,
        known_epoch: int = KNOWS_ALL,
    ) -> bool:
        """A follower asks for ``offset`` in this leader's epoch, so it has everything from ``log_start`` to there.

        ``known_epoch`` is the partition's epoch by which it knew that it is a replica; below 0 when it asked as an observer.
        False when it is no replica.
        """
        progress = self._progress.get(node)
        if progress is None:
            return False
        if node_epoch < max(progress.epoch, self.agreed.get(node, -1)):
            # A request of its last incarnation that was long on its way, or of a process that does not know that its incarnation is over.
            return True
        if known_epoch < progress.since:
            # It speaks of another copy: it has not heard that it is to be a replica.
            return True
        progress.epoch = node_epoch
        progress.end = offset
        progress.start = log_start
        if offset >= log_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end:
            # It has all that there was when it asked last: that is when it was up to date.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.fetched_ms = now_ms
        progress.leader_end = log_end
        return True

    def end_of(self, node: int) -> int | None:
        """What a follower has; None for one that is none."""
        progress = self._progress.get(node)
        return None if progress is None else progress.end

    def lag_of(self, node: int, log_start: int, log_end: int) -> int:
        """How many of the records that there are a follower does not have. Who has not spoken has all if it is in sync, else none."""
        progress = self._progress[node]
        if progress.epoch < 0 and node in self.agreed:
            return 0
        return max(log_end - max(progress.end, log_start), 0)

    # What follows from it.

    def committed(self) -> int:
        """Up to where everyone has it who counts; :data:`NOT_YET` while too few are in sync, or others may lead that would not have it.

        A partition with fewer replicas than the topic demands waits for all of them: it takes no acks=all, and what else is appended can be read.
        These are the eligible ones. They stay so for a moment after the topic came to demand fewer, until the controller has struck them off.
        """
        agreed, rules = self.agreed, self.rules
        too_few = self.is_below_min and len(agreed) < len(self.replicas)
        if (too_few or self.eligible) and rules.frozen_below_min:
            return NOT_YET
        end = self.leader_end
        pending = self._pending
        for node in agreed:
            if node != self._node_id and not (pending and node in pending.leaving and not rules.agreed_shrink):
                end = min(end, self._end(node))
        if pending is not None and rules.maximal_in_sync_set:
            for node in pending.joining:
                end = min(end, self._end(node))
        return end

    def _end(self, node: int) -> int:
        progress = self._progress.get(node)
        return 0 if progress is None else progress.end

    def low_watermark(self, leader_start: int) -> int:
        """Where the longest log begins of all that may lead: what lies before it is deleted for good."""
        pending = () if self._pending is None else self._pending.joining
        others = {*self.agreed, *pending, *self.eligible} - {self._node_id}
        return min([leader_start, *map(self._start, others)])

    def _start(self, node: int) -> int:
        progress = self._progress.get(node)
        return 0 if progress is None else progress.start

    def wanted(
        self,
        high_watermark: int,
        log_end: int,
        now_ms: int,
        lag_ms_max: int,
        is_live: Callable[[int, int], bool],
        heard_ms: Callable[[int], int],
    ) -> InSyncChange | None:
        """The change that the followers' progress asks for; None when there is none, or one is on its way.

        Who has everything that is committed, everything of older epochs, and nothing of what was deleted, joins; who was behind for longer than
        ``lag_ms_max`` leaves. ``is_live`` says whether a node is registered in the incarnation that is given by its epoch, ``heard_ms`` when it last
        asked for anything: of a quiet partition that it has all of, it does not speak.
        """
        if self._pending is not None:
            return None
        joining: dict[int, int] = {}
        leaving: list[int] = []
        for node, progress in self._progress.items():
            member = self.agreed.get(node)
            if progress.end >= log_end:
                # Noted, not only looked at: the next record may come after hours, and must not make it late at once.
                progress.caught_up_ms = max(progress.caught_up_ms, heard_ms(node))
            late = now_ms - progress.caught_up_ms > lag_ms_max
            if member is not None and member == progress.epoch:
                if late:
                    leaving.append(node)
            elif (
                progress.epoch >= 0
                and progress.end >= max(high_watermark, self.epoch_start)
                and progress.start >= self.start_promised
                and not late
                and is_live(node, progress.epoch)
            ):
                joining[node] = progress.epoch
            elif member is not None and late:
                leaving.append(node)
        if len(leaving) >= len(self.agreed):
            leaving = []
        return InSyncChange(joining, tuple(leaving)) if joining or leaving else None
