"""The order of a run of the gateways beside Redis.

Invariant: a row of Penstock and its counterpart run one right after the other, in an order that turns with every round; a counterpart of several rows
runs once a round. Every process that was started is stopped, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bench.gateways.redis_rows import COUNTERPARTS, REDIS_BY_NAME
from bench.peers.base import Flush, P, start_each
from bench.peers.penstock import PenstockWithGateways
from bench.peers.redis import Redis
from bench.results import Result
from bench.saying import fail, machine, say
from penstock.bench.context import Case, Options
from penstock.bench.faults import BenchError
from penstock.bench.gateways.workloads import GATEWAY_WORKLOADS
from penstock.bench.rows import Row
from penstock.bench.run import run_case, select

KAFKA_DELIVERY = "delivery-kafka"
_KAFKA_DELIVERY_CASE = Case(replace(select(["delivery"])[0], name=KAFKA_DELIVERY), "all")
_CASES = {workload.name: Case(workload) for workload in GATEWAY_WORKLOADS} | {KAFKA_DELIVERY: _KAFKA_DELIVERY_CASE}
NAMES = tuple(_CASES)


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """What to run."""

    only: list[str]
    flushes: list[Flush]
    with_redis: bool
    rounds: int
    warm_rounds: int
    options: Options


@dataclass(slots=True)
class GatewayReport:
    """What a run found."""

    machine: dict[str, str | int | float]
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """One row of one system with one flush setting."""

    system: str
    flush: str
    name: str
    run: Callable[[], Row]


def run(plan: GatewayPlan) -> GatewayReport:
    """Run everything; a row that fails is noted, and the rest continues."""
    report = GatewayReport(machine(plan.rounds, plan.warm_rounds, plan.options))
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        with ExitStack() as stack:
            penstocks = _started(PenstockWithGateways, plan, home, report, stack)
            redises = _started(Redis, plan, home, report, stack) if plan.with_redis else {}
            names = [name for name in NAMES if not plan.only or name in plan.only]
            for turn in range(-plan.warm_rounds, plan.rounds):
                say(f"round {turn + 1} of {plan.rounds}" if turn >= 0 else "round that does not count")
                done: set[tuple[str, str]] = set()
                for name in names:
                    steps = _steps(name, plan, penstocks, redises, report, done)
                    shift = turn % max(1, len(steps))
                    for step in steps[shift:] + steps[:shift]:
                        _one(step, turn, report)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return report


def _started(kind: type[P], plan: GatewayPlan, home: Path, report: GatewayReport, stack: ExitStack) -> dict[Flush, P]:
    if reason := kind.why_missing():
        report.missing[kind.name] = reason
        say(f"leaving out {kind.name}: {reason}")
        return {}
    return start_each(kind, plan.flushes, home, report.failures, stack)


def _steps(
    name: str,
    plan: GatewayPlan,
    penstocks: dict[Flush, PenstockWithGateways],
    redises: dict[Flush, Redis],
    report: GatewayReport,
    done: set[tuple[str, str]],
) -> list[_Step]:
    """A row of Penstock and its counterpart, with each flush setting; a counterpart that ran in this round already is left out."""
    steps = []
    for flush in plan.flushes:
        if flush in penstocks:
            step = _penstock_step(name, penstocks[flush], plan.options, report)
            steps += [step] if step else []
        counterpart = REDIS_BY_NAME[COUNTERPARTS[name]]
        if flush in redises and (counterpart.name, flush.value) not in done:
            done.add((counterpart.name, flush.value))
            measure = partial(counterpart.run, redises[flush], plan.options, counterpart.name)
            steps.append(_Step("redis", flush.value, counterpart.name, measure))
    return steps


def _penstock_step(name: str, peer: PenstockWithGateways, options: Options, report: GatewayReport) -> _Step | None:
    endpoints, case = peer.endpoints(), _CASES[name]
    if reason := case.workload.why_not(endpoints):
        if name not in report.missing:
            report.missing[name] = reason
            say(f"leaving out {name}: {reason}")
        return None
    return _Step("penstock", peer.flush.value, name, lambda: run_case(case, endpoints, peer.pid, options))


def _one(step: _Step, turn: int, report: GatewayReport) -> None:
    # What the step before has left in the page cache is written back now, not during this measurement.
    os.sync()
    try:
        row = step.run()
    except BenchError as error:
        fail(report.failures, f"{step.system}, flush = {step.flush}, {step.name}: {error}")
        return
    p50 = f", p50 {row.p50_us:,.0f} us" if row.p50_us is not None else ""
    say(f"  {step.system:9} {step.flush:5} {step.name:22} {row.records_per_s:12,.0f} records/s{p50}")
    if turn >= 0:
        report.results.append(Result(step.system, step.flush, turn, row))
