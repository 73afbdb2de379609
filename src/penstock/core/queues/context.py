"""What the queues of a node share: logs, clock, timers, and the work at the end of a turn."""

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from penstock.core.coordinators.deadlines import Deadlines
from penstock.core.queues.block import NEVER_MS, Block
from penstock.core.queues.floors import Floors
from penstock.core.queues.partition import QueuePartition
from penstock.core.queues.records import RecordCache
from penstock.core.queues.state_log import StateLog
from penstock.meters import Meters
from penstock.ports import Clock, Flusher, Report
from penstock.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.broker import Broker
    from penstock.core.queues.moves import Mover
    from penstock.core.queues.queue import Queue
    from penstock.core.queues.upkeep import Upkeep

LOOK_AHEAD: Final = -1
"""In a timer, instead of a block's number: the deadline of a record after the cursor."""

_TIMERS_SPARE: Final = 4096
_LOOK_MS: Final = 5
"""The interval at which new records are checked for deadlines while more arrive."""


class Context:
    """Created by :class:`~penstock.core.queues.upkeep.Upkeep`, which sets the other parts."""

    state_log: StateLog
    floors: Floors
    mover: "Mover"
    upkeep: "Upkeep"

    def __init__(self, settings: QueueSettings, broker: "Broker", flusher: Flusher, report: Report) -> None:
        self.settings: Final = settings
        self.broker: Final = broker
        self._flusher = flusher
        self.report: Final = report
        self.clock: Final[Clock] = broker.clock
        self.meters: Final[Meters] = broker.meters
        self.cache: Final = RecordCache()
        self.deadlines: Final = Deadlines()
        """Of waiting calls, in monotonic time."""
        self.deadlines.on_sooner = broker.wake_at
        self.to_dispatch: dict[Queue, None] = {}
        """Queues that may have records to deliver at the end of this turn."""
        self.to_look: dict[QueuePartition, Queue] = {}
        """Partitions whose next records were not checked for deadlines; :meth:`look` adds them."""
        self._timers: list[tuple[int, int, QueuePartition, int, Queue]] = []
        self._timers_max = _TIMERS_SPARE
        self._sequence = 0
        self.lost: dict[int, None] = {}
        """Partitions of the state topic with a failed append: memory may be ahead of the log until they are loaded again."""
        self.scheduled = False

    @property
    def in_cluster(self) -> bool:
        """Whether other nodes may lead the partitions that queues read, or coordinate groups that this node coordinated."""
        return not self.broker.is_alone

    def schedule(self) -> None:
        """Call :meth:`end_turn` at the end of this turn."""
        if not self.scheduled:
            self.scheduled = True
            self._flusher.gather(self.end_turn)

    def end_turn(self) -> None:
        """Deliver records, then append all changes."""
        self.scheduled = False
        for state_partition in list(self.lost):
            del self.lost[state_partition]
            self.upkeep.reload(state_partition)
        queues, self.to_dispatch = self.to_dispatch, {}
        for queue in queues:
            queue.dispatcher.dispatch()
        self.mover.flush()
        self.floors.flush()
        for state_partition in list(self.lost):
            # The changes are based on state that was lost.
            self.state_log.refuse(state_partition)
        self.state_log.flush()

    # -- timers, by wall time: leases outlive the process

    def arm(self, queue: "Queue", partition: QueuePartition, number: int, block: Block) -> None:
        """Set a timer for the first record of the block that is due."""
        if block.due_ms < block.entry_ms:
            block.entry_ms = block.due_ms
            self._push(block.due_ms, partition, number, queue)

    def arm_look(self, queue: "Queue", partition: QueuePartition, due_ms: int) -> None:
        """The same for a deadline after the cursor."""
        if due_ms < partition.look_entry_ms:
            partition.look_entry_ms = due_ms
            self._push(due_ms, partition, LOOK_AHEAD, queue)

    def _push(self, due_ms: int, partition: QueuePartition, number: int, queue: "Queue") -> None:
        self._sequence += 1
        timers = self._timers
        if len(timers) >= self._timers_max:
            # Long leases that were acked early leave useless entries.
            timers[:] = [entry for entry in timers if _is_live(*entry)]
            heapify(timers)
            self._timers_max = max(_TIMERS_SPARE, 2 * len(timers))
        heappush(timers, (due_ms, self._sequence, partition, number, queue))
        if timers[0][1] == self._sequence:
            clock = self.clock
            self.broker.wake_at(clock.monotonic_ms() + max(0, due_ms - clock.now_ms()))

    def look(self, queue: "Queue", partition: QueuePartition) -> None:
        """Check the next records of the partition for deadlines soon, those of a few turns together."""
        if not self.to_look:
            self.broker.wake_at(self.clock.monotonic_ms() + _LOOK_MS)
        self.to_look[partition] = queue

    def arm_again(self, queue: "Queue", partition: QueuePartition, number: int, due_ms: int) -> None:
        """Set the timer again for a block that is due and cannot be processed yet."""
        block = partition.blocks.get(number)
        if block is not None:
            block.entry_ms = due_ms
            self._push(due_ms, partition, number, queue)

    def drop_dead(self) -> None:
        """Drop everything of closed queues."""
        self.to_dispatch = {queue: None for queue in self.to_dispatch if queue.alive}
        self.to_look = {part: queue for part, queue in self.to_look.items() if queue.alive}
        self._timers = [entry for entry in self._timers if entry[-1].alive]
        heapify(self._timers)

    def next_due_ms(self) -> int:
        """Wall time of the next timer, which may turn out to be unused."""
        return self._timers[0][0] if self._timers else NEVER_MS

    def pop_due(self, now_ms: int) -> "tuple[Queue, QueuePartition, int] | None":
        """The next block, or :data:`LOOK_AHEAD`, that is due."""
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            due_ms, _, partition, number, queue = heappop(timers)
            if not queue.alive:
                continue
            if number == LOOK_AHEAD:
                if partition.look_entry_ms != due_ms:
                    continue
                partition.look_entry_ms = NEVER_MS
                return queue, partition, number
            block = partition.blocks.get(number)
            if block is None or block.entry_ms != due_ms:
                continue
            block.entry_ms = NEVER_MS
            if block.due_ms <= now_ms:
                return queue, partition, number
            self.arm(queue, partition, number, block)
        return None


def _is_live(due_ms: int, _: int, partition: QueuePartition, number: int, queue: "Queue") -> bool:
    if not queue.alive:
        return False
    if number == LOOK_AHEAD:
        return partition.look_entry_ms == due_ms
    block = partition.blocks.get(number)
    return block is not None and block.entry_ms == due_ms and block.due_ms < NEVER_MS
