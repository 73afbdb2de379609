"""What runs by the clock, whether or not anyone is connected: retention, compaction, checkpoints, and the deadlines of the rules.

The rules decide on the event loop what is to be done; what blocks (removing files, rewriting segments, writing the
checkpoint) runs in one thread, one thing at a time, so that housekeeping never takes the disk away from clients.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

from penstock.core.broker import Broker
from penstock.core.partition import Partition
from penstock.core.replica import Replica
from penstock.core.replication.replicas import Place
from penstock.errors import PenstockError, Reason
from penstock.log.retention import RemovalTask
from penstock.ports import Timed
from penstock.runtime.group_commit import GroupCommit

logger = logging.getLogger("penstock.housekeeping")

_TICK_MS_MIN: Final = 5
_TICK_MS_MAX: Final = 100
"""A deadline that is set while the ticker waits for a later one is kept at most this much too late."""
_MARKS_SECONDS: Final = 5.0
"""How often a node of a cluster notes what is committed."""
_LOGS_PER_TURN: Final = 64
"""How many logs are looked at before clients get their turn again."""


class Housekeeping:
    """The background work of one node."""

    def __init__(
        self,
        broker: Broker,
        commit: GroupCommit,
        *,
        checkpoint_interval_ms: int,
        housekeeping_interval_ms: int,
        executor: Executor | None = None,
    ) -> None:
        """``executor`` is where blocking work is done, one thing at a time, if not in a thread of its own."""
        self._broker = broker
        self._commit = commit
        self._checkpoint_seconds = checkpoint_interval_ms / 1000
        self._interval_seconds = housekeeping_interval_ms / 1000
        self._thread = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-housekeeping")
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._marks: Mapping[Place, int] = {}

    def start(self) -> None:
        """Begin."""
        self._broker.on_trash = self._trash
        for work, name in (
            (self._tick(), "deadlines"),
            (self._every(self._interval_seconds, self._look_after_logs), "logs"),
            (self._every(self._checkpoint_seconds, self._checkpoint), "checkpoint"),
        ):
            self._tasks.append(asyncio.create_task(work, name=f"housekeeping-{name}"))
        if self._broker.cluster is not None:
            work = self._every(_MARKS_SECONDS, self._note_marks)
            self._tasks.append(asyncio.create_task(work, name="housekeeping-marks"))

    async def stop(self) -> None:
        """Finish the step that is running, begin no other."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._note_marks()
        except OSError as error:
            logger.warning(
                "what is committed could not be noted (%s); the next start learns it from other nodes", error
            )
        await asyncio.to_thread(self._thread.shutdown)

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._thread, work)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except OSError as error:
                # A full disk, say: it is known already, and a trace says no more.
                logger.warning("housekeeping failed: %s; it is tried again in %.0f s", error, seconds)
            except Exception:
                logger.exception("housekeeping failed; it is tried again in %.0f s", seconds)

    async def _tick(self) -> None:
        wait_ms = _TICK_MS_MIN
        while True:
            await asyncio.sleep(wait_ms / 1000)
            wait_ms = min([self._tick_one(rules) for rules in self._broker.timed], default=_TICK_MS_MAX)

    def _tick_one(self, rules: Timed) -> int:
        """Let these rules do what is due; gives back how long they can be left alone."""
        clock = self._broker.clock
        try:
            due_ms = rules.next_deadline_ms()
            if due_ms is not None and due_ms <= clock.monotonic_ms():
                rules.tick(clock.monotonic_ms())
                due_ms = rules.next_deadline_ms()
        except Exception:
            logger.exception("a deadline failed (%s)", type(rules).__name__)
            return _TICK_MS_MAX
        if due_ms is None:
            return _TICK_MS_MAX
        return min(max(due_ms - clock.monotonic_ms(), _TICK_MS_MIN), _TICK_MS_MAX)

    async def _look_after_logs(self) -> None:
        await self._open_untouched()
        for number, partition in enumerate(list(self._broker.open_replicas())):
            try:
                await self._look_after(partition)
            except (OSError, PenstockError) as error:
                # The files of a deleted topic may go while they are looked at.
                if not partition.gone:
                    logger.warning("%s/%d: %s", partition.topic.name, partition.index, error)
            except Exception:
                # Retention of all the others must go on.
                logger.exception("%s/%d: could not be looked after", partition.topic.name, partition.index)
            if number % _LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        if self._broker.cluster is not None:
            await self._broker.cluster.strays.sweep()

    async def _open_untouched(self) -> None:
        """What nobody asks for grows old too. One at a time, so that clients do not wait for it."""
        for name, index in list(self._broker.untouched_partitions()):
            try:
                self._broker.partition(name, index)
            except PenstockError as error:
                if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
                    logger.warning("%s/%d: %s", name, index, error)
            await asyncio.sleep(0)

    async def _look_after(self, replica: Replica) -> None:
        if replica.gone:
            return
        log, clock = replica.log, self._broker.clock
        for removal in self._retire(replica):
            await self._off_loop(removal.run)
        # Each copy is compacted for itself: which record is the last of its key is the same below the high watermark.
        task = log.compaction_task(clock.now_ms(), replica.high_watermark)
        if task is not None:
            await self._off_loop(task.run)
            if not replica.gone:
                log.install(task)

    def _retire(self, replica: Replica) -> list[RemovalTask]:
        """The leader decides what is too old; a copy drops what its leader has dropped, and nothing by its own clock."""
        log, now_ms = replica.log, self._broker.clock.now_ms()
        if not isinstance(replica, Partition):
            return log.retire(now_ms, log.start_offset)
        start_offset = log.start_offset
        archived_offset = self._broker.tiering.archived_offset(replica)
        removals = log.retire(now_ms, replica.high_watermark, archived_offset=archived_offset)
        if log.start_offset > start_offset:
            replica.started_later()
        return removals

    async def _note_marks(self) -> None:
        """Note what is committed, if more is than was."""
        cluster = self._broker.cluster
        if cluster is None:
            return
        task = cluster.marks_task()
        if task.marks != self._marks:
            await self._off_loop(task.run)
            self._marks = task.marks

    async def _checkpoint(self) -> None:
        for log in self._broker.open_logs():
            self._commit.sync_soon(log)
        await self._commit.finish_round()
        await self._off_loop(self._broker.logs.prepare_checkpoint().run)

    def _trash(self, removal: RemovalTask) -> None:
        self._thread.submit(self._remove, removal)

    def _remove(self, removal: RemovalTask) -> None:
        try:
            removal.run()
        except OSError as error:
            logger.warning("some files of a deleted topic are still there (%s); the next start removes them", error)
