"""Varints written as vectors, and the rows of a few bytes that they make up.

A varint of up to eight bytes (every number below 2^55) is a word; several that follow each other in a record are shifted together into one. What does not fit
into a word goes into the next, and the words of a row are laid over each other: each field over the zeros behind the one before.
"""

from typing import Final

import numpy as np
import pyarrow as pa

from penstock.records.columnar.words import WORD_BYTES, Ints, Words

_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)
_FOUR: Final = np.uint64(4)
_HALVES_LOW: Final = np.uint64(0x000000000FFFFFFF)
_HALVES_HIGH: Final = np.uint64(0x0FFFFFFF00000000)
_QUADS_LOW: Final = np.uint64(0x00003FFF00003FFF)
_QUADS_HIGH: Final = np.uint64(0x3FFF00003FFF0000)
_PAIRS_LOW: Final = np.uint64(0x007F007F007F007F)
_PAIRS_HIGH: Final = np.uint64(0x7F007F007F007F00)
_GOES_ON: Final = np.uint64(0x8080808080808080)
_WIDER_FROM: Final = tuple(1 << 7 * width for width in range(1, WORD_BYTES))


def zigzag(numbers: Ints) -> Words:
    """Signed numbers as unsigned ones, small when they were near to zero."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def widths(numbers: Words) -> Ints:
    """How many bytes each zigzagged number takes."""
    taken = np.ones(len(numbers), np.int64)
    most = int(numbers.max(initial=0))
    for bound in _WIDER_FROM:
        if most < bound:
            break
        taken += numbers >= np.uint64(bound)
    return taken


def words(numbers: Words, taken: Ints) -> Words:
    """The bytes of each zigzagged number, the first one lowest; ``taken`` are its bytes."""
    most = int(numbers.max(initial=0))
    if most < _WIDER_FROM[0]:
        return numbers
    spread = numbers
    if most >= _WIDER_FROM[3]:
        spread = (spread & _HALVES_LOW) | ((spread << _FOUR) & _HALVES_HIGH)
    if most >= _WIDER_FROM[1]:
        spread = (spread & _QUADS_LOW) | ((spread << _TWO) & _QUADS_HIGH)
    spread = (spread & _PAIRS_LOW) | ((spread << _ONE) & _PAIRS_HIGH)
    # All bytes but the last say that more follow.
    before_last = (_ONE << ((taken - 1) << 3).view(np.uint64)) - _ONE
    return spread | (before_last & _GOES_ON)


class ByteRows:
    """A few bytes for each record, put one behind the other."""

    __slots__ = ("_at", "_flushed", "_taken", "_word")

    def __init__(self, count: int) -> None:
        self._word: Words = np.zeros(count, np.uint64)
        self._taken: Ints = np.zeros(count, np.int64)
        self._at: Ints = np.zeros(count, np.int64)
        self._flushed: list[tuple[Ints, Words]] = []

    def put(self, word: Words, taken: Ints) -> None:
        """Put ``taken`` bytes behind what is there; the word has zeros behind them."""
        together = self._taken + taken
        if int(together.max(initial=0)) > WORD_BYTES:
            self._flushed.append((self._at, self._word))
            self._at = self._at + self._taken
            self._word, self._taken = word, taken
        else:
            self._word = self._word | (word << (self._taken << 3).view(np.uint64))
            self._taken = together

    def put_varints(self, numbers: Words) -> None:
        """Put zigzagged numbers."""
        taken = widths(numbers)
        self.put(words(numbers, taken), taken)

    def put_zero(self) -> None:
        """Put a byte that is zero."""
        self._taken = self._taken + 1
        if int(self._taken.max(initial=0)) > WORD_BYTES:
            # The word is full and the zero stands behind it: where nothing was laid, zeros are.
            self._flushed.append((self._at, self._word))
            self._at = self._at + self._taken
            self._word, self._taken = np.zeros_like(self._word), np.zeros_like(self._taken)

    def with_gaps(self) -> pa.Array:
        """Twice as many elements as records: its bytes, then a gap."""
        count = len(self._word)
        ends = self._at + self._taken
        if self._flushed:
            stride = (int(ends.max(initial=0)) // WORD_BYTES + 2) * WORD_BYTES
            laid = np.zeros(count * stride, np.uint8)
            anywhere: Words = np.ndarray((max(0, len(laid) - WORD_BYTES + 1),), "<u8", buffer=laid.data, strides=(1,))
            begins = np.arange(count, dtype=np.int64) * stride
            for at, word in (*self._flushed, (self._at, self._word)):
                anywhere[begins + at] = word
        else:
            stride = WORD_BYTES
            laid = self._word.astype("<u8", copy=False).view(np.uint8)
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0::2] = np.arange(count + 1, dtype=np.int64) * stride
        bounds[1::2] = bounds[:-1:2] + ends
        return pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(laid)])
