"""The world of a simulated node: a disk that stops it at a chosen call, ids from a seed, syncs when the history says so."""

import contextlib
import errno
from collections.abc import Callable
from enum import Enum
from random import Random
from uuid import UUID

from penstock.errors import PenstockError
from penstock.ports import Flushable, SyncTask
from penstock.testing.disk import SimulatedDisk

CHANGES = frozenset(
    {"pwritev", "sync", "truncate", "open", "write_atomic", "make_dirs", "rename", "remove", "remove_tree", "sync_dir"}
)
TAKES_ROOM = frozenset({"pwritev", "write_atomic", "make_dirs"})


class Trouble(Enum):
    """What goes wrong in a history, besides orderly stops."""

    KILL = "kill"
    POWER = "power"
    FULL = "full"
    SYNC = "sync"

    @property
    def loses_power(self) -> bool:
        """Whether what was not synced may be gone after a stop."""
        return self in {Trouble.POWER, Trouble.SYNC}


class Stopped(BaseException):
    """The process is dead. No error of the broker's world: nothing may handle it."""


class TroubledDisk(SimulatedDisk):
    """Counts the calls that change something, so that a process can die at a chosen one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calls = 0
        self.stop_at: int | None = None
        self.dead = False
        self.full: range = range(0)
        """Which of the calls that take room find none."""
        self.room_calls = 0
        self.failing_sync: int | None = None
        self.syncs = 0

    def meet_fault(self, operation: str) -> None:
        if self.dead:
            raise Stopped
        if operation in CHANGES:
            self.calls += 1
            if self.stop_at is not None and self.calls >= self.stop_at:
                self.dead = True
                raise Stopped
        if operation in TAKES_ROOM:
            self.room_calls += 1
            if self.room_calls in self.full:
                raise OSError(errno.ENOSPC, "no room")
        if operation == "sync":
            self.syncs += 1
            if self.syncs == self.failing_sync:
                raise OSError(errno.EIO, "the sync failed")
        super().meet_fault(operation)

    def heal(self) -> None:
        """From now on all goes well."""
        self.stop_at, self.failing_sync, self.full = None, None, range(0)

    def stop(self, *, power: bool, torn: bool) -> None:
        """The process is no more; without power, what it did not sync is at risk."""
        self.heal()
        self.dead = False
        if power:
            self.lose_power(torn=torn)
        else:
            self.end_process()


class SeededEntropy:
    """Ids from the seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def secret(self, count: int) -> bytes:
        return self._random.randbytes(count)


class StepFlusher:
    """Writes and syncs when the history says so, rather than at the end of a turn."""

    def __init__(self) -> None:
        self._targets: dict[Flushable, None] = {}
        self._gatherers: list[Callable[[], None]] = []

    def unhurried(self, target: Flushable) -> None:
        """This one syncs when it is told to, whoever waits."""

    def dirty(self, target: Flushable) -> None:
        self._targets[target] = None

    def gather(self, action: Callable[[], None]) -> None:
        self._gatherers.append(action)

    def write(self) -> None:
        """Hand all appends to the disk; a log that cannot tells those who wait."""
        gatherers, self._gatherers = self._gatherers, []
        for gather in gatherers:
            gather()
        for target in list(self._targets):
            with contextlib.suppress(PenstockError):
                target.write_pending()

    def sync(self) -> None:
        """Write, and make durable."""
        self.write()
        targets, self._targets = list(self._targets), {}
        for target in targets:
            task = target.begin_sync()
            if task is None:
                continue
            try:
                self.run(task)
            except OSError as error:
                target.end_sync(task, error)
            else:
                target.end_sync(task, None)

    def run(self, task: SyncTask) -> None:
        """Do one sync."""
        task.run()
