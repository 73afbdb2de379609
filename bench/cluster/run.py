"""The order of a run: rows of all systems one right after the other, then idle systems, then failures of nodes.

Invariant: only the systems of one flush setting run at a time, and while rows are measured all three are up: an idle one costs little, and what it
costs is measured too. The first rounds do not count: a Java process is slow before it has compiled what it does. A run ends within its minutes: rounds beyond the first
that counts, and failures beyond the first of their kind, are left out when their share of the time is over, and the report shows how many there were.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.cluster.failover import Gaps, measure
from bench.cluster.systems import SYSTEMS, PenstockCluster, System
from bench.peers.base import Flush
from bench.results import Result
from bench.saying import fail, machine, say
from penstock.bench.context import Endpoints, Options
from penstock.bench.faults import BenchError
from penstock.bench.run import cases_of, run_case, select
from penstock.client.cluster import parse_bootstrap

WORKLOADS = ("produce-16k", "single-64", "single-16x16", "single-1", "fetch-16k")
_FETCHED_BYTES_MAX = 32 << 20
"""Stored before a fetch is measured: a system that syncs every request takes long for more."""
_ROWS_SHARE = 0.55
"""Of the time, for rows; the rest is for failures."""
_SETTLE_S = 5.0
"""Between the last row and an idle stretch: deleted files leave the disk."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to run."""

    systems: list[str]
    only: list[str]
    flushes: list[Flush]
    rounds: int
    warmups: int
    kills: int
    stops: int
    peer_kills: int
    """Of a system that needs many seconds to come back."""
    peer_stops: int
    idle_s: float
    minutes: float
    options: Options


@dataclass(slots=True)
class ClusterReport:
    """What a run found. Idle is cores of each process, by system."""

    machine: dict[str, str | int | float]
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    idle: dict[str, dict[str, float]] = field(default_factory=dict)
    gaps: list[Gaps] = field(default_factory=list)


def run(plan: ClusterPlan) -> ClusterReport:
    """Measure everything; what cannot be measured is noted, and the rest continues."""
    report = ClusterReport(machine(plan.rounds, plan.warmups, plan.options))
    began = time.perf_counter()
    kinds = []
    for kind in SYSTEMS:
        if kind.name not in plan.systems:
            continue
        if (reason := kind.why_missing()) is not None:
            report.missing[kind.name] = reason
            say(f"without {kind.title}: {reason}")
            continue
        kinds.append(kind)
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        for number, flush in enumerate(plan.flushes, start=1):
            until = began + plan.minutes * 60 * _ROWS_SHARE * number / len(plan.flushes)
            _rows(plan, kinds, flush, home, report, until)
        _failovers(plan, [kind for kind in kinds if kind.name != "penstock-1"], home, report, began)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report.machine["took"] = f"{(time.perf_counter() - began) / 60:.1f} minutes"
    return report


def _rows(
    plan: ClusterPlan, kinds: list[type[System]], flush: Flush, home: Path, report: ClusterReport, until: float
) -> None:
    if not plan.rounds:
        return
    with ExitStack() as stack:
        systems = _start(kinds, flush, home / f"rows-{flush.value}", stack, report)
        for turn in range(-plan.warmups, plan.rounds):
            if turn > 0 and time.perf_counter() > until:
                say(f"flush = {flush.value}: {turn} of {plan.rounds} rounds, the time is up")
                report.machine[f"rounds that count, flush = {flush.value}"] = turn
                break
            _round(plan, systems, flush, turn, report)
        if flush is plan.flushes[-1]:
            _idle(plan, systems, report)


def _round(plan: ClusterPlan, systems: list[System], flush: Flush, turn: int, report: ClusterReport) -> None:
    for case in cases_of(select(plan.only or WORKLOADS), ["all"]):
        options = plan.options
        if not case.acks:
            options = replace(options, bytes_max=min(options.bytes_max, _FETCHED_BYTES_MAX))
        # Each comes first in turn, so that no system always finds the same state of the disk.
        for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            try:
                row = run_case(case, Endpoints(parse_bootstrap(system.bootstrap())[0]), None, options)
            except BenchError as error:
                fail(report.failures, f"{system.title}, {case.id}, flush = {flush.value}: {error}")
                continue
            counted = "" if turn >= 0 else " (does not count)"
            say(f"{system.title:32} {flush.value:5} {row.id:24} {row.records_per_s:12,.0f} records/s{counted}")
            if turn >= 0:
                report.results.append(Result(system.name, flush.value, turn, row))


def _idle(plan: ClusterPlan, systems: list[System], report: ClusterReport) -> None:
    if not plan.idle_s:
        return
    say(f"measuring the idle systems for {plan.idle_s:.0f} s")
    time.sleep(_SETTLE_S)
    before = {system.name: system.cpu_s() for system in systems}
    began = time.perf_counter()
    time.sleep(plan.idle_s)
    for system in systems:
        seconds = time.perf_counter() - began
        after = system.cpu_s()
        report.idle[system.name] = {
            name: (cpu_s - before[system.name][name]) / seconds for name, cpu_s in after.items()
        }


def _failovers(
    plan: ClusterPlan, kinds: list[type[System]], home: Path, report: ClusterReport, run_began: float
) -> None:
    # One system at a time: a node that restarts uses a core for a while.
    for number, kind in enumerate(kinds, start=1):
        ours = kind is PenstockCluster
        kills, stops = (plan.kills, plan.stops) if ours else (plan.peer_kills, plan.peer_stops)
        if not kills and not stops:
            continue
        began = time.perf_counter()
        end = run_began + plan.minutes * 60
        share = (end - began) / (len(kinds) - number + 1)
        with ExitStack() as stack:
            for system in _start([kind], plan.flushes[-1], home / "failover", stack, report):
                for times, killed, until in ((stops, False, began + share / 3), (kills, True, began + share)):
                    if times:
                        _goes(system, times, killed=killed, has_time=_until(until), report=report)


def _until(moment: float) -> Callable[[], bool]:
    return lambda: time.perf_counter() < moment


def _goes(system: System, times: int, *, killed: bool, has_time: Callable[[], bool], report: ClusterReport) -> None:
    try:
        report.gaps.append(measure(system, times, killed=killed, has_time=has_time))
    except BenchError as error:
        fail(report.failures, f"{system.title}, failures of nodes: {error}")


def _start(
    kinds: list[type[System]], flush: Flush, home: Path, stack: ExitStack, report: ClusterReport
) -> list[System]:
    started: list[System] = []
    for kind in kinds:
        system = kind(home / kind.name, flush)
        stack.callback(system.stop)
        begin = time.perf_counter()
        try:
            system.start()
        except BenchError as error:
            fail(report.failures, f"{system.title}, flush = {flush.value}: {error}")
            continue
        say(f"{system.title}, flush = {flush.value}: ready in {time.perf_counter() - begin:.1f} s")
        started.append(system)
    return started
