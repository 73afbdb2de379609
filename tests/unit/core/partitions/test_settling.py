"""Waiting for acknowledged records: for the leader's own sync however long it takes, and for replicas only so long."""

import pytest

from penstock.core.partitions.settling import Settling
from penstock.limits import SETTLE_MS_MAX
from tests.support.worlds import ManualClock


class Acknowledging:
    """A partition with one record that is acknowledged and not committed."""

    def __init__(self) -> None:
        self.acknowledged_offset = 1
        self.settling = True
        self.held = False
        self.wakes: list = []

    def is_settling(self, offset: int) -> bool:
        assert offset == 1
        return self.settling

    def is_held_here(self, offset: int) -> bool:
        assert offset == 1
        return self.held

    def watch(self, wake) -> None:
        self.wakes.append(wake)

    def unwatch(self, wake) -> None:
        self.wakes.remove(wake)

    def commit(self) -> None:
        self.settling = False
        for wake in list(self.wakes):
            wake()


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wake_at: list[int] = []
        self.settling = Settling(self.clock, self.wake_at.append)
        self.done = 0

    def wait(self, *partitions: Acknowledging):
        def done() -> None:
            self.done += 1

        return self.settling.wait(partitions, done)  # type: ignore[arg-type]

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.settling.tick(self.clock.monotonic_ms())


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_committed_already_is_not_waited_for(world) -> None:
    partition = Acknowledging()
    partition.settling = False
    assert world.wait(partition) is None
    assert (world.done, partition.wakes, world.settling.next_deadline_ms()) == (1, [], None)


def test_all_partitions_are_waited_for(world) -> None:
    one, two = Acknowledging(), Acknowledging()
    world.wait(one, two)
    assert world.wake_at == [world.clock.monotonic_ms() + SETTLE_MS_MAX] == [world.settling.next_deadline_ms()]
    one.commit()
    assert world.done == 0
    two.commit()
    assert (world.done, one.wakes, two.wakes, world.settling.next_deadline_ms()) == (1, [], [], None)


def test_a_wake_up_without_a_commit_changes_nothing(world) -> None:
    partition = Acknowledging()
    world.wait(partition)
    partition.wakes[0]()
    assert world.done == 0


def test_replicas_are_waited_for_only_so_long(world) -> None:
    partition = Acknowledging()
    partition.held = True
    world.wait(partition)
    world.pass_ms(SETTLE_MS_MAX - 1)
    assert world.done == 0
    world.pass_ms(1)
    assert (world.done, partition.wakes) == (1, [])


def test_the_leaders_own_sync_is_waited_for_until_it_ends(world) -> None:
    partition = Acknowledging()
    world.wait(partition)
    for _ in range(3):
        world.pass_ms(SETTLE_MS_MAX)
    assert world.done == 0
    partition.held = True
    world.pass_ms(SETTLE_MS_MAX)
    assert world.done == 1


def test_nobody_is_told_after_a_cancellation(world) -> None:
    partition = Acknowledging()
    cancel = world.wait(partition)
    cancel()
    cancel()
    assert partition.wakes == []
    world.pass_ms(SETTLE_MS_MAX)
    assert world.done == 0
