"""From the bytes of a socket to complete frames, in place.

All connections read into one shared scratch buffer. The frames of one read are handled before the next socket is read, so an idle
connection holds no memory, and the pages stay in the cache. Only an incomplete frame is moved to a buffer of its own, which grows as
bytes arrive (never because a length says so), and is returned to a small pool afterwards.
"""

from struct import Struct
from typing import Final

from penstock.limits import (
    RECEIVE_BUFFER_BYTES_INITIAL,
    RECEIVE_BUFFER_BYTES_KEPT_MAX,
    RECEIVE_BUFFERS_POOLED_MAX,
    RECEIVE_GROWTH,
    RECEIVE_SCRATCH_BYTES,
)
from penstock.wire.errors import ProtocolViolation

_LENGTH: Final = Struct(">i")
LENGTH_BYTES: Final = 4
FRAME_BYTES_MIN: Final = 8
"""API key, version and correlation id."""


class BufferPool:
    """The shared scratch buffer, and a few larger buffers for incomplete frames."""

    def __init__(self) -> None:
        self.scratch: Final = bytearray(RECEIVE_SCRATCH_BYTES)
        self.scratch_view: Final = memoryview(self.scratch)
        self._free: list[bytearray] = []

    def take(self, capacity: int) -> bytearray:
        """A buffer of at least this many bytes, with any content."""
        for position, buffer in enumerate(self._free):
            if capacity <= len(buffer) <= capacity * RECEIVE_GROWTH:
                return self._free.pop(position)
        return bytearray(-(-capacity // RECEIVE_BUFFER_BYTES_INITIAL) * RECEIVE_BUFFER_BYTES_INITIAL)

    def give(self, buffer: bytearray) -> None:
        """Return a buffer that is not used any more."""
        if len(self._free) < RECEIVE_BUFFERS_POOLED_MAX and len(buffer) <= RECEIVE_BUFFER_BYTES_KEPT_MAX:
            self._free.append(buffer)


class FrameReader:
    """The frames of one connection. A frame is valid until the next call of :meth:`settle`."""

    __slots__ = ("_pool", "buffer", "end", "frame_bytes_max", "frame_bytes_min", "start", "view")

    def __init__(self, pool: BufferPool, frame_bytes_max: int) -> None:
        self._pool = pool
        self.frame_bytes_max = frame_bytes_max
        self.frame_bytes_min = FRAME_BYTES_MIN
        self.buffer = pool.scratch
        self.view = pool.scratch_view
        self.start = 0
        self.end = 0

    def writable(self) -> memoryview:
        """The buffer for the socket's next bytes; never empty."""
        return self.view if self.end == 0 else self.view[self.end :]

    def received(self, count: int) -> None:
        """``count`` bytes were written to :meth:`writable`."""
        self.end += count

    def next_frame(self) -> tuple[int, int] | None:
        """Start and end of the next complete frame in ``buffer``, without its length; None if more bytes are needed."""
        start = self.start + LENGTH_BYTES
        if start > self.end:
            return None
        (size,) = _LENGTH.unpack_from(self.buffer, self.start)
        if not self.frame_bytes_min <= size <= self.frame_bytes_max:
            raise ProtocolViolation(
                f"A frame of {size} bytes is out of range (allowed: {self.frame_bytes_min} to {self.frame_bytes_max}): check that this is a Kafka client"
            )
        end: int = start + size
        if end > self.end:
            return None
        self.start = end
        return start, end

    @property
    def unread(self) -> int:
        """Bytes that were received, but not returned as frames."""
        return self.end - self.start

    def settle(self) -> None:
        """Release the shared buffer for other connections; called when the returned frames have been handled."""
        unread = self.end - self.start
        if unread == 0:
            if self.buffer is not self._pool.scratch:
                self._pool.give(self.buffer)
                self._use(self._pool.scratch, self._pool.scratch_view)
            self.start = self.end = 0
            return
        if self.buffer is not self._pool.scratch and self.start == 0 and self.end < len(self.buffer):
            return
        self._move(unread)

    def _move(self, unread: int) -> None:
        wanted = RECEIVE_BUFFER_BYTES_INITIAL
        if unread >= LENGTH_BYTES:
            (size,) = _LENGTH.unpack_from(self.buffer, self.start)
            wanted = max(wanted, min(LENGTH_BYTES + size, self.frame_bytes_max + LENGTH_BYTES))
        capacity = max(min(wanted, unread * RECEIVE_GROWTH), unread + RECEIVE_BUFFER_BYTES_INITIAL // 2)
        target = self._pool.take(capacity)
        view = memoryview(target)
        view[:unread] = self.view[self.start : self.end]
        if self.buffer is not self._pool.scratch:
            self._pool.give(self.buffer)
        self._use(target, view)
        self.start = 0
        self.end = unread

    def _use(self, buffer: bytearray, view: memoryview) -> None:
        self.buffer = buffer
        self.view = view

    def close(self) -> None:
        """The connection is closed."""
        self.start = self.end
        self.settle()
