import pytest

from penstock.log.checkpoint import NO_PRODUCERS, SNAPSHOT_UNKNOWN, RecoveryPoint
from penstock.log.config import LogConfig
from penstock.log.producer_state import ProducerStates
from penstock.log.segment import Segments
from penstock.log.snapshots import (
    SNAPSHOTS_KEPT,
    drop_old_snapshots,
    drop_snapshots_above,
    drop_snapshots_below,
    load_producers,
    snapshot_offsets,
    snapshot_path,
    sync_snapshot,
    write_snapshot,
)
from penstock.records.batch import read_header
from tests.unit.log.kit import append, make_batch

CONFIG = LogConfig(index_interval_bytes=200)


@pytest.fixture
def log(kit):
    """Producer 1 at even offsets, nobody at odd ones; no snapshot."""
    log = kit.open(CONFIG)
    for number in range(20):
        if number % 2:
            append(log, b"plain")
        else:
            batch = make_batch(b"v", producer_id=1, producer_epoch=0, base_sequence=number // 2)
            log.append(batch, read_header(batch), 0)
    log.write_pending()
    return log


def put(kit, offset, sequences) -> None:
    states = ProducerStates()
    for sequence in range(sequences):
        header = read_header(make_batch(b"v", producer_id=1, producer_epoch=0, base_sequence=sequence))
        states.update(header, sequence * 2, 0)
    write_snapshot(kit.disk, snapshot_path(kit.directory, offset), states.encode())


def loaded(kit, log, point=None):
    states = load_producers(kit.disk, kit.directory, Segments(list(log.segments)), point, 20, 5)
    return next((active.last_sequence for active in states.active()), None), states.snapshot_offset


def test_without_snapshots_the_whole_log_is_replayed(kit, log) -> None:
    assert loaded(kit, log) == (9, SNAPSHOT_UNKNOWN)


def test_the_newest_sound_snapshot_is_where_a_replay_begins(kit, log) -> None:
    put(kit, 10, 5)
    # Says less than the log: the replay is seen to begin behind it.
    put(kit, 18, 3)
    assert loaded(kit, log) == (9, SNAPSHOT_UNKNOWN)
    kit.disk.change(snapshot_path(kit.directory, 18), lambda data: data.__setitem__(12, 9))
    assert loaded(kit, log) == (9, SNAPSHOT_UNKNOWN)
    put(kit, 20, 10)
    assert loaded(kit, log) == (9, 20)


def test_a_snapshot_above_the_end_is_not_for_this_log(kit, log) -> None:
    put(kit, 30, 1)
    assert loaded(kit, log) == (9, SNAPSHOT_UNKNOWN)


def test_a_checkpoint_saves_the_replay_of_what_is_before_it(kit, log) -> None:
    put(kit, 4, 2)
    # As if only plain batches stood between offset 4 and 19: the checkpoint vouches for it.
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, 4)) == (1, 4)
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, SNAPSHOT_UNKNOWN)) == (9, SNAPSHOT_UNKNOWN)
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, 7)) == (9, SNAPSHOT_UNKNOWN)


def test_a_checkpoint_without_producers_is_believed_unless_a_snapshot_is_newer(kit, log) -> None:
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, NO_PRODUCERS)) == (None, NO_PRODUCERS)
    put(kit, 4, 2)
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, NO_PRODUCERS)) == (None, NO_PRODUCERS)
    put(kit, 20, 10)
    assert loaded(kit, log, RecoveryPoint(0, 19, 0, NO_PRODUCERS)) == (9, 20)
    assert loaded(kit, log, RecoveryPoint(0, 99, 0, NO_PRODUCERS)) == (9, 20)


def test_old_snapshots_go_but_for_the_needed_and_the_newest(kit, log) -> None:
    for offset in range(1, 12):
        put(kit, offset, 1)
    drop_old_snapshots(kit.disk, kit.directory, frozenset({3, 5}))
    assert snapshot_offsets(kit.disk, kit.directory) == [3, 5, *range(12 - SNAPSHOTS_KEPT, 12)]
    drop_snapshots_above(kit.disk, kit.directory, 10)
    assert snapshot_offsets(kit.disk, kit.directory)[-1] == 10
    drop_snapshots_below(kit.disk, kit.directory, 5)
    assert snapshot_offsets(kit.disk, kit.directory)[0] == 5


def test_a_synced_snapshot_survives_a_loss_of_power(kit, log) -> None:
    assert not sync_snapshot(kit.disk, kit.directory, 4)
    put(kit, 4, 2)
    assert sync_snapshot(kit.disk, kit.directory, 4)
    put(kit, 6, 3)
    kit.disk.change(snapshot_path(kit.directory, 6), lambda data: data.clear())
    assert not sync_snapshot(kit.disk, kit.directory, 6)


def test_no_snapshot_outlives_the_records_it_is_of(kit, log) -> None:
    log.close()
    assert snapshot_offsets(kit.disk, kit.directory) == [20]
    kit.new_world()
    again = kit.open(CONFIG, log.recovery_point())
    again.truncate_to(10)
    assert snapshot_offsets(kit.disk, kit.directory) == []


def test_a_cut_at_the_start_takes_the_snapshot_of_what_is_cut_along(kit, log) -> None:
    log.close()
    kit.disk.change(log.segments[0].log_path, lambda data: data.__setitem__(-3, data[-3] ^ 1))
    kit.new_world()
    again = kit.open(CONFIG, log.recovery_point())
    assert again.next_offset == 19
    assert snapshot_offsets(kit.disk, kit.directory) == []
    assert len(again.producers) == 1
