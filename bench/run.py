"""The order of a side-by-side run: every system at every row, in turn, over several rounds.

Invariant: the systems run one after the other within a row, in an order that shifts from round to round, so that other load on the machine
affects all alike. Every process that was started is stopped, whatever happens.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.clients import ALL_WORKLOADS, is_installed
from bench.cost import measure_cost
from bench.peers.base import Flush, Peer, start_each
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.penstock import Penstock
from bench.peers.redis import Redis
from bench.results import Report, Result
from bench.saying import fail, machine, say
from penstock.bench.context import Case, Options, WorkloadKind
from penstock.bench.faults import BenchError
from penstock.bench.run import cases_of, select

PEERS: tuple[type[Peer], ...] = (Penstock, Kafka, Redis, Nats)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    peers: list[str]
    only: list[str]
    flushes: list[Flush]
    acks: list[str]
    rounds: int
    warm_rounds: int
    options: Options
    cost: bool
    partitions: int


def run(plan: Plan) -> Report:
    """Run everything; a row that fails is noted, and the rest continues."""
    report = Report(machine=machine(plan.rounds, plan.warm_rounds, plan.options))
    kinds = _present(plan, report)
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        if plan.rounds:
            _rows(plan, kinds, home, report)
        if plan.cost:
            for kind in kinds:
                say(f"cost of {kind.title}")
                try:
                    report.costs.append(measure_cost(kind, home / f"cost-{kind.name}", plan.partitions))
                except BenchError as error:
                    fail(report.failures, f"{kind.name}, cost: {error}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return report


def _present(plan: Plan, report: Report) -> list[type[Peer]]:
    kinds = []
    for kind in PEERS:
        if kind.name not in plan.peers:
            continue
        reason = kind.why_missing()
        if reason is None:
            kinds.append(kind)
            report.systems[kind.name] = kind.title
        else:
            report.missing[kind.name] = reason
            say(f"leaving out {kind.name}: {reason}")
    if not is_installed():
        report.missing["confluent-kafka"] = "not installed; run pip install 'penstock[bench]' for the client rows"
        say("leaving out the client rows: confluent-kafka is not installed")
    return kinds


def _rows(plan: Plan, kinds: list[type[Peer]], home: Path, report: Report) -> None:
    cases = cases_of(select(plan.only, ALL_WORKLOADS), plan.acks)
    if "confluent-kafka" in report.missing:
        cases = [case for case in cases if case.workload.kind is not WorkloadKind.CLIENT]
    with ExitStack() as stack:
        started: list[Peer] = []
        for kind in kinds:
            started += start_each(kind, plan.flushes, home, report.failures, stack).values()
        # Rounds that do not count come first, for every system alike: a virtual machine that compiles as it runs needs them.
        for turn in range(-plan.warm_rounds, plan.rounds):
            name = f"round {turn + 1} of {plan.rounds}" if turn >= 0 else "round that does not count"
            for index, case in enumerate(cases):
                say(f"{name}, row {index + 1} of {len(cases)}: {case.id}")
                shift = turn % max(1, len(started))
                for peer in started[shift:] + started[:shift]:
                    _one(peer, case, turn, plan.options, report)


def _one(peer: Peer, case: Case, turn: int, options: Options, report: Report) -> None:
    # Only acks=all promises the disk, so only that is compared where the disk is waited for.
    if peer.flush is Flush.SYNC and case.acks != "all":
        return
    # What the system before has left in the page cache is written back now, not during this measurement.
    os.sync()
    try:
        row = peer.run(case, options)
    except BenchError as error:
        fail(report.failures, f"{peer.name}, flush = {peer.flush.value}, {case.id}: {error}")
        return
    if row is not None and turn >= 0:
        report.results.append(Result(peer.name, peer.flush.value, turn, row))
