"""What the rules need from the outside: time, disk, randomness, and durable writes.

``runtime/`` has the real implementations; ``testing/`` has ones that a test controls. The rules do not import them, so a test
can move the clock, simulate a power failure between a write and its sync, and repeat a run from a seed.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol
from uuid import UUID

from penstock.types import Buffer


class Clock(Protocol):
    """Wall time for stored timestamps, monotonic time for timeouts."""

    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary time; never decreases."""
        ...


class Entropy(Protocol):
    """Randomness."""

    def uuid(self) -> UUID:
        """A new random (version 4) UUID."""
        ...

    def secret(self, count: int) -> bytes:
        """So many random bytes that nobody can guess: salts, nonces, keys."""
        ...


class File(Protocol):
    """One open file. Calls block; all errors are ``OSError``. Only ``sync`` may run in another thread."""

    def pread(self, length: int, position: int) -> bytes:
        """At most ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all the buffers, one after the other, at ``position``; returns the number of bytes, which is all of them."""
        ...

    def sync(self) -> None:
        """Return when everything written before the call would survive a power failure (fdatasync)."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate or extend (with zeros) to ``size``."""
        ...

    def size(self) -> int:
        """The size now, in bytes."""
        ...

    def seal(self) -> bool:
        """Nothing is written any more. Whether the next sync has something to write for that, which protects the content."""
        ...

    def close(self) -> None:
        """Close the descriptor; closing twice is harmless."""
        ...


class Disk(Protocol):
    """Names and files. Paths are absolute; errors are ``OSError``; a new name survives a power failure after ``sync_dir``."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; with ``create`` an absent file is created."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole of a small file."""
        ...

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace a small file so that a crash of the process leaves the old or the new content.

        It is synced with its directory entry and survives a power failure too, unless ``sync`` is false: then a power failure
        may leave the old content, the new one or a damaged one, which the reader must detect.
        """
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if the directory is absent."""
        ...

    def make_dirs(self, path: str, *, sync: bool = True) -> list[str]:
        """Create a directory and its parents, unless it exists. Returns the directories that got a new name in them,
        synced unless ``sync`` is false (then the caller syncs them, off the event loop).
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing ``target``."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and its contents, if it exists."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        ...

    def sync_all(self, path: str) -> bool:
        """Make all files and names on the file system of ``path`` durable at once; False if that is not guaranteed."""
        ...

    def size(self, path: str) -> int:
        """Size of a file, in bytes."""
        ...

    def free_bytes(self, path: str) -> int:
        """Space left for this process on the file system of ``path``."""
        ...


class Keys(Protocol):
    """Master keys, which wrap other keys: in memory, or in a key service. Calls may block; errors are ``PenstockError``."""

    @property
    def current(self) -> str:
        """The id of the key that wraps."""
        ...

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Encrypt a key of 32 bytes with the current master key."""
        ...

    def unwrap(self, key_id: str, wrapped: bytes, context: bytes) -> bytes:
        """The key again. KeyError with a text if this master key is not here; WrongKeyError if ``wrapped`` was changed."""
        ...


class Flushable(Protocol):
    """A log with appended bytes that a :class:`Flusher` writes and syncs."""

    def write_pending(self) -> None:
        """Write collected appends. Called on the event loop at the end of its turn."""
        ...

    def begin_sync(self) -> "SyncTask | None":
        """A task that syncs everything written so far; None if there is nothing to sync. Called on the event loop."""
        ...

    def end_sync(self, task: "SyncTask", error: OSError | None) -> None:
        """The task has run. Called on the event loop."""
        ...


class SyncTask(Protocol):
    """A sync that can run off the event loop."""

    def run(self) -> None:
        """Block until synced; OSError if the disk fails."""
        ...


class Flusher(Protocol):
    """Makes appended bytes durable: one write a turn of the loop, one sync for many appends (group commit)."""

    def dirty(self, target: Flushable) -> None:
        """Write and sync ``target`` after this turn of the event loop. Cheap; call it on every append."""
        ...

    def unhurried(self, target: Flushable) -> None:
        """No client waits for a sync of what was appended to ``target`` in this turn: the sync may be delayed a little."""
        ...

    def gather(self, action: Callable[[], None]) -> None:
        """Call ``action`` at the end of this turn, before its appends are written: it appends collected changes."""
        ...


class EndOfTurn(Protocol):
    """The end of the event loop's turn, when all requests of the turn have been applied."""

    def look(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the appends of this turn are written: a reader waits for them."""
        ...

    def send(self, action: Callable[[], None]) -> None:
        """Call ``action`` last: a connection has responses to send."""
        ...


class Timed(Protocol):
    """Rules that work by the clock, even without connections. Times are monotonic."""

    def next_deadline_ms(self) -> int | None:
        """When :meth:`tick` has something to do; None if nothing is due."""
        ...

    def tick(self, now_ms: int) -> None:
        """Do what is due, at most a bounded amount of work."""
        ...


class LineFile(Protocol):
    """A file that lines are appended to, on a thread."""

    def append(self, data: bytes) -> None:
        """Append whole lines. OSError if that fails; nothing, or a part of them, may be in the file then."""
        ...


Report = Callable[[str], None]
"""Logs a text for operators (what recovery truncated, what retention dropped)."""

Background = Callable[[Coroutine[object, None, object]], None]
"""Starts a coroutine in the background (creating a topic on demand)."""

Within = Callable[[int, Awaitable[None]], Awaitable[bool]]
"""Waits at most so many milliseconds; returns whether the awaitable completed."""

Pause = Callable[[int], Awaitable[None]]
"""Returns after so many milliseconds."""

OffLoop = Callable[[Callable[[], None], Callable[[], None]], None]
"""Runs the first callable off the event loop, and then calls the second one on it."""
