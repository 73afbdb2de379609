"""What the leader of a partition knows of its followers: how far each one is, which are in sync, and which records are committed.

The agreed in-sync set is in the metadata store. A replica that is about to join counts as a member at once; one that is about to leave
counts until the store has agreed. So even if the answer to a change is late or lost, every member of the set has all committed records.

Invariant: a follower's ``end`` is the durable end of its copy, from its last fetch in this leader's epoch. A node may have had another copy
of the partition before, as an observer, or as a replica that was removed and added again. A fetch for such a copy does not count.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.records import PartitionRecord
from penstock.types import NodeId

NOT_YET: Final = -1
"""Nothing more can be committed now."""
OBSERVES: Final = -1
"""The known epoch of an observer."""
KNOWS_ALL: Final = 2**63 - 1


class FollowerProgress:
    """One follower, as this leader knows it."""

    __slots__ = ("caught_up_ms", "end", "epoch", "fetched_ms", "leader_end", "since", "start")

    def __init__(self, now_ms: int, since: int) -> None:
        self.epoch = -1
        """Its node epoch; -1 before its first fetch."""
        self.since = since
        """The partition's epoch in which it became a replica, as far as this leader knows; 0 if it was in sync when this leader began."""
        self.end = 0
        self.start = 0
        """The start of its log."""
        self.fetched_ms = now_ms
        self.leader_end = 0
        """The end of the leader's log at its last fetch."""
        self.caught_up_ms = now_ms
        """When it last had all records."""


@dataclass(frozen=True, slots=True)
class InSyncChange:
    """A change of the in-sync set that the leader requests."""

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
        """The end of the log when this epoch began: below it are all records that earlier leaders may have acknowledged."""
        self.start_promised = log_start
        """The deletion of all records below it was acknowledged, perhaps by an earlier leader. A replica that still has some cannot join."""
        self.leader_end = leader_end
        """The durable end of the leader's log."""
        self.agreed: dict[int, int] = {}
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.eligible: tuple[int, ...] = ()
        self._pending: InSyncChange | None = None
        self._progress: dict[int, FollowerProgress] = {}
        self.agree(record, now_ms, partition_epoch)
        for node in self.agreed:
            # These count already. Any other node may have been removed and added again without this leader's knowledge.
            if node in self._progress:
                self._progress[node].since = 0

    # The agreed set.

    def agree(self, record: PartitionRecord, now_ms: int, epoch: int) -> None:
        """The record as agreed now, with the partition's epoch."""
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
        """Whether too few replicas are in sync for acks=all."""
        return len(self.agreed) < self.min_in_sync

    @property
    def has_all(self) -> bool:
        """Whether all replicas are in sync, so that no more can come."""
        return len(self.agreed) >= len(self.replicas)

    @property
    def has_followers(self) -> bool:
        """Whether other nodes have replicas."""
        return len(self.replicas) > 1

    @property
    def count(self) -> int:
        """The number of agreed in-sync replicas."""
        return len(self.agreed)

    def is_newcomer(self, node: int) -> bool:
        """Whether a node is a new replica that has not caught up: producers do not wait for it."""
        return node in self.adding and node not in self.agreed

    def is_outside(self, node: int) -> bool:
        """Whether a node has a replica that is not in sync."""
        return node not in self.agreed and node in self.replicas

    def begin(self, change: InSyncChange) -> None:
        """A change is being sent to the store."""
        assert self._pending is None, "one change at a time"
        self._pending = change

    def settle(self) -> None:
        """The result of the change is known, and :meth:`agree` was called with it."""
        self._pending = None

    @property
    def is_changing(self) -> bool:
        """Whether a change is being sent."""
        return self._pending is not None

    # Fetches of followers.

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
        """A follower has fetched at ``offset`` in this leader's epoch, so it has all records from ``log_start`` to there.

        ``known_epoch`` is the partition's epoch in which it knew that it is a replica; negative for an observer. Returns False if it is
        not a replica.
        """
        progress = self._progress.get(node)
        if progress is None:
            return False
        if node_epoch < max(progress.epoch, self.agreed.get(node, -1)):
            # A delayed request of an earlier incarnation, or of a process that does not know that it is no longer registered.
            return True
        if known_epoch < progress.since:
            # A request for another copy: the node does not know yet that it is a replica.
            return True
        progress.epoch = node_epoch
        progress.end = offset
        progress.start = log_start
        if offset >= log_end:
            progress.caught_up_ms = now_ms
        elif offset >= progress.leader_end:
            # It has all records that existed at its previous fetch, so it was up to date then.
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.fetched_ms = now_ms
        progress.leader_end = log_end
        return True

    def end_of(self, node: int) -> int | None:
        """The end of a follower's copy; None if the node is not a follower."""
        progress = self._progress.get(node)
        return None if progress is None else progress.end

    def lag_of(self, node: int, log_start: int, log_end: int) -> int:
        """The number of records that a follower lacks. Before its first fetch, it has all if it is in sync, else none."""
        progress = self._progress[node]
        if progress.epoch < 0 and node in self.agreed:
            return 0
        return max(log_end - max(progress.end, log_start), 0)

    # Conclusions.

    def committed(self) -> int:
        """The offset up to which records are committed; :data:`NOT_YET` while too few replicas are in sync, or eligible ones may be elected.

        A partition with fewer replicas than min.insync.replicas waits for all of them: acks=all is refused, but other records can be read.
        After min.insync.replicas is lowered, eligible replicas remain for a moment, until the controller removes them.
        """
        agreed, rules = self.agreed, self.rules
        too_few = self.is_below_min and not self.has_all
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
        """The lowest start of all logs that may lead: records below it are deleted everywhere."""
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
        """The change that the followers' progress requires; None if there is none, or one is being sent.

        A replica joins if it has all committed records, all records of earlier epochs, and no deleted ones. It leaves if it has lagged for
        longer than ``lag_ms_max``. ``is_live`` tells whether a node is registered with a node epoch. ``heard_ms`` is when it last fetched
        any partition, since it does not mention quiet partitions that it has completely.
        """
        if self._pending is not None:
            return None
        joining: dict[int, int] = {}
        leaving: list[int] = []
        for node, progress in self._progress.items():
            member = self.agreed.get(node)
            if progress.end >= log_end:
                # Stored, so that it is not considered late as soon as the next record comes, perhaps after hours.
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
