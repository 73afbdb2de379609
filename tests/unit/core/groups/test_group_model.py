"""Consumers that join, leave, change, crash and come back at the same time, from seeds (``GROUP_SEEDS=5000`` for a long run)."""

import os

import pytest

from tests.unit.core.groups.group_model import run

SEEDS = int(os.environ.get("GROUP_SEEDS", "240"))
EVENTS = 200


@pytest.mark.parametrize("block", range(0, SEEDS, 20))
def test_whatever_members_do_at_the_same_time_the_group_keeps_its_promises_and_settles(block: int) -> None:
    for seed in range(block, min(block + 20, SEEDS)):
        try:
            run(seed, EVENTS)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_seed_is_always_the_same_history() -> None:
    first, second = run(7, EVENTS), run(7, EVENTS)
    assert first.events == second.events > EVENTS
    assert first.watched.leaders == second.watched.leaders
