import pytest

from penstock.log.config import LogConfig
from penstock.log.segment import Segment
from penstock.log.tail import check_end, index_tail
from tests.unit.log.kit import append

INTERVAL = 200
LIMIT = 2**63 - 1


@pytest.fixture
def active(kit):
    """An active segment of thirty batches in three epochs, as a start finds it: nothing of it is indexed on disk."""
    log = kit.open(LogConfig(index_interval_bytes=INTERVAL))
    for number in range(30):
        append(log, b"x" * 100, epoch=number // 10, timestamp_ms=1000 + number)
    log.write_pending()
    segment = log.segments[0]
    rows = list(segment.offsets.rows())
    places = [segment.locate(offset, segment.size) for offset in range(30)]
    fresh = Segment(kit.disk, kit.world.files, kit.directory, 0, size=segment.size, next_offset=LIMIT)
    return fresh, places, rows


def damage(kit, segment, position) -> None:
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(position + 80, 0))


def break_header(kit, segment, position) -> None:
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(slice(position, position + 61), bytes(61)))


@pytest.mark.parametrize("believed", [0, 17, 30])
def test_the_index_becomes_what_appending_had_made(active, believed) -> None:
    segment, places, rows = active
    epochs = {}
    tail = index_tail(segment, INTERVAL, [*places, segment.size][believed], believed, epochs)
    assert (tail.end, tail.next_offset, tail.last_epoch, tail.damage) == (segment.size, 30, 2, None)
    assert list(segment.offsets.rows()) == rows
    assert segment.max_timestamp == 1029
    assert epochs == {0: 0, 1: 10, 2: 20}


def test_damage_after_the_trusted_part_ends_the_log(kit, active) -> None:
    segment, places, _ = active
    damage(kit, segment, places[20])
    tail = index_tail(segment, INTERVAL, places[10], 10, {})
    assert (tail.end, tail.next_offset) == (places[20], 20)
    assert tail.damage.position == places[20]


@pytest.mark.parametrize("how", [damage, break_header])
def test_damage_in_the_trusted_part_is_skipped(kit, active, how) -> None:
    segment, places, _ = active
    how(kit, segment, places[5])
    tail = index_tail(segment, INTERVAL, places[10], 10, {})
    assert (tail.end, tail.next_offset, tail.damage) == (segment.size, 30, None)


def test_rows_on_disk_save_the_walk_up_to_them(kit, active) -> None:
    segment, _, rows = active
    index_tail(segment, INTERVAL, segment.size, 30, {})
    segment.offsets.flush()
    segment.times.flush()
    fresh = Segment(kit.disk, kit.world.files, kit.directory, 0, size=segment.size, next_offset=LIMIT)
    epochs = {}
    index_tail(fresh, INTERVAL, fresh.size, 30, epochs)
    assert list(fresh.offsets.rows()) == rows
    assert epochs == {2: rows[-1][0]}


def test_the_end_is_checked_from_the_last_row_on(kit, active) -> None:
    segment, places, rows = active
    index_tail(segment, INTERVAL, segment.size, 30, {})
    damage(kit, segment, places[3])
    tail = check_end(segment)
    assert (tail.end, tail.next_offset, tail.damage) == (segment.size, 30, None)
    assert segment.is_verified(rows[-1][1], segment.size)
    assert not segment.is_verified(places[3], segment.size)
    damage(kit, segment, places[29])
    assert check_end(segment).next_offset == 29
