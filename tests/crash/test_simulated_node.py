"""Seeded histories of a whole node on a simulated disk: whatever stops it, it keeps what it promised.

The number in a test's name is its seed, and the same seed is the same history. ``SIMULATION_SEEDS=2000`` makes a long run;
to see one of its failures again, run that test alone with the same setting. The last tests break the broker on purpose: a
simulation that does not notice would prove nothing.
"""

import os
from collections.abc import Callable

import pytest

from penstock.errors import PenstockError, Reason
from penstock.log.producer_state import ProducerStates
from tests.crash.simulated_node import FIRST_TOPICS, BrokenPromise, SimulatedNode
from tests.crash.simulated_world import StepFlusher, Stopped, Trouble

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "12"))
"""How many histories for each trouble. The default fits the whole test run; thousands are for a night."""

STEPS = 300
STEPS_BEFORE_A_CHOSEN_STOP = 120
STEPS_AFTER_A_CHOSEN_STOP = 15


class History:
    """One seed's life of a node: steps, troubles, stops and restarts."""

    def __init__(self, seed: int, trouble: Trouble, make_flusher: Callable[[], StepFlusher] = StepFlusher) -> None:
        self.seed, self.trouble = seed, trouble
        self.node = SimulatedNode(seed, make_flusher)
        self.random = self.node.random

    async def run(self, steps: int = STEPS) -> None:
        """Live through it; an error says how to see it again."""
        try:
            await self._start()
            for _ in range(steps):
                if await self._step_is_last() or self.random.random() < 0.02:
                    await self._restart()
            await self._end()
        except Exception as error:
            self._explain(error)
            raise

    async def run_to_call(self, call: int) -> bool:
        """Stop at this call to the disk, and check. False when the steps came to their end before."""
        node, stopped = self.node, False
        try:
            await self._start()
            node.disk.stop_at = node.disk.calls + call
            try:
                for _ in range(STEPS_BEFORE_A_CHOSEN_STOP):
                    await node.step()
                node.close()
            except Stopped:
                stopped = True
            self._stop(torn=call % 3 != 0)
            await self._boot_and_check()
            for _ in range(STEPS_AFTER_A_CHOSEN_STOP):
                await node.step()
            node.flusher.sync()
            node.check()
        except Exception as error:
            error.add_note(f"stopped at call {call}")
            self._explain(error)
            raise
        return stopped

    async def _start(self) -> None:
        await self.node.boot()
        for name in FIRST_TOPICS:
            await self.node.create(name)

    async def _step_is_last(self) -> bool:
        """Do a step, perhaps in trouble; true when the process died of it."""
        node, disk, random = self.node, self.node.disk, self.random
        if self.trouble is Trouble.FULL and random.random() < 0.05:
            disk.full = range(disk.room_calls + random.randrange(8), disk.room_calls + random.randrange(8, 40))
        if self.trouble is Trouble.SYNC and random.random() < 0.03:
            disk.failing_sync = disk.syncs + random.randrange(1, 6)
        try:
            await node.step()
            if self.trouble is Trouble.FULL and random.random() < 0.05:
                # There is room again: it goes on without a restart.
                disk.full = range(0)
                node.flusher.sync()
                node.check()
                node.flusher.sync()
        except Stopped:
            return True
        except PenstockError as error:
            if self.trouble not in {Trouble.FULL, Trouble.SYNC} or error.reason is not Reason.STORAGE_ERROR:
                raise
            node.seen["refused"] += 1
        return False

    async def _restart(self) -> None:
        """Stop, perhaps in order, start, perhaps dying in recovery, and check."""
        node, disk, random = self.node, self.node.disk, self.random
        node.seen["restarts"] += 1
        if random.random() < 0.25 and not disk.dead:
            if random.random() < 0.5:
                disk.stop_at = disk.calls + random.randrange(1, 60)
            try:
                node.close()
                node.seen["orderly stops"] += 1
            except Stopped:
                pass
        self._stop(torn=random.random() < 0.8)
        while random.random() < 0.3:
            try:
                await node.boot(stop_after=random.randrange(1, 25))
            except Stopped:
                node.seen["stops in recovery"] += 1
            self._stop(torn=random.random() < 0.8)
        await self._boot_and_check()
        disk.stop_at = disk.calls + random.randrange(50, 1500)

    async def _boot_and_check(self) -> None:
        await self.node.boot()
        self.node.check()
        self.node.flusher.sync()
        self.node.check()
        self.node.settle()

    async def _end(self) -> None:
        if self.trouble is Trouble.SYNC or self.node.disk.dead:
            self._stop(torn=True)
            await self.node.boot()
        self.node.disk.heal()
        self.node.flusher.sync()
        self.node.check()

    def _stop(self, *, torn: bool) -> None:
        self.node.disk.stop(power=self.trouble.loses_power, torn=torn)

    def _explain(self, error: Exception) -> None:
        error.add_note(
            f"seed {self.seed}, trouble {self.trouble.value}, after {len(self.node.done)} steps, "
            f"the last: {', '.join(self.node.done[-8:])}"
        )
        error.add_note("\n".join(["the broker reported last:", *self.node.reports[-6:]]))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("trouble", Trouble, ids=lambda trouble: trouble.value)
async def test_a_node_keeps_its_promises_through_any_history(trouble, seed) -> None:
    await History(seed, trouble).run()


async def test_the_empty_folder_of_a_deleted_topic_that_comes_back_with_the_power_is_removed() -> None:
    # The seed that found it: the name of the folder survived, the partition in it did not.
    await History(147, Trouble.SYNC).run()


@pytest.mark.timeout(120 + 10 * SEEDS)
@pytest.mark.parametrize("trouble", [Trouble.KILL, Trouble.POWER], ids=lambda trouble: trouble.value)
async def test_a_node_keeps_its_promises_wherever_in_its_work_it_stops(trouble) -> None:
    whole = History(0, trouble)
    assert not await whole.run_to_call(10**9)
    calls = whole.node.disk.calls
    # With seeds enough this is every call; with fewer they are spread over the history.
    for call in range(1, calls, max(calls // (4 * SEEDS), 1)):
        if not await History(0, trouble).run_to_call(call):
            break


async def test_the_same_seed_is_the_same_history() -> None:
    first, second = History(5, Trouble.POWER), History(5, Trouble.POWER)
    await first.run()
    await second.run()
    assert first.node.done == second.node.done
    assert first.node.reports == second.node.reports
    assert first.node.disk.calls == second.node.disk.calls
    assert first.node.promises == second.node.promises


async def test_histories_go_through_all_that_they_are_to_test() -> None:
    seen = None
    for trouble in Trouble:
        for seed in range(2):
            history = History(seed, trouble)
            await history.run()
            seen = history.node.seen if seen is None else seen + history.node.seen
    wanted = {"acknowledged", "duplicates", "committed", "retired", "compacted", "checkpoints"}
    wanted |= {"restarts", "orderly stops", "stops in recovery"}
    assert wanted <= set(seen)


class SyncsNothing(StepFlusher):
    """Says that it synced, and did not."""

    def run(self, task) -> None:
        pass


async def run_all(trouble, make_flusher=StepFlusher) -> None:
    for seed in range(5):
        await History(seed, trouble, make_flusher).run()


async def test_a_broker_that_does_not_sync_is_found_out() -> None:
    with pytest.raises(BrokenPromise, match=r"seed \d+, trouble power"):
        await run_all(Trouble.POWER, SyncsNothing)


async def test_a_broker_that_does_not_know_duplicates_is_found_out(monkeypatch) -> None:
    monkeypatch.setattr(ProducerStates, "check", lambda states, header: None)
    with pytest.raises(BrokenPromise, match=r"seed \d+, trouble kill"):
        await run_all(Trouble.KILL)
