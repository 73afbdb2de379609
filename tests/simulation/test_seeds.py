"""Two hundred histories of a cluster in trouble, each from a seed (``make simulate SEEDS=201-1000`` for others)."""

import subprocess
import sys

import pytest

from penstock.testing.simulation.simulation import simulate

SEEDS = 200


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_whatever_happens_to_a_cluster_what_it_promised_holds(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.violation is None, str(outcome)
    assert outcome.counts.get("acked", 0) > 0, "nothing was promised"


@pytest.mark.parametrize("seed", [7, 24])
def test_a_seed_is_the_same_history_whatever_the_order_of_hashes(seed: int) -> None:
    program = f"from penstock.testing.simulation.simulation import simulate; print(simulate({seed}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": order}, capture_output=True, text=True, check=True
        ).stdout
        for order in ("1", "2")
    }
    assert len(digests) == 1
