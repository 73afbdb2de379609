"""Which partition a record goes to: by its key, as in every Java client, or in turn if it has none.

The same key must go to the same partition with any client, so the hash is Kafka's (MurmurHash2, 32 bits).
"""

from typing import Final

_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000


def murmur2(data: bytes) -> int:
    """The hash as the signed 32-bit number that Java has."""
    size = len(data)
    tail_at = size & ~3
    hashed = _SEED ^ size
    for at in range(0, tail_at, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> _SHIFT) * _MULTIPLIER & _MASK
        hashed = hashed * _MULTIPLIER & _MASK ^ word
    if tail_at != size:
        hashed = (hashed ^ int.from_bytes(data[tail_at:], "little")) * _MULTIPLIER & _MASK
    hashed = (hashed ^ hashed >> 13) * _MULTIPLIER & _MASK
    hashed ^= hashed >> 15
    return hashed - (_MASK + 1) if hashed & _SIGN else hashed


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key. It changes when partitions are added, as with every Kafka client."""
    assert partition_count > 0
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class RoundRobin:
    """Partitions in turn, for records without a key."""

    __slots__ = ("_next",)

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def partition(self, partition_count: int) -> int:
        """The next partition; the number of partitions may change between calls."""
        assert partition_count > 0
        chosen = self._next % partition_count
        self._next = chosen + 1
        return chosen
