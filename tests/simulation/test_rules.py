"""Each rule is needed: without it the same story ends badly, whatever the seed, and the simulator says so."""

from dataclasses import fields, replace

import pytest

from penstock.core.cluster.rules import ALL
from penstock.testing.simulation.machine import ClusterShape
from penstock.testing.simulation.simulation import SimulationResult, simulate
from tests.simulation import scenarios
from tests.simulation.scenarios import QUIET, Story

SEEDS = range(1, 4)
SHAPE = ClusterShape(internal_partitions=1, lag_ms_max=1_500)
STORIES: dict[str, type[Story]] = {
    "synced_before_counted": scenarios.PowerEverywhere,
    "maximal_in_sync_set": scenarios.JoinUnheard,
    "frozen_below_min": scenarios.AloneInSync,
    "counted_by_epoch": scenarios.OldQuestion,
    "agreed_shrink": scenarios.ShrinkInVain,
    "compare_and_set": scenarios.LateShrink,
    "named_by_node_epoch": scenarios.SameEpochAgain,
    "truncate_by_epoch": scenarios.TwoMoves,
    "refuse_below_min": scenarios.TooFew,
    "elect_in_sync_only": scenarios.LeftBehind,
    "fenced_by_epoch": scenarios.DeposedTail,
    "replay_before_serving": scenarios.UnknownCommit,
    "producers_from_log": scenarios.LostAnswers,
    "authenticated_replicas": scenarios.Forged,
}


def outcome(rule: str, seed: int, *, without: bool) -> SimulationResult:
    rules = replace(ALL, **{rule: not without})
    plan = replace(
        QUIET,
        shape=replace(SHAPE, rules=rules, lease_ms=STORIES[rule].lease_ms),
        paces_seconds=(STORIES[rule].pace_seconds,),
        faults=STORIES[rule],
    )
    return simulate(seed, plan)


def test_every_rule_has_a_story() -> None:
    assert set(STORIES) == {field.name for field in fields(ALL)}


@pytest.mark.parametrize("rule", STORIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_simulator_catches_a_cluster_without_the_rule(rule: str, seed: int) -> None:
    assert outcome(rule, seed, without=True).violation is not None, f"{rule} was off, and nobody noticed"


@pytest.mark.parametrize("rule", STORIES)
def test_the_same_story_ends_well_with_the_rule(rule: str) -> None:
    found = outcome(rule, 1, without=False)
    assert found.violation is None, str(found)
