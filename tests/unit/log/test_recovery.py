"""What a start makes of what a crash left, on a real disk as well as on one whose power fails."""

from dataclasses import replace

import pytest

from penstock.log.checkpoint import NO_PRODUCERS, RecoveryPoint
from penstock.log.config import LogConfig
from penstock.log.names import INDEX, LEADER_EPOCHS, LOG, TIME_INDEX
from penstock.log.recovery import matches, recover
from penstock.log.snapshots import sync_snapshot, write_snapshot
from penstock.records.batch import read_header
from tests.unit.log.kit import append, fill, make_batch, read_all, sync

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, segment_ms=-1)
ONE = LogConfig(index_interval_bytes=200, retention_ms=-1, segment_ms=-1)


def offsets(log):
    return [offset for offset, _ in read_all(log)]


def change(kit, path, how) -> None:
    """Damage a file on either disk."""
    data = bytearray(kit.disk.read_bytes(path))
    how(data)
    kit.disk.write_atomic(path, bytes(data))


def left_by_a_crash(kit, count, config=ONE):
    """A log that was written and never closed; its active segment's path, and where its batches are."""
    log = kit.open(config)
    fill(log, count)
    segment = log.segments[-1]
    places = [segment.locate(offset, segment.size) for offset in range(segment.base_offset, count)]
    return log, segment.log_path, [*places, segment.size]


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 100])
def test_a_torn_tail_is_cut_back_to_the_last_whole_batch_and_said(either_kit, cut) -> None:
    kit = either_kit
    _, path, places = left_by_a_crash(kit, 20)
    change(kit, path, lambda data: data.__delitem__(slice(places[19] + cut, None)))
    kit.new_world()
    log = kit.open(ONE)
    assert offsets(log) == list(range(19))
    assert kit.disk.size(path) == places[19]
    (report,) = kit.reports
    assert path in report
    assert f"position {places[19]}" in report
    assert f"{cut} bytes" in report
    assert "the next offset is 19" in report
    assert append(log, b"new") == 19


@pytest.mark.parametrize("zeros", [1, 61, 5000])
def test_zeros_behind_the_last_batch_are_cut(either_kit, zeros) -> None:
    kit = either_kit
    _, path, places = left_by_a_crash(kit, 20)
    change(kit, path, lambda data: data.extend(bytes(zeros)))
    kit.new_world()
    assert offsets(kit.open(ONE)) == list(range(20))
    assert kit.disk.size(path) == places[20]
    assert len(kit.reports) == 1


@pytest.mark.parametrize("at", [0, 8, 11, 16, 17, 23, 43, 57, 61, 100])
def test_a_flipped_bit_in_the_active_segment_cuts_the_log_there(kit, at) -> None:
    _, path, places = left_by_a_crash(kit, 20)
    change(kit, path, lambda data: data.__setitem__(places[7] + at, data[places[7] + at] ^ 0x10))
    kit.new_world()
    log = kit.open(ONE)
    # A header that claims more than is there looks the same as a torn one; an offset that jumps shows in the next batch.
    assert offsets(log) in (list(range(7)), [*range(7), offsets(log)[-1]])
    assert log.next_offset >= 7
    assert len(kit.reports) == 1


def test_nothing_is_scanned_before_the_recovery_point(kit) -> None:
    log, path, places = left_by_a_crash(kit, 20)
    point = log.recovery_point()
    fill(log, 10)
    # Before the point damage waits until someone reads it; behind the point it cuts.
    change(kit, path, lambda data: data.__setitem__(places[3] + 70, 0))
    kit.new_world()
    again = kit.open(ONE, point)
    assert again.next_offset == 30
    assert kit.reports == []


def test_even_a_broken_header_before_the_recovery_point_cuts_nothing(kit) -> None:
    log, path, places = left_by_a_crash(kit, 20)
    point = log.recovery_point()
    fill(log, 10)
    change(kit, path, lambda data: data.__setitem__(slice(places[3], places[4]), bytes(places[4] - places[3])))
    kit.new_world()
    again = kit.open(ONE, point)
    assert again.next_offset == 30
    assert kit.reports == []
    assert read_header(again.read(20, 1, 30).data).base_offset == 20


def spoiled_in_a_closed_segment(kit, first, last, filler=b"?", keep=0):
    """A log whose synced part ends in a segment that is closed by now, and of whose batches some are spoilt.

    ``keep`` bytes of the ``first`` are left. The configuration and the point of the synced end.
    """
    config = LogConfig(segment_bytes=4000, index_interval_bytes=200, segment_ms=-1)
    log = kit.open(config)
    fill(log, 5)
    point = log.recovery_point()
    for number in range(5, 40):
        append(log, b"%d " % number + b"x" * 100)
    log.write_pending()
    closed = log.segments[0]
    assert point.segment_base == closed.base_offset
    assert last < closed.next_offset < 40
    start, end = closed.locate(first, closed.size) + keep, closed.locate(last, closed.size)
    change(kit, closed.log_path, lambda data: data.__setitem__(slice(start, end), filler * (end - start)))
    kit.new_world()
    return config, point


@pytest.mark.parametrize("filler", [b"\0", b"?"], ids=["zeros", "rubbish"])
@pytest.mark.parametrize("keep", [0, 30, 70])
def test_pages_that_did_not_arrive_cut_a_closed_segment_that_was_not_synced(kit, filler, keep) -> None:
    """Sound batches follow. They were never acknowledged, and offsets that cannot be read must not stay before them."""
    config, point = spoiled_in_a_closed_segment(kit, 7, 9, filler, keep)
    kit.world = replace(kit.world, has_checkpoint=True)
    log = kit.open(config, point)
    assert offsets(log) == list(range(7))
    assert log.next_offset == 7
    assert "the next offset is 7" in kit.reports[0]


def test_damage_to_what_was_synced_is_kept_and_refused(kit) -> None:
    config, point = spoiled_in_a_closed_segment(kit, 2, 4)
    kit.world = replace(kit.world, has_checkpoint=True)
    log = kit.open(config, point)
    assert log.next_offset == 40
    assert read_header(log.read(5, 1, 40).data).base_offset == 5


def test_without_a_checkpoint_damage_in_a_closed_segment_is_kept_and_refused(kit) -> None:
    config, _ = spoiled_in_a_closed_segment(kit, 7, 9)
    log = kit.open(config)
    assert log.next_offset == 40
    assert "offsets 7 to" in kit.reports[0]


def test_a_log_as_the_checkpoint_says_is_not_recovered(either_kit, monkeypatch) -> None:
    kit = either_kit
    log, _, _ = left_by_a_crash(kit, 20)
    point = log.recovery_point()
    monkeypatch.setattr("penstock.log.recovery.recover", lambda *_: pytest.fail("it was scanned"))
    kit.new_world()
    assert offsets(kit.open(ONE, point)) == list(range(20))


def test_even_then_a_broken_end_is_cut(kit) -> None:
    log, path, places = left_by_a_crash(kit, 20)
    log.close()
    point = log.recovery_point()
    change(kit, path, lambda data: data.__setitem__(places[19] + 70, 0))
    kit.new_world()
    again = kit.open(ONE, point)
    assert offsets(again) == list(range(19))
    assert "the next offset is 19" in kit.reports[0]


def test_a_checkpoint_beyond_the_end_of_the_file_is_not_trusted(kit) -> None:
    log, path, places = left_by_a_crash(kit, 20)
    point = log.recovery_point()
    change(kit, path, lambda data: data.__delitem__(slice(places[12] + 5, None)))
    kit.new_world()
    assert offsets(kit.open(ONE, point)) == list(range(12))


@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        *((suffix, how) for suffix in (INDEX, TIME_INDEX) for how in ("missing", "zeros", "rubbish", "short")),
        # A time index of a segment of the same shape could not be told from its own.
        (INDEX, "from elsewhere"),
    ],
)
def test_a_broken_index_of_any_segment_is_made_again(kit, suffix, how) -> None:
    log = kit.open(CONFIG)
    for number in range(60):
        append(log, b"x" * 100, timestamp_ms=1000 + number)
    log.close()
    point = log.recovery_point()
    for segment in log.segments:
        path = segment.stem + suffix
        if not kit.disk.exists(path):
            continue
        if how == "missing":
            kit.disk.remove(path)
        elif how == "zeros":
            change(kit, path, lambda data: data.__setitem__(slice(None), bytes(len(data))))
        elif how == "rubbish":
            change(kit, path, lambda data: data.__setitem__(slice(None), b"\x81" * len(data)))
        elif how == "short":
            change(kit, path, lambda data: data.__delitem__(slice(7, None)))
        else:
            other = log.segments[0] if segment is not log.segments[0] else log.segments[1]
            kit.disk.write_atomic(path, kit.disk.read_bytes(other.stem + suffix))
    for given in (point, None):
        kit.new_world()
        again = kit.open(CONFIG, given)
        assert offsets(again) == list(range(60))
        assert [segment.max_timestamp for segment in again.segments if segment.size] == [
            1000 + segment.next_offset - 1 for segment in again.segments if segment.size
        ]
        for number in (0, 17, 31, 59):
            assert again.offset_for_time(1000 + number, 60).offset == number
            again.reader.forget()
            assert read_header(again.read(number, 1, 60).data).base_offset == number


def test_every_row_of_an_index_that_was_not_synced_is_checked_against_the_batches(kit) -> None:
    log = kit.open(CONFIG)
    for number in range(60):
        append(log, b"x" * 100, timestamp_ms=1000 + number)
    log.write_pending()
    segment = log.segments[1]
    rows = list(segment.times.rows())
    # A loss of power can take the first page of a file and leave the last.
    change(kit, segment.stem + TIME_INDEX, lambda data: data.__setitem__(slice(12), bytes(12)))
    kit.new_world()
    again = kit.open(CONFIG)
    assert list(again.segments[1].times.rows())[-1] == rows[-1]
    assert (0, 0) not in list(again.segments[1].times.rows())


def test_damage_in_a_closed_segment_is_kept_to_be_refused_when_read(kit) -> None:
    log = kit.open(CONFIG)
    fill(log, 60)
    segment = log.segments[1]
    victim = segment.base_offset + 3
    place = segment.locate(victim, segment.size)
    change(kit, segment.log_path, lambda data: data.__setitem__(place + 70, 0))
    kit.new_world()
    again = kit.open(CONFIG)
    assert again.next_offset == 60
    assert f"offsets {victim} to {victim} cannot be read" in kit.reports[0]
    assert read_header(again.read(victim + 1, 1, 60).data).base_offset == victim + 1


@pytest.mark.parametrize("number", range(1, 8))
def test_a_broken_header_in_a_closed_segment_is_kept_whether_or_not_an_index_row_points_at_it(kit, number) -> None:
    log = kit.open(CONFIG)
    fill(log, 60)
    segment = log.segments[1]
    victim = segment.base_offset + number
    place = segment.locate(victim, segment.size)
    change(kit, segment.log_path, lambda data: data.__setitem__(slice(place, place + 61), b"\xff" * 61))
    for _ in range(2):
        kit.new_world()
        again = kit.open(CONFIG)
        assert again.next_offset == 60
        # The next batch that a row points at is at most two further.
        assert read_header(again.read(victim + 3, 1, 60).data).base_offset == victim + 3


def test_a_hole_in_a_closed_segment_cuts_the_log(kit) -> None:
    log = kit.open(CONFIG)
    fill(log, 60)
    segment = log.segments[1]
    place = segment.locate(segment.base_offset + 3, segment.size)
    change(kit, segment.log_path, lambda data: data.__setitem__(slice(place, None), bytes(len(data) - place)))
    kit.new_world()
    again = kit.open(CONFIG)
    assert offsets(again) == list(range(segment.base_offset + 3))
    assert len(kit.names(LOG)) == 2
    assert "later segments were removed" in kit.reports[0]


def test_a_hole_with_sound_batches_behind_it_cuts_the_log_too(kit) -> None:
    log = kit.open(CONFIG)
    fill(log, 60)
    segment = log.segments[1]
    first, last = (segment.locate(segment.base_offset + number, segment.size) for number in (3, 5))
    change(kit, segment.log_path, lambda data: data.__setitem__(slice(first, last), bytes(last - first)))
    kit.new_world()
    # Bytes that never arrived were never synced, so nothing behind them was acknowledged.
    assert offsets(kit.open(CONFIG)) == list(range(segment.base_offset + 3))


def test_a_closed_segment_that_lost_its_end_cuts_the_log(kit) -> None:
    log = kit.open(CONFIG)
    fill(log, 60)
    segment = log.segments[1]
    place = segment.locate(segment.base_offset + 3, segment.size)
    change(kit, segment.log_path, lambda data: data.__delitem__(slice(place, None)))
    kit.new_world()
    again = kit.open(CONFIG)
    assert offsets(again) == list(range(segment.base_offset + 3))
    assert "missing" in kit.reports[0]


def test_leader_epochs_are_made_again_when_the_file_is_damaged_or_old(kit) -> None:
    for damage in (lambda data: data.clear(), lambda data: data.__setitem__(30, 0), None):
        log = kit.open(CONFIG)
        first = log.epochs.latest + 1
        for epoch in range(first, first + 3):
            fill(log, 10, epoch=epoch)
        expected = log.epochs.entries
        point = log.recovery_point()
        path = kit.path(LEADER_EPOCHS)
        if damage is None:
            kit.disk.remove(path)
        else:
            change(kit, path, damage)
        for given in (point, None):
            kit.new_world()
            again = kit.open(CONFIG, given)
            assert again.epochs.entries == expected
        again.close()


def test_epochs_behind_the_cut_are_forgotten(kit) -> None:
    log = kit.open(ONE)
    fill(log, 10, epoch=1)
    append(log, b"torn", epoch=2)
    log.write_pending()
    path = log.segments[0].log_path
    change(kit, path, lambda data: data.__delitem__(slice(-3, None)))
    kit.new_world()
    again = kit.open(ONE)
    assert again.next_offset == 10
    assert again.epochs.end_offset_for(1, again.next_offset) == (1, 10)
    assert append(again, b"x", epoch=3) == 10
    assert again.epochs.entries == ((1, 0), (3, 10))


def test_leftovers_of_a_crash_are_removed(either_kit) -> None:
    kit = either_kit
    log, _, _ = left_by_a_crash(kit, 5)
    log.close()
    point = log.recovery_point()
    leftovers = [
        "x.log.deleted",
        "00000000000000000000.log.cleaned",
        "leader-epochs.tmp",
        "00000000000000000000.index.cleaned",
    ]
    for name in leftovers:
        kit.disk.write_atomic(kit.path(name), b"rubbish")
    kit.new_world()
    assert offsets(kit.open(ONE, point)) == list(range(5))
    assert not set(leftovers) & set(kit.disk.listdir(kit.directory))


def test_an_index_without_its_segment_does_not_mislead_a_new_one(kit) -> None:
    log = kit.open(CONFIG)
    fill(log, 16)
    stale = kit.path("00000000000000000020.index")
    kit.disk.write_atomic(stale, bytes([0, 0, 0, 1, 0, 0, 0, 9] * 20))
    for _ in range(4):
        append(log, b"y" * 10)
    log.roll()
    fill(log, 10)
    log.close()
    kit.new_world()
    assert offsets(kit.open(CONFIG, log.recovery_point())) == list(range(30))


def test_recovered_bytes_survive_a_loss_of_power(kit) -> None:
    log = kit.open(CONFIG)
    for _ in range(40):
        append(log, b"x" * 100)
    log.write_pending()
    kit.disk.end_process()
    kit.new_world()
    again = kit.open(CONFIG)
    assert again.synced_offset == 40
    kit.disk.lose_power(torn=False)
    kit.new_world()
    assert offsets(kit.open(CONFIG)) == list(range(40))


def test_a_folder_matches_its_point_only_when_it_ends_there(kit) -> None:
    assert matches(kit.disk, kit.directory, None)
    log, _, places = left_by_a_crash(kit, 5)
    point = log.recovery_point()
    assert point == RecoveryPoint(0, 5, places[5], NO_PRODUCERS)
    assert matches(kit.disk, kit.directory, point)
    assert not matches(kit.disk, kit.directory, None)
    assert not matches(kit.disk, kit.directory, point._replace(position=places[4]))
    assert not matches(kit.disk, kit.directory, point._replace(segment_base=1))
    kit.disk.write_atomic(kit.path("x.swap"), b"")
    assert matches(kit.disk, kit.directory, point)
    kit.disk.write_atomic(kit.path("00000000000000000000-00000000000000000005.swap"), b"")
    assert not matches(kit.disk, kit.directory, point)


def test_recovery_returns_the_point_at_which_nothing_is_left_to_do(kit) -> None:
    log, _, _ = left_by_a_crash(kit, 5)
    batch = make_batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0)
    log.append(batch, read_header(batch), 0)
    log.write_pending()
    kit.new_world()
    point = recover(kit.world, kit.directory, 200, None)
    assert (point.offset, point.snapshot_offset) == (6, 6)
    assert matches(kit.disk, kit.directory, point)
    assert kit.disk.open_files == 0 or kit.disk.open_files == 1
    sync(log)


def test_with_a_full_disk_the_log_can_still_be_read(kit) -> None:
    log = kit.open(CONFIG)
    for sequence in range(60):
        batch = make_batch(b"v" * 80, producer_id=1, producer_epoch=0, base_sequence=sequence)
        log.append(batch, read_header(batch), 0)
    log.write_pending()
    for segment in log.segments:
        kit.disk.remove(segment.stem + INDEX)
    kit.disk.end_process()
    kit.disk.capacity_bytes = 0
    kit.new_world()
    again = kit.open(CONFIG)
    assert offsets(again) == list(range(60))


def test_what_is_appended_where_deleted_records_were_lost_is_not_deleted(kit) -> None:
    log = kit.open()
    fill(log, 1)
    for _ in range(9):
        append(log, b"x")
    log.write_pending()
    log.delete_before(10)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    log = kit.open()
    assert (log.start_offset, log.next_offset) == (1, 1)
    fill(log, 5)
    log.close()
    kit.new_world()
    again = kit.open(point=log.recovery_point())
    assert (again.start_offset, again.next_offset) == (1, 6)
    assert len(read_all(again)) == 5


def test_a_snapshot_of_lost_records_does_not_come_back_with_the_next_loss_of_power(kit) -> None:
    def idempotent(log, sequence) -> None:
        append(log, b"v", producer_id=1, producer_epoch=0, base_sequence=sequence)
        log.write_pending()

    log = kit.open()
    for sequence in range(2):
        idempotent(log, sequence)
    sync(log)
    append(log, b"lost")
    log.write_pending()
    # What a checkpoint does while the last record is written and not synced; the names happen to be synced.
    write_snapshot(kit.disk, *log.take_snapshot())
    assert sync_snapshot(kit.disk, kit.directory, 3)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    log = kit.open()
    assert log.next_offset == 2
    idempotent(log, 2)
    sync(log)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    again = kit.open()
    assert again.next_offset == 3
    assert [producer.last_sequence for producer in again.producers.active()] == [2]
