"""A topic that is deleted and made again under its name begins anew, for its groups too."""

import asyncio
from dataclasses import replace

from penstock.testing.simulation.committer import Committer
from penstock.testing.simulation.history import MORTAL, TopicPartition
from penstock.testing.simulation.machine import ClusterShape, Machine
from penstock.testing.simulation.mortal import Incarnation, MortalTopic
from penstock.testing.simulation.simulation import SimulationResult, simulate
from tests.simulation.scenarios import OFFSETS, QUIET, Story

SHAPE = ClusterShape(internal_partitions=1, lease_ms=2_000)


class OffsetsOfAnOldLife(Story):
    """A group commits offsets for a topic, which is deleted and made again. Then somebody asks what is committed."""

    place = OFFSETS
    is_coordinator_killed = False

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        mortal = self.world.mortal = MortalTopic(self.world, self._random)
        incarnation = await self._live(mortal, 1)
        process = self.world.client("gu")
        committer = self._committer()
        self.world.loop.spawn(process, committer.run(0.02))
        await self.until(lambda: committer.acknowledged >= 3)
        process.kill()
        await asyncio.sleep(0.2)
        if self.is_coordinator_killed:
            leader.kill()
        await mortal_deleted(self, mortal, incarnation)
        await self._live(mortal, 2)
        fresh = self._committer()
        fresh.finish()
        self.world.loop.spawn(self.world.client("gu"), fresh.run(0.02))
        await self.until(lambda: fresh.is_done)

    def _committer(self) -> Committer:
        return Committer("gu", TopicPartition(MORTAL, 0), self.world.bootstrap(), self.world.history, self._random)

    async def _live(self, mortal: MortalTopic, count: int) -> Incarnation:
        while len(mortal.incarnations) < count:
            self.world.operator.ask(mortal.create())
            await asyncio.sleep(0.05)
        assert mortal.latest is not None
        return mortal.latest


async def mortal_deleted(story: Story, mortal: MortalTopic, incarnation: Incarnation) -> None:
    while not incarnation.is_deleted:
        story.world.operator.ask(mortal.delete(incarnation))
        await asyncio.sleep(0.05)


class OffsetsOfAnOldLifeUnheard(OffsetsOfAnOldLife):
    """The same, while nobody coordinates the group: whoever does next did not see the topic go."""

    is_coordinator_killed = True


def outcome(story: type[Story], seed: int) -> SimulationResult:
    return simulate(seed, replace(QUIET, shape=SHAPE, paces_seconds=(0.2,), faults=story))


def test_offsets_go_with_the_topic() -> None:
    found = outcome(OffsetsOfAnOldLife, 1)
    assert found.violation is None, str(found)


def test_offsets_go_with_the_topic_though_nobody_coordinates_the_group_then() -> None:
    found = outcome(OffsetsOfAnOldLifeUnheard, 1)
    assert found.violation is None, str(found)
