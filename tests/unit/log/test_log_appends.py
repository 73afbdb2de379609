import errno

import pytest

import penstock.log.log as log_module
from penstock.errors import PenstockError, Reason
from penstock.log.config import LogConfig
from penstock.log.names import INDEX, LOG
from penstock.records.batch import read_header
from tests.unit.log.kit import SMALL, append, batches_in, fill, make_batch, read_all, sync

BIG = LogConfig(index_interval_bytes=200)


def place(log, batch, epoch=0):
    return log.append(batch, read_header(batch), epoch)


def refused(call):
    with pytest.raises(PenstockError) as error:
        call()
    return error.value.reason


# Appending.


def test_offsets_count_records_and_the_batch_gets_its_place(either_kit) -> None:
    log = either_kit.open(BIG)
    first, second = make_batch(b"a", b"b", b"c"), make_batch(b"d")
    assert place(log, first, epoch=5) == 0
    assert place(log, memoryview(second), epoch=5) == 3
    assert (log.next_offset, log.written_offset, log.synced_offset) == (4, 0, 0)
    log.write_pending()
    assert (log.next_offset, log.written_offset, log.synced_offset) == (4, 4, 0)
    sync(log)
    assert (log.next_offset, log.written_offset, log.synced_offset) == (4, 4, 4)
    (one, data), (two, _) = batches_in(log.read(0, 10_000, 4).data)
    assert (one.base_offset, one.leader_epoch, two.base_offset, two.leader_epoch) == (0, 5, 3, 5)
    assert data == first
    assert log.size_bytes == len(first) + len(second)


def test_a_log_that_was_never_written_to_has_no_folder(kit) -> None:
    log = kit.open(BIG)
    assert not kit.disk.exists(kit.directory)
    assert log.begin_sync() is None
    log.write_pending()
    log.close()
    assert not kit.disk.exists(kit.directory)


def test_small_batches_are_written_together_and_copied(kit, monkeypatch) -> None:
    log = kit.open(BIG)
    append(log, b"first")
    log.write_pending()
    writes = []
    file = log.segments[0].file
    monkeypatch.setattr(
        type(file), "pwritev", lambda self, buffers, at: writes.append((b"".join(buffers), at)) or len(buffers)
    )
    batches = [make_batch(b"%d" % number) for number in range(50)]
    position = log.size_bytes
    for batch in batches:
        place(log, batch)
        # As a receive buffer would be: used again for something else.
        copy = bytes(batch)
        batch[:] = bytes(len(batch))
        batch[:] = copy
    log.write_pending()
    assert writes == [(b"".join(batches), position)]


def test_a_gathered_batch_does_not_change_with_the_buffer_it_came_in(kit) -> None:
    log = kit.open(BIG)
    batch = make_batch(b"precious")
    place(log, batch)
    expected = bytes(batch)
    batch[:] = b"\xff" * len(batch)
    log.write_pending()
    assert read_all(log) == [(0, expected)]


def test_a_large_batch_is_written_at_once_behind_the_gathered_ones(kit) -> None:
    log = kit.open(BIG)
    written = []
    log.on_written = lambda: written.append(log.written_offset)
    append(log, b"small")
    append(log, b"x" * 70_000)
    assert log.written_offset == 2
    assert written == []
    log.write_pending()
    assert written == [2]
    assert [offset for offset, _ in read_all(log)] == [0, 1]


def test_gathered_bytes_are_bounded(kit, monkeypatch) -> None:
    monkeypatch.setattr(log_module, "GATHERED_BYTES_MAX", 1000)
    log = kit.open(BIG)
    for number in range(100):
        append(log, b"x" * 50)
        assert len(log._gathered) <= 1000
        assert log.next_offset == number + 1
    log.write_pending()
    assert len(read_all(log)) == 100


def test_a_batch_larger_than_a_segment_is_refused(kit) -> None:
    log = kit.open(SMALL)
    assert refused(lambda: append(log, b"x" * 3000)) is Reason.RECORD_LIST_TOO_LARGE
    assert append(log, b"fits") == 0


def test_segments_roll_by_size_and_none_is_larger(kit) -> None:
    log = kit.open(SMALL)
    fill(log, 100)
    assert len(log.segments) > 5
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    assert all(segment.size > SMALL.segment_bytes - 200 for segment in log.segments[:-1])
    assert len(kit.names(LOG)) == len(log.segments)


def test_segments_roll_before_relative_offsets_overflow(kit, monkeypatch) -> None:
    monkeypatch.setattr(log_module, "RELATIVE_OFFSET_MAX", 10)
    log = kit.open(BIG)
    for _ in range(9):
        append(log, b"a", b"b", b"c")
    log.write_pending()
    assert len(log.segments) == 3
    for segment in log.segments:
        assert segment.next_offset - segment.base_offset <= 10


def test_callbacks_come_when_offsets_have_moved_and_not_otherwise(kit) -> None:
    log = kit.open(BIG)
    calls = []
    log.on_written = lambda: calls.append(("written", log.written_offset))
    log.on_synced = lambda: calls.append(("synced", log.synced_offset))
    log.write_pending()
    append(log, b"x")
    log.write_pending()
    log.write_pending()
    sync(log)
    sync(log)
    assert calls == [("written", 1), ("synced", 1)]


# Producers and epochs.


def idempotent(log, sequence, *, epoch=0, value=b"v"):
    batch = make_batch(value, producer_id=4, producer_epoch=epoch, base_sequence=sequence)
    return place(log, batch)


def test_a_repeated_batch_gets_its_first_offset_and_is_stored_once(kit) -> None:
    log = kit.open(BIG)
    assert idempotent(log, 0) == 0
    assert idempotent(log, 1) == 1
    before = log.next_offset
    assert idempotent(log, 0) == 0 < before
    log.write_pending()
    assert idempotent(log, 1) == 1
    assert log.next_offset == 2


def test_a_producer_out_of_order_or_fenced_is_refused_and_nothing_changes(kit) -> None:
    log = kit.open(BIG)
    idempotent(log, 0, epoch=3)
    assert refused(lambda: idempotent(log, 5, epoch=3)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert refused(lambda: idempotent(log, 1, epoch=2)) is Reason.INVALID_PRODUCER_EPOCH
    assert log.next_offset == 1
    assert idempotent(log, 1, epoch=3) == 1


def test_a_new_leader_epoch_is_remembered_where_it_began(kit) -> None:
    log = kit.open(BIG)
    append(log, b"a", epoch=2)
    append(log, b"b", epoch=2)
    append(log, b"c", epoch=7)
    log.write_pending()
    assert log.epochs.entries == ((2, 0), (7, 2))
    assert [header.leader_epoch for header, _ in batches_in(log.read(0, 9999, 3).data)] == [2, 2, 7]


def test_the_epoch_file_is_durable_with_the_first_sync(kit) -> None:
    log = kit.open(BIG)
    append(log, b"a", epoch=2)
    log.write_pending()
    sync(log)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    assert kit.open(BIG).epochs.entries == ((2, 0),)
    assert kit.reports == []


# A disk that refuses writes.


def test_a_refused_write_is_undone_as_if_it_had_never_been_asked_for(kit) -> None:
    log = kit.open(BIG)
    idempotent(log, 0)
    fill(log, 30)
    before = (log.next_offset, log.size_bytes, len(log.segments[0].offsets), log._index_due, log._max_timestamp)
    failures = []
    log.on_failed = lambda error, offset: failures.append((error.reason, offset))
    kit.disk.capacity_bytes = sum(len(inode.data) for inode in kit.disk._inodes()) + 500
    assert idempotent(log, 1) == 31
    for _ in range(10):
        append(log, b"x" * 100, epoch=4, timestamp_ms=2_000_000)
    assert refused(log.write_pending) is Reason.STORAGE_ERROR
    assert failures == [(Reason.STORAGE_ERROR, 31)]
    assert before == (
        log.next_offset,
        log.size_bytes,
        len(log.segments[0].offsets),
        log._index_due,
        log._max_timestamp,
    )
    assert kit.disk.size(log.segments[0].log_path) == log.size_bytes
    assert log.epochs.entries == ((0, 0),)
    assert len(read_all(log)) == 31
    # Nothing happened, so the producer's retry is not a repeat, and reads and writes go on when there is room.
    kit.disk.clear_faults()
    assert idempotent(log, 1) == 31
    append(log, b"later", epoch=4)
    log.write_pending()
    assert log.epochs.entries == ((0, 0), (4, 32))
    assert len(read_all(log)) == 33


def test_a_large_batch_that_is_refused_takes_the_gathered_ones_with_it(kit) -> None:
    log = kit.open(BIG)
    fill(log, 2)
    failures = []
    log.on_failed = lambda error, offset: failures.append(offset)
    append(log, b"gathered")
    kit.disk.fail_next("pwritev", errno.EIO)
    assert refused(lambda: append(log, b"x" * 70_000)) is Reason.STORAGE_ERROR
    assert failures == [2]
    assert log.next_offset == 2
    assert append(log, b"again") == 2


def test_a_producer_whose_first_batch_finds_no_room_for_its_file_starts_with_that_batch(kit) -> None:
    log = kit.open(BIG)
    kit.disk.fail_next("open", errno.ENOSPC)
    assert refused(lambda: idempotent(log, 0)) is Reason.STORAGE_ERROR
    assert refused(lambda: idempotent(log, 1)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert [idempotent(log, 0), idempotent(log, 1)] == [0, 1]


def test_a_file_that_cannot_be_cut_back_is_cut_before_the_next_write(kit) -> None:
    log = kit.open(BIG)
    fill(log, 2)
    kit.disk.capacity_bytes = sum(len(inode.data) for inode in kit.disk._inodes()) + 300
    kit.disk.fail_next("truncate", errno.EIO)
    for _ in range(5):
        append(log, b"x" * 100)
    assert refused(log.write_pending) is Reason.STORAGE_ERROR
    path = log.segments[0].log_path
    assert kit.disk.size(path) > log.size_bytes
    kit.disk.clear_faults()
    append(log, b"short")
    log.write_pending()
    assert kit.disk.size(path) == log.size_bytes
    assert len(read_all(log)) == 3


def test_what_was_refused_does_not_come_back_when_the_power_fails(kit) -> None:
    log = kit.open(BIG)
    fill(log, 2)
    kit.disk.capacity_bytes = sum(len(inode.data) for inode in kit.disk._inodes()) + 300
    for _ in range(5):
        append(log, b"x" * 100)
    assert refused(log.write_pending) is Reason.STORAGE_ERROR
    kit.disk.lose_power()
    kit.disk.clear_faults()
    kit.new_world()
    assert len(read_all(kit.open(BIG))) == 2


@pytest.mark.parametrize("operation", ["open", "make_dirs"])
def test_a_log_whose_folder_cannot_be_made_refuses_and_tries_again(kit, operation) -> None:
    log = kit.open(BIG)
    kit.disk.fail_next(operation, errno.EMFILE)
    assert refused(lambda: append(log, b"x")) is Reason.STORAGE_ERROR
    assert append(log, b"x") == 0
    log.write_pending()
    sync(log)
    kit.disk.lose_power(torn=False)
    kit.new_world()
    assert len(read_all(kit.open(BIG))) == 1


def test_a_segment_that_cannot_be_rolled_leaves_the_old_one_in_place(kit) -> None:
    log = kit.open(BIG)
    fill(log, 3)
    kit.disk.fail_next("open", errno.ENOSPC)
    assert refused(log.roll) is Reason.STORAGE_ERROR
    assert len(log.segments) == 1
    assert append(log, b"x") == 3
    log.roll()
    assert len(log.segments) == 2
    assert len(read_all(log)) == 4


def test_an_index_without_room_is_made_again_later(kit) -> None:
    log = kit.open(BIG)
    fill(log, 30)
    kit.disk.file_bytes_max = 0
    log.roll()
    kit.disk.clear_faults()
    assert kit.reports
    assert "index" in kit.reports[0]
    log.close()
    kit.new_world()
    again = kit.open(BIG, log.recovery_point())
    assert [offset for offset, _ in read_all(again)] == list(range(30))
    assert again.offset_for_time(0, 30).offset == 0


# Syncing.


def test_a_sync_counts_only_what_was_written_when_it_began(kit) -> None:
    log = kit.open(BIG)
    append(log, b"a")
    log.write_pending()
    task = log.begin_sync()
    append(log, b"b")
    log.write_pending()
    task.run()
    log.end_sync(task, None)
    assert (log.synced_offset, log.written_offset) == (1, 2)
    sync(log)
    assert log.synced_offset == 2


def test_syncs_that_end_in_another_order_never_go_back(kit) -> None:
    log = kit.open(BIG)
    append(log, b"a")
    log.write_pending()
    first = log.begin_sync()
    append(log, b"b")
    log.write_pending()
    second = log.begin_sync()
    second.run()
    log.end_sync(second, None)
    assert log.synced_offset == 2
    first.run()
    log.end_sync(first, None)
    assert log.synced_offset == 2


def test_a_roll_waits_for_no_sync_and_the_next_sync_takes_the_old_file_along(kit) -> None:
    log = kit.open(SMALL)
    kit.disk.fail_next("sync", count=1)
    for _ in range(60):
        append(log, b"x" * 100)
    log.write_pending()
    assert len(log.segments) > 3
    kit.disk.clear_faults()
    task = log.begin_sync()
    assert [segment for segment, _ in task.pinned] == list(log.segments)
    task.run()
    log.end_sync(task, None)
    assert log.begin_sync() is None
    kit.disk.lose_power(torn=False)
    kit.new_world()
    assert len(read_all(kit.open(SMALL))) == 60


def test_the_indexes_of_closed_segments_are_synced_with_them(kit) -> None:
    log = kit.open(SMALL)
    for _ in range(60):
        append(log, b"x" * 100)
    log.write_pending()
    sync(log)
    paths = [path for segment in log.segments[:-1] for path in segment.paths()]
    before = {path: kit.disk.read_bytes(path) for path in paths}
    kit.disk.lose_power(torn=False)
    assert {path: kit.disk.read_bytes(path) for path in paths} == before


def test_a_sync_that_the_disk_refuses_is_final(kit) -> None:
    log = kit.open(BIG)
    fill(log, 3)
    failures = []
    log.on_failed = lambda error, offset: failures.append((error.reason, offset))
    append(log, b"x")
    log.write_pending()
    kit.disk.fail_next("sync", errno.EIO)
    sync(log)
    assert isinstance(log.failed, OSError)
    assert failures == [(Reason.STORAGE_ERROR, 3)]
    assert log.synced_offset == 3
    assert refused(lambda: append(log, b"y")) is Reason.STORAGE_ERROR
    assert log.begin_sync() is None
    assert len(read_all(log)) == 4
    assert "restart" in kit.reports[-1]


def test_names_that_cannot_be_synced_fail_the_log_too(kit) -> None:
    log = kit.open(BIG)
    append(log, b"x")
    log.write_pending()
    kit.disk.fail_next("sync_dir", errno.EIO)
    sync(log)
    assert log.failed is not None
    assert log.synced_offset == 0


def test_a_sync_of_files_that_were_dropped_meanwhile_harms_nothing(kit) -> None:
    log = kit.open(SMALL)
    for _ in range(60):
        append(log, b"x" * 100)
    log.write_pending()
    task = log.begin_sync()
    log.delete_before(log.segments[-1].base_offset)
    for removal in log.retire(kit.clock.ms):
        removal.run()
    task.run()
    log.end_sync(task, None)
    assert log.failed is None
    assert log.synced_offset == 60
    assert kit.disk.open_files == 1


def test_the_index_reaches_the_disk_as_the_segment_grows(kit) -> None:
    log = kit.open(BIG)
    for _ in range(1000):
        append(log, b"x" * 150)
        log.write_pending()
    assert kit.disk.size(log.segments[0].stem + INDEX) >= 8 * 800


def test_a_full_disk_does_not_stop_appends_for_the_sake_of_an_index(kit) -> None:
    log = kit.open(BIG)
    for number in range(600):
        append(log, b"x" * 150)
        kit.disk.fail_next("open", errno.ENOSPC)
        log.write_pending()
        assert log.next_offset == number + 1
    kit.disk.clear_faults()
    assert len(read_all(log)) == 600


def test_a_sync_that_fails_while_a_refused_write_is_undone_is_final_too(kit) -> None:
    log = kit.open(BIG)
    fill(log, 1)
    append(log, b"written, not synced")
    log.write_pending()
    append(log, b"x" * 500)
    kit.disk.capacity_bytes = sum(len(inode.data) for inode in kit.disk._inodes()) + 100
    kit.disk.fail_next("sync", errno.EIO)
    assert refused(log.write_pending) is Reason.STORAGE_ERROR
    kit.disk.clear_faults()
    assert log.failed is not None
    assert log.begin_sync() is None
    assert log.synced_offset == 1
    assert refused(lambda: append(log, b"late")) is Reason.STORAGE_ERROR


def test_nothing_overtakes_the_refused_first_batch_of_a_producer(kit) -> None:
    log = kit.open(BIG)
    fill(log, 1)
    idempotent(log, 0)
    kit.disk.fail_next("pwritev", errno.ENOSPC)
    assert refused(log.write_pending) is Reason.STORAGE_ERROR
    assert refused(lambda: idempotent(log, 1)) is Reason.OUT_OF_ORDER_SEQUENCE
    assert idempotent(log, 0) == 1
    assert idempotent(log, 1) == 2
