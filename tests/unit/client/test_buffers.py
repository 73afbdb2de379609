"""Memory of answers that is used again: only when nobody looks at it any more."""

import numpy as np
import pyarrow as pa
import pytest

from penstock.client.buffers import KEPT_BYTES_MAX, KEPT_BYTES_MIN, KEPT_MAX, KeptBuffers, space_for


def test_a_buffer_is_given_out_again_when_no_view_of_it_is_left() -> None:
    kept = KeptBuffers()
    buffer = bytearray(KEPT_BYTES_MIN)
    kept.keep(buffer)
    views = [memoryview(buffer)[10:20], np.frombuffer(buffer, np.uint8)[5:], pa.py_buffer(buffer)]
    while views:
        assert kept.take(KEPT_BYTES_MIN) is None
        views.pop()
    assert kept.take(KEPT_BYTES_MIN) is buffer
    assert len(buffer) == KEPT_BYTES_MIN


def test_a_buffer_must_be_large_enough() -> None:
    kept = KeptBuffers()
    kept.keep(bytearray(KEPT_BYTES_MIN))
    assert kept.take(KEPT_BYTES_MIN + 1) is None


def test_small_and_very_large_ones_are_not_kept() -> None:
    kept = KeptBuffers()
    kept.keep(bytearray(KEPT_BYTES_MIN - 1))
    kept.keep(bytearray(KEPT_BYTES_MAX + 1))
    assert kept.take(KEPT_BYTES_MIN) is None


def taken(kept):
    """Every buffer that can be had at the same time, by its size above the least."""
    found = []
    while (buffer := kept.take(KEPT_BYTES_MIN)) is not None:
        found.append((buffer, memoryview(buffer)))
    return [len(buffer) - KEPT_BYTES_MIN for buffer, _ in found]


def test_a_larger_one_takes_the_place_of_a_smaller_one_and_no_more_are_kept_than_told() -> None:
    kept = KeptBuffers()
    for number in (3, 1, 2, 0):
        kept.keep(bytearray(KEPT_BYTES_MIN + number))
    assert sorted(taken(kept)) == [2, 3]
    assert KEPT_MAX == 2


def test_one_that_somebody_holds_for_long_gives_its_place_to_the_next() -> None:
    kept = KeptBuffers()
    held, later = ([bytearray(KEPT_BYTES_MIN) for _ in range(2)] for _ in range(2))
    views = [memoryview(buffer) for buffer in held]
    for buffer in [*held, *later]:
        kept.keep(buffer)
    del views
    first = kept.take(KEPT_BYTES_MIN)
    first_view = memoryview(first)
    second = kept.take(KEPT_BYTES_MIN)
    assert {id(first), id(second)} == {id(buffer) for buffer in later}
    first_view.release()


def test_answers_of_about_the_same_size_share_the_same_two_buffers() -> None:
    """One is looked at while the next comes: the smaller one must not stay while the larger is made anew each time."""
    kept = KeptBuffers()
    looked_at, made = None, 0
    for number in range(40):
        size = KEPT_BYTES_MIN * 4 + (1 if number % 3 else -1)
        buffer = kept.take(size)
        if buffer is None:
            buffer = bytearray(space_for(size))
            made += 1
            kept.keep(buffer)
        looked_at = memoryview(buffer)[:size]
    assert looked_at is not None
    assert made <= KEPT_MAX + 1


@pytest.mark.parametrize(
    ("size", "space"),
    [
        (5, 5),
        (KEPT_BYTES_MIN - 1, KEPT_BYTES_MIN - 1),
        (KEPT_BYTES_MIN, KEPT_BYTES_MIN),
        (KEPT_BYTES_MIN + 1, 2 * KEPT_BYTES_MIN),
    ],
)
def test_only_what_is_kept_has_more_room_than_it_needs(size, space) -> None:
    assert space_for(size) == space
