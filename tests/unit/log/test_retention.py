from contextlib import suppress
from dataclasses import replace

import pytest

from penstock.log.config import CleanupPolicy, LogConfig
from penstock.log.files import FilePool
from penstock.log.names import DELETED
from penstock.log.recovery import recover
from penstock.log.retention import RemovalTask, expired_count
from penstock.log.segment import Segment
from penstock.testing.disk import SimulatedDisk
from tests.unit.log.kit import Kit, append, fill, read_all

KEEP = LogConfig(segment_bytes=2000, index_interval_bytes=200, retention_ms=-1, segment_ms=-1)


@pytest.fixture
def segments():
    """Four of a hundred bytes and ten offsets each, and an active one; their greatest timestamps are 10, 20, 30, 40, 50."""
    disk = SimulatedDisk()
    made = []
    for number in range(5):
        segment = Segment(disk, FilePool(disk, 1), "/", number * 10, size=100, next_offset=number * 10 + 10)
        segment.max_timestamp = number * 10 + 10
        made.append(segment)
    return made


def count(segments, now_ms=0, *, start=0, upto=50, archived=None, cleanup=frozenset({CleanupPolicy.DELETE}), **limits):
    config = LogConfig(**{"retention_ms": -1, **limits, "cleanup": cleanup})
    return expired_count(segments, config, now_ms, start_offset=start, upto_offset=upto, archived_offset=archived)


def test_without_limits_everything_stays(segments) -> None:
    assert count(segments, 10**15) == 0


@pytest.mark.parametrize(("now_ms", "gone"), [(110, 0), (111, 1), (121, 2), (141, 4), (150, 4), (151, 5)])
def test_by_age_a_segment_goes_when_its_last_timestamp_is_too_old(segments, now_ms, gone) -> None:
    assert count(segments, now_ms, retention_ms=100) == gone


def test_by_age_only_the_oldest_go(segments) -> None:
    segments[1].max_timestamp = 10**6
    assert count(segments, 1000, retention_ms=1) == 1


def test_without_timestamps_there_is_no_age(segments) -> None:
    segments[0].max_timestamp = -1
    assert count(segments, 10**15, retention_ms=1) == 0


@pytest.mark.parametrize(("limit", "gone"), [(500, 0), (401, 0), (400, 1), (399, 1), (150, 3), (0, 4)])
def test_by_size_a_segment_goes_while_the_others_have_enough(segments, limit, gone) -> None:
    assert count(segments, retention_bytes=limit) == gone


@pytest.mark.parametrize(("start", "gone"), [(9, 0), (10, 1), (39, 3), (50, 5)])
def test_what_lies_below_the_start_goes_whatever_the_policy(segments, start, gone) -> None:
    assert count(segments, start=start, cleanup=frozenset({CleanupPolicy.COMPACT})) == gone


def test_a_compacted_log_keeps_old_segments(segments) -> None:
    limits = {"retention_ms": 1, "retention_bytes": 1}
    assert count(segments, 10**15, cleanup=frozenset({CleanupPolicy.COMPACT}), **limits) == 0


@pytest.mark.parametrize(("upto", "gone"), [(0, 0), (9, 0), (10, 1), (49, 4), (50, 5)])
def test_nothing_goes_that_readers_were_not_shown(segments, upto, gone) -> None:
    assert count(segments, 10**15, retention_ms=1, upto=upto) == gone


def test_an_empty_active_segment_stays(segments) -> None:
    segments[-1].size = 0
    assert count(segments, 10**15, retention_ms=1) == 4


def test_the_task_removes_files_and_folders() -> None:
    disk = SimulatedDisk()
    disk.write_atomic("/file", b"x")
    disk.make_dirs("/folder/inner")
    RemovalTask(disk, ("/file", "/gone"), ("/folder",)).run()
    assert disk.listdir("/") == []


@pytest.mark.parametrize(("archived", "gone"), [(0, 0), (9, 0), (10, 1), (35, 3), (50, 5)])
def test_with_a_tier_a_segment_goes_only_when_all_of_it_is_archived(segments, archived, gone) -> None:
    assert count(segments, 10**15, archived=archived, retention_ms=1) == gone
    assert count(segments, archived=archived, retention_bytes=0) == min(gone, 4)


def test_with_a_tier_what_is_archived_stays_until_its_time_has_come(segments) -> None:
    assert count(segments, 121, archived=50, retention_ms=100) == 2


def test_with_a_tier_deleted_records_go_though_they_were_never_archived(segments) -> None:
    assert count(segments, start=20, archived=0) == 2


# What a crash leaves of segments that were dropped.


def kits_that_may_lose_power(count=60):
    """Disks that each keep another part of what was not synced."""
    for seed in range(count):
        disk = SimulatedDisk(seed)
        disk.make_dirs("/data")
        yield Kit(disk, "/data/0")


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_log_of_which_all_was_deleted_keeps_its_end_over_a_loss_of_power(removed, known) -> None:
    for kit in kits_that_may_lose_power():
        log = kit.open(KEEP)
        fill(log, 1)
        point = log.recovery_point() if known else None
        log.delete_before(1)
        for task in log.retire(kit.clock.ms):
            if removed:
                task.run()
        kit.disk.lose_power()
        kit.new_world()
        again = kit.open(KEEP, point)
        assert (again.start_offset, again.next_offset) == (1, 1)
        assert append(again, b"new") == 1


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("why", ["deleted", "expired"])
def test_old_segments_that_go_take_no_newer_records_along_when_the_power_fails(removed, why) -> None:
    for kit in kits_that_may_lose_power():
        log = kit.open(KEEP)
        fill(log, 60)
        kept = log.segments[3].base_offset
        if why == "deleted":
            log.delete_before(kept)
        else:
            log.reconfigure(replace(KEEP, retention_ms=1000))
        for task in log.retire(10**12, kept):
            if removed:
                task.run()
        assert log.start_offset == kept
        expected = read_all(log)
        kit.disk.lose_power()
        kit.new_world()
        again = kit.open(KEEP)
        assert again.next_offset == 60
        assert read_all(again)[-len(expected) :] == expected
        assert kit.names(DELETED) == []


def test_a_compacted_segment_that_goes_takes_no_newer_records_along_when_the_power_fails() -> None:
    config = replace(KEEP, cleanup=frozenset(CleanupPolicy), min_cleanable_dirty_ratio=0.01)
    for kit in kits_that_may_lose_power():
        log = kit.open(config)
        fill(log, 60)
        task = log.compaction_task(kit.clock.ms, log.segments[2].base_offset)
        task.run()
        log.install(task)
        log.reconfigure(replace(config, retention_ms=1000))
        log.retire(10**12, log.segments[-2].next_offset)
        expected = read_all(log)
        kit.disk.lose_power()
        kit.new_world()
        again = kit.open(config)
        assert again.next_offset == 60
        assert read_all(again)[-len(expected) :] == expected


@pytest.mark.parametrize("operation", ["remove", "rename", "sync_dir", "sync"])
def test_a_start_that_ends_early_loses_nothing_of_what_retention_kept(operation) -> None:
    for number, kit in enumerate(kits_that_may_lose_power()):
        log = kit.open(KEEP)
        fill(log, 60)
        log.delete_before(60)
        log.retire(kit.clock.ms)
        if number % 2:
            kit.disk.lose_power()
        else:
            kit.disk.end_process()
        kit.new_world()
        kit.disk.fail_next(operation)
        with suppress(OSError):
            kit.open(KEEP)
        kit.disk.clear_faults()
        kit.disk.lose_power()
        kit.new_world()
        again = kit.open(KEEP)
        assert (again.start_offset, again.next_offset) == (60, 60)


def test_a_segment_that_comes_back_at_a_start_is_there_for_good() -> None:
    for kit in kits_that_may_lose_power():
        log = kit.open(KEEP)
        fill(log, 1)
        log.delete_before(1)
        log.retire(kit.clock.ms)
        kit.disk.lose_power()
        # As when all logs were synced at once before.
        point = recover(kit.new_world(), kit.directory, KEEP.index_interval_bytes, None, synced=True)
        again = kit.open(KEEP, point)
        fill(again, 1)
        expected = read_all(again)
        again.roll()
        kit.disk.lose_power()
        kit.new_world()
        assert read_all(kit.open(KEEP)) == expected


def test_what_a_copy_begins_anew_is_not_taken_for_what_retention_drops(kit) -> None:
    for begin in ("start_at", "truncate_to"):
        kit.directory = f"/data/{begin}"
        log = kit.open(KEEP)
        fill(log, 60)
        base = log.segments[1].base_offset
        log.delete_before(60)
        log.retire(kit.clock.ms)
        assert log.segments[0].base_offset == 60
        getattr(log, begin)(base)
        fill(log, 2)
        kit.disk.end_process()
        kit.new_world()
        again = kit.open(KEEP)
        assert (again.start_offset, again.next_offset) == (base, base + 2)
        assert again.size_bytes == log.size_bytes
