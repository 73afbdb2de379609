import pytest

from penstock.log.names import INDEX, LOG, TIME_INDEX
from penstock.log.segment import Segment, Segments
from penstock.records.batch import read_header
from tests.unit.log.kit import SMALL, append, fill, sync


def closed_segment(kit, count=14):
    log = kit.open(SMALL)
    fill(log, count)
    log.roll()
    segment = log.segments[0]
    assert segment.size
    assert segment.next_offset == log.segments[1].base_offset
    return log, segment


def reopened(kit, segment):
    """The same files, with nothing known of them."""
    return Segment(
        kit.disk,
        kit.world.files,
        kit.directory,
        segment.base_offset,
        size=segment.size,
        next_offset=segment.next_offset,
    )


def positions(segment):
    found = {}
    position = 0
    data = segment.opened().pread(segment.size, 0)
    while position < len(data):
        header = read_header(data, position)
        found[header.base_offset] = position
        position += header.size_bytes
    return found


def test_every_offset_is_located_at_its_batch(either_kit) -> None:
    _, segment = closed_segment(either_kit)
    fresh = reopened(either_kit, segment)
    assert len(fresh.offsets) > 3
    for offset, position in positions(segment).items():
        assert fresh.locate(offset, fresh.size) == position
    assert fresh.locate(segment.next_offset, fresh.size) == fresh.size


def test_an_offset_in_the_middle_of_a_batch_is_located_at_the_batch(kit) -> None:
    log = kit.open(SMALL)
    for _ in range(6):
        append(log, b"a" * 60, b"b", b"c")
    log.write_pending()
    log.roll()
    segment = log.segments[0]
    for base, position in positions(segment).items():
        for offset in range(base, base + 3):
            assert segment.locate(offset, segment.size) == position


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.clear(),
        lambda data: data.__delitem__(slice(-4, None)),
        lambda data: data.__setitem__(slice(None), bytes(len(data))),
        lambda data: data.__setitem__(slice(None), b"\xff" * len(data)),
    ],
)
def test_a_damaged_index_is_made_again_when_it_is_used(kit, suffix, damage) -> None:
    _, segment = closed_segment(kit)
    expected = positions(segment)
    kit.disk.change(segment.stem + suffix, damage)
    fresh = reopened(kit, segment)
    assert fresh.max_timestamp == segment.max_timestamp
    for offset, position in expected.items():
        assert fresh.locate(offset, fresh.size) == position


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_a_missing_index_is_made_again_when_it_is_used(kit, suffix) -> None:
    _, segment = closed_segment(kit)
    before = kit.disk.read_bytes(segment.stem + INDEX)
    kit.disk.remove(segment.stem + suffix)
    fresh = reopened(kit, segment)
    fresh.rebuild_indexes(SMALL.index_interval_bytes)
    assert kit.disk.read_bytes(segment.stem + INDEX) == before
    assert fresh.max_timestamp == segment.max_timestamp


@pytest.mark.parametrize(("rows", "again"), [(0, True), (2, True), (-1, False)])
def test_an_index_that_lost_many_rows_is_made_again(kit, monkeypatch, rows, again) -> None:
    monkeypatch.setattr("penstock.log.segment.SHORT_INDEX_BYTES", 600)
    _, segment = closed_segment(kit)
    kit.disk.change(segment.stem + INDEX, lambda data: data.__delitem__(slice(rows * 8, None)))
    made = []
    monkeypatch.setattr(Segment, "rebuild_indexes", lambda self: made.append(self))
    fresh = reopened(kit, segment)
    assert fresh.offsets is not None
    assert made == ([fresh] if again else [])


def test_a_wrong_row_in_the_middle_of_an_index_is_not_followed(kit) -> None:
    _, segment = closed_segment(kit)
    expected = positions(segment)
    # The row points one byte too far.
    kit.disk.change(segment.stem + INDEX, lambda data: data.__setitem__(8 * 2 + 7, data[8 * 2 + 7] ^ 1))
    fresh = reopened(kit, segment)
    for offset, position in expected.items():
        assert fresh.locate(offset, fresh.size) == position


def test_the_rest_of_a_segment_is_found_behind_a_broken_header(kit) -> None:
    _, segment = closed_segment(kit)
    expected = positions(segment)
    broken = 5
    # The length is wrong, so the next batch cannot be found by walking.
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(expected[broken] + 9, 0x55))
    fresh = reopened(kit, segment)
    position, offset = fresh.next_sound(expected[broken], broken)
    assert position == expected[offset]
    assert broken < offset <= broken + 3
    for later in range(offset, segment.next_offset):
        assert fresh.locate(later, fresh.size) == expected[later]
    assert fresh.locate(broken, fresh.size) == expected[broken]
    assert [header.base_offset for header in fresh.headers_at(0)] == [
        *range(broken),
        *range(offset, segment.next_offset),
    ]


def test_behind_a_wrong_checksum_the_next_batch_in_line_is_sound(kit) -> None:
    _, segment = closed_segment(kit)
    expected = positions(segment)
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(expected[5] + 70, 0x55))
    fresh = reopened(kit, segment)
    assert fresh.next_sound(expected[5], 5) == (expected[6], 6)


def test_nothing_is_sound_behind_damage_in_the_last_batch(kit) -> None:
    _, segment = closed_segment(kit)
    last = segment.next_offset - 1
    place = positions(segment)[last]
    kit.disk.change(segment.log_path, lambda data: data.__setitem__(place + 9, 0x55))
    assert reopened(kit, segment).next_sound(place, last) is None


def test_checked_bytes_grow_together_or_the_newer_ones_count(kit) -> None:
    _, segment = closed_segment(kit)
    assert not segment.is_verified(0, 10)
    segment.note_verified(100, 200)
    segment.note_verified(200, 300)
    segment.note_verified(50, 120)
    assert segment.is_verified(50, 300)
    segment.note_verified(500, 600)
    assert segment.is_verified(500, 600)
    assert not segment.is_verified(50, 300)


def test_a_file_in_a_running_sync_is_closed_only_when_the_sync_is_over(kit) -> None:
    log = kit.open(SMALL)
    append(log, b"x")
    log.write_pending()
    segment = log.segments[0]
    file = segment.pin()
    segment.close()
    file.sync()
    assert kit.disk.open_files == 1
    segment.unpin()
    assert kit.disk.open_files == 0


def test_segments_are_found_by_offset(kit) -> None:
    log = kit.open(SMALL)
    fill(log, 60)
    listed = Segments(list(log.segments))
    assert len(listed.items) > 3
    for number, segment in enumerate(listed.items):
        assert listed.at(segment.base_offset) is segment
        if segment.next_offset > segment.base_offset:
            assert listed.at(segment.next_offset - 1) is segment
        following = listed.items[number + 1] if number + 1 < len(listed.items) else None
        assert listed.after(segment) is following
    assert [header.base_offset for header in listed.headers_from(7)] == list(range(7, 60))
    assert kit.names(LOG) == [f"{segment.base_offset:020d}.log" for segment in listed.items]
    sync(log)


def test_an_index_that_there_is_no_room_for_is_used_all_the_same(kit) -> None:
    _, segment = closed_segment(kit)
    places = positions(segment)
    for suffix in (INDEX, TIME_INDEX):
        kit.disk.remove(segment.stem + suffix)
    kit.disk.capacity_bytes = 0
    fresh = reopened(kit, segment)
    assert [fresh.locate(offset, fresh.size) for offset in places] == list(places.values())
    assert fresh.max_timestamp == segment.max_timestamp
