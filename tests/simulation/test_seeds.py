"""Two hundred histories of a cluster in trouble, each from a seed, and those that once ended badly (``make simulate SEEDS=201-1000`` for others)."""

import subprocess
import sys

import pytest

from penstock.testing.simulation.simulation import simulate

SEEDS = 200
ONCE_BAD = (
    # A controller named one partition twice in a transaction, because its topic had changed in between.
    90_035,
    90_059,
    200_730,
    # The simulator asked a node how its queue is from outside the node's process, and the node began to follow a leader.
    300_074,
    # A simulated producer ran more than five batches ahead of one that it had to repeat.
    300_697,
    # A log was truncated twice between two checkpoints, and recovery trusted the second cut only.
    303_571,
    306_596,
    # A loss of power left the name of an epoch without its records, and the follower could not agree with its leader any more.
    304_028,
    # The first batch of a producer was refused while too few replicas were in sync, and the second was taken when enough were again.
    310_033,
    # A lease ended while floors could not be stored: the state of the queue was loaded again in every turn, for ever.
    500_233,
)


@pytest.mark.parametrize("seed", [*range(1, SEEDS + 1), *ONCE_BAD])
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
