"""The order of a run: rows of all systems one right after the other, then idle, then nodes that go.

Invariant: only the systems of one flush setting run at a time, and while rows are measured all three are up: an idle one costs little, and what it
costs is measured too.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.cluster.failover import Gaps, measure
from bench.cluster.systems import SYSTEMS, System
from bench.peers.base import Flush
from bench.results import Result
from bench.saying import fail, machine, say
from penstock.bench.admin import first_address
from penstock.bench.faults import BenchError
from penstock.bench.frames import Acks
from penstock.bench.workloads import Options, run_workload, select_workloads

WORKLOADS = ("produce-16k", "single-64", "single-16x16", "single-1", "fetch-16k", "delivery")


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What to run."""

    systems: list[str]
    only: list[str]
    flushes: list[Flush]
    rounds: int
    kills: int
    stops: int
    idle_s: float
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
    """Measure all of it; what cannot be measured is noted, and the rest goes on."""
    report = ClusterReport(machine(plan.rounds, 0, plan.options))
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
        for flush in plan.flushes:
            _rows(plan, kinds, flush, home, report)
        _failovers(plan, [kind for kind in kinds if kind.name != "penstock-1"], home, report)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return report


def _rows(plan: ClusterPlan, kinds: list[type[System]], flush: Flush, home: Path, report: ClusterReport) -> None:
    with ExitStack() as stack:
        systems = _start(kinds, flush, home / f"rows-{flush.value}", stack, report)
        if flush is Flush.SYNC or len(plan.flushes) == 1:
            _idle(plan, systems, report)
        for turn in range(plan.rounds):
            for workload in select_workloads(list(plan.only or WORKLOADS)):
                acks = Acks.ALL if workload.has_acks else None
                # Each comes first in turn, so that nobody always meets the same disk.
                for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
                    try:
                        address = first_address(system.bootstrap().split(",")[0])
                        row = run_workload(workload, acks, address, None, plan.options)
                    except (BenchError, OSError) as error:
                        fail(report.failures, f"{system.title}, {workload.name}, flush = {flush.value}: {error}")
                        continue
                    say(f"{system.title:32} {flush.value:5} {row.id:24} {row.records_per_s:12,.0f} records/s")
                    report.results.append(Result(system.name, flush.value, turn, row))


def _idle(plan: ClusterPlan, systems: list[System], report: ClusterReport) -> None:
    if not plan.idle_s:
        return
    say(f"nothing happens for {plan.idle_s:.0f} s")
    before = {system.name: system.cpu_s() for system in systems}
    began = time.perf_counter()
    time.sleep(plan.idle_s)
    for system in systems:
        seconds = time.perf_counter() - began
        after = system.cpu_s()
        report.idle[system.name] = {
            name: (cpu_s - before[system.name][name]) / seconds for name, cpu_s in after.items()
        }


def _failovers(plan: ClusterPlan, kinds: list[type[System]], home: Path, report: ClusterReport) -> None:
    # One system at a time: a node that starts again takes a core for a while.
    for kind in kinds:
        with ExitStack() as stack:
            for system in _start([kind], plan.flushes[-1], home / "failover", stack, report):
                for times, killed in ((plan.stops, False), (plan.kills, True)):
                    if not times:
                        continue
                    try:
                        report.gaps.append(measure(system, times, killed=killed))
                    except BenchError as error:
                        fail(report.failures, f"{system.title}, nodes that go: {error}")


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
