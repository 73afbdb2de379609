import errno
from typing import Never

import pytest

from penstock.log.cleaning import CleanNote, load_clean_note
from penstock.log.config import CleanupPolicy, LogConfig
from penstock.log.names import CLEAN_OFFSET
from penstock.records.batch import read_header
from penstock.records.records import read_records
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import Kit, make_batch, read_all, sync

CONFIG = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    cleanup=frozenset({CleanupPolicy.COMPACT}),
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1000,
)


def put(log, key, value) -> None:
    batch = make_batch(value, key=key)
    log.append(batch, read_header(batch), 0)


def filled(kit, count=60):
    log = kit.open(CONFIG)
    for number in range(count):
        put(log, b"key%d" % (number % 4), b"x" * 60)
    log.write_pending()
    sync(log)
    return log


def keys(log):
    return [record.key for _, data in read_all(log) for record in read_records(data, 10**6)]


def run(kit, log):
    task = log.compaction_task(kit.clock.ms)
    if task is not None:
        task.run()
        log.install(task)
    return task


def test_what_was_cleaned_is_remembered_over_a_start(kit) -> None:
    log = filled(kit)
    assert load_clean_note(kit.disk, kit.directory) == CleanNote(0, None, 0)
    run(kit, log)
    note = load_clean_note(kit.disk, kit.directory)
    assert note.cleaned_to == note.touched_to == log.segments[-1].base_offset
    assert note.due_ms is None
    log.close()
    kit.new_world()
    assert kit.open(CONFIG, log.recovery_point()).compaction_task(kit.clock.ms) is None


def test_tombstones_go_when_their_time_has_come(kit) -> None:
    log = filled(kit)
    put(log, b"key1", None)
    for _ in range(30):
        put(log, b"other", b"x" * 60)
    log.write_pending()
    sync(log)
    run(kit, log)
    assert keys(log).count(b"key1") == 1
    note = load_clean_note(kit.disk, kit.directory)
    assert note.due_ms == kit.clock.ms + 1000
    kit.clock.ms += 1000
    assert run(kit, log) is not None
    assert b"key1" not in keys(log)
    assert load_clean_note(kit.disk, kit.directory).due_ms is None


def test_a_lost_note_costs_only_another_run(kit) -> None:
    log = filled(kit)
    run(kit, log)
    expected = read_all(log)
    kit.disk.remove(kit.path(CLEAN_OFFSET))
    run(kit, log)
    assert read_all(log) == expected


def test_gaps_that_compaction_left_are_no_loss_to_recovery(kit) -> None:
    log = filled(kit)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    log.install(task)
    expected = read_all(log)
    assert any(segment.size == 0 for segment in log.segments[:-1]) or len(log.segments) < 4
    kit.disk.lose_power()
    kit.new_world()
    again = kit.open(CONFIG)
    assert read_all(again) == expected
    assert kit.reports == []


def test_gaps_are_no_loss_even_when_the_process_died_before_it_could_note_its_end(kit, monkeypatch) -> None:
    log = filled(kit)
    task = log.compaction_task(kit.clock.ms)
    real, calls = kit.disk.write_atomic, []

    class Killed(BaseException):
        pass

    def once(*args, **more) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise Killed
        real(*args, **more)

    monkeypatch.setattr(kit.disk, "write_atomic", once)
    with pytest.raises(Killed):
        task.run()
    monkeypatch.undo()
    assert kit.names(".swap")
    kit.disk.lose_power(torn=False)
    for _ in range(2):
        kit.new_world()
        again = kit.open(CONFIG)
        assert again.next_offset == 60
        assert set(keys(again)) == {b"key0", b"key1", b"key2", b"key3"}
        assert kit.reports == []
        kit.disk.end_process()


@pytest.mark.parametrize("operation", ["rename", "sync_dir", "write_atomic", "pwritev", "sync", "open"])
def test_a_run_that_the_disk_refuses_leaves_nothing_behind(kit, operation) -> None:
    log = filled(kit)
    before, names = read_all(log), kit.disk.listdir(kit.directory)
    task = log.compaction_task(kit.clock.ms)
    kit.disk.fail_next(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        task.run()
    kit.disk.clear_faults()
    log.install(task)
    assert read_all(log) == before
    assert [name for name in kit.disk.listdir(kit.directory) if name != CLEAN_OFFSET] == names
    assert run(kit, log) is not None


def test_segments_dropped_meanwhile_are_not_brought_back(kit) -> None:
    log = filled(kit)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    log.delete_before(log.segments[2].base_offset)
    for removal in log.retire(kit.clock.ms):
        removal.run()
    start = log.start_offset
    log.install(task)
    assert log.segments[0].base_offset == start
    assert kit.names(".swap") == []


def filled_around_a_tombstone(kit):
    """A first segment that retention can take, an old value, much else, and the tombstone of that value, each apart."""
    log = kit.open(CONFIG)
    put(log, b"first", b"x" * 60)
    log.roll()
    put(log, b"gone", b"old")
    log.roll()
    for number in range(30):
        put(log, b"other%d" % number, b"x" * 60)
    log.roll()
    put(log, b"gone", None)
    log.roll()
    log.write_pending()
    sync(log)
    return log


def assert_stays_deleted(kit, log, key) -> None:
    """However often compaction runs, nobody who reads from the start ends with a value of the key."""
    for _ in range(4):
        last = {
            record.key: record.value for _, data in read_all(log) for record in read_records(data, 10**6) if record.key
        }
        assert last.get(key) is None
        kit.clock.ms += CONFIG.delete_retention_ms
        put(log, b"more", b"more")
        log.roll()
        log.write_pending()
        sync(log)
        run(kit, log)
    assert key not in keys(log)


def test_a_value_stays_deleted_when_segments_were_dropped_under_the_run(kit) -> None:
    log = filled_around_a_tombstone(kit)
    task = log.compaction_task(kit.clock.ms)
    task.run()
    log.delete_before(1)
    for removal in log.retire(kit.clock.ms):
        removal.run()
    log.install(task)
    assert kit.names(".swap") == kit.names(".cleaned") == []
    assert_stays_deleted(kit, log, b"gone")


def test_a_value_stays_deleted_when_the_log_was_cut_below_what_is_clean(kit) -> None:
    log = filled(kit)
    run(kit, log)
    clean_to = load_clean_note(kit.disk, kit.directory).cleaned_to
    log.truncate_to(0)
    put(log, b"gone", b"old")
    log.roll()
    put(log, b"gone", None)
    log.roll()
    while log.next_offset <= clean_to:
        put(log, b"more", b"more")
    log.roll()
    log.write_pending()
    sync(log)
    assert_stays_deleted(kit, log, b"gone")


def test_what_recovery_cuts_is_not_clean_any_more(kit) -> None:
    log = filled(kit)
    run(kit, log)
    clean_to = load_clean_note(kit.disk, kit.directory).cleaned_to
    log.close()
    for segment in log.segments[1:]:
        kit.disk.remove(segment.log_path)
    kit.disk.change(log.segments[0].log_path, lambda data: data.__delitem__(slice(len(data) - 1, None)))
    kit.new_world()
    again = kit.open(CONFIG)
    assert again.next_offset < clean_to
    note = load_clean_note(kit.disk, kit.directory)
    assert note.cleaned_to == note.touched_to == again.next_offset


@pytest.mark.parametrize("seed", range(100))
def test_a_loss_of_power_after_the_exchange_leaves_segments_that_do_not_overlap(seed) -> None:
    disk = SimulatedDisk(seed)
    disk.make_dirs("/data")
    kit = Kit(disk, "/data/0")
    log = filled(kit)
    point = log.recovery_point()
    run(kit, log)
    cleaned = read_all(log)
    assert len(cleaned) < 60
    # Twice, since a start that finishes the exchange may lose power too.
    for _ in range(2):
        disk.lose_power()
        kit.new_world()
        assert read_all(kit.open(CONFIG, point)) == cleaned
        assert kit.reports == []


@pytest.mark.parametrize("seed", range(100))
def test_a_loss_of_power_while_a_start_finishes_the_exchange_leaves_segments_that_do_not_overlap(
    seed, monkeypatch
) -> None:
    disk = SimulatedDisk(seed)
    disk.make_dirs("/data")
    kit = Kit(disk, "/data/0")
    log = filled(kit)
    point = log.recovery_point()
    log.compaction_task(kit.clock.ms).run()
    disk.end_process()
    kit.new_world()
    real_rename = disk.rename

    def rename_and_stop(source, target) -> Never:
        real_rename(source, target)
        raise OSError(errno.EIO, "here the power goes")

    monkeypatch.setattr(disk, "rename", rename_and_stop)
    with pytest.raises(OSError, match="the power goes"):
        kit.open(CONFIG, point)
    monkeypatch.undo()
    disk.lose_power()
    kit.new_world()
    offsets = [offset for offset, _ in read_all(kit.open(CONFIG, point))]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < 60
    assert kit.reports == []
