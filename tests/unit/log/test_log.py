import errno
from dataclasses import replace

import pytest

from penstock.errors import PenstockError, Reason
from penstock.log.checkpoint import NO_PRODUCERS, SNAPSHOT_UNKNOWN
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.log.names import CUT, DELETED, LOG, SNAPSHOT
from penstock.records.batch import read_header
from tests.unit.log.kit import SMALL, append, fill, make_batch, read_all, sync

KEEP = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, segment_ms=-1)


def offsets(log):
    return [offset for offset, _ in read_all(log)]


def refused(call):
    with pytest.raises(PenstockError) as error:
        call()
    return error.value.reason


def idempotent(log, sequence, producer_id=4):
    batch = make_batch(b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return log.append(batch, read_header(batch), 0)


# Retention and deletion.


def test_old_segments_go_by_age_and_their_files_are_removed_by_the_task(either_kit) -> None:
    kit = either_kit
    config = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=10_000)
    log = kit.open(config)
    for number in range(60):
        append(log, b"x" * 100, timestamp_ms=1_000_000 + number * 1000)
    log.write_pending()
    sync(log)
    now_ms = 1_000_000 + 40_000
    tasks = log.retire(now_ms)
    kept = log.segments[0]
    assert kept.base_offset > 0
    assert log.start_offset == kept.base_offset
    assert 1_000_000 + (kept.base_offset - 1) * 1000 < now_ms - 10_000
    assert kept.max_timestamp >= now_ms - 10_000
    assert offsets(log) == list(range(log.start_offset, 60))
    assert kit.names(DELETED)
    for task in tasks:
        task.run()
    assert kit.names(DELETED) == []
    assert log.retire(now_ms) == []
    assert refused(lambda: log.read(0, 100, 60)) is Reason.OFFSET_OUT_OF_RANGE


def test_the_active_segment_goes_too_when_all_in_it_has_expired(kit) -> None:
    log = kit.open(LogConfig(retention_ms=10_000))
    fill(log, 5)
    for task in log.retire(2_000_000):
        task.run()
    assert (log.start_offset, log.next_offset) == (5, 5)
    assert log.size_bytes == 0
    assert kit.names(LOG) == ["00000000000000000005.log"]
    assert append(log, b"new") == 5
    log.write_pending()
    sync(log)
    kit.new_world()
    assert offsets(kit.open(SMALL)) == [5]


def test_old_segments_go_while_the_others_have_enough_bytes(kit) -> None:
    log = kit.open(LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, retention_bytes=5000))
    fill(log, 100)
    log.retire(10**15)
    assert 5000 <= log.size_bytes < 7000


def test_retention_stops_at_what_readers_have_been_shown(kit) -> None:
    log = kit.open(LogConfig(segment_bytes=2000, retention_ms=1))
    fill(log, 60)
    shown = log.segments[2].base_offset + 1
    log.retire(10**12, upto_offset=shown)
    assert log.start_offset == log.segments[0].base_offset <= shown
    assert log.segments[0].next_offset > shown


def test_a_compacted_log_is_not_retired_by_age(kit) -> None:
    log = kit.open(LogConfig(segment_bytes=2000, retention_ms=1, cleanup=frozenset({CleanupPolicy.COMPACT})))
    fill(log, 60)
    assert log.retire(10**12) == []


def test_a_segment_rolls_by_age(kit) -> None:
    log = kit.open(LogConfig(segment_ms=1000, retention_ms=-1))
    fill(log, 3)
    log.retire(kit.clock.ms + 999)
    assert len(log.segments) == 1
    log.retire(kit.clock.ms + 1000)
    assert len(log.segments) == 2
    log.retire(kit.clock.ms + 5000)
    assert len(log.segments) == 2, "an empty segment does not roll"


def test_a_segment_from_before_a_start_rolls_by_the_age_of_its_first_batch(kit) -> None:
    config = LogConfig(segment_ms=1000, retention_ms=-1)
    log = kit.open(config)
    fill(log, 3)
    log.close()
    kit.new_world()
    again = kit.open(config, log.recovery_point())
    again.retire(1_000_999)
    assert len(again.segments) == 1
    again.retire(1_001_000)
    assert len(again.segments) == 2


def test_deleted_records_stay_deleted_over_a_loss_of_power(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 60)
    log.delete_before(33)
    assert log.start_offset == 33
    assert offsets(log)[0] == 33
    kit.disk.lose_power()
    kit.new_world()
    again = kit.open(KEEP)
    assert (again.start_offset, again.next_offset) == (33, 60)
    assert refused(lambda: again.read(32, 100, 60)) is Reason.OFFSET_OUT_OF_RANGE
    for task in again.retire(1_000_000):
        task.run()
    assert again.segments[0].base_offset <= 33 < again.segments[0].next_offset
    assert offsets(again)[0] == 33


def test_deletion_outside_the_log_is_refused(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 10)
    log.delete_before(5)
    for offset in (4, 11, -1):
        assert refused(lambda offset=offset: log.delete_before(offset)) is Reason.OFFSET_OUT_OF_RANGE
    log.delete_before(10)
    assert log.read(10, 100, 10).data == b""


def test_deletion_that_the_disk_refuses_changes_nothing(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 10)
    kit.disk.fail_next("write_atomic", errno.ENOSPC)
    assert refused(lambda: log.delete_before(5)) is Reason.STORAGE_ERROR
    assert log.start_offset == 0


def test_records_on_their_way_survive_the_end_of_their_segment(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 2)
    log.delete_before(2)
    append(log, b"gathered")
    log.retire(1_000_000)
    assert offsets(log) == [2]


def test_old_epochs_are_forgotten_with_their_segments(kit) -> None:
    log = kit.open(KEEP)
    for epoch in range(6):
        fill(log, 10, epoch=epoch)
    log.delete_before(35)
    log.retire(1_000_000)
    assert log.epochs.entries == ((3, 35), (4, 40), (5, 50))


# Producers.


def test_idle_producers_are_forgotten(kit) -> None:
    log = kit.open(KEEP)
    idempotent(log, 0)
    log.write_pending()
    day_ms = 24 * 60 * 60 * 1000
    log.retire(kit.clock.ms + day_ms)
    assert len(log.producers) == 1
    log.retire(kit.clock.ms + day_ms + 1)
    assert len(log.producers) == 0


def test_idempotence_survives_a_start_whatever_became_of_the_snapshot(kit) -> None:
    for lost in ("nothing", "snapshot", "damaged"):
        log = kit.open(KEEP)
        sequence = log.next_offset
        for number in range(5):
            idempotent(log, sequence + number)
        log.close()
        point = log.recovery_point()
        assert point.snapshot_offset == log.next_offset
        name = kit.names(SNAPSHOT)[-1]
        if lost == "snapshot":
            kit.disk.remove(kit.path(name))
        elif lost == "damaged":
            kit.disk.change(kit.path(name), lambda data: data.__setitem__(20, data[20] ^ 1))
        kit.new_world()
        again = kit.open(KEEP, point)
        assert idempotent(again, sequence + 4) == sequence + 4
        assert idempotent(again, sequence + 3) == sequence + 3
        assert refused(lambda again=again, at=sequence + 9: idempotent(again, at)) is Reason.OUT_OF_ORDER_SEQUENCE
        again.close()


def test_idempotence_survives_when_the_segment_is_gone_and_the_power_fails(kit) -> None:
    log = kit.open(KEEP)
    idempotent(log, 0)
    fill(log, 60)
    log.delete_before(50)
    for task in log.retire(1_000_000):
        task.run()
    kit.disk.lose_power()
    kit.new_world()
    again = kit.open(KEEP)
    assert again.segments[0].base_offset > 0
    assert idempotent(again, 0) == 0


def test_a_point_says_which_snapshot_holds(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 3)
    assert log.recovery_point().snapshot_offset == NO_PRODUCERS
    idempotent(log, 0)
    log.write_pending()
    assert log.recovery_point().snapshot_offset == SNAPSHOT_UNKNOWN
    path, _ = log.take_snapshot()
    assert path.endswith("00000000000000000004.snapshot")
    assert log.recovery_point().snapshot_offset == 4
    assert log.take_snapshot() is None


# Cutting back.


def test_a_log_cut_back_ends_there_and_goes_on_from_there(either_kit) -> None:
    kit = either_kit
    log = kit.open(KEEP)
    for epoch in range(6):
        fill(log, 10, epoch=epoch)
    log.truncate_to(33)
    assert (log.next_offset, log.written_offset, log.synced_offset) == (33, 33, 33)
    assert offsets(log) == list(range(33))
    assert log.epochs.entries == ((0, 0), (1, 10), (2, 20), (3, 30))
    assert append(log, b"other", epoch=9) == 33
    log.write_pending()
    sync(log)
    assert log.epochs.entries[-1] == (9, 33)
    kit.new_world()
    assert offsets(kit.open(KEEP)) == list(range(34))


def test_cutting_takes_the_whole_batch_that_holds_the_offset(kit) -> None:
    log = kit.open(KEEP)
    for _ in range(10):
        append(log, b"a", b"b", b"c")
    log.write_pending()
    log.truncate_to(16)
    assert log.next_offset == 15


def test_cutting_at_or_behind_the_end_does_nothing(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 5)
    log.truncate_to(5)
    log.truncate_to(9)
    assert log.next_offset == 5
    assert not kit.names(CUT)


def test_cutting_drops_what_is_gathered(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 5)
    append(log, b"gathered")
    log.truncate_to(5)
    assert log.next_offset == 5
    log.write_pending()
    assert offsets(log) == list(range(5))


def test_cutting_below_the_start_leaves_an_empty_log_there(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 60)
    log.delete_before(50)
    log.retire(1_000_000)
    log.truncate_to(20)
    assert (log.start_offset, log.next_offset) == (20, 20)
    assert append(log, b"x") == 20
    log.write_pending()
    sync(log)
    kit.disk.lose_power()
    kit.new_world()
    again = kit.open(KEEP)
    assert (again.start_offset, again.next_offset) == (20, 21)


def test_producers_are_as_they_were_at_the_cut(kit) -> None:
    log = kit.open(KEEP)
    for sequence in range(40):
        idempotent(log, sequence)
    log.write_pending()
    log.truncate_to(25)
    assert idempotent(log, 24) == 24
    assert idempotent(log, 25) == 25


def test_a_sync_that_began_before_a_cut_counts_for_nothing(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 5)
    append(log, b"x")
    log.write_pending()
    task = log.begin_sync()
    log.truncate_to(3)
    append(log, b"y")
    append(log, b"z")
    append(log, b"!")
    log.write_pending()
    task.run()
    log.end_sync(task, None)
    assert log.synced_offset == 3


def test_a_checkpoint_from_before_a_cut_does_not_mislead_recovery(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 12)
    before = log.recovery_point()
    log.truncate_to(4)
    # Batches of another size, so that the old point lies in the middle of one.
    fill(log, 12, size=77)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    again = kit.open(KEEP, before)
    assert offsets(again) == list(range(16))
    assert kit.reports == []


# Time.


def test_the_first_record_not_older_than_a_time_is_found(kit) -> None:
    log = kit.open(KEEP)
    for number in range(40):
        batch = make_batch(b"x" * 60, timestamp_ms=1000 + number * 10)
        log.append(batch, read_header(batch), 3)
    log.write_pending()
    for number in range(40):
        for delta in (-9, 0):
            assert log.offset_for_time(1000 + number * 10 + delta, 40) == (number, 1000 + number * 10, 3)
    assert log.offset_for_time(1000 + 391, 40) is None
    assert log.offset_for_time(1200, 20) is None
    assert log.offset_for_time(1200, 21).offset == 20
    log.delete_before(30)
    assert log.offset_for_time(0, 40).offset == 30
    assert log.latest_by_time(40).offset == 39
    assert log.latest_by_time(35).offset == 34


# Its life.


def test_a_closed_log_is_whole_and_takes_no_more(kit) -> None:
    log = kit.open(KEEP)
    fill(log, 10)
    append(log, b"last")
    log.close()
    log.close()
    assert refused(lambda: append(log, b"late")) is Reason.SHUTTING_DOWN
    assert kit.disk.open_files == 0
    kit.disk.lose_power(torn=False)
    kit.new_world()
    assert offsets(kit.open(KEEP, log.recovery_point())) == list(range(11))
    assert kit.reports == []


def test_a_log_that_cannot_be_synced_says_so_when_it_closes(kit) -> None:
    log = kit.open(KEEP)
    append(log, b"x")
    kit.disk.fail_next("sync", errno.EIO)
    assert refused(log.close) is Reason.STORAGE_ERROR
    assert kit.disk.open_files == 0


def test_a_smaller_segment_size_holds_from_the_next_append_on(kit) -> None:
    log = kit.open(LogConfig(retention_ms=-1))
    fill(log, 20)
    assert len(log.segments) == 1
    log.reconfigure(KEEP)
    fill(log, 2)
    assert len(log.segments) == 2


def test_a_full_disk_gets_its_room_back(kit) -> None:
    log = kit.open(replace(SMALL, retention_bytes=2000))
    fill(log, 60)
    kit.disk.capacity_bytes = 0
    before = len(log.segments)
    tasks = log.retire(kit.clock.ms)
    for task in tasks:
        task.run()
    assert len(log.segments) < before
    assert kit.names(".deleted") == []
    assert len(read_all(log)) == log.next_offset - log.start_offset
    kit.disk.clear_faults()
    fill(log, 1)
    expected = read_all(log)
    kit.disk.end_process()
    kit.new_world()
    again = kit.open()
    assert read_all(again) == expected
    assert again.epochs.entries == ((0, again.start_offset),) or again.epochs.entries == ((0, 0),)


def test_a_full_disk_whose_records_have_all_expired_gets_room_back(kit) -> None:
    """The active segment cannot be closed, or its producers not be kept, for want of room: the others must go first."""
    for operation in ("write_atomic", "open"):
        kit.disk.clear_faults()
        kit.directory = f"/data/{operation}"
        log = kit.open(replace(SMALL, retention_ms=1000))
        for number in range(60):
            append(log, b"x" * 100, producer_id=1, producer_epoch=0, base_sequence=number)
        log.write_pending()
        sync(log)
        before = log.segments
        kit.clock.ms += 10_000
        kit.disk.capacity_bytes = 0
        if operation == "open":
            kit.disk.fail_next("open", errno.ENOSPC)
        for task in log.retire(kit.clock.ms):
            task.run()
        assert before[-2].base_offset <= log.start_offset
        kit.disk.clear_faults()
        append(log, b"x", producer_id=1, producer_epoch=0, base_sequence=60)
        log.write_pending()
        kit.disk.end_process()
        kit.new_world()
        again = kit.open()
        assert [producer.last_sequence for producer in again.producers.active()] == [60]
        assert again.next_offset == 61
