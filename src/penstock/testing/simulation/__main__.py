"""``python -m penstock.testing.simulation 1-200``: run seeds, and say which do not hold. ``-v`` shows every event of a seed."""

import argparse
import logging
import sys
from collections.abc import Iterator

from penstock.testing.simulation.simulation import Plan, Simulation


def seeds_of(text: str) -> Iterator[int]:
    """``7``, ``1-200`` or ``3,5,10-20``."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main() -> int:
    """Run them all; 1 when one does not hold."""
    parser = argparse.ArgumentParser(prog="make simulate SEEDS=", description="Run a simulated cluster from seeds.")
    parser.add_argument("seeds", help="7, 1-200 or 3,5,10-20")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every event")
    arguments = parser.parse_args()
    bad = 0
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    for seed in seeds_of(arguments.seeds):
        simulation = Simulation(seed, Plan())
        if arguments.verbose:
            simulation.history.on_event = print
        outcome = simulation.run()
        bad += outcome.violation is not None
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
    if bad:
        sys.stdout.write(f"{bad} seeds do not hold\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
