"""Periodic work: retention, compaction, checkpoints, and the deadlines of the core (``ticker.py``).

The event loop decides what to do. Blocking work (removing files, rewriting segments, writing checkpoints) runs in one thread, one task at
a time, so that clients can always use the disk.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final

from penstock.core.broker import Broker
from penstock.core.broker_config import HOUSEKEEPING_MS
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.replica import Replica
from penstock.errors import PenstockError
from penstock.log.retention import RemovalTask
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.ticker import Ticker

logger = logging.getLogger("penstock.housekeeping")

_MARKS_SECONDS: Final = 5.0
"""How often a node of a cluster stores its high watermarks."""
_LOGS_PER_TURN: Final = 64
"""How many logs are checked before clients get their turn."""


class Housekeeping:
    """The periodic work of one node."""

    def __init__(
        self,
        broker: Broker,
        commit: GroupCommit,
        executor: Executor | None = None,
    ) -> None:
        """``executor`` runs blocking work, by default in one thread."""
        self._broker = broker
        self._commit = commit
        self._checkpoint_seconds = broker.settings.log.checkpoint_interval_ms / 1000
        self._interval_ms = broker.settings.log.housekeeping_interval_ms
        self._interval_changed = asyncio.Event()
        self._thread = executor or ThreadPoolExecutor(max_workers=1, thread_name_prefix="penstock-housekeeping")
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._ticker = Ticker(broker)
        self._marks: Mapping[TopicIdPartition, int] = {}

    def start(self) -> None:
        """Start all periodic work."""
        self._broker.on_trash = self._trash
        self._broker.configs.on_changed.append(self._interval_changed.set)
        self._ticker.start()
        for work, name in (
            (self._every(self._wait_for_logs, self._look_after_logs), "logs"),
            (self._every(lambda: asyncio.sleep(self._checkpoint_seconds), self._checkpoint), "checkpoint"),
        ):
            self._tasks.append(asyncio.create_task(work, name=f"housekeeping-{name}"))
        if not self._broker.is_alone:
            work = self._every(lambda: asyncio.sleep(_MARKS_SECONDS), self._note_marks)
            self._tasks.append(asyncio.create_task(work, name="housekeeping-marks"))

    async def stop(self) -> None:
        """Finish the current step, and begin no other."""
        self._ticker.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._note_marks()
        except OSError as error:
            logger.warning(
                "the high watermarks could not be stored (%s); the next start gets them from other nodes", error
            )
        await asyncio.to_thread(self._thread.shutdown)

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._thread, work)

    async def _wait_for_logs(self) -> None:
        """Wait for the configured interval; a change of it applies at once."""
        since = self._loop.time()
        while True:
            interval_ms = self._broker.configs.number(HOUSEKEEPING_MS) or self._interval_ms
            left = since + interval_ms / 1000 - self._loop.time()
            if left <= 0:
                return
            self._interval_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._interval_changed.wait()

    async def _every(self, wait: Callable[[], Awaitable[None]], work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await wait()
            try:
                await work()
            except OSError as error:
                # For instance a full disk: a traceback would not help.
                logger.warning("housekeeping failed: %s; retrying later", error)
            except Exception:
                logger.exception("housekeeping failed; retrying later")

    async def _look_after_logs(self) -> None:
        await self._open_untouched()
        for number, partition in enumerate(list(self._broker.open_replicas())):
            try:
                await self._look_after(partition)
            except (OSError, PenstockError) as error:
                # The topic may have been deleted meanwhile.
                if not partition.gone:
                    logger.warning("%s/%d: %s", partition.topic.name, partition.index, error)
            except Exception:
                # Continue with the other partitions.
                logger.exception("%s/%d: housekeeping failed", partition.topic.name, partition.index)
            if number % _LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not self._broker.is_alone:
            await self._broker.cluster.strays.sweep()

    async def _open_untouched(self) -> None:
        """Open partitions that were not used yet, for retention. One at a time, so that clients do not wait."""
        broker = self._broker
        for place in broker.cluster.replicas.unopened():
            topic = broker.topics.get_by_id(place.topic_id)
            if topic is None or not broker.logs.has_records(*place):
                continue
            # Errors are reported there, and retried.
            with contextlib.suppress(PenstockError):
                broker.partition(topic.name, place.partition)
            await asyncio.sleep(0)

    async def _look_after(self, replica: Replica) -> None:
        if replica.gone:
            return
        log, clock = replica.log, self._broker.clock
        for removal in self._retire(replica):
            await self._off_loop(removal.run)
        # Each replica is compacted separately, with the same result below the high watermark.
        task = log.compaction_task(clock.now_ms(), replica.high_watermark)
        if task is not None:
            await self._off_loop(task.run)
            if not replica.gone:
                log.install(task)

    def _retire(self, replica: Replica) -> list[RemovalTask]:
        """The leader decides by age and size; a follower only removes what its leader has removed."""
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
        """Store the high watermarks, if they have changed."""
        if self._broker.is_alone:
            return
        cluster = self._broker.cluster
        marks = cluster.replicas.known_high_watermarks()
        if marks != self._marks:
            await self._off_loop(partial(cluster.save_high_watermarks, marks))
            self._marks = marks

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
            logger.warning(
                "some files of a deleted topic could not be removed (%s); the next start removes them", error
            )
