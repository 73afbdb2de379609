"""A replica is counted for what it has, not for what a copy had that was on the same node before."""

from dataclasses import replace

import pytest

from penstock.cluster import fetching
from penstock.testing.simulation.machine import ClusterShape
from penstock.testing.simulation.simulation import SimulationResult, simulate
from penstock.wire.peers import encode_known_epoch
from tests.simulation.moves import AddedAgain, Moving, ObserverMadeReplica
from tests.simulation.scenarios import QUIET

SHAPE = ClusterShape(nodes=4, internal_partitions=1, lease_ms=10_000, lag_ms_max=5_000)
STORIES = [ObserverMadeReplica, AddedAgain]
LATER_THAN_ALL = encode_known_epoch(2**40)


def outcome(story: type[Moving], seed: int) -> SimulationResult:
    return simulate(seed, replace(QUIET, shape=SHAPE, paces_seconds=(0.05,), faults=story))


@pytest.mark.parametrize("story", STORIES)
def test_what_is_moved_arrives(story: type[Moving]) -> None:
    found = outcome(story, 1)
    assert found.violation is None, str(found)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_simulator_catches_a_node_that_pretends_to_know_of_its_part(
    story: type[Moving], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "encode_known_epoch", lambda _: LATER_THAN_ALL)
    assert outcome(story, seed).violation is not None
