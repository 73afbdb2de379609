"""A replica is counted for what it has, not for what a copy had that was on the same node before."""

from dataclasses import replace

import pytest

from penstock.testing.simulation.machine import ClusterShape
from penstock.testing.simulation.simulation import simulate
from tests.simulation import moves
from tests.simulation.scenarios import QUIET, Story

SHAPE = ClusterShape(nodes=4, internal_partitions=1, lease_ms=10_000, lag_ms_max=5_000)


@pytest.mark.parametrize("story", [moves.ObserverMadeReplica, moves.AddedAgain])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_moved_arrives(story: type[Story], seed: int) -> None:
    outcome = simulate(seed, replace(QUIET, shape=SHAPE, paces_seconds=(0.05,), faults=story))
    assert outcome.violation is None, str(outcome)
