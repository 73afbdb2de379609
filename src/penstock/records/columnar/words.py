"""Bytes as vectors: many varints read at once, at any position.

A varint has seven bits per byte, lowest first, and nearly all in a batch have one to three bytes. So one word of eight bytes is
gathered per record, and arithmetic on whole words finds where each varint ends and joins its bits, without a branch per
record. Only a varint of nine or ten bytes is read separately.

Invariant: nothing is read outside the buffer. A word that would extend past its end has zeros there.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.records.records import corrupt, read_varint
from penstock.types import Buffer

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

WORD_BYTES: Final = 8
_ONE: Final = np.uint64(1)
_TWO: Final = np.uint64(2)
_FOUR: Final = np.uint64(4)
_SEVEN: Final = np.uint64(7)
_EIGHT: Final = np.uint64(8)
_BYTE_BITS: Final = np.uint64(0x7F)
_SECOND_BITS: Final = np.uint64(0x3F80)
_GOES_ON: Final = np.uint64(0x8080808080808080)
_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_PAIRS_LOW: Final = np.uint64(0x007F007F007F007F)
_PAIRS_HIGH: Final = np.uint64(0x3F803F803F803F80)
_QUADS_LOW: Final = np.uint64(0x00003FFF00003FFF)
_QUADS_HIGH: Final = np.uint64(0x0FFFC0000FFFC000)
_HALVES_LOW: Final = np.uint64(0x000000000FFFFFFF)
_HALVES_HIGH: Final = np.uint64(0x00FFFFFFF0000000)
_FOUR_BYTES_MAX: Final = 0xFFFFFFFF


class Bytes:
    """A buffer as bytes (``data``) and as words of eight bytes at any position."""

    __slots__ = ("_word_at_max", "_words", "data", "size", "view")

    def __init__(self, buffer: Buffer) -> None:
        self.size = len(buffer)
        if self.size < WORD_BYTES:
            buffer = bytes(buffer) + bytes(WORD_BYTES)
        self.view = memoryview(buffer)
        self.data: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)
        self._word_at_max = len(self.data) - WORD_BYTES
        self._words: Words = np.ndarray((self._word_at_max + 1,), "<u8", buffer=self.data.data, strides=(1,))

    def words_at(self, at: Ints) -> Words:
        """The eight bytes from each place on, the first one lowest; zeros after the end. No place is negative."""
        try:
            return self._words[at]
        except IndexError:
            inside = np.minimum(at, self._word_at_max)
            # Shifted by more bits than it has, a word is zero.
            return self._words[inside] >> ((at - inside) << 3).astype(np.uint64)

    def varint_at(self, at: int) -> tuple[int, int]:
        """One varint, and where it ends."""
        try:
            return read_varint(self.view, at)  # type: ignore[arg-type]  # it only takes single bytes out of it
        except IndexError:
            raise corrupt("The records end in the middle of a record") from None


def varints(words: Words) -> tuple[Ints, Ints | int]:
    """The varint at the start of each word, zigzag-decoded, and its size; 9 bytes if it does not end in the word."""
    numbers, widths, _ = raw_varints(words)
    return unzigzag(numbers), widths


def raw_varints(words: Words) -> tuple[Words, Ints | int, int]:
    """As :func:`varints`, still in zigzag; also returns a maximum of the sizes."""
    if not int(np.bitwise_or.reduce(words)) & 0x80:
        return words & _BYTE_BITS, 1, 1
    if not int(np.bitwise_or.reduce(words & (words >> _EIGHT))) & 0x80:
        # Two bytes at most, as nearly all have.
        more = (words >> _SEVEN) & _ONE
        return (words & _BYTE_BITS) | ((words >> _ONE) & (more * _SECOND_BITS)), (more + _ONE).view(np.int64), 2
    ends = ~words & _GOES_ON
    # All bits up to the lowest end bit: the bytes of this varint.
    inside = ends ^ (ends - _ONE)
    widths = (np.bitwise_count(inside) >> 3).astype(np.int64)
    bits = words & inside & _BITS
    bits = (bits & _PAIRS_LOW) | ((bits >> _ONE) & _PAIRS_HIGH)
    bits = (bits & _QUADS_LOW) | ((bits >> _TWO) & _QUADS_HIGH)
    if int(np.bitwise_or.reduce(bits)) > _FOUR_BYTES_MAX:
        bits = (bits & _HALVES_LOW) | ((bits >> _FOUR) & _HALVES_HIGH)
    if not ends.all():
        widths[ends == 0] = WORD_BYTES + 1
    return bits, widths, int(widths.max())


def shifted(words: Words, widths: Ints | int) -> Words:
    """The words without as many bytes at their starts."""
    return words >> (np.uint64(widths << 3) if isinstance(widths, int) else (widths << 3).view(np.uint64))


def unzigzag(numbers: Words) -> Ints:
    """The signed numbers of zigzag numbers."""
    if not int(np.bitwise_or.reduce(numbers)) & 1:
        return (numbers >> _ONE).view(np.int64)
    return ((numbers >> _ONE) ^ -(numbers & _ONE)).view(np.int64)


class Cursor:
    """A position in each of many records, which moves forwards from field to field.

    It does not check whether a field is inside its record: since positions only increase, comparing the last one with the end of
    the record is enough. Until then the values may come from any bytes of the buffer.
    """

    __slots__ = ("_bytes", "_used_max", "_words", "at")

    def __init__(self, source: Bytes, at: Ints) -> None:
        self.at = at
        self._bytes = source
        self._words: Words | None = None
        self._used_max = 0

    def varint(self) -> Ints:
        """The number at the cursor in each record; moves the cursor past it."""
        words = self._words
        if words is None:
            words, self._used_max = self._bytes.words_at(self.at), 0
        numbers, widths, width_max = raw_varints(words)
        if self._used_max + width_max > WORD_BYTES:
            # Zeros were shifted in at the end of the words, and may end a varint too early: read the words again.
            if self._used_max:
                words, self._used_max = self._bytes.words_at(self.at), 0
                numbers, widths, width_max = raw_varints(words)
            if width_max > WORD_BYTES:
                return self._varint_long(unzigzag(numbers), widths)
        self.at = self.at + widths
        self._words = shifted(words, widths)
        self._used_max += width_max
        return unzigzag(numbers)

    def skip(self, sizes: Ints) -> None:
        """Skip ``sizes`` bytes of each record; -1 is none. Less, or more than the buffer has, is refused."""
        smallest, largest = int(sizes.min(initial=0)), int(sizes.max(initial=0))
        if smallest < -1 or largest > self._bytes.size:
            raise corrupt("A field has a negative length, or exceeds the data")
        if largest > 0:
            self.at = self.at + (np.maximum(sizes, 0) if smallest < 0 else sizes)
            self._words = None

    def _varint_long(self, numbers: Ints, widths: Ints | int) -> Ints:
        """As :meth:`varint`, if some take nine or ten bytes."""
        widths = np.broadcast_to(widths, self.at.shape).copy()
        for index in np.flatnonzero(widths > WORD_BYTES).tolist():
            at = int(self.at[index])
            numbers[index], end = self._bytes.varint_at(at)
            widths[index] = end - at
        self.at = self.at + widths
        self._words = None
        return numbers
