"""Buffers for large responses, reused as soon as no view of them is left.

A bulk reader receives one response of megabytes after the other. To allocate and clear new memory for each took a third of the time that
reading a topic takes.

Invariant: a buffer is reused only if no view of it exists, so received data never changes while it is in use. If views are held for long,
later responses go into new buffers.
"""

from typing import Final

from penstock.limits import KIB, MIB

KEPT_BYTES_MIN: Final = 256 * KIB
"""To allocate a smaller one takes less time than to look for it."""
KEPT_BYTES_MAX: Final = 16 * MIB
"""Larger ones are rare, and would waste too much memory."""
KEPT_MAX: Final = 2
"""A reader decodes one response while it receives the next."""


def space_for(size: int) -> int:
    """The size of a new buffer for this many bytes, rounded up so that the next responses, which are about as large, fit too."""
    return size if size < KEPT_BYTES_MIN else -(-size // KEPT_BYTES_MIN) * KEPT_BYTES_MIN


class KeptBuffers:
    """The buffers of one connection. Not safe to share between threads."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """A free buffer of at least ``size`` bytes with arbitrary content; None if there is none."""
        if size < KEPT_BYTES_MIN:
            return None
        return next((each for each in self._kept if len(each) >= size and _is_free(each)), None)

    def keep(self, buffer: bytearray) -> None:
        """Keep a buffer for later responses. If there are enough, it replaces a smaller one, or one that is in use."""
        if not KEPT_BYTES_MIN <= len(buffer) <= KEPT_BYTES_MAX:
            return
        if len(self._kept) == KEPT_MAX:
            smaller = (each for each in self._kept if len(each) < len(buffer))
            held = (each for each in self._kept if not _is_free(each))
            replaced = next(smaller, None) or next(held, None)
            if replaced is None:
                return
            # By identity: two buffers with the same bytes are equal.
            self._kept = [each for each in self._kept if each is not replaced]
        self._kept.append(buffer)


def _is_free(buffer: bytearray) -> bool:
    try:
        # Python refuses to change the size while a view exists.
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
