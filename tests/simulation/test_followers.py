"""What followers do when their leader is there and silent."""

import asyncio
from dataclasses import replace

from penstock.testing.simulation.machine import ClusterShape, Machine
from penstock.testing.simulation.simulation import SimulationPlan, simulate
from penstock.types import NodeId
from tests.simulation.scenarios import QUIET, Story

SILENT_SECONDS = 6.0
SHAPE = ClusterShape(internal_partitions=1, lease_ms=30_000)


class SilentLeader(Story):
    """The leader's answers do not arrive, while there is more and more to ask of it."""

    problems: dict[NodeId, str]

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        assert first.running is not None
        fetching = first.running.node.fetching
        self.cut(leader.host, first.host)
        for _ in range(int(SILENT_SECONDS / 0.25)):
            await asyncio.sleep(0.25)
            for follower in first.running.broker.cluster.replicas.following():  # type: ignore[union-attr]
                fetching._unfollow(follower)
                fetching._follow(follower)
        SilentLeader.problems = fetching.problems()
        assert leader.number in SilentLeader.problems


class PausedLeader(Story):
    """A node takes connections and says nothing: it stands still, and nobody takes it for dead yet."""

    async def tell(self, leader: Machine, first: Machine, second: Machine) -> None:
        assert first.running is not None
        link = first.running.node.fetching._fetchers[NodeId(leader.number)]._link
        leader.pause()
        self.world.network.break_connections(1.0)
        before = link.connections
        await asyncio.sleep(10.0)
        assert link.connections - before > 1
        leader.resume()


def plan(story: type[Story]) -> SimulationPlan:
    return replace(QUIET, shape=SHAPE, faults=story)


def test_a_leader_whose_answers_are_lost_is_given_up_whatever_else_is_to_be_asked() -> None:
    outcome = simulate(1, plan(SilentLeader))
    assert outcome.violation is None, str(outcome)
    assert SilentLeader.problems


def test_a_leader_that_takes_connections_and_is_silent_is_connected_to_again() -> None:
    outcome = simulate(1, plan(PausedLeader))
    assert outcome.violation is None, str(outcome)
