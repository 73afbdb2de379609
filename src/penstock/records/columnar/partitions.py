"""Which partition each key of a column belongs to: the hash of ``records/partitioner.py``, for all keys at once.

The keys are hashed four bytes at a time, sorted by length, so that those with bytes left are always at the front.
"""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.records.columnar.pieces import binary_column, bounds_of
from penstock.records.columnar.words import Bytes, Ints
from penstock.records.partitioner import murmur2

NO_PARTITION: Final = -1
"""Of a record without a key."""

_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_SEED: Final = np.uint32(0x9747B28C)
_SHIFT: Final = np.uint32(24)
_WORD_BYTES: Final = 4
_TOGETHER_MIN: Final = 16
"""Fewer keys than this are hashed one by one."""
_SHORT_MAX: Final = 0xFFFF

Hashes = NDArray[np.uint32]


def partition_for_keys(keys: pa.Array | pa.ChunkedArray, partition_count: int) -> NDArray[np.int32]:
    """The partition of each key, as in every Kafka client; -1 for a null."""
    assert partition_count > 0
    column = binary_column(keys)
    if not len(column.sizes):
        return np.empty(0, np.int32)
    hashed = _murmur2(column.array, np.maximum(column.sizes, 0))
    partitions = ((hashed & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    partitions[column.sizes < 0] = NO_PARTITION
    return partitions


def _murmur2(keys: pa.Array, sizes: Ints) -> Hashes:
    data = keys.buffers()[2]
    source = Bytes(memoryview(data) if data is not None else b"")
    at = bounds_of(keys)[:-1].astype(np.int64)
    words = sizes // _WORD_BYTES
    longest = int(words.max())
    order: Ints | slice = slice(None)
    if longest != int(words.min()):
        # Numbers of 16 bits are sorted in linear time.
        fewest = longest - words
        order = np.argsort(fewest.astype(np.uint16) if longest <= _SHORT_MAX else fewest, kind="stable")
        at, words, sizes = at[order], words[order], sizes[order]
    hashed = _SEED ^ sizes.astype(np.uint32)
    alone = 0
    for number in range(longest):
        going_on = len(words) - int(np.searchsorted(words[::-1], number, "right"))
        if going_on < _TOGETHER_MIN:
            alone = going_on
            break
        word = source.words_at(at[:going_on] + number * _WORD_BYTES).astype(np.uint32) * _MULTIPLIER
        word = (word ^ (word >> _SHIFT)) * _MULTIPLIER
        hashed[:going_on] = hashed[:going_on] * _MULTIPLIER ^ word
    hashed = _finished(source, hashed, at + words * _WORD_BYTES, sizes & (_WORD_BYTES - 1))
    for index in range(alone):
        begin = int(at[index])
        hashed[index] = murmur2(bytes(source.view[begin : begin + int(sizes[index])])) & 0xFFFFFFFF
    back = np.empty_like(hashed)
    back[order] = hashed
    return back


def _finished(source: Bytes, hashed: Hashes, at: Ints, left: Ints) -> Hashes:
    """The last one to three bytes of each key mixed in, and the bits spread."""
    tails = source.words_at(np.minimum(at, max(0, source.size - 1))).astype(np.uint32)
    tails &= (np.uint32(1) << (left << 3).astype(np.uint32)) - np.uint32(1)
    hashed = np.where(left > 0, (hashed ^ tails) * _MULTIPLIER, hashed)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * _MULTIPLIER
    return hashed ^ (hashed >> np.uint32(15))
