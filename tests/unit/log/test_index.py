import errno
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.index import BLOCK_ROWS, TAIL_ROWS_KEPT, OffsetIndex, TimeIndex
from penstock.testing.disk import SimulatedDisk

KINDS = [OffsetIndex, TimeIndex]


def filled(kind, count, disk=None, step=3):
    disk = disk or SimulatedDisk()
    index = kind(disk, "/index", 0)
    rows = [(number * step + 1, number * 5 + 2) for number in range(count)]
    for row in rows:
        index.add(*row)
    return disk, index, rows


def expect_same(index, rows) -> None:
    assert len(index) == len(rows)
    assert index.last() == (rows[-1] if rows else None)
    assert list(index.rows()) == rows
    keys = [key for key, _ in rows]
    values = [value for _, value in rows]
    for wanted in {0, 1, 2, *(key + delta for key in keys[:: max(len(keys) // 20, 1)] for delta in (-1, 0, 1)), 10**9}:
        at = bisect_right(keys, wanted)
        assert index.floor(wanted) == (rows[at - 1] if at else None), wanted
        at = bisect_right(values, wanted)
        assert index.floor_by_value(wanted) == (rows[at - 1] if at else None), wanted
        assert index.rows_below_value(wanted + 1) == at


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 5, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 17])
def test_rows_are_found_in_memory_after_a_flush_and_after_a_restart(kind, count) -> None:
    disk, index, rows = filled(kind, count)
    expect_same(index, rows)
    index.flush()
    expect_same(index, rows)
    index.forget_tail()
    expect_same(index, rows)
    again = kind(disk, "/index", kind.rows_in(disk, "/index"))
    expect_same(again, rows)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_order_of_adding_flushing_and_cutting_keeps_the_rows(kind, data) -> None:
    disk = SimulatedDisk()
    index = kind(disk, "/index", 0)
    rows: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["add", "flush", "cut", "cut_value", "forget", "restart"]))
        if step == "add":
            for _ in range(data.draw(st.integers(1, 700))):
                row = (rows[-1][0] + 2, rows[-1][1] + 7) if rows else (5, 9)
                rows.append(row)
                index.add(*row)
        elif step == "flush":
            index.flush()
        elif step == "cut":
            count = data.draw(st.integers(0, len(rows)))
            index.cut(count)
            del rows[count:]
        elif step == "cut_value":
            value = data.draw(st.integers(0, rows[-1][1] + 1 if rows else 1))
            index.cut_from_value(value)
            rows = [row for row in rows if row[1] < value]
        elif step == "forget":
            index.forget()
        else:
            index.flush()
            index = kind(disk, "/index", kind.rows_in(disk, "/index"))
        expect_same(index, rows)


def test_memory_holds_only_the_last_rows_after_a_flush() -> None:
    _, index, _ = filled(OffsetIndex, 10 * TAIL_ROWS_KEPT)
    index.flush()
    assert len(index._keys) == TAIL_ROWS_KEPT
    assert index.unflushed_rows == 0


def test_a_flush_that_fails_keeps_the_rows_for_a_later_one() -> None:
    disk, index, rows = filled(OffsetIndex, 40)
    disk.fail_next("pwritev", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        index.flush()
    assert index.unflushed_rows == 40
    index.flush()
    expect_same(OffsetIndex(disk, "/index", OffsetIndex.rows_in(disk, "/index")), rows)


def test_the_last_row_needs_the_disk_only_once() -> None:
    disk, index, rows = filled(TimeIndex, 3)
    index.flush()
    again = TimeIndex(disk, "/index", 3)
    assert again.last() == rows[-1]
    disk.fail_next("open")
    assert again.last() == rows[-1]
    again.add(1000, 1000)
    again.cut(3)
    assert again.last() == rows[-1]


def test_half_a_row_at_the_end_of_the_file_is_no_row() -> None:
    disk, index, _ = filled(OffsetIndex, 3)
    index.flush()
    disk.change("/index", lambda data: data.extend(b"\0\0\0"))
    assert OffsetIndex.rows_in(disk, "/index") == 3
    assert OffsetIndex.rows_in(disk, "/absent") == 0


def test_the_rows_on_disk_are_what_the_format_says() -> None:
    disk, index, _ = filled(OffsetIndex, 0)
    index.add(1, 2)
    index.flush()
    assert disk.read_bytes("/index") == bytes([0, 0, 0, 1, 0, 0, 0, 2])
    times = TimeIndex(disk, "/times", 0)
    times.add(3, 4)
    times.flush()
    assert disk.read_bytes("/times") == bytes([0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4])
