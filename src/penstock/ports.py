"""What the rules need of the world: time, disk, randomness, and someone to make writes durable.

``runtime/`` has the real ones; ``testing/`` has ones that a test owns. The rules never import the world themselves, so a
test can move the clock, lose power between a write and its sync, and repeat a run from a seed.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol
from uuid import UUID

from penstock.types import Buffer


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is waited for."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""
        ...


class Entropy(Protocol):
    """Randomness."""

    def uuid(self) -> UUID:
        """A fresh random (version 4) UUID."""
        ...


class File(Protocol):
    """One open file. Calls block; all errors are ``OSError``. ``sync`` alone may run in another thread."""

    def pread(self, length: int, position: int) -> bytes:
        """At most ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all the buffers, one behind the other, at ``position``; returns the bytes written, which is all of them."""
        ...

    def sync(self) -> None:
        """Return once everything written before the call would survive a loss of power (fdatasync)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to ``size``."""
        ...

    def size(self) -> int:
        """The size now, in bytes."""
        ...

    def close(self) -> None:
        """Give the descriptor back; closing twice is harmless."""
        ...


class Disk(Protocol):
    """Names and files. Paths are absolute strings; errors are ``OSError``; a new name survives power loss after ``sync_dir``."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` an absent file is made."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole of a small file."""
        ...

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace a small file so that a crash of the process leaves the old or the new content.

        It survives a loss of power too, synced with its directory entry, unless ``sync`` is false: then a loss of power
        may leave the old content, the new one or a broken one, and whoever reads it must be able to tell.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when the directory is absent."""
        ...

    def make_dirs(self, path: str, *, sync: bool = True) -> list[str]:
        """Make a directory and its parents; fine when it is there. Returns the directories that got a new name in them,
        synced unless ``sync`` is false (then the caller syncs them, off the event loop).
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing ``target``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; fine when it is absent."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and what is in it; fine when it is absent."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def sync_all(self, path: str) -> bool:
        """Make all files and names on the file system of ``path`` durable at once; False when that cannot be promised."""
        ...

    def size(self, path: str) -> int:
        """Size of a file, in bytes."""
        ...

    def free_bytes(self, path: str) -> int:
        """Room left for this process on the file system that holds ``path``."""
        ...


class Flushable(Protocol):
    """What a :class:`Flusher` works on: a log with appended bytes that are not written, or written and not synced."""

    def write_pending(self) -> None:
        """Hand gathered appends to the OS. Called on the event loop at the end of its turn."""
        ...

    def begin_sync(self) -> "SyncTask | None":
        """What must be synced for all that is written so far; None when nothing is. Called on the event loop."""
        ...

    def end_sync(self, task: "SyncTask", error: OSError | None) -> None:
        """The task ran. Called on the event loop."""
        ...


class SyncTask(Protocol):
    """A sync that can run off the event loop."""

    def run(self) -> None:
        """Block until synced; OSError when the disk refuses."""
        ...


class Flusher(Protocol):
    """Makes appended bytes durable: one write a turn of the loop, one sync for many appends (group commit)."""

    def dirty(self, target: Flushable) -> None:
        """``target`` has appended bytes; its turn comes at the end of this turn of the loop. Cheap; call it on every append."""
        ...

    def unhurried(self, target: Flushable) -> None:
        """Nobody waits for a sync of what ``target`` got in this turn: it may come with the next one, or a moment later."""
        ...

    def gather(self, action: Callable[[], None]) -> None:
        """Call ``action`` at the end of this turn, before its appends are written: it appends what the turn added up to."""
        ...


class EndOfTurn(Protocol):
    """The end of the event loop's turn, when everything that came in it has been applied."""

    def look(self, action: Callable[[], None]) -> None:
        """Call ``action`` once the appends of this turn are written: a reader wants to see them."""
        ...

    def send(self, action: Callable[[], None]) -> None:
        """Call ``action`` last of all: a connection has answers."""
        ...


class Timed(Protocol):
    """Rules that work by the clock, whether or not anyone is connected. Times are monotonic."""

    def next_deadline_ms(self) -> int | None:
        """When :meth:`tick` has something to do; None: nothing is waited for."""
        ...

    def tick(self, now_ms: int) -> None:
        """Do what is due, a bounded piece at a time."""
        ...


Report = Callable[[str], None]
"""Where a rule says something a person should read in the log (what recovery cut, what retention dropped)."""

Background = Callable[[Coroutine[object, None, object]], None]
"""Starts a coroutine that nobody waits for (making a topic on demand)."""

Within = Callable[[int, Awaitable[None]], Awaitable[bool]]
"""Waits for something, at most so many milliseconds; whether it came in time."""

OffLoop = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first away from the event loop, where it may take its time, and then calls the second on the loop."""
