from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.epochs import EpochHistory
from penstock.runtime.disk import RealDisk


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "leader-epochs")


@pytest.fixture
def history(path):
    history = EpochHistory.load(RealDisk(), path)
    for epoch, start_offset in ((2, 0), (4, 10), (7, 20)):
        history.assign(epoch, start_offset)
    return history


def test_an_absent_file_is_an_empty_history(path) -> None:
    history = EpochHistory.load(RealDisk(), path)
    assert history.latest == -1
    assert history.epoch_at(0) == -1
    assert history.end_offset_for(0, 100) == (-1, -1)


def test_what_was_assigned_is_there_after_a_restart(history, path) -> None:
    restarted = EpochHistory.load(RealDisk(), path)
    assert restarted.entries == ((2, 0), (4, 10), (7, 20))
    assert restarted.latest == 7


def test_an_epoch_that_is_not_newer_changes_nothing(history, path) -> None:
    history.assign(7, 30)
    history.assign(3, 40)
    assert history.entries == EpochHistory.load(RealDisk(), path).entries == ((2, 0), (4, 10), (7, 20))


def test_an_epoch_without_records_leaves_no_entry(history) -> None:
    history.assign(8, 20)
    assert history.entries == ((2, 0), (4, 10), (8, 20))


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 0)),
        (2, (2, 10)),
        (3, (2, 10)),
        (4, (4, 20)),
        (6, (4, 20)),
        (7, (7, 33)),
        (8, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_known_one_begins(history, epoch, answer) -> None:
    assert history.end_offset_for(epoch, log_end=33) == answer


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 4), (19, 4), (20, 7), (99, 7)])
def test_epoch_at_tells_who_wrote_an_offset(history, offset, epoch) -> None:
    assert history.epoch_at(offset) == epoch


@pytest.mark.parametrize(
    ("offset", "entries"),
    [(21, ((2, 0), (4, 10), (7, 20))), (20, ((2, 0), (4, 10))), (11, ((2, 0), (4, 10))), (10, ((2, 0),)), (0, ())],
)
def test_cutting_the_end_forgets_epochs_that_began_there(history, path, offset, entries) -> None:
    history.truncate_from_end(offset)
    assert history.entries == EpochHistory.load(RealDisk(), path).entries == entries
    assert history.latest == (entries[-1][0] if entries else -1)


@pytest.mark.parametrize(
    ("offset", "entries"),
    [
        (0, ((2, 0), (4, 10), (7, 20))),
        (5, ((2, 5), (4, 10), (7, 20))),
        (10, ((4, 10), (7, 20))),
        (15, ((4, 15), (7, 20))),
        (50, ((7, 50),)),
    ],
)
def test_cutting_the_start_forgets_epochs_that_ended_before(history, path, offset, entries) -> None:
    history.truncate_from_start(offset)
    assert history.entries == EpochHistory.load(RealDisk(), path).entries == entries
    assert history.latest == 7


def test_a_refused_write_changes_nothing(history, path, tmp_path) -> None:
    class FullDisk(RealDisk):
        def write_atomic(self, path, data, *, sync=True) -> Never:
            raise OSError(28, "no space left on device")

    full = EpochHistory(FullDisk(), path, history.entries)
    with pytest.raises(OSError):
        full.assign(9, 30)
    assert full.entries == history.entries
    assert full.latest == 7


@given(st.data())
def test_a_damaged_file_is_noticed(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("epochs") / "leader-epochs"
    disk = RealDisk()
    EpochHistory.rebuild(disk, str(path), [(2, 0), (4, 10)])
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(ValueError):
        EpochHistory.load(disk, str(path))


def test_a_file_cut_short_is_noticed(history, path) -> None:
    disk = RealDisk()
    content = disk.read_bytes(path)
    for size in range(len(content)):
        disk.write_atomic(path, content[:size])
        with pytest.raises(ValueError):
            EpochHistory.load(disk, path)


def test_rebuild_reads_the_history_from_the_batches(path) -> None:
    disk = RealDisk()
    history = EpochHistory.rebuild(disk, path, [(-1, 0), (0, 3), (0, 5), (2, 9), (2, 12), (5, 13)])
    assert history.entries == ((0, 3), (2, 9), (5, 13))
    assert EpochHistory.load(disk, path).entries == history.entries
