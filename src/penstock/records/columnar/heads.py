"""The batch headers of many batches, read at once: each field is a vector."""

from typing import Final, NamedTuple

import numpy as np

from penstock.records.batch import COMPRESSION_MASK, CONTROL_BIT, LOG_APPEND_TIME_BIT
from penstock.records.columnar.columns import Flags
from penstock.records.columnar.words import Bytes, Ints

_LENGTH_AT: Final = 8
_ATTRIBUTES_AT: Final = 21
_LAST_OFFSET_DELTA_AT: Final = 23
_BASE_TIMESTAMP_AT: Final = 27
_MAX_TIMESTAMP_AT: Final = 35
_RECORD_COUNT_AT: Final = 57


class Heads(NamedTuple):
    """The fields of ``BatchHeader`` that are needed."""

    base_offsets: Ints
    lengths: Ints
    attributes: Ints
    last_offset_deltas: Ints
    base_timestamps: Ints
    max_timestamps: Ints
    counts: Ints

    @property
    def are_compressed(self) -> Flags:
        """Which batches have to be decompressed."""
        return self._have(COMPRESSION_MASK)

    @property
    def are_control(self) -> Flags:
        """Which batches are markers of the broker."""
        return self._have(CONTROL_BIT)

    @property
    def are_appended(self) -> Flags:
        """In which batches all records have the time at which they were appended."""
        return self._have(LOG_APPEND_TIME_BIT)

    def _have(self, bits: int) -> Flags:
        flags: Flags = (self.attributes & bits) != 0
        return flags

    def at(self, chosen: Ints | slice) -> "Heads":
        """Some of them."""
        return Heads(*(field[chosen] for field in self))


def read_heads(source: Bytes, at: Ints) -> Heads:
    """The headers at these places, which must be complete."""

    def field(offset: int, size: int) -> Ints:
        big_endian: Ints = source.words_at(at + offset).byteswap().view(np.int64)
        return big_endian >> (64 - 8 * size) if size < 8 else big_endian

    return Heads(
        field(0, 8),
        field(_LENGTH_AT, 4),
        field(_ATTRIBUTES_AT, 2),
        field(_LAST_OFFSET_DELTA_AT, 4),
        field(_BASE_TIMESTAMP_AT, 8),
        field(_MAX_TIMESTAMP_AT, 8),
        field(_RECORD_COUNT_AT, 4),
    )
