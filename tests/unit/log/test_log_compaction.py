"""Compaction of a log: what is kept, and what a crash or a loss of power leaves of it."""

import errno
from dataclasses import replace

import pytest

from penstock.errors import PenstockError
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.log.names import LOG
from penstock.records.batch import read_header
from penstock.records.records import read_records
from tests.unit.log.kit import append, batches_in, make_batch, read_all, sync

COMPACT = LogConfig(
    segment_bytes=2000,
    index_interval_bytes=200,
    cleanup=frozenset({CleanupPolicy.COMPACT}),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
)


def fill_keys(log, count, keys=5) -> None:
    for number in range(count):
        batch = make_batch(b"%d " % number + b"x" * 60, key=b"key%d" % (number % keys))
        log.append(batch, read_header(batch), 0)
    log.write_pending()
    sync(log)


def latest(log):
    found = {}
    for _, data in read_all(log):
        for record in read_records(data, 10**6):
            found[record.key] = (record.offset, record.value)
    return found


def compact(kit, log) -> None:
    task = log.compaction_task(kit.clock.ms)
    assert task is not None
    task.run()
    log.install(task)


def test_compaction_keeps_the_last_record_of_each_key_and_reads_go_on(either_kit) -> None:
    kit = either_kit
    log = kit.open(COMPACT)
    fill_keys(log, 100)
    expected, before = latest(log), log.size_bytes
    compact(kit, log)
    assert latest(log) == expected
    assert log.size_bytes < before / 2
    assert kit.names(".swap") == kit.names(".cleaned") == []
    assert len(kit.names(LOG)) == len(log.segments)
    for offset in range(100):
        log.reader.forget()
        header = batches_in(log.read(offset, 1, 100).data)[0][0]
        assert header.next_offset > offset
    assert log.compaction_task(kit.clock.ms) is None
    fill_keys(log, 60)
    compact(kit, log)
    kit.new_world()
    assert latest(kit.open(COMPACT)) == latest(log)
    assert kit.reports == []


def test_compacted_segments_bring_their_index_along(kit) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 200, keys=40)
    compact(kit, log)
    kit.disk.fail_next("remove")
    for segment in log.segments[:-1]:
        if segment.size:
            assert segment.max_timestamp == 1_000_000
            assert len(segment.offsets) > 0 or segment.size < 400


def test_what_a_crash_leaves_of_a_compaction_is_finished_or_undone(kit) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 100)
    expected = latest(log)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    assert kit.names(".swap")
    kit.disk.lose_power()
    kit.new_world()
    again = kit.open(COMPACT)
    assert kit.names(".swap") == kit.names(".cleaned") == []
    assert latest(again) == expected
    assert again.size_bytes < 4000
    assert kit.reports == []


@pytest.mark.parametrize("steps", range(12))
def test_a_crash_at_any_step_of_the_exchange_leaves_a_whole_log(kit, steps, monkeypatch) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 100)
    expected = latest(log)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    real_rename, real_remove = kit.disk.rename, kit.disk.remove
    left = [steps]

    def counted(real):
        def call(*args) -> None:
            if left[0] == 0:
                raise OSError(errno.EIO, "here the process dies")
            left[0] -= 1
            real(*args)

        return call

    monkeypatch.setattr(kit.disk, "rename", counted(real_rename))
    monkeypatch.setattr(kit.disk, "remove", counted(real_remove))
    with pytest.raises(PenstockError):
        log.install(task)
    monkeypatch.undo()
    kit.disk.end_process()
    kit.new_world()
    again = kit.open(COMPACT)
    assert latest(again) == expected
    assert again.next_offset == 100
    assert kit.names(".swap") == kit.names(".cleaned") == kit.names(".deleted") == []


def test_a_compaction_of_a_log_that_was_cut_meanwhile_is_thrown_away(kit) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 100)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    log.truncate_to(30)
    expected = read_all(log)
    log.install(task)
    assert read_all(log) == expected
    assert kit.names(".swap") == kit.names(".cleaned") == []


def test_a_compaction_that_failed_leaves_everything_as_it_was(kit) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 100)
    before = read_all(log)
    task = log.compaction_task(kit.clock.ms)
    kit.disk.fail_next("write_atomic", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        task.run()
    log.install(task)
    assert read_all(log) == before
    assert kit.names(".swap") == kit.names(".cleaned") == []


def test_only_what_is_synced_is_compacted(kit) -> None:
    log = kit.open(COMPACT)
    for number in range(100):
        append(log, b"%d" % number + b"x" * 60)
    log.write_pending()
    assert log.compaction_task(kit.clock.ms) is None


def test_damage_in_a_segment_that_was_compacted_after_the_checkpoint_cuts_nothing(kit) -> None:
    log = kit.open(COMPACT)
    fill_keys(log, 12, keys=12)
    point = log.recovery_point()
    fill_keys(log, 60, keys=60)
    compact(kit, log)
    path = kit.path("0" * 20 + LOG)
    assert kit.disk.size(path) < point.position
    data = bytearray(kit.disk.read_bytes(path))
    data[70] ^= 0x10
    kit.disk.write_atomic(path, bytes(data))
    kit.new_world()
    kit.world = replace(kit.world, has_checkpoint=True)
    again = kit.open(COMPACT, point)
    assert again.next_offset == 72
    assert read_header(again.read(40, 1, 72).data).base_offset == 40
