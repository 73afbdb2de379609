"""What filters say of where to read, and what they leave to Spark."""

import sys
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.spark.options import SparkOptions
from penstock.spark.source.plan import OffsetRange
from penstock.spark.source.pushdown import Constraints, is_wanted, push

OFFSET, PARTITION, TOPIC, TIME = ("offset",), ("partition",), ("topic",), ("timestamp",)
AT = datetime(2025, 1, 1, tzinfo=UTC)
AT_MS = 1735689600000


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([GreaterThan(OFFSET, 5)], Constraints(from_offset=6)),
        ([GreaterThanOrEqual(OFFSET, 5), LessThan(OFFSET, 9)], Constraints(from_offset=5, to_offset=9)),
        (
            [LessThanOrEqual(OFFSET, 9), GreaterThan(OFFSET, 2), GreaterThan(OFFSET, 1)],
            Constraints(from_offset=3, to_offset=10),
        ),
        ([EqualTo(OFFSET, 5)], Constraints(from_offset=5, to_offset=6)),
        ([EqualTo(PARTITION, 1)], Constraints(partitions=frozenset({1}))),
        ([EqualNullSafe(PARTITION, 1)], Constraints(partitions=frozenset({1}))),
        ([In(PARTITION, (1, 2, None)), In(PARTITION, (2, 3))], Constraints(partitions=frozenset({2}))),
        ([EqualTo(TOPIC, "a")], Constraints(topics=frozenset({"a"}))),
        ([In(TOPIC, ("a", "b"))], Constraints(topics=frozenset({"a", "b"}))),
        ([IsNotNull(OFFSET), IsNotNull(TIME), IsNotNull(("timestampType",))], Constraints()),
    ],
)
def test_filters_that_are_met_exactly_are_not_left_to_spark(filters, expected) -> None:
    assert push(filters) == (expected, [])


@pytest.mark.parametrize(
    "filters",
    [
        [IsNotNull(("key",))],
        [IsNull(OFFSET)],
        [Not(EqualTo(PARTITION, 1))],
        [EqualTo(("value",), b"x")],
        [StringStartsWith(TOPIC, "a")],
        [GreaterThan(PARTITION, 1)],
        [EqualTo(OFFSET, None)],
        [EqualTo(("timestampType",), 0)],
        [LessThan(TIME, AT)],
    ],
)
def test_all_other_filters_are_left_to_spark(filters) -> None:
    assert push(filters) == (Constraints(), filters)


@pytest.mark.parametrize("kind", [GreaterThan, GreaterThanOrEqual, EqualTo])
def test_a_time_from_below_says_where_to_start_and_is_still_applied(kind) -> None:
    constraints, rest = push([filter_ := kind(TIME, AT + timedelta(microseconds=1999))])
    assert constraints == Constraints(not_before_ms=AT_MS + 1)
    assert rest == [filter_]


def test_a_time_without_a_zone_is_utc_and_one_with_a_zone_is_a_moment() -> None:
    east = timezone(timedelta(hours=2))
    for moment in (AT.replace(tzinfo=None), AT.astimezone(east)):
        assert push([GreaterThan(TIME, moment)])[0].not_before_ms == AT_MS


class Times:
    """Answers with the first offset for each partition, as the broker does."""

    def __init__(self, *found) -> None:
        self.found = found

    def first_at_or_after(self, times_ms):
        return {place: self.found[place[1]] for place in times_ms}


def test_constraints_narrow_ranges() -> None:
    ranges = [OffsetRange("a", 0, 0, 10), OffsetRange("a", 1, 0, 10), OffsetRange("b", 0, 0, 10)]
    narrowed = Constraints(topics=frozenset({"a"}), from_offset=3, to_offset=8).narrow(Times(), ranges)
    assert narrowed == [OffsetRange("a", 0, 3, 8), OffsetRange("a", 1, 3, 8)]
    assert Constraints(partitions=frozenset({1})).narrow(Times(), ranges) == [OffsetRange("a", 1, 0, 10)]
    assert Constraints(from_offset=10).narrow(Times(), ranges) == []


def test_a_time_narrows_from_below_and_drops_what_is_all_too_old() -> None:
    ranges = [
        OffsetRange("a", 0, 5, 10),
        OffsetRange("a", 1, 5, 10),
        OffsetRange("a", 2, 5, 10),
        OffsetRange("a", 3, 5, 10),
    ]
    narrowed = Constraints(not_before_ms=AT_MS).narrow(Times(7, None, 10, 2), ranges)
    assert narrowed == [OffsetRange("a", 0, 7, 10), OffsetRange("a", 3, 5, 10)]


def test_filters_are_taken_where_that_is_asked_for_and_spark_pushes_them(monkeypatch) -> None:
    asked = SparkOptions({"pushdown": "true"})
    assert not is_wanted(asked)
    name = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert is_wanted(asked)
    assert not is_wanted(SparkOptions({}))


def test_a_range_to_the_latest_stays_open_unless_a_filter_ends_it() -> None:
    (narrowed,) = Constraints(from_offset=3).narrow(Times(), [OffsetRange("a", 0, 0, 3, to_latest=True)])
    assert narrowed == OffsetRange("a", 0, 3, 3, to_latest=True)
    assert Constraints(from_offset=3, to_offset=9).narrow(Times(), [OffsetRange("a", 0, 0, 3, to_latest=True)]) == []
    (narrowed,) = Constraints(not_before_ms=AT_MS).narrow(Times(None), [OffsetRange("a", 0, 0, 3, to_latest=True)])
    assert narrowed == OffsetRange("a", 0, 3, 3, to_latest=True)
