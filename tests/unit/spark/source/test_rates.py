"""How much a micro-batch takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.rates import BatchDelay, share

A, B, C = ("t", 0), ("t", 1), ("u", 0)


@pytest.mark.parametrize(
    ("limit", "start", "end", "expected"),
    [
        (300, {A: 0, B: 0}, {A: 500, B: 500}, {A: 150, B: 150}),
        (100, {A: 0, B: 0}, {A: 900, B: 100}, {A: 90, B: 10}),
        # Down to whole offsets, but nobody starves: one at least where there is something.
        (10, {A: 0, B: 0}, {A: 999, B: 1}, {A: 9, B: 1}),
        (1, {A: 0, B: 0, C: 0}, {A: 5, B: 5, C: 5}, {A: 1, B: 1, C: 1}),
        # More than there is takes all.
        (5000, {A: 10, B: 20}, {A: 30, B: 20}, {A: 30, B: 20}),
        # Without new records, or with a lower end, the end is unchanged.
        (10, {A: 50, B: 0}, {A: 40, B: 100}, {A: 40, B: 10}),
        (10, {A: 5}, {A: 5}, {A: 5}),
        # Without a start nothing is known of it; the plan will say so.
        (10, {}, {A: 5}, {A: 5}),
        (10, {}, {}, {}),
    ],
)
def test_an_upper_bound_is_shared_in_proportion(limit, start, end, expected) -> None:
    assert share(limit, start, end) == expected


@given(
    st.integers(1, 10**12),
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1),
)
def test_shares_move_forward_stay_within_the_end_and_sum_to_the_limit(limit, partitions) -> None:
    start = {("t", index): first for index, (first, _) in partitions.items()}
    end = {("t", index): first + count for index, (first, count) in partitions.items()}
    shared = share(limit, start, end)
    waiting = [place for place in end if end[place] > start[place]]
    taken = sum(shared[place] - start[place] for place in end)
    assert all(start[place] < shared[place] <= end[place] for place in waiting)
    assert taken <= max(limit, 0) + len(waiting)
    assert taken >= min(limit, sum(end[place] - start[place] for place in waiting)) - len(waiting)


def test_the_first_batch_does_not_wait() -> None:
    assert not BatchDelay(100, 1000).must_wait({A: 0}, {A: 1}, now_ms=5)


def test_a_batch_waits_for_enough_or_for_long_enough() -> None:
    delay = BatchDelay(100, 1000)
    assert not delay.must_wait({A: 0}, {A: 1}, now_ms=0)
    assert delay.must_wait({A: 1}, {A: 100}, now_ms=999), "99 are waiting"
    assert not delay.must_wait({A: 1}, {A: 101}, now_ms=999), "100 are waiting"
    assert delay.must_wait({A: 101}, {A: 102}, now_ms=1998)
    assert not delay.must_wait({A: 101}, {A: 102}, now_ms=1999), "a second has passed"


def test_partitions_that_appeared_count_whole() -> None:
    delay = BatchDelay(10, 1000)
    delay.must_wait({}, {}, now_ms=0)
    assert not delay.must_wait({A: 5}, {A: 5, B: 10}, now_ms=1)
