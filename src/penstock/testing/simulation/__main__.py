"""``python -m penstock.testing.simulation 1-200``: run seeds, and report which fail. ``-v`` shows every event of a seed."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from types import FrameType

from penstock.testing.simulation.seeds import Report, parsed, processors, quiet, run_seeds, shown
from penstock.testing.simulation.simulation import Simulation, SimulationPlan

_INTERRUPTED = 130
"""The exit code of a program that was stopped by Ctrl-C, as a shell has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all; returns 1 if one fails."""
    parser = argparse.ArgumentParser(prog="make simulate SEEDS=", description="Run simulated clusters, one per seed.")
    parser.add_argument("seeds", type=_seeds, help="7, 1-200 or 3,5,10-20")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every event; runs one seed at a time")
    parser.add_argument(
        "-j", "--jobs", type=_jobs, metavar="N", help="run N seeds at a time (default: one for each processor)"
    )
    wanted = parser.parse_args(arguments)
    seeds: list[int] = wanted.seeds
    if wanted.verbose and (wanted.jobs or 1) > 1:
        parser.error("--verbose runs one seed at a time: remove --jobs")
    quiet()
    signal.signal(signal.SIGTERM, _interrupt)
    if wanted.verbose:
        return report_all(seeds, _verbose(seeds))
    return report_all(seeds, run_seeds(seeds, min(wanted.jobs or processors(), len(seeds))))


def _seeds(text: str) -> list[int]:
    try:
        return parsed(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds such as 7, 1-200 or 3,5,10-20") from None


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid number of processes (at least 1)")
    return int(text)


def _verbose(seeds: Sequence[int]) -> Iterator[Report]:
    for seed in seeds:
        simulation = Simulation(seed, SimulationPlan())
        simulation.history.on_event = print
        outcome = simulation.run()
        yield Report(seed, outcome.violation is None, str(outcome))


def report_all(seeds: Sequence[int], reports: Iterator[Report]) -> int:
    """Print each report, then a summary: which failed, or where to continue."""
    began = time.monotonic()
    done = 0
    bad: list[int] = []
    try:
        with closing(reports):  # type: ignore[type-var]
            for report in reports:
                done += 1
                if not report.holds:
                    bad.append(report.seed)
                _say(f"[{done}/{len(seeds)}] {report.text}" if report.holds else report.text)
    except KeyboardInterrupt:
        _say(f"stopped; continue with: make simulate SEEDS={shown(seeds[done:])}")
    seconds = time.monotonic() - began
    _say(f"{done} seeds in {seconds:.0f} s ({done / max(seconds, 0.001):.2f} seeds/s)")
    if bad:
        _say(f"{len(bad)} seeds failed; repeat with: make simulate SEEDS={shown(bad)}")
        return 1
    return 0 if done == len(seeds) else _INTERRUPTED


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
