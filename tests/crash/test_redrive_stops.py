"""A dead letter that is redriven is back in its topic once, wherever the node stopped in between, and none is lost.

Every call to the disk that the redrive makes is tried as the last one, with the process killed and with the power lost; the
redrive is then run again, stopped once more, and run to its end.
"""

import pytest

from tests.crash.simulated_world import Stopped
from tests.unit.core.dead_letters.world import DeadLetterWorld

LETTERS = 9


def redrive_until_call(world: DeadLetterWorld, call: int, *, power: bool) -> bool:
    """Die at this call to the disk; False when all was done before."""
    world.disk.stop_at = world.disk.calls + call
    try:
        world.redriven()
        world.turns()
    except Stopped:
        return True
    finally:
        world.disk.stop(power=power, torn=call % 3 != 0)
    return False


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_dead_letter_comes_back_once_wherever_the_node_stopped(power) -> None:
    call, stopped = 1, True
    while stopped:
        world = DeadLetterWorld(call)
        for number in range(LETTERS):
            world.die(partition=number % 2)
        stopped = redrive_until_call(world, call, power=power)
        world.boot()
        # The stops of the second life are spread over its work by the number of the first one's.
        redrive_until_call(world, 1 + call * 5 % 30, power=power)
        world.boot()
        world.redriven()
        world.restart(power=power)
        world.turns()
        found = sorted(record.value for partition in range(2) for record in world.back(partition))
        assert found == sorted(b"v%d" % number for number in range(1, LETTERS + 1)), f"stopped at call {call}"
        assert world.open_count() == 0
        assert world.shown() == []
        call += 1
    assert call > 10, "a redrive should take more calls to the disk than this"
