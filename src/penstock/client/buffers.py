"""Memory for large answers, used again once nobody looks at it any more.

A reader in bulk takes one answer of megabytes after the other. Memory that is new each time has to be cleared, and the kernel has to find
its pages: together that was a third of what it costs to read a topic.

Invariant: a buffer is given out only when no view of it is left, so what was received before never changes under who holds it. Whoever
holds views for long just has the next answers put elsewhere.
"""

from typing import Final

from penstock.limits import KIB, MIB

KEPT_BYTES_MIN: Final = 256 * KIB
"""Smaller ones cost less than it takes to look for one."""
KEPT_BYTES_MAX: Final = 16 * MIB
"""Larger ones are rare, and too much to hold for nothing."""
KEPT_MAX: Final = 2
"""A reader opens one answer and receives the next."""


def space_for(size: int) -> int:
    """How large to make a buffer for so many bytes: one that is kept has room for the next answers too, which are about as large."""
    return size if size < KEPT_BYTES_MIN else -(-size // KEPT_BYTES_MIN) * KEPT_BYTES_MIN


class KeptBuffers:
    """The buffers of one connection. Not safe to share between threads."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, size: int) -> bytearray | None:
        """A buffer of at least ``size`` bytes, its content whatever it was; None when there is none that is free."""
        if size < KEPT_BYTES_MIN:
            return None
        return next((each for each in self._kept if len(each) >= size and _is_free(each)), None)

    def keep(self, buffer: bytearray) -> None:
        """Have this one too for later answers, in the place of a smaller one, or one that somebody holds, where there are enough."""
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
        # Python does not let the size change while there is a view.
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True
