"""What must have come to rest in the end: a cluster that leaves something undone is found out."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from penstock.core.cluster.decisions import Decision
from penstock.core.cluster.moves import MovePlan
from penstock.log.manager import LogManager
from penstock.log.retention import RemovalTask
from penstock.testing.simulation.machine import ClusterShape, Machine
from penstock.testing.simulation.mortal import MortalTopic
from penstock.testing.simulation.simulation import SimulationResult, simulate
from tests.simulation.scenarios import QUIET, Story

SHAPE = ClusterShape(nodes=4, internal_partitions=1)


class DrainedForGood(Story):
    """An operator has a node emptied and leaves it so."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        operator = self.world.operator
        operator.keep_drained(leader.number)
        operator.drain(leader.number)
        await asyncio.sleep(1.0)


class MovedAway(Story):
    """A partition goes to a node that did not have it, and leaves its leader."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        operator = self.world.operator
        operator.ask(operator.move(self.place, (self.spare.number, first.number, second.number)))
        await asyncio.sleep(2.0)


class TwoLives(Story):
    """A topic is made, used, deleted, and made and used again."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        mortal = self.world.mortal = MortalTopic(self.world, self._random)
        for _ in range(2):
            self.world.operator.ask(mortal.create())
            await self.until(lambda: mortal.latest is not None and not mortal.latest.is_deletion_asked)
            await self.until_acknowledged(10)
            assert mortal.latest is not None
            if len(mortal.incarnations) == 1:
                self.world.operator.ask(mortal.delete(mortal.latest))
                await asyncio.sleep(0.5)
        assert len(mortal.incarnations) == 2


def outcome(story: type[Story]) -> SimulationResult:
    return simulate(1, replace(QUIET, shape=SHAPE, paces_seconds=(0.2,), faults=story))


@pytest.mark.parametrize("story", [DrainedForGood, MovedAway, TwoLives])
def test_a_wish_is_fulfilled(story: type[Story]) -> None:
    found = outcome(story)
    assert found.violation is None, str(found)


def test_a_drain_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: MovePlan) -> Iterator[Decision]:
        return iter(())

    monkeypatch.setattr(MovePlan, "decisions", nothing)
    assert "is not drained" in str(outcome(DrainedForGood).violation)


def test_a_move_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.core.cluster.decisions.can_complete", lambda _: False)
    assert "is on its way" in str(outcome(MovedAway).violation)


def test_files_of_a_deleted_topic_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(logs: LogManager, _: UUID) -> RemovalTask:
        return RemovalTask(logs.disk)

    monkeypatch.setattr(LogManager, "forget", keep)
    assert "which is deleted" in str(outcome(TwoLives).violation)
