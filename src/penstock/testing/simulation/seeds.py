"""Runs many seeds in several processes. The reports are in the order of the seeds."""

import logging
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from penstock.testing.simulation.simulation import simulate

_AHEAD: Final = 8
"""Queued seeds per process, so that a slow seed does not block the others."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a seed as text."""

    seed: int
    holds: bool
    text: str


def parsed(text: str) -> list[int]:
    """The seeds of ``7``, ``1-200`` or ``3,5,10-20``; ValueError for any other text."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found.extend(range(int(first), int(last if dash else first) + 1))
    if not found:
        raise ValueError(f"{text} has no seeds")
    return found


def shown(seeds: Iterable[int]) -> str:
    """The text of seeds, with consecutive ones as ranges."""
    ranges: list[tuple[int, int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], seed
        else:
            ranges.append((seed, seed))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_seed(seed: int) -> Report:
    """Run one. An exception in the simulation is reported as a failure, and the other seeds still run."""
    try:
        outcome = simulate(seed)
    except Exception:  # noqa: BLE001 - whatever it is, it belongs to this seed
        repeat = f"repeat it with: make simulate SEEDS={seed}"
        return Report(
            seed, holds=False, text=f"{traceback.format_exc()}seed {seed}: the simulation itself failed\n{repeat}"
        )
    return Report(seed, outcome.violation is None, str(outcome))


def run_seeds(seeds: Sequence[int], jobs: int, run: Callable[[int], Report] = run_seed) -> Iterator[Report]:
    """Run them all in ``jobs`` processes; in this one if that is 1."""
    if jobs == 1:
        yield from map(run, seeds)
        return
    coming = iter(seeds)
    waiting: deque[Future[Report]] = deque()
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        try:
            while True:
                room = jobs * _AHEAD - len(waiting)
                waiting.extend(pool.submit(run, seed) for seed in islice(coming, room))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """In each process: Ctrl-C reaches all of them, and only the main process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    quiet()


def quiet() -> None:
    """Suppress the log of the nodes: an error fails the seed, and other messages do not matter."""
    logging.getLogger("penstock").addHandler(logging.NullHandler())
