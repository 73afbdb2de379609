"""Group commit: many appends share one fdatasync, off the event loop.

While a sync runs in a thread, everything that is written in the meantime waits for the next one, so the throughput of
synced appends is limited by the event loop and not by the disk. A log has at most one running sync; logs sync in parallel in
a few threads, because the file system's journal commits them together. Appends without a waiting client are synced within
:data:`_LATE_SECONDS`, so that others have the disk first.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import Final

from penstock.ports import Flushable, SyncTask
from penstock.runtime.turn import Turn
from penstock.types import Flush

_LATE_SECONDS: Final = 0.05


class GroupCommit:
    """The real :class:`penstock.ports.Flusher`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, flush: Flush, threads: int, executor: Executor | None = None
    ) -> None:
        """Syncs run in ``executor``; without one, in threads that are started here."""
        self._loop = loop
        self._sync = flush is Flush.SYNC
        self.turn = Turn(loop, self._written)
        self._pool = executor or ThreadPoolExecutor(max_workers=threads, thread_name_prefix="penstock-sync")
        # Dicts, where the order matters: the same appends must lead to the same syncs.
        self._running: dict[Flushable, None] = {}
        self._waiting: set[Flushable] = set()
        self._unhurried: set[Flushable] = set()
        self._late: dict[Flushable, None] = {}
        self._late_timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._rounds: list[tuple[dict[Flushable, int], asyncio.Future[None]]] = []
        self.on_synced: Callable[[float, bool], None] = lambda _seconds, _failed: None
        """Called on the event loop with the duration of each sync, and whether it failed."""
        # Called on every append: without a call in between.
        self.dirty = self.turn.write
        self.unhurried = self._unhurried.add
        self.gather = self.turn.gather

    def _written(self, target: Flushable) -> None:
        if not self._sync:
            self._unhurried.discard(target)
        elif target in self._unhurried:
            self._unhurried.discard(target)
            self._late[target] = None
            if self._late_timer is None:
                self._late_timer = self._loop.call_later(_LATE_SECONDS, self._sync_late)
        else:
            self.sync_soon(target)

    def _sync_late(self) -> None:
        if self._late_timer is not None:
            self._late_timer.cancel()
            self._late_timer = None
        late, self._late = self._late, {}
        for target in late:
            self.sync_soon(target)

    def sync_soon(self, target: Flushable) -> None:
        """Sync everything written so far; if a sync is running, the next one begins immediately after it."""
        self._late.pop(target, None)
        if target in self._running:
            self._waiting.add(target)
            return
        task = target.begin_sync()
        if task is not None:
            self._running[target] = None
            self._pool.submit(self._run, target, task)

    def _run(self, target: Flushable, task: SyncTask) -> None:
        error: OSError | None = None
        began = perf_counter()
        try:
            task.run()
        except OSError as failure:
            error = failure
        seconds = perf_counter() - began
        self._loop.call_soon_threadsafe(self._finished, target, task, error, seconds)

    def _finished(self, target: Flushable, task: SyncTask, error: OSError | None, seconds: float) -> None:
        self.on_synced(seconds, error is not None)
        self._running.pop(target, None)
        target.end_sync(task, error)
        if target in self._waiting:
            self._waiting.discard(target)
            self.sync_soon(target)
        for left, future in self._rounds:
            if target in left:
                left[target] -= 1
                if left[target] == 0 or target not in self._running:
                    del left[target]
            if not left and not future.done():
                future.set_result(None)
        if not self._running:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)

    async def drain(self) -> None:
        """Return when no sync is running or due. The caller has stopped appending."""
        self._sync_late()
        while self._running or self._waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    async def finish_round(self) -> None:
        """Return when every sync that is running or due now has ended. Under load there are always later ones."""
        left = {target: 2 if target in self._waiting else 1 for target in self._running}
        if not left:
            return
        entry = left, self._loop.create_future()
        self._rounds.append(entry)
        try:
            await entry[1]
        finally:
            self._rounds.remove(entry)

    def close(self) -> None:
        """Stop the threads; call after :meth:`drain`."""
        self._pool.shutdown(wait=True)
