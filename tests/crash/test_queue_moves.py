"""Dead letters and redrives while the process dies at every single call to the disk: never lost, never twice."""

import pytest

from penstock.core.queues.moves import REDRIVE_GROUP
from tests.crash.simulated_world import Stopped, Trouble, TroubledDisk
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World, header

RECORDS = 3
DEAD_LETTERS = f"dlq.{TOPIC}"
STEP = 1
"""Every call; a greater number makes the run shorter."""


def made(trouble: Trouble) -> tuple[World, TroubledDisk]:
    disk = TroubledDisk(7)
    world = World(disk).boot()
    world.create()
    world.produce(RECORDS, headers=(("penstock.max_attempts", b"1"),))
    return world, disk


def restart(world: World, disk: TroubledDisk, trouble: Trouble, torn: bool) -> None:
    world._forget_background()
    disk.stop(power=trouble.loses_power, torn=torn)
    world.boot()


def let_all_die(world: World) -> None:
    """Lease what can be leased and fail it; what is leased already runs out."""
    for delivery in world.lease("a", max_records=10, lease_ms=1000):
        world.nack("a", delivery.offset, "bad")
    world.advance(1500)


def letters(world: World) -> list[str | None]:
    if DEAD_LETTERS not in world.broker.topics:
        return []
    return sorted(header(letter, "original_offset") for letter in world.records(DEAD_LETTERS))


@pytest.mark.parametrize("trouble", [Trouble.KILL, Trouble.POWER], ids=lambda trouble: trouble.value)
def test_a_dead_letter_is_never_lost_and_never_there_twice_wherever_the_process_dies(trouble) -> None:
    for call in range(1, 10_000, STEP):
        world, disk = made(trouble)
        disk.stop_at = disk.calls + call
        try:
            let_all_die(world)
        except Stopped:
            restart(world, disk, trouble, torn=call % 2 == 0)
            let_all_die(world)
            let_all_die(world)
            assert letters(world) == ["0", "1", "2"], f"stopped at call {call}"
            assert world.floor() == RECORDS
            assert world.queues.status(TOPIC, GROUP).partitions[0].moving == 0
            world.close()
            continue
        finally:
            disk.stop_at = None
        world.close()
        assert call > 10, "nothing was tested"
        return
    raise AssertionError("the scenario does not come to an end")


@pytest.mark.parametrize("trouble", [Trouble.KILL, Trouble.POWER], ids=lambda trouble: trouble.value)
def test_a_redriven_record_is_never_lost_and_never_back_twice_wherever_the_process_dies(trouble) -> None:
    for call in range(1, 10_000, STEP):
        world, disk = made(trouble)
        let_all_die(world)
        disk.stop_at = disk.calls + call
        try:
            redrive(world)
        except Stopped:
            restart(world, disk, trouble, torn=call % 2 == 0)
            world.advance(1500)
            redrive(world)
            world.advance(1500)
            assert len(world.records(TOPIC)) == 2 * RECORDS, f"stopped at call {call}"
            assert world.floor(topic=DEAD_LETTERS, group=REDRIVE_GROUP) == RECORDS
            world.close()
            continue
        finally:
            disk.stop_at = None
        world.close()
        assert call > 5, "nothing was tested"
        return
    raise AssertionError("the scenario does not come to an end")


def redrive(world: World) -> None:
    """Send back what was not, one by one, as a redrive that is run again does."""
    for offset in range(RECORDS):
        if not world.queues.is_finished(DEAD_LETTERS, REDRIVE_GROUP, 0, offset):
            world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [offset], TOPIC, 0, Answers())
            world.turn()
