"""Loads, unloads and maintains the queues of a node, and follows what happens to their topics and groups.

A commit of the group, by whichever API, moves a queue's floor. The queues of a deleted topic or group are deleted too. After a failed
append, the queues of that partition of the state topic are loaded again from the log.

In a cluster, a queue is served by the node that leads its group's partition of the state topic. It is loaded when this node becomes that
leader and unloaded when it stops being it. After that, this node answers, writes and delivers nothing for it, not even work in progress.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.runtime import Family
from penstock.core.coordinators.topic import InternalTopic, StoredDone
from penstock.core.queues.block import NEVER_MS
from penstock.core.queues.context import LOOK_AHEAD, Context
from penstock.core.queues.floors import Floors, release
from penstock.core.queues.loading import QueueImage, QueuesShard, fill, read_images
from penstock.core.queues.moves import REDRIVE_GROUP, Mover
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.queue import Queue
from penstock.core.queues.state_log import StateLog
from penstock.core.queues.stored import QueueId, StateKind, block_key, key_prefix, queue_record
from penstock.core.queues.workers import Poll
from penstock.core.topics.names import QUEUE_STATE_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.ports import Flusher, Report
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_BLOCKS_PER_TICK: Final = 6
"""Blocks that are processed in one tick: some ten milliseconds of work if all of their leases expire at once."""
_LOOKS_PER_TICK: Final = 4
_OPENS_PER_TICK: Final = 4
_KEYS_PER_TICK: Final = 500
_REFRESH_MS: Final = 10 * 60 * 1000
"""How often floors are checked for commits that would expire."""
_COPY_RETRY_MS: Final = 100
"""After which records that were not copied to this node yet are checked again."""
_SET_BACK_MS_MIN: Final = 1000
"""A wall clock that goes back by less is ignored: it is being adjusted, not set."""
_PAUSE_MS: Final = 1000
"""How long a queue delivers nothing after its state could not be stored."""


class Upkeep:
    """All queues of a node."""

    def __init__(self, settings: QueueSettings, broker: "Broker", flusher: Flusher, report: Report) -> None:
        context = self.context = Context(settings, broker, flusher, report)
        self._broker = broker
        self._clock = broker.clock
        topic = InternalTopic(broker, QUEUE_STATE_TOPIC, report)
        self.family: Final = Family(topic, partial(QueuesShard, self, report), "the queues of the group")
        context.state_log = StateLog(context, topic)
        context.floors = Floors(context)
        context.upkeep = self
        context.mover = Mover(context)
        self.queues: dict[tuple[str, str], Queue] = {}
        self._by_partition: dict[int, dict[QueueId, Queue]] = {}
        self._unopened: deque[Queue] = deque()
        self._paused: dict[int, int] = {}
        self._refresh_ms = broker.clock.monotonic_ms() + _REFRESH_MS
        self._ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        """How far the wall clock was ahead of the monotonic clock at the last check."""
        broker.groups.on_committed.append(self._committed)
        broker.groups.on_forgotten.append(self._forgotten)
        broker.groups.on_deleted.append(self.forget_group)
        broker.groups.needed_by.append(self._needs)

    # -- loading and unloading

    def restore(self, state_partition: int, queue_id: QueueId, image: QueueImage) -> None:
        """Create a queue from its loaded state."""
        # Loaded times are compared with the present wall clock.
        self._follow_clock()
        topic = self._broker.topics.get_by_id(queue_id.topic_id)
        if topic is None:
            self._drop_image(state_partition, queue_id, image)
            return
        queue = self.add(topic, queue_id.group)
        fill(queue, image)
        self._unopened.append(queue)

    def resign(self, state_partition: int, reason: Reason) -> None:
        """Close the queues of a partition: all waiting callers get the reason."""
        queues = self._by_partition.pop(state_partition, {})
        context = self.context
        for queue in queues.values():
            self.queues.pop((queue.topic, queue.group), None)
            queue.close()
        # The changes of this turn, and the callers that wait for them.
        context.state_log.refuse(state_partition, reason)
        for queue in queues.values():
            self._end(queue, reason)
            context.floors.forget(queue.partitions)
        self._unopened = deque(queue for queue in self._unopened if queue.alive)
        self._paused.pop(state_partition, None)
        context.lost.pop(state_partition, None)
        context.mover.drop_dead()
        context.drop_dead()

    def check_loaded(self, group: str) -> None:
        """NOT_COORDINATOR if another node coordinates the group, COORDINATOR_LOAD_IN_PROGRESS while this node loads it."""
        broker = self._broker
        if self.family.serves(self.context.state_log.partition_for(group)):
            return
        node = broker.cluster.coordinators.node_of(group)
        if node == broker.node_id:
            raise PenstockError(
                Reason.COORDINATOR_LOAD_IN_PROGRESS,
                f"The queues of group {group} are being loaded. Try again in a moment.",
            )
        raise PenstockError(
            Reason.NOT_COORDINATOR, f"Node {node} coordinates group {group}; send the request to that node"
        )

    def close(self) -> None:
        """The broker stops: all waiting callers get SHUTTING_DOWN."""
        for queue in self.queues.values():
            self._end(queue, Reason.SHUTTING_DOWN)
        self.queues.clear()

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted, and with it its queues."""
        for key in [key for key in self.queues if key[0] == topic]:
            self._forget(self.queues.pop(key), Reason.UNKNOWN_TOPIC_OR_PARTITION)

    def forget_group(self, group: str) -> None:
        """A group was deleted, and with it its queues."""
        for key in [key for key in self.queues if key[1] == group]:
            self._forget(self.queues.pop(key), Reason.GROUP_ID_NOT_FOUND)

    def _forget(self, queue: Queue, reason: Reason) -> None:
        self._by_partition[queue.state_partition].pop(queue.queue_id, None)
        queue.forget()
        self.context.state_log.remove(queue.state_partition, queue_record(queue.queue_id, None)[0])
        self._end(queue, reason)

    def _end(self, queue: Queue, reason: Reason) -> None:
        queue.close()
        takers, queue.takers = list(queue.takers), deque()
        for taker in takers:
            if isinstance(taker, Poll):
                self.context.deadlines.cancel(taker.timer)
            taker.gone(reason)
        for part in queue.partitions:
            if part.source is not None:
                self.context.cache.forget(part.source)
            if part.retry is not None:
                self.context.deadlines.cancel(part.retry)
            self.context.to_look.pop(part, None)
            waiting, part.floor_waiting = [done for _, done in part.floor_waiting], []
            for moving in part.move_waiting.values():
                waiting += moving
            part.move_waiting.clear()
            for done in waiting:
                done(reason)

    def _drop_image(self, state_partition: int, queue_id: QueueId, image: QueueImage) -> None:
        """Remove the stored state of a queue whose topic was deleted."""
        log = self.context.state_log
        log.remove(state_partition, queue_record(queue_id, None)[0])
        for kind, places in ((StateKind.BLOCK, image.blocks), (StateKind.MOVE, image.moves)):
            prefix = key_prefix(kind, queue_id)
            for index, number in places:
                log.remove(state_partition, block_key(prefix, index, number))
        for key in image.keys:
            log.remove(state_partition, key)

    # -- time

    def next_deadline_ms(self) -> int:
        """Monotonic time of the next call of :meth:`tick`, which may find nothing to do."""
        context = self.context
        now_ms = self._clock.monotonic_ms()
        wall_ms = self._clock.now_ms()
        if context.to_look or self._unopened or self._set_back_ms() >= _SET_BACK_MS_MIN:
            return now_ms
        due_ms = min(context.next_due_ms(), self._next_key_ms())
        candidates = [now_ms + max(0, due_ms - wall_ms) if due_ms < NEVER_MS else NEVER_MS]
        candidates += [at_ms for at_ms in (context.deadlines.next_ms(), context.mover.next_ms()) if at_ms is not None]
        candidates += (self._refresh_ms, *self._paused.values())
        return min(candidates)

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic), a bounded amount of work per call."""
        context = self.context
        self._follow_clock()
        wall_ms = self._clock.now_ms()
        context.deadlines.expire(now_ms)
        for _ in range(min(_OPENS_PER_TICK, len(self._unopened))):
            self._open(self._unopened.popleft())
        for _ in range(_BLOCKS_PER_TICK):
            due = context.pop_due(wall_ms)
            if due is None:
                break
            queue, part, number = due
            if number == LOOK_AHEAD:
                queue.failures.pass_deadlines(part, wall_ms)
            elif queue.is_here(part):
                queue.failures.due(part, number, wall_ms)
            else:
                context.arm_again(queue, part, number, wall_ms + _COPY_RETRY_MS)
        for part in list(context.to_look)[:_LOOKS_PER_TICK]:
            queue = context.to_look.pop(part)
            if queue.alive:
                queue.failures.look_ahead(part, wall_ms)
        if self._next_key_ms() <= wall_ms:
            for each in self.queues.values():
                each.expire_keys(wall_ms, _KEYS_PER_TICK)
        retry_ms = context.mover.next_ms()
        if retry_ms is not None and retry_ms <= now_ms:
            context.schedule()
        self._resume(now_ms)
        if self._refresh_ms <= now_ms:
            self._refresh_ms = now_ms + _REFRESH_MS
            self._refresh(wall_ms)

    def _set_back_ms(self) -> int:
        return self._ahead_ms - (self._clock.now_ms() - self._clock.monotonic_ms())

    def _follow_clock(self) -> None:
        """If the wall clock was set back, end leases and backoffs earlier by as much, so that they do not last longer."""
        back_ms = self._set_back_ms()
        if 0 <= back_ms < _SET_BACK_MS_MIN:
            return
        self._ahead_ms -= back_ms
        if back_ms < 0:
            return
        for queue in self.queues.values():
            for part in queue.partitions:
                for number, block in part.blocks.items():
                    block.set_back(back_ms)
                    self.context.state_log.mark(part, number)
                    self.context.arm(queue, part, number, block)

    def _refresh(self, wall_ms: int) -> None:
        """Commit the offsets of used queues again before they expire."""
        old_ms = wall_ms - self._broker.settings.groups.offsets_retention_ms // 2
        for queue in self.queues.values():
            for key, committed in self._broker.groups.fetch_offsets(queue.group, None).items():
                if key.topic == queue.topic and committed.commit_ms < old_ms and key.partition < len(queue.partitions):
                    part = queue.partitions[key.partition]
                    # Dead letters are kept forever, and redriven ones must not be open again.
                    if queue.takers or part.blocks or queue.group == REDRIVE_GROUP:
                        self.context.floors.refresh(part)

    def _next_key_ms(self) -> int:
        times = (queue.keys.next_ms() for queue in self.queues.values())
        return min((time_ms for time_ms in times if time_ms is not None), default=NEVER_MS)

    def _open(self, queue: Queue) -> None:
        try:
            if queue.alive:
                queue.open()
        except PenstockError as error:
            self.context.report(f"the queue {queue.topic} of group {queue.group} cannot be used: {error.text}")

    def _resume(self, now_ms: int) -> None:
        for state_partition, until_ms in list(self._paused.items()):
            if until_ms <= now_ms:
                del self._paused[state_partition]
                if self.context.lost:
                    self.context.schedule()
                for queue in self._by_partition.get(state_partition, {}).values():
                    queue.wake()

    # -- changes of topics, groups and offsets

    def topic_changed(self, topic: Topic) -> None:
        """A topic may have more partitions now."""
        for (name, _), queue in list(self.queues.items()):
            if name == topic.name:
                queue.grow(topic.partition_count)
                self._open(queue)

    def _committed(self, group: GroupId, key: PartitionKey, offset: int) -> None:
        part = self._part(group, key)
        if part is None or offset in (part[1].committing, part[1].committed) or offset < 0:
            return
        self._go_to(*part, offset, offset)

    def _forgotten(self, group: GroupId, key: PartitionKey) -> None:
        part = self._part(group, key)
        if part is not None:
            source = part[1].source
            self._go_to(*part, 0, 0 if source is None else source.first_offset)

    def _needs(self, group: GroupId) -> bool:
        """A queue in use may have leases, attempts and finished records before its first commit."""
        siblings = self._by_partition.get(self.context.state_log.partition_for(group), {})
        return any(queue.is_at_work for queue_id, queue in siblings.items() if queue_id.group == group)

    def _part(self, group: GroupId, key: PartitionKey) -> tuple[Queue, QueuePartition] | None:
        queue = self.queues.get((key.topic, group))
        if queue is None or key.partition >= len(queue.partitions):
            return None
        return queue, queue.partitions[key.partition]

    def _go_to(self, queue: Queue, part: QueuePartition, committed: int, floor: int) -> None:
        """Another commit moved the floor."""
        part.committed = committed
        if floor >= part.floor:
            queue.end_moves(part, part.forward(floor))
            release(part, floor)
        else:
            part.rewound = part.committing is not None
            for number in part.rewind(floor):
                self.context.state_log.mark(part, number)
            release(part, NEVER_MS)
        queue.drop_finished(part)
        self.context.look(queue, part)
        queue.wake_partition(part)

    def floor_stored(self, part: QueuePartition) -> None:
        """A floor is committed."""
        queue = self.queues.get((part.topic, part.queue.group))
        if queue is None or part.gone:
            return
        if part.committed > part.floor:
            # The state was loaded again while the commit was in flight.
            queue.end_moves(part, part.forward(part.committed))
        queue.drop_finished(part)

    def lose(self, state_partition: int) -> None:
        """An append failed, so memory may be ahead of the log: load the state again before anything else is stored."""
        if not self.family.serves(state_partition):
            return
        self.context.lost[state_partition] = None
        if state_partition not in self._paused:
            self.context.schedule()

    def reload(self, state_partition: int) -> None:
        """Load the state of a partition again."""
        context = self.context
        context.state_log.refuse(state_partition)
        if state_partition in self._paused:
            # The disk may still be full. Reading everything in every turn would not help.
            context.lost[state_partition] = None
            return
        now_ms = self._clock.monotonic_ms()
        self._paused[state_partition] = now_ms + _PAUSE_MS
        queues = self._by_partition.get(state_partition, {})
        for queue in queues.values():
            queue.paused_until_ms = now_ms + _PAUSE_MS
        try:
            images = read_images(self.family, state_partition)
        except PenstockError as error:
            context.report(f"the state of queues cannot be read: {error.text}")
            context.lost[state_partition] = None
            return
        for queue_id, queue in queues.items():
            refused: list[StoredDone] = []
            for part in queue.partitions:
                sure = -1 if part.committing is None else part.committing
                refused += [done for floor, done in part.floor_waiting if floor > sure]
                part.floor_waiting = [entry for entry in part.floor_waiting if entry[0] <= sure]
            queue.reset()
            image = images.get(queue_id)
            if image is None or image.made_ms is None:
                self.note(queue)
            if image is not None:
                fill(queue, image)
            for done in refused:
                done(Reason.STORAGE_ERROR)

    # -- creating queues

    def add(self, topic: Topic, group: GroupId) -> Queue:
        """Create a queue in memory."""
        queue = Queue(self.context, topic, group)
        self.queues[topic.name, group] = queue
        self._by_partition.setdefault(queue.state_partition, {})[queue.queue_id] = queue
        return queue

    def note(self, queue: Queue) -> None:
        """Store that a queue exists."""
        key, value = queue_record(queue.queue_id, self._clock.now_ms())
        assert value is not None
        self.context.state_log.put(queue.state_partition, key, value)
