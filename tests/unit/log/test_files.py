from dataclasses import dataclass

import pytest

from penstock.log.files import FilePool
from penstock.ports import File
from penstock.testing.disk import SimulatedDisk


@dataclass(eq=False)
class Holder:
    log_path: str
    file: File | None = None
    used: bool = False
    pins: int = 0
    is_dirty: bool = False

    def release(self) -> None:
        assert self.file is not None
        self.file.close()
        self.file = None


@pytest.fixture
def disk():
    return SimulatedDisk()


def holders(pool, count):
    made = [Holder(f"/f{number}") for number in range(count)]
    for holder in made:
        pool.open(holder, create=True)
    return made


def test_no_more_files_are_open_than_allowed(disk) -> None:
    pool = FilePool(disk, 3)
    made = holders(pool, 10)
    assert disk.open_files == len(pool) == 3
    assert sum(holder.file is not None for holder in made) == 3
    assert made[-1].file is not None


def test_the_one_used_since_stays_and_the_idle_one_goes(disk) -> None:
    pool = FilePool(disk, 3)
    made = holders(pool, 4)
    kept = [holder for holder in made if holder.file is not None]
    for holder in kept:
        holder.used = False
    kept[0].used = True
    pool.open(Holder("/new"), create=True)
    assert kept[0].file is not None
    assert kept[1].file is None


def test_a_pinned_file_is_never_closed(disk) -> None:
    pool = FilePool(disk, 2)
    made = holders(pool, 2)
    for holder in made:
        holder.pins = 1
    more = holders(pool, 5)
    assert all(holder.file is not None for holder in made)
    assert more[-1].file is not None


def test_a_dirty_file_goes_only_when_there_is_no_other(disk) -> None:
    pool = FilePool(disk, 3)
    made = holders(pool, 3)
    made[0].is_dirty = made[1].is_dirty = True
    for holder in made:
        holder.used = False
    pool.open(Holder("/new"), create=True)
    assert [holder.file is None for holder in made] == [False, False, True]
    for holder in made:
        holder.used = False
    latest = Holder("/newer", is_dirty=True)
    pool.open(latest, create=True)
    pool.open(Holder("/newest", is_dirty=True), create=True)
    assert disk.open_files <= 3


def test_a_holder_that_closed_its_file_itself_counts_no_more(disk) -> None:
    pool = FilePool(disk, 2)
    made = holders(pool, 2)
    for holder in made:
        holder.release()
    holders(pool, 2)
    assert disk.open_files == 2
    assert len(pool) == 2


def test_a_file_can_be_opened_again_after_it_was_closed(disk) -> None:
    pool = FilePool(disk, 1)
    first, _ = holders(pool, 2)
    assert first.file is None
    pool.open(first)
    assert first.file is not None
    assert disk.open_files == 1
