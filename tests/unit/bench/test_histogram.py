import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.histogram import VALUE_MAX, LatencyHistogram


def test_percentiles_of_small_values_are_exact() -> None:
    histogram = LatencyHistogram()
    for value in range(1, 201):
        histogram.record(value)
    assert histogram.percentile(50) == 100
    assert histogram.percentile(99) == 198
    assert histogram.percentile(99.5) == 199
    assert histogram.percentile(100) == 200


def test_a_percentile_that_falls_on_a_value_does_not_slip_to_the_next() -> None:
    histogram = LatencyHistogram()
    for value in [1] * 999 + [200]:
        histogram.record(value)
    assert histogram.percentile(99.9) == 1


def test_counting_many_times_equals_counting_again_and_again() -> None:
    once, often = LatencyHistogram(), LatencyHistogram()
    once.record(5000, 7)
    once.record(90, 3)
    for value in [5000] * 7 + [90] * 3:
        often.record(value)
    assert once.count == often.count == 10
    for percent in (10, 30, 31, 50, 100):
        assert once.percentile(percent) == often.percentile(percent)


@given(st.lists(st.integers(0, VALUE_MAX), min_size=1, max_size=200), st.floats(0.1, 100))
def test_percentiles_are_within_a_hundredth_of_the_sorted_truth(values, percent) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    rank = next(rank for rank in range(1, len(values) + 1) if rank >= round(percent * len(values) / 100, 6))
    truth = sorted(values)[rank - 1]
    assert abs(histogram.percentile(percent) - truth) <= truth / 128


def test_a_value_beyond_the_range_counts_as_the_largest() -> None:
    histogram = LatencyHistogram()
    histogram.record(VALUE_MAX * 1000)
    assert histogram.percentile(100) == pytest.approx(VALUE_MAX, rel=0.01)


def test_an_empty_histogram_has_no_percentile() -> None:
    assert LatencyHistogram().percentile(50) is None


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percentile_outside_its_range_is_refused(percent) -> None:
    with pytest.raises(ValueError, match="percentile"):
        LatencyHistogram().percentile(percent)


def test_a_large_random_sample_keeps_its_tail() -> None:
    rng = random.Random(7)
    values = [int(rng.lognormvariate(11, 1)) for _ in range(20_000)]
    histogram = LatencyHistogram()
    for value in values:
        histogram.record(value)
    ordered = sorted(values)
    assert histogram.percentile(99.9) == pytest.approx(ordered[19_979], rel=0.01)
