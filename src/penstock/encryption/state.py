"""What is known of one encrypted segment: shared by all open files of that segment, and remembered while it may be appended to.

Invariant: no byte is ever encrypted with a (key, nonce, position) that has encrypted another byte. ``high`` is the end of all
writes with the last span, also of failed ones; a write below it, or the first write of this process, begins a new span with a
fresh nonce, which is written first. A segment that is written from its beginning gets a fresh key.
"""

from enum import Enum
from threading import Lock
from typing import Final

from penstock.encryption import header
from penstock.encryption.crypto import Stream
from penstock.encryption.header import Seal, SegmentKeys, Span


class Kind(Enum):
    """What is in the file."""

    EMPTY = "empty"
    """Nothing yet; the first write makes it encrypted."""
    CLEAR = "clear"
    """Written before encryption was turned on."""
    ENCRYPTED = "encrypted"
    UNREADABLE = "unreadable"
    """The header is damaged, or belongs to another place. The content reads as zeros, which is damage for the log."""


class SegmentState:
    """One segment. Changed on the thread that writes it; ``lock`` is held while another thread syncs or seals it."""

    __slots__ = (
        "_users_lock",
        "closing",
        "high",
        "keys",
        "kind",
        "lock",
        "path",
        "place",
        "seal",
        "spans",
        "stream",
        "stream_at",
        "tags",
        "users",
    )

    def __init__(self, path: str, place: bytes) -> None:
        self.path = path
        self.place: Final = place
        self.lock: Final = Lock()
        self._users_lock: Final = Lock()
        self.users = 0
        """Open files."""
        self.kind = Kind.EMPTY
        self.keys: SegmentKeys | None = None
        self.spans: tuple[Span, ...] = ()
        self.high = -1
        """The end of all writes with the last span; -1 if another process may have written with it."""
        self.stream: Stream | None = None
        """Continues at ``stream_at``."""
        self.stream_at = -1
        self.closing = False
        """The next sync seals it."""
        self.seal: Seal | None = None
        self.tags: bytes | None = None
        """The tags of a sealed segment, once they are loaded."""

    def become(self, keys: SegmentKeys, spans: tuple[Span, ...], high: int) -> None:
        """It is encrypted from now on."""
        self.kind = Kind.ENCRYPTED
        self.keys = keys
        self.spans = spans
        self.high = high
        self.end_stream()
        self.closing = False
        self.seal = self.tags = None

    def become_empty(self) -> None:
        """It was truncated to nothing."""
        self.kind = Kind.EMPTY
        self.keys = None
        self.spans = ()
        self.high = -1
        self.end_stream()
        self.closing = False
        self.seal = self.tags = None

    def take(self, other: "SegmentState") -> None:
        """The file was replaced by one with this state."""
        self.kind, self.keys, self.spans, self.high = other.kind, other.keys, other.spans, other.high
        self.stream, self.stream_at = other.stream, other.stream_at
        self.closing, self.seal, self.tags = other.closing, other.seal, other.tags

    def enter(self) -> None:
        """A file of it was opened."""
        with self._users_lock:
            self.users += 1

    def leave(self) -> None:
        """It was closed."""
        with self._users_lock:
            self.users -= 1

    def end_stream(self) -> None:
        """The next write must find out whether it may continue."""
        self.stream = None
        self.stream_at = -1

    def decrypt(self, data: bytes, position: int) -> bytes:
        """The content of encrypted bytes."""
        assert self.keys is not None
        return header.decrypt(self.keys, self.spans, data, position)
