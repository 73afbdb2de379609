"""Filters that limit what is read: on topic, partition and offset exactly, on timestamp as a lower bound.

Timestamps may decrease as offsets increase. For a time, the broker returns the first offset at or after it, so all records before that
offset are older and can be skipped. There is no such offset for an upper bound. Spark filters timestamps itself in both cases.

It requires the option ``pushdown``. Spark 4.3 has one plan for each ``load()`` and applies the filters that were pushed last to every
use: ``df.where("partition = 0").count()`` and then ``df.count()`` would count the same rows. So it is for a DataFrame that is used once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from penstock.spark.options import SparkOptions
    from penstock.spark.source.offsets import Edges
    from penstock.spark.source.plan import OffsetRange

T = TypeVar("T")
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"
NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_OFFSET_MAX: Final = 2**63 - 1


OPTION: Final = "pushdown"


def is_wanted(options: SparkOptions) -> bool:
    """Whether the query requests it, and this process is the worker in which Spark pushes filters.

    Spark refuses a reader with ``pushFilters`` while ``spark.sql.python.filterPushdown.enabled`` is off, and this process cannot read the
    settings of the session. But Spark pushes filters in a separate worker module that nothing else loads.
    """
    if not options.flag(OPTION, default=False):
        return False
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(spec, "name", None) == _PUSHDOWN_WORKER


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the filters allow. ``None`` is no constraint; offsets are ``[from_offset, to_offset)``."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    from_offset: int = 0
    to_offset: int = _OFFSET_MAX
    not_before_ms: int | None = None

    def narrow(self, edges: Edges, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges limited to what the filters allow."""
        kept = [
            replace(
                _starting_at(each, self.from_offset),
                to_offset=min(each.to_offset, self.to_offset),
                to_latest=each.to_latest and self.to_offset == _OFFSET_MAX,
            )
            for each in ranges
            if (self.topics is None or each.topic in self.topics)
            and (self.partitions is None or each.partition in self.partitions)
        ]
        kept = [each for each in kept if not each.is_empty]
        return kept if self.not_before_ms is None else _narrow_by_time(edges, kept, self.not_before_ms)


def push(filters: Iterable[Filter]) -> tuple[Constraints, list[Filter]]:
    """The constraints from the filters, and the filters that Spark must still apply."""
    constraints = Constraints()
    rest: list[Filter] = []
    for each in filters:
        narrowed, exact = _add(constraints, each)
        constraints = narrowed
        if not exact:
            rest.append(each)
    return constraints, rest


def _add(to: Constraints, each: Filter) -> tuple[Constraints, bool]:
    """The constraints with one more filter, and whether they express it exactly."""
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if isinstance(each, IsNotNull):
        return to, column in NEVER_NULL
    value = getattr(each, "value", None)
    if value is None:
        return to, False
    if column == "topic":
        names = _values(each, str)
        return (to, False) if names is None else (replace(to, topics=_both(to.topics, names)), True)
    if column == "partition":
        indexes = _values(each, int)
        return (to, False) if indexes is None else (replace(to, partitions=_both(to.partitions, indexes)), True)
    if column == "offset" and type(value) is int:
        return _add_offset(to, each, value)
    if column == "timestamp" and isinstance(value, datetime):
        return _add_time(to, each, value), False
    return to, False


def _values(each: Filter, kind: type[T]) -> frozenset[T] | None:
    """The values that a filter allows, if it lists them."""
    if isinstance(each, EqualTo | EqualNullSafe) and type(each.value) is kind:
        return frozenset({each.value})
    if isinstance(each, In) and all(value is None or type(value) is kind for value in each.value):
        return frozenset(value for value in each.value if value is not None)
    return None


def _both(one: frozenset[T] | None, other: frozenset[T]) -> frozenset[T]:
    return other if one is None else one & other


def _add_offset(to: Constraints, each: Filter, value: int) -> tuple[Constraints, bool]:
    allowed = {
        EqualTo: (value, value + 1),
        EqualNullSafe: (value, value + 1),
        GreaterThan: (value + 1, _OFFSET_MAX),
        GreaterThanOrEqual: (value, _OFFSET_MAX),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }
    if type(each) not in allowed:
        return to, False
    low, high = allowed[type(each)]
    return replace(to, from_offset=max(to.from_offset, low), to_offset=min(to.to_offset, high)), True


def _add_time(to: Constraints, each: Filter, value: datetime) -> Constraints:
    if not isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return to
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    # Rounded down to the broker's milliseconds, because a lower bound may only be too low.
    bound_ms = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    return replace(to, not_before_ms=bound_ms if to.not_before_ms is None else max(to.not_before_ms, bound_ms))


def _narrow_by_time(edges: Edges, ranges: list[OffsetRange], bound_ms: int) -> list[OffsetRange]:
    found = edges.first_at_or_after({each.place: bound_ms for each in ranges})
    narrowed: list[OffsetRange] = []
    for each in ranges:
        first = found[each.place]
        # Without a match now, there may be one when the range is read.
        first = each.to_offset if first is None else min(first, each.to_offset)
        narrowed.append(_starting_at(each, first))
    return [each for each in narrowed if not each.is_empty]


def _starting_at(each: OffsetRange, offset: int) -> OffsetRange:
    """The range without the offsets before this one."""
    return each if offset <= each.from_offset else replace(each, from_offset=offset, from_earliest=False)
