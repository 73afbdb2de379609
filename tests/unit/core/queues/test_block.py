import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.coordinators.topic import UnreadableRecord
from penstock.core.queues.block import (
    ATTEMPTS_MAX,
    BLOCK_OFFSETS,
    FINISHED,
    LEASED,
    MOVING,
    NEVER_MS,
    READY,
    UNTOUCHED,
    WAITING,
    Block,
    decode_block,
)


def columns(block, first=0):
    return [
        (state, block.attempts[at], block.until_ms[at], block.owner(at), block.error(at), block.flags[at])
        if state not in (UNTOUCHED, FINISHED)
        else state
        for at, state in enumerate(block.states)
        if at >= first
    ]


records = st.tuples(
    st.integers(0, BLOCK_OFFSETS - 1),
    st.sampled_from([FINISHED, LEASED, WAITING, READY, MOVING]),
    st.text(max_size=20),
    st.text(max_size=2000),
    st.integers(0, 2**60),
)


def filled(entries):
    block = Block()
    for at, state, owner, error, until_ms in entries:
        block.lease(at, owner or "o", until_ms)
        block.set_error(at, error)
        if state == WAITING:
            block.wait(at, until_ms)
        elif state == READY:
            block.make_ready(at, until_ms)
        else:
            block.states[at] = state
    return block


@given(st.lists(records, max_size=150), st.integers(0, 2**40), st.integers(0, BLOCK_OFFSETS))
def test_what_is_stored_is_what_was_known_from_the_lowest_place_on(entries, base, lowest) -> None:
    block = filled(entries)
    value = block.encode(base, lowest)
    if value is None:
        assert set(block.states[lowest:]) <= {UNTOUCHED}
        return
    read, read_base = decode_block(value)
    assert read_base == base
    assert columns(read, lowest) == columns(block, lowest)
    assert set(read.states[:lowest]) <= {UNTOUCHED}
    waits = [
        read.until_ms[at]
        for at, state in enumerate(read.states)
        if state in (LEASED, WAITING) or (state == READY and read.until_ms[at])
    ]
    assert read.due_ms == min(waits, default=NEVER_MS)


@given(st.lists(records, max_size=150), st.data())
def test_a_damaged_value_is_unreadable_or_something_else_but_never_an_accident(entries, data) -> None:
    value = filled(entries).encode(5, 0)
    if value is None:
        return
    damaged = bytearray(value[: data.draw(st.integers(0, len(value)))])
    if damaged:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableRecord):
        decode_block(bytes(damaged))


def test_only_finished_records_take_a_byte_each() -> None:
    block = Block()
    block.states[10:100] = bytes([FINISHED]) * 90
    value = block.encode(0, 0)
    assert value is not None
    assert len(value) < 90 + 16


def test_a_run_of_finished_records_is_counted_to_its_end() -> None:
    block = Block()
    block.states[0:50] = bytes([FINISHED]) * 50
    assert block.finished_from(0) == 50
    assert block.finished_from(49) == 1
    assert block.finished_from(50) == 0
    block.states[:] = bytes([FINISHED]) * BLOCK_OFFSETS
    assert block.finished_from(7) == BLOCK_OFFSETS - 7


def test_attempts_stay_at_their_greatest_number() -> None:
    block = Block()
    block.attempts[3] = ATTEMPTS_MAX
    assert block.lease(3, "a", 1) == ATTEMPTS_MAX


def test_more_names_than_an_index_can_tell_apart_do_not_mix_up_those_in_use() -> None:
    block = Block()
    block.lease(0, "first", 10)
    for number in range(1000):
        block.lease(1, f"owner {number}", 10)
        block.set_error(1, f"error {number}")
    assert (block.owner(0), block.owner(1), block.error(1)) == ("first", "owner 999", "error 999")


def test_errors_are_cut_before_a_block_of_them_grows_large() -> None:
    block = Block()
    for at in range(BLOCK_OFFSETS):
        block.lease(at, "a", 10)
        block.set_error(at, f"{at:04}" + "x" * 1000)
    assert sum(map(len, block.errors)) < 10 * 1024
    assert all((block.error(at) or "").startswith(f"{at:04}") for at in range(BLOCK_OFFSETS))


def test_what_is_due_is_found_and_the_next_time_is_known() -> None:
    block = Block()
    block.lease(1, "a", 100)
    block.wait(2, 200)
    block.make_ready(3, 0)
    block.make_ready(4, 300)
    block.states[5] = MOVING
    assert block.due_at(99) == []
    assert block.due_ms == 100
    assert block.due_at(250) == [1, 2]
    assert block.due_ms == 300


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(20), b"\x01" * 12])
def test_what_is_no_block_is_refused(value) -> None:
    with pytest.raises(UnreadableRecord):
        decode_block(value)
