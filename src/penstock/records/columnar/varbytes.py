"""Varints encoded as vectors, and the rows of a few bytes that they form.

A varint of up to eight bytes (every number below 2^55) is a word; consecutive ones of a record are shifted together into one.
What does not fit into a word goes into the next, and the words of a row overlap: each is written over the zeros of the previous.
"""

import sys
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
_NUMBER_MAX: Final = 2**56 - 1
_WIDER_FROM: Final = tuple(1 << 7 * width for width in range(1, WORD_BYTES))

assert sys.byteorder == "little", "words are laid in memory as they are"


def zigzag(numbers: Ints) -> Words:
    """Signed numbers as unsigned ones, small for numbers near zero."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def widths(numbers: Words) -> Ints | int:
    """How many bytes each zigzag number takes; one number if all take the same."""
    least, most = int(numbers.min(initial=0 if not len(numbers) else _NUMBER_MAX)), int(numbers.max(initial=0))
    taken: Ints | int = 1 + sum(least >= bound for bound in _WIDER_FROM)
    for bound in _WIDER_FROM:
        if least < bound <= most:
            taken = taken + (numbers >= np.uint64(bound))
    return taken


def words(numbers: Words, taken: Ints | int) -> Words:
    """The bytes of each zigzag number, the first one lowest; ``taken`` are its sizes."""
    most = int(numbers.max(initial=0))
    if most < _WIDER_FROM[0]:
        return numbers
    spread = numbers
    if most >= _WIDER_FROM[3]:
        spread = (spread & _HALVES_LOW) | ((spread << _FOUR) & _HALVES_HIGH)
    if most >= _WIDER_FROM[1]:
        spread = (spread & _QUADS_LOW) | ((spread << _TWO) & _QUADS_HIGH)
    spread = (spread & _PAIRS_LOW) | ((spread << _ONE) & _PAIRS_HIGH)
    # All bytes but the last have the continuation bit.
    return spread | (((_ONE << _bits(taken - 1)) - _ONE) & _GOES_ON)


def _bits(taken: Ints | int) -> Words | np.uint64:
    return np.uint64(taken << 3) if isinstance(taken, int) else (taken << 3).view(np.uint64)


class ByteRows:
    """A few consecutive bytes for each record."""

    __slots__ = ("_at", "_count", "_flushed", "_taken", "_word")

    def __init__(self, count: int) -> None:
        self._count = count
        self._word: Words | None = None
        self._taken: Ints | int = 0
        self._at: Ints | int = 0
        self._flushed: list[tuple[Ints | int, Ints | int, Words]] = []
        """Position of a word in its row, how many of its bytes count, and the word."""

    def put(self, word: Words, taken: Ints | int) -> None:
        """Append ``taken`` bytes; the rest of the word is zero."""
        total = self._taken + taken
        if _most(total) > WORD_BYTES:
            self._flush()
            self._word, self._taken = word, taken
        else:
            self._word = word << _bits(self._taken) if self._word is None else self._word | (word << _bits(self._taken))
            self._taken = total

    def put_varints(self, numbers: Words) -> None:
        """Append zigzag numbers."""
        taken = widths(numbers)
        self.put(words(numbers, taken), taken)

    def put_byte(self, byte: int) -> None:
        """Append the same byte to each row."""
        if _most(self._taken) == WORD_BYTES:
            self._flush()
        if byte:
            self.put(np.full(self._count, byte, np.uint64), 1)
        else:
            self._taken = self._taken + 1

    def _flush(self) -> None:
        self._flushed.append((self._at, self._taken, self._whole_word()))
        self._at = self._at + self._taken
        self._word, self._taken = None, 0

    def _whole_word(self) -> Words:
        return np.zeros(self._count, np.uint64) if self._word is None else self._word

    def with_gaps(self) -> pa.Array:
        """Twice as many elements as records: its bytes, then a gap."""
        laid, stride = self._laid()
        bounds = np.empty(2 * self._count + 1, np.int32)
        bounds[0::2] = np.arange(0, (self._count + 1) * stride, stride, dtype=np.int32)
        bounds[1::2] = bounds[:-1:2] + (self._at + self._taken)
        return pa.Array.from_buffers(pa.binary(), 2 * self._count, [None, pa.py_buffer(bounds), pa.py_buffer(laid)])

    def _laid(self) -> tuple[Words | NDArray[np.uint8], int]:
        """The rows in memory, and the bytes from one to the next."""
        word = self._whole_word()
        if not self._flushed:
            return word, WORD_BYTES
        if len(self._flushed) == 1:
            _, taken, first = self._flushed[0]
            rows = np.empty((self._count, 2), np.uint64)
            rows[:, 0] = first | (word << _bits(taken))
            rows[:, 1] = word >> _bits(WORD_BYTES - taken)
            return rows, 2 * WORD_BYTES
        stride = (_most(self._at + self._taken) // WORD_BYTES + 2) * WORD_BYTES
        laid = np.zeros(self._count * stride, np.uint8)
        anywhere: Words = np.ndarray((len(laid) - WORD_BYTES + 1,), np.uint64, buffer=laid.data, strides=(1,))
        begins = np.arange(0, self._count * stride, stride, dtype=np.int64)
        for at, _, flushed in (*self._flushed, (self._at, self._taken, word)):
            anywhere[begins + at] = flushed
        return laid, stride


def _most(taken: Ints | int) -> int:
    return taken if isinstance(taken, int) else int(taken.max(initial=0))
