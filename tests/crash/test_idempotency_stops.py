"""A record that is sent with a key and sent again for want of an answer is there once, wherever the node stopped in between.

Every call to the disk that the work makes is tried as the last one, with the process killed and with the power lost; then the
producers send again what they had no answer for, and the restarted node is stopped once more while it answers them.
"""

import pytest

from penstock.core.publish import Placed
from penstock.types import Acks
from tests.crash.simulated_world import Stopped
from tests.unit.core.idempotency.world import Sent, World

KEYS = [f"k{number}" for number in range(6)]


class Producers:
    """Each has one record with its key, and sends it until it is answered."""

    def __init__(self, seed: int, acks: Acks) -> None:
        self.world = World(seed)
        self.acks = acks
        self.places: dict[str, Placed] = {}

    def work(self) -> None:
        """Send what has no answer yet, over several turns, and take the answers."""
        sent: list[tuple[str, Sent]] = []
        try:
            for number, key in enumerate(KEYS):
                if key not in self.places:
                    sent.append((key, self.world.send(key, acks=self.acks, value=key.encode())))
                    if number % 2:
                        self.world.turn()
            self.world.settle()
            self.world.broker.close()
            self.world.flusher.sync()
            self.world.broker.logs.close()
        finally:
            for key, each in sent:
                if isinstance(each.result, Placed):
                    self.places[key] = each.result

    def work_until_call(self, call: int, *, power: bool) -> bool:
        """Die at this call to the disk; False when the work was done before."""
        self.world.disk.stop_at = self.world.disk.calls + call
        try:
            self.work()
        except Stopped:
            return True
        finally:
            self.world.disk.stop(power=power, torn=call % 3 != 0)
        return False

    def check(self) -> None:
        """All is there, once, where the answers say."""
        self.world.restart()
        self.world.settle()
        found = {record.value.decode(): (partition, record.offset) for partition, record in self.world.records()}
        assert self.world.values() == [key.encode() for key in KEYS]
        assert found == {key: (placed.partition, placed.offset) for key, placed in self.places.items()}
        for key in KEYS:
            again = self.world.sent(key)
            assert again.duplicate is True
            assert again.placed[:2] == found[key]


# An answer that waits for no sync promises nothing when the power goes.
@pytest.mark.parametrize(("power", "acks"), [(False, Acks.ALL), (False, Acks.LEADER), (True, Acks.ALL)])
def test_a_record_is_there_once_wherever_the_node_stopped(power, acks) -> None:
    call, stopped = 1, True
    while stopped:
        producers = Producers(call, acks)
        stopped = producers.work_until_call(call, power=power)
        producers.world.boot()
        # The stops of the second life are spread over its work by the number of the first one's.
        producers.work_until_call(1 + call * 7 % 40, power=power)
        producers.world.boot()
        producers.work()
        producers.check()
        call += 1
    assert call > 20, "the work should take more calls to the disk than this"
