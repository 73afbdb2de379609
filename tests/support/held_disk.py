"""The real disk, on which a test decides when a sync ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from penstock.runtime.disk import RealDisk, RealFile


class HeldDisk(RealDisk):
    """While it is held, a sync of a log waits in its thread."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = Event()
        self._free.set()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        try:
            return HeldFile(os.dup(file.fileno()), self._free)
        finally:
            file.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Syncs wait until :meth:`release`, or until this ends."""
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()

    def release(self) -> None:
        """Let the syncs end."""
        self._free.set()


class HeldFile(RealFile):
    """A file of a :class:`HeldDisk`."""

    __slots__ = ("_free",)

    def __init__(self, fd: int, free: Event) -> None:
        super().__init__(fd)
        self._free = free

    def sync(self) -> None:
        self._free.wait()
        super().sync()
