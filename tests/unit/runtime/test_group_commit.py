"""Group commit: what is written while a sync runs shares the next one, and failures reach their log."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from penstock.ports import SyncTask
from penstock.runtime.group_commit import GroupCommit
from penstock.types import Flush


class Task:
    """A sync that ends when the test says so."""

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.release = threading.Event()
        self.error: OSError | None = None

    def run(self) -> None:
        assert self.release.wait(10)
        if self.error is not None:
            raise self.error


class Target:
    """Counts appends; its syncs are held by the test."""

    def __init__(self) -> None:
        self.appended = self.written = self.synced = 0
        self.tasks: list[Task] = []
        self.errors: list[OSError] = []
        self.changed = asyncio.Event()

    def write_pending(self) -> None:
        self.written = self.appended

    def begin_sync(self) -> SyncTask | None:
        if self.written == self.synced:
            return None
        self.tasks.append(Task(self.written))
        self.changed.set()
        return self.tasks[-1]

    def end_sync(self, task: SyncTask, error: OSError | None) -> None:
        assert isinstance(task, Task)
        if error is None:
            self.synced = task.upto
        else:
            self.errors.append(error)
        self.changed.set()

    async def until_tasks(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.tasks) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def commit() -> AsyncIterator[GroupCommit]:
    made = GroupCommit(asyncio.get_running_loop(), Flush.SYNC, threads=2)
    yield made
    made.close()


def append(commit: GroupCommit, target: Target) -> None:
    target.appended += 1
    commit.dirty(target)


async def test_appends_during_a_sync_share_the_next_one(commit: GroupCommit) -> None:
    target = Target()
    append(commit, target)
    await target.until_tasks(1)
    for _ in range(100):
        append(commit, target)
        await asyncio.sleep(0)
    assert len(target.tasks) == 1
    target.tasks[0].release.set()
    await target.until_tasks(2)
    target.tasks[1].release.set()
    await commit.drain()
    assert (len(target.tasks), target.synced) == (2, 101)


async def test_two_logs_sync_side_by_side(commit: GroupCommit) -> None:
    one, two = Target(), Target()
    append(commit, one)
    append(commit, two)
    await one.until_tasks(1)
    await two.until_tasks(1)
    two.tasks[0].release.set()
    async with asyncio.timeout(10):
        while two.synced == 0:
            two.changed.clear()
            await two.changed.wait()
    assert one.synced == 0
    one.tasks[0].release.set()
    await commit.drain()


async def test_a_failed_sync_reaches_its_log(commit: GroupCommit) -> None:
    target = Target()
    append(commit, target)
    await target.until_tasks(1)
    target.tasks[0].error = OSError(5, "Input/output error")
    target.tasks[0].release.set()
    await commit.drain()
    assert [error.errno for error in target.errors] == [5]
    assert target.synced == 0


async def test_without_sync_nothing_is_synced() -> None:
    commit = GroupCommit(asyncio.get_running_loop(), Flush.OS, threads=1)
    target = Target()
    append(commit, target)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (target.written, target.tasks) == (1, [])
    commit.close()


async def test_a_round_waits_for_what_is_running_and_due_and_for_nothing_later(commit: GroupCommit) -> None:
    target = Target()
    append(commit, target)
    await target.until_tasks(1)
    append(commit, target)
    await asyncio.sleep(0)
    round_over = asyncio.create_task(commit.finish_round())
    await asyncio.sleep(0)
    for number in range(2):
        assert not round_over.done()
        target.tasks[number].release.set()
        await target.until_tasks(number + 2 if number == 0 else 2)
        append(commit, target)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await round_over
    # Under load there is always one more.
    await target.until_tasks(3)
    assert target.synced == 2
    target.tasks[2].release.set()
    async with asyncio.timeout(10):
        await commit.drain()
        await commit.finish_round()


async def test_a_round_does_not_wait_for_a_sync_that_is_due_but_not_needed_any_more(commit: GroupCommit) -> None:
    target = Target()
    append(commit, target)
    await target.until_tasks(1)
    commit.sync_soon(target)
    round_over = asyncio.create_task(commit.finish_round())
    await asyncio.sleep(0)
    target.tasks[0].release.set()
    async with asyncio.timeout(10):
        await round_over
    assert len(target.tasks) == 1


async def test_how_long_a_sync_took_is_told_whether_or_not_it_failed(commit: GroupCommit) -> None:
    told: list[tuple[float, bool]] = []
    commit.on_synced = lambda seconds, failed: told.append((seconds, failed))
    good, bad = Target(), Target()
    append(commit, good)
    append(commit, bad)
    await good.until_tasks(1)
    await bad.until_tasks(1)
    bad.tasks[0].error = OSError(5, "Input/output error")
    bad.tasks[0].release.set()
    good.tasks[0].release.set()
    await commit.drain()
    assert sorted(failed for _, failed in told) == [False, True]
    assert all(seconds >= 0 for seconds, _ in told)


async def test_what_nobody_waits_for_is_synced_a_moment_later_or_with_what_somebody_does(commit) -> None:
    idle, busy = Target(), Target()
    for target in (idle, busy):
        target.appended = 1
        commit.dirty(target)
        commit.unhurried(target)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(target.tasks) for target in (idle, busy)] == [0, 0]
    busy.appended = 2
    commit.dirty(busy)
    await busy.until_tasks(1)
    assert busy.tasks[0].upto == 2
    await idle.until_tasks(1)
    assert idle.tasks[0].upto == 1
    assert len(busy.tasks) == 1
    for target in (idle, busy):
        target.tasks[0].release.set()
    await commit.drain()


async def test_a_stop_does_not_leave_out_what_nobody_waits_for(commit) -> None:
    target = Target()
    target.appended = 1
    commit.dirty(target)
    commit.unhurried(target)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    draining = asyncio.create_task(commit.drain())
    await target.until_tasks(1)
    target.tasks[0].release.set()
    await draining
    assert target.synced == 1
