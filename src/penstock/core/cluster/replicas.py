"""The role of this node in each partition of the cluster: leader, follower, or none, according to the agreed records.

A node leads a partition only if the record has its current node epoch: after a restart, it must be elected again. A role begins and ends
here, in one step on the event loop: the new role takes over the log, and all that waited in the old one are answered.

A role begins with the high watermark of the previous one; ``high_watermarks`` keeps it over a restart.

A partition whose only replica is this node is opened when it is first used, since no other node waits for it. So a node with ten thousand of
them starts as quickly as one with ten. Internal topics are the exception: their coordinators need them at once.
"""

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from penstock.core.cluster.follower import Follower
from penstock.core.cluster.in_sync import InSync
from penstock.core.cluster.observed import Observed, observed_id
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.cluster.throttle import ByteBudget, Throttle
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.replica import Replica
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.core.topics.topics import Topic, Topics
from penstock.errors import PenstockError, Reason
from penstock.log.log import Log
from penstock.log.manager import LogManager
from penstock.log.producer_state import ProducerStates
from penstock.log.retention import RemovalTask
from penstock.ports import Clock, Flusher, Report
from penstock.types import Flush, NodeId

OBSERVED_MS: Final = 60_000
"""An observer without readers ends after this time."""
OPEN_AGAIN_MS: Final = 1_000
"""Between two attempts to open a partition with one replica because it is used."""
RETRY_MS_MIN: Final = 5_000
RETRY_MS_MAX: Final = 300_000
"""The longest wait before the next attempt to open a log that could not be opened."""
UNREGISTERED: Final = -1
"""The node epoch of a node that is not registered."""


class TopicIdPartition(NamedTuple):
    """A partition by topic id, which distinguishes it from one of a newer topic of the same name."""

    topic_id: UUID
    partition: int


@dataclass(slots=True)
class ReplicaEnvironment:
    """What replicas need from the node."""

    node_id: NodeId
    topics: Topics
    logs: LogManager
    flusher: Flusher
    flush: Flush
    moving_bytes_per_second: int
    clock: Clock
    report: Report
    trash: Callable[[RemovalTask], None]
    rules: Rules = ALL


class OutdatedRecordError(PenstockError):
    """The agreed record is older than the log, so it cannot be used."""


class Replicas:
    """The partitions that this node has, by role. Hooks are called after the change."""

    def __init__(
        self, world: ReplicaEnvironment, high_watermarks: MutableMapping[TopicIdPartition, int] | None = None
    ) -> None:
        self._world = world
        self.node_epoch = UNREGISTERED
        self.high_watermarks: Final[MutableMapping[TopicIdPartition, int]] = (
            {} if high_watermarks is None else high_watermarks
        )
        """The last high watermarks of partitions without a role here."""
        self.moving_budget = ByteBudget(world.moving_bytes_per_second)
        """The rate at which moving partitions are sent to their new nodes, unless they are throttled."""
        self.sending: Final = Throttle(world.node_id, lambda config: config.throttled_leaders)
        self.receiving: Final = Throttle(world.node_id, lambda config: config.throttled_followers)
        self._leading: dict[TopicIdPartition, Partition] = {}
        self._unopened: dict[TopicIdPartition, None] = {}
        """Led here, without other replicas, and not used yet."""
        self._following: dict[TopicIdPartition, Follower] = {}
        self._observed: dict[TopicIdPartition, Observed] = {}
        """Copied here without being a replica."""
        self._retry_ms = RETRY_MS_MIN
        self._retry_at_ms: int | None = None
        self._failed_ms: dict[TopicIdPartition, int] = {}
        """When each of ``failed`` was last tried."""
        self.failed: Final[dict[TopicIdPartition, str]] = {}
        """Partitions whose log cannot be opened here, and why."""
        self.unable: Final[dict[TopicIdPartition, None]] = {}
        """Those of them that this node was elected to lead. Other nodes should take over."""
        self.on_lead: Final[list[Callable[[Partition], None]]] = []
        self.on_resign: Final[list[Callable[[Partition], None]]] = []
        self.on_follow: Final[list[Callable[[Follower], None]]] = []
        self.on_unfollow: Final[list[Callable[[Follower], None]]] = []
        self.on_failed: Final[list[Callable[[str], None]]] = []
        """Called when the disk fails under a log: other nodes should take over from this one."""

    # Finding replicas.

    def leader(self, topic: Topic, index: int) -> Partition:
        """The partition, led here; NOT_LEADER_OR_FOLLOWER if another node leads it, LEADER_NOT_AVAILABLE if none does."""
        place = TopicIdPartition(topic.topic_id, index)
        self._open(topic, place)
        found = self._leading.get(place)
        if found is None:
            raise self._not_leader(topic, index)
        return found

    def readable(self, topic: Topic, index: int) -> Replica:
        """The partition as it can be read here."""
        place = TopicIdPartition(topic.topic_id, index)
        self._open(topic, place)
        found: Replica | None = self._leading.get(place) or self._following.get(place)
        if found is None:
            raise self._not_leader(topic, index)
        return found

    def _open(self, topic: Topic, place: TopicIdPartition) -> None:
        """Open the partition if this is its first use, or if it could not be opened before and no other node can lead it."""
        failed_ms = self._failed_ms.get(place)
        if place in self._unopened or (
            failed_ms is not None
            and self._world.clock.monotonic_ms() - failed_ms >= OPEN_AGAIN_MS
            and self._world.topics.partition(topic, place.partition).replicas == (self._world.node_id,)
        ):
            self.apply(topic, place.partition, is_used=True)

    def follower(self, place: TopicIdPartition) -> Follower | None:
        """The copy here of a partition that is led elsewhere."""
        return self._following.get(place)

    def leading(self) -> Iterator[Partition]:
        """All open partitions that are led here."""
        yield from list(self._leading.values())

    def is_unopened(self, topic: Topic, index: int) -> bool:
        """Whether the partition is led here and was not used yet."""
        return TopicIdPartition(topic.topic_id, index) in self._unopened

    def unopened(self) -> list[TopicIdPartition]:
        """All partitions that are led here and were not used yet."""
        return list(self._unopened)

    def following(self) -> Iterator[Follower]:
        """All partitions that are copied here."""
        yield from list(self._following.values())

    def problems(self) -> dict[TopicIdPartition, str]:
        """Partitions that should be led or copied here but are not, and why."""
        stuck = {place: follower.stuck for place, follower in self._following.items() if follower.stuck is not None}
        return {**self.failed, **stuck}

    def _not_leader(self, topic: Topic, index: int) -> PenstockError:
        record = self._world.topics.partition(topic, index)
        problem = self.failed.get(TopicIdPartition(topic.topic_id, index))
        if problem is not None:
            return PenstockError(Reason.STORAGE_ERROR, problem)
        if record.leader in (NO_LEADER, self._world.node_id):
            return PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"{topic.name}/{index} has no leader at the moment; it gets one when an in-sync replica is up. Try again in a moment.",
            )
        return PenstockError(
            Reason.NOT_LEADER_OR_FOLLOWER,
            f"{topic.name}/{index} is led by node {record.leader}; send the request to that node",
        )

    # Applying the records.

    def registered(self, node_epoch: int) -> None:
        """This node has a new node epoch, or none. It no longer leads what it led with the previous one."""
        self.node_epoch = node_epoch
        self.apply_all()

    def apply_all(self) -> None:
        """Apply all records."""
        for topic in self._world.topics:
            self.apply_topic(topic)

    def apply_topic(self, topic: Topic) -> None:
        """A topic was created or changed."""
        for index in range(topic.partition_count):
            self.apply(topic, index)

    def apply(self, topic: Topic, index: int, *, is_used: bool = False) -> None:
        """A record was created or changed, or the partition is used for the first time."""
        place = TopicIdPartition(topic.topic_id, index)
        record = self._world.topics.partition(topic, index)
        self.unable.pop(place, None)
        try:
            if place in self._observed and self._world.node_id in record.replicas:
                self._end_observing(place)
            if self._leads(record):
                if is_used or topic.internal or place in self._leading or record.replicas != (self._world.node_id,):
                    self._lead(topic, index, place, record)
                else:
                    self._rest(place)
                    self._unopened[place] = None
            elif record.leader not in (NO_LEADER, self._world.node_id) and self._has(place, record):
                self._follow(topic, index, place, record)
            else:
                self._rest(place)
                if not self._has(place, record) and record.replicas:
                    self._drop(place)
            self.failed.pop(place, None)
            self._failed_ms.pop(place, None)
        except (OSError, PenstockError) as error:
            self._rest(place)
            problem = f"The log of {topic.name}/{index} cannot be opened: {error}. See the broker's log."
            if self.failed.get(place) != problem:
                self._world.report(problem)
            self.failed[place] = problem
            self._failed_ms[place] = self._world.clock.monotonic_ms()
            if self._retry_at_ms is None:
                self._retry_at_ms = self._world.clock.monotonic_ms() + self._retry_ms
            if self._leads(record) and not isinstance(error, OutdatedRecordError):
                self.unable[place] = None

    def _leads(self, record: PartitionRecord) -> bool:
        if record.leader != self._world.node_id or self.node_epoch == UNREGISTERED:
            return False
        return record.leader_node_epoch == self.node_epoch or not self._world.rules.named_by_node_epoch

    def _has(self, place: TopicIdPartition, record: PartitionRecord) -> bool:
        return self._world.node_id in record.replicas or place in self._observed

    def _lead(self, topic: Topic, index: int, place: TopicIdPartition, record: PartitionRecord) -> None:
        led = self._leading.get(place)
        now_ms = self._world.clock.monotonic_ms()
        if led is not None and led.leader_epoch == record.leader_epoch:
            led.in_sync.agree(record, now_ms, self._world.topics.partition_epoch(topic, index))
            led.in_sync.min_in_sync = topic.min_in_sync_of(len(record.replicas))
            led.recount()
            return
        self._rest(place)
        world = self._world
        log = self._log(topic, index, record)
        if not world.rules.producers_from_log:
            log.producers = ProducerStates()
        flush = world.flush if world.rules.synced_before_counted else Flush.OS
        in_sync = InSync(
            world.node_id,
            record,
            log_end=log.next_offset,
            leader_end=log.synced_offset if flush is Flush.SYNC else log.written_offset,
            min_in_sync=topic.min_in_sync_of(len(record.replicas)),
            now_ms=now_ms,
            log_start=log.start_offset,
            partition_epoch=world.topics.partition_epoch(topic, index),
            rules=world.rules,
        )
        partition = Partition(
            topic,
            index,
            log,
            world.flusher,
            flush,
            record.leader_epoch,
            in_sync=in_sync,
            high_watermark=self.high_watermarks.pop(place, 0),
        )
        self._leading[place] = partition
        self._watch_failure(log)
        partition.recount()
        for hook in self.on_lead:
            hook(partition)

    def _follow(self, topic: Topic, index: int, place: TopicIdPartition, record: PartitionRecord) -> None:
        is_observer = self._world.node_id not in record.replicas
        followed = self._following.get(place)
        if (
            followed is not None
            and (followed.leader, followed.leader_epoch) == (record.leader, record.leader_epoch)
            and followed.is_observer is is_observer
        ):
            return
        self._rest(place)
        world = self._world
        follower = self._following[place] = Follower(
            topic,
            index,
            self._observed_log(topic, index, place) if is_observer else self._log(topic, index, record),
            world.flusher,
            world.flush,
            world.report,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            high_watermark=self.high_watermarks.pop(place, 0),
            unclean_epoch=record.unclean_epoch,
            is_observer=is_observer,
            rules=world.rules,
        )
        self._watch_failure(follower.log)
        for hook in self.on_follow:
            hook(follower)

    def _watch_failure(self, log: Log) -> None:
        """Call ``on_failed`` when this log fails, after the replica's own hook."""
        tell = log.on_failed

        def failed(error: PenstockError, from_offset: int) -> None:
            if tell is not None:
                tell(error, from_offset)
            for hook in self.on_failed:
                hook(error.text)

        log.on_failed = failed

    def _log(self, topic: Topic, index: int, record: PartitionRecord) -> Log:
        log = self._world.logs.log(topic.topic_id, index, topic.config.log)
        last = log.epochs.latest
        if last > record.leader_epoch:
            # A leader with such a record would assign offsets and epochs a second time.
            raise OutdatedRecordError(
                Reason.STORAGE_ERROR,
                f"It has records of leader epoch {last}, but the cluster's metadata has {record.leader_epoch}: etcd was set back. Stop all nodes and "
                "restore a later snapshot, or advance the epochs (docs/cluster.md).",
            )
        return log

    def _observed_log(self, topic: Topic, index: int, place: TopicIdPartition) -> Log:
        log = self._world.logs.log(observed_id(topic.topic_id), index, topic.config.log)
        observed = self._observed[place]
        if not observed.has_begun:
            observed.has_begun = True
            log.start_at(observed.from_offset)
        return log

    def _end_observing(self, place: TopicIdPartition) -> None:
        del self._observed[place]
        follower = self._following.get(place)
        if follower is not None and follower.is_observer:
            self._rest(place)
        logs = self._world.logs
        self._world.trash(logs.forget_partition(observed_id(place.topic_id), place.partition))

    def _rest(self, place: TopicIdPartition, reason: Reason = Reason.NOT_LEADER_OR_FOLLOWER) -> None:
        """End the role of this node in a partition."""
        self._unopened.pop(place, None)
        partition = self._leading.pop(place, None)
        if partition is not None:
            self.high_watermarks[place] = partition.high_watermark
            partition.close(reason)
            for hook in self.on_resign:
                hook(partition)
        follower = self._following.pop(place, None)
        if follower is not None:
            self.high_watermarks[place] = follower.high_watermark
            follower.close(reason)
            for unfollow in self.on_unfollow:
                unfollow(follower)

    def _drop(self, place: TopicIdPartition) -> None:
        """The partition has moved to other nodes: remove its files."""
        self.high_watermarks.pop(place, None)
        if self._world.logs.has_records(*place):
            self._world.report(
                f"partition {place.partition} of topic {place.topic_id} has moved to other nodes: removing its files"
            )
            self._world.trash(self._world.logs.forget_partition(*place))

    def forget(self, topic: Topic) -> None:
        """The topic is deleted. The caller removes its files."""
        for index in range(topic.partition_count):
            place = TopicIdPartition(topic.topic_id, index)
            self._rest(place, Reason.UNKNOWN_TOPIC_OR_PARTITION)
            self.high_watermarks.pop(place, None)
            self.failed.pop(place, None)
            self._failed_ms.pop(place, None)
            self.unable.pop(place, None)
            if place in self._observed:
                self._end_observing(place)

    def reconfigured(self, topic: Topic) -> None:
        """The topic's settings changed."""
        for index in range(topic.partition_count):
            place = TopicIdPartition(topic.topic_id, index)
            for replica in (self._leading.get(place), self._following.get(place)):
                if replica is not None:
                    replica.reconfigure(topic)

    def known_high_watermarks(self) -> dict[TopicIdPartition, int]:
        """The high watermarks of all partitions here, for the checkpoint."""
        known = dict(self.high_watermarks)
        for roles in (self._leading, self._following):
            known.update({place: replica.high_watermark for place, replica in roles.items()})
        return known

    # Observers.

    def observe(self, topic: Topic, index: int, from_offset: int = 0) -> Replica:
        """The partition as it can be read here. If this node is not a replica, it becomes an observer; its first records take a moment.

        An observer has the records from ``from_offset`` on. If a later call needs older ones, it begins again there.
        """
        place = TopicIdPartition(topic.topic_id, index)
        observed = self._observed.get(place)
        if observed is None and self._is_replica(topic, index):
            return self.readable(topic, index)
        now_ms = self._world.clock.monotonic_ms()
        if observed is None:
            self._observed[place] = Observed(from_offset, now_ms)
            self.apply(topic, index)
        else:
            observed.asked_ms = now_ms
            if from_offset < observed.from_offset:
                observed.from_offset, observed.has_begun = from_offset, False
                self._rest(place)
                self.apply(topic, index)
        return self.readable(topic, index)

    def _is_replica(self, topic: Topic, index: int) -> bool:
        return self._world.node_id in self._world.topics.partition(topic, index).replicas

    def next_deadline_ms(self) -> int | None:
        """When an observer may end, or the next attempt to open a log is due."""
        due = [observed.asked_ms + OBSERVED_MS for observed in self._observed.values()]
        if self._retry_at_ms is not None:
            due.append(self._retry_at_ms)
        return min(due, default=None)

    def tick(self, now_ms: int) -> None:
        """End observers without readers, and retry to open logs."""
        if self._retry_at_ms is not None and now_ms >= self._retry_at_ms:
            self._try_again(now_ms)
        for place, observed in list(self._observed.items()):
            follower = self._following.get(place)
            if follower is not None and follower.is_watched:
                observed.asked_ms = now_ms
            elif now_ms - observed.asked_ms >= OBSERVED_MS:
                self._end_observing(place)

    def _try_again(self, now_ms: int) -> None:
        """Try to open one of the failed logs, since the disk may be repaired. One at a time with growing waits, as it may take long and fail."""
        place = next(iter(self.failed), None)
        topic = None if place is None else self._world.topics.get_by_id(place.topic_id)
        if place is not None and topic is not None:
            self.apply(topic, place.partition, is_used=True)
            if place in self.failed:
                self.failed[place] = self.failed.pop(place)
                self._retry_ms = min(self._retry_ms * 2, RETRY_MS_MAX)
            else:
                self._retry_ms = RETRY_MS_MIN
                self._world.report(f"The log of {topic.name}/{place.partition} can be opened again")
        elif place is not None:
            del self.failed[place]
            self._failed_ms.pop(place, None)
        # If one log can be opened again, the others probably can too.
        wait_ms = 0 if self._retry_ms == RETRY_MS_MIN else self._retry_ms
        self._retry_at_ms = now_ms + wait_ms if self.failed else None
