"""Random lives of produce keys: kills, lost power, full disks and time, checked against what must always hold."""

from collections import defaultdict
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.core.idempotency.stored import KEY_HEADER
from penstock.core.publish import Placed
from penstock.errors import Reason
from penstock.types import Acks
from tests.unit.core.idempotency.world import WINDOW_MS, Sent, World

keys = st.sampled_from(["a", "b", "c"])
acks = st.sampled_from([Acks.ALL, Acks.ALL, Acks.LEADER, Acks.NONE])


class ProduceKeys(RuleBasedStateMachine):
    """Time stands still while anything is under way, so a record's timestamp is when its window began."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.waiting: list[tuple[str, Acks, Sent]] = []
        self.promised: dict[str, Placed] = {}
        """The place that the last answer named, for a key whose window is not over and whose answer was sure."""

    @rule(key=keys, wanted=acks, partition=st.sampled_from([None, 0, 1]))
    def send(self, key, wanted, partition) -> None:
        self.waiting.append((key, wanted, self.world.send(key, acks=wanted, partition=partition)))

    @rule()
    def write(self) -> None:
        self.world.flusher.write()

    @rule()
    def sync(self) -> None:
        self.world.flusher.sync()

    @rule()
    def tick(self) -> None:
        self.world.keys.tick(self.world.clock.monotonic_ms())

    @rule(calls=st.integers(1, 3))
    def disk_is_full_for_a_while(self, calls) -> None:
        self.world.disk.full = range(self.world.disk.room_calls + 1, self.world.disk.room_calls + 1 + calls)

    @rule(ms=st.sampled_from([1, 1_000, WINDOW_MS // 2, WINDOW_MS]))
    def time_passes(self, ms) -> None:
        self.finish_all()
        self.world.advance(ms)
        now_ms = self.world.clock.now_ms()
        self.promised = {
            key: placed for key, placed in self.promised.items() if now_ms - placed.timestamp_ms < WINDOW_MS
        }

    @rule(power=st.booleans())
    def stops(self, power) -> None:
        self.take_answers()
        self.waiting = []
        self.world.restart(power=power)

    @rule()
    def finish_all(self) -> None:
        self.world.disk.heal()
        self.world.settle()
        self.take_answers()
        assert self.waiting == [], "somebody was never answered"

    def take_answers(self) -> None:
        left = []
        for key, wanted, sent in self.waiting:
            if isinstance(sent.result, Placed):
                if wanted is Acks.ALL:
                    known = self.promised.setdefault(key, sent.result)
                    assert known == sent.result, f"{key} has two places"
            elif sent.result is None:
                left.append((key, wanted, sent))
            else:
                assert sent.result.reason is Reason.STORAGE_ERROR
        self.waiting = left

    @invariant()
    def each_key_is_there_once_in_a_window(self) -> None:
        self.take_answers()
        found = defaultdict(list)
        places = {}
        for partition, record in self.world.records():
            key = dict(record.headers)[KEY_HEADER].decode()
            found[key].append(record.timestamp)
            places[partition, record.offset] = (key, record.timestamp)
        for key, times in found.items():
            times.sort()
            gaps = [later - earlier for earlier, later in pairwise(times)]
            assert all(gap >= WINDOW_MS for gap in gaps), f"{key} is there twice: {times}"
        for key, placed in self.promised.items():
            assert places.get((placed.partition, placed.offset)) == (key, placed.timestamp_ms), (
                "a promised place is empty"
            )


TestProduceKeys = ProduceKeys.TestCase
TestProduceKeys.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
