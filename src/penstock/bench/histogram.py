"""Latencies in constant memory.

Invariant: a recorded value is read back with an error of less than 1/128, whatever its size, and memory does not grow with the
number of values. Buckets are log-linear: 128 to every power of two.
"""

from __future__ import annotations

import math

_SUB_BITS = 7
_SUB_COUNT = 1 << _SUB_BITS
_VALUE_BITS_MAX = 44  # nanoseconds: about five hours
_BUCKETS = (_VALUE_BITS_MAX - _SUB_BITS + 1) << _SUB_BITS
VALUE_MAX = (1 << _VALUE_BITS_MAX) - 1


class LatencyHistogram:
    """Counts of non-negative whole numbers (nanoseconds by habit)."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self.count = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count `value` `times` times; a value beyond VALUE_MAX counts as VALUE_MAX."""
        if value > VALUE_MAX:  # noqa: PLR1730  a call of min() costs more than all the rest here
            value = VALUE_MAX
        shift = value.bit_length() - _SUB_BITS - 1
        if shift > 0:
            self._buckets[(shift << _SUB_BITS) + (value >> shift)] += times
        else:
            self._buckets[value] += times
        self.count += times

    def percentile(self, percent: float) -> int | None:
        """The middle of the first bucket that at least `percent` of the values do not exceed; None when nothing was recorded."""
        if not 0 < percent <= 100:
            raise ValueError(f"A percentile must be above 0 and at most 100, not {percent}")
        if not self.count:
            return None
        # Rounded before the ceiling: 99.9 / 100 * 1000 is a hair over 999 in binary, and must not become the 1000th value.
        rank = max(1, math.ceil(round(percent * self.count / 100, 6)))
        seen = 0
        for index, times in enumerate(self._buckets):
            seen += times
            if seen >= rank:
                return _middle(index)
        raise AssertionError("The buckets hold fewer values than were counted")


def _middle(index: int) -> int:
    if index < 2 * _SUB_COUNT:
        return index
    shift = (index >> _SUB_BITS) - 1
    low = (index - (shift << _SUB_BITS)) << shift
    return low + (1 << (shift - 1))
