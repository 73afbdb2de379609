"""How ranges become tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.source.plan import OffsetRange, divide


def ranges(*spans):
    return [OffsetRange("t", index, first, end) for index, (first, end) in enumerate(spans)]


def spans(divided):
    return [(each.partition, each.from_offset, each.to_offset) for each in divided]


@pytest.mark.parametrize(
    ("given_spans", "min_partitions", "records_max", "expected"),
    [
        # One task a partition; empty and backward ranges are none.
        ([(0, 10), (5, 5), (9, 3)], None, None, [(0, 0, 10)]),
        ([(0, 10), (0, 20)], 2, None, [(0, 0, 10), (1, 0, 20)]),
        # As many pieces as it takes to stay below the maximum, of nearly the same size.
        ([(0, 10)], None, 4, [(0, 0, 3), (0, 3, 6), (0, 6, 10)]),
        ([(0, 4), (0, 5)], None, 4, [(0, 0, 4), (1, 0, 2), (1, 2, 5)]),
        # Split evenly.
        ([(1, 5)], 3, None, [(0, 1, 2), (0, 2, 3), (0, 3, 5)]),
        # A large partition is cut more than a small one.
        ([(0, 50), (0, 100)], 3, None, [(0, 0, 50), (1, 0, 50), (1, 50, 100)]),
        # Small ones stay whole and are left out of the sum.
        (
            [(0, 1), (0, 1), (0, 100)],
            6,
            None,
            [(0, 0, 1), (1, 0, 1), (2, 0, 25), (2, 25, 50), (2, 50, 75), (2, 75, 100)],
        ),
        # Both: first the maximum, then about as many as are wanted: what rounds to one stays whole.
        ([(0, 30)], 4, 10, [(0, 0, 10), (0, 10, 20), (0, 20, 30)]),
        ([(0, 12)], 5, 6, [(0, 0, 2), (0, 2, 4), (0, 4, 6), (0, 6, 8), (0, 8, 10), (0, 10, 12)]),
        # No piece is empty, however many are wanted.
        ([(0, 2)], 10, None, [(0, 0, 1), (0, 1, 2)]),
    ],
)
def test_ranges_are_cut_as_the_options_say(given_spans, min_partitions, records_max, expected) -> None:
    assert spans(divide(ranges(*given_spans), min_partitions, records_max)) == expected


@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 10_000)), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1000, 5000),
)
def test_pieces_cover_the_ranges_exactly(sizes, min_partitions, records_max) -> None:
    whole = ranges(*((first, first + size) for first, size in sizes))
    divided = divide(whole, min_partitions, records_max)
    for each in whole:
        at = each.from_offset
        for piece in (piece for piece in divided if piece.partition == each.partition):
            assert piece.from_offset == at
            assert piece.size > 0
            at = piece.to_offset
        assert at == each.to_offset
    if records_max:
        assert all(piece.size <= records_max for piece in divided)


def test_only_the_first_piece_begins_wherever_the_partition_does() -> None:
    divided = divide([OffsetRange("t", 0, 0, 10, from_earliest=True)], 2, None)
    assert [piece.from_earliest for piece in divided] == [True, False]


def test_only_the_last_piece_ends_wherever_the_partition_does_and_an_empty_one_may_fill() -> None:
    divided = divide([OffsetRange("t", 0, 0, 10, to_latest=True), OffsetRange("t", 1, 5, 5, to_latest=True)], 3, None)
    assert [(piece.partition, piece.size, piece.to_latest) for piece in divided] == [
        (0, 3, False),
        (0, 3, False),
        (0, 4, True),
        (1, 0, True),
    ]
