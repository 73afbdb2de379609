"""The order of a run: every load at every system that it is compared on, in turn, over several rounds.

Invariant: all systems are up from the beginning and only one has a load at any time; in every other round they come in the reverse order, so that other load
on the machine affects all alike. A ratio is of two measurements of the same round. The first rounds do not count, since a Java process is slow until its code is
compiled, and no round begins after the time is up. Every process that was started is stopped, whatever happens.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.base import Peer
from bench.saying import fail, machine, say
from bench.security.loads import BY_NAME, LOADS, VALUE, Limits, Load, Sample, measure
from bench.security.systems import (
    ALL,
    KAFKA,
    KAFKA_TLS,
    OPEN,
    RULES,
    SEALED,
    TLS,
    VARIANTS,
    SecuredKafka,
    SecuredPenstock,
    Target,
)
from penstock.bench.context import Options
from penstock.bench.faults import BenchError
from penstock.client import ClientError

ORDER = (*(parts.name for parts in VARIANTS), KAFKA, KAFKA_TLS)
_OVER_KAFKA = ("produce-100", "produce-100x16", "produce-16k", "fetch-16k", "fetch-1m", "connect")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems, and the loads of both."""

    title: str
    base: str
    other: str
    heads: tuple[str, str]
    loads: tuple[str, ...]


COMPARISONS = (
    Comparison("TLS in Penstock", RULES.name, TLS.name, ("plain", "TLS"), (*_OVER_KAFKA, "http", "grpc")),
    Comparison("TLS in Apache Kafka", KAFKA, KAFKA_TLS, ("plain", "TLS"), _OVER_KAFKA),
    Comparison("Penstock and Apache Kafka, both with TLS", KAFKA_TLS, TLS.name, ("Kafka", "Penstock"), _OVER_KAFKA),
    Comparison("A login and 5,000 access rules", OPEN.name, RULES.name, ("off", "on"), (*_OVER_KAFKA, "http", "grpc")),
    Comparison(
        "Encryption at rest",
        OPEN.name,
        SEALED.name,
        ("off", "on"),
        ("produce-100", "produce-16k", "produce-1m", "fetch-16k", "fetch-1m"),
    ),
    Comparison(
        "All of it",
        OPEN.name,
        ALL.name,
        ("off", "on"),
        ("produce-100", "produce-16k", "fetch-16k", "fetch-1m", "http", "grpc"),
    ),
)


@dataclass(frozen=True, slots=True)
class SecurityPlan:
    """What to run."""

    only: list[str]
    with_kafka: bool
    rounds: int
    warm_rounds: int
    minutes: float
    limits: Limits


@dataclass(slots=True)
class SecurityReport:
    """What a run found."""

    machine: dict[str, str | int | float]
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


def run(plan: SecurityPlan) -> SecurityReport:
    """Measure everything; what fails is noted, and the rest continues."""
    began = time.perf_counter()
    limits = plan.limits
    options = Options(limits.seconds, limits.warmup_s, value_bytes=len(VALUE), bytes_max=limits.bytes_max)
    report = SecurityReport(machine(plan.rounds, plan.warm_rounds, options))
    report.machine["method"] = (
        f"median of {plan.rounds} rounds (after {plan.warm_rounds} that did not count) of {limits.seconds:g} s, "
        f"one connection, {len(VALUE)} B values, flush = os, loopback"
    )
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        with ExitStack() as stack:
            targets = _targets(plan, home, report, stack)
            _rounds(plan, targets, began + plan.minutes * 60, report)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    report.machine["took"] = f"{(time.perf_counter() - began) / 60:.1f} minutes"
    return report


def systems_of(load: str) -> list[str]:
    """The systems of all comparisons in which a load appears."""
    wanted = {name for each in COMPARISONS if load in each.loads for name in (each.base, each.other)}
    return [name for name in ORDER if name in wanted]


def _rounds(plan: SecurityPlan, targets: dict[str, Target], until: float, report: SecurityReport) -> None:
    loads = [load for load in LOADS if not plan.only or load.name in plan.only]
    for turn in range(-plan.warm_rounds, plan.rounds):
        if turn > 0 and time.perf_counter() > until:
            say(f"{turn} of {plan.rounds} rounds, the time is up")
            report.machine["rounds that count"] = turn
            break
        say(f"round {turn + 1} of {plan.rounds}" if turn >= 0 else "round that does not count")
        for load in loads:
            names = [name for name in systems_of(load.name) if name in targets]
            for name in names[:: -1 if turn % 2 else 1]:
                _one(load, targets[name], turn, plan.limits, report)


def _one(load: Load, target: Target, turn: int, limits: Limits, report: SecurityReport) -> None:
    try:
        sample = measure(load, target, turn, limits)
    except (BenchError, ClientError, OSError) as error:
        fail(report.failures, f"{target.title}, {load.name}: {error}")
        return
    per_mb = f", {sample.cpu_ms_per_mb:.2f} ms per MB" if sample.cpu_ms_per_mb is not None else ""
    say(f"  {load.name:15} {target.name:10} CPU {sample.cpu_us_per_request:10.1f} us per request{per_mb}")
    if turn >= 0:
        report.samples.append(sample)


def _targets(plan: SecurityPlan, home: Path, report: SecurityReport, stack: ExitStack) -> dict[str, Target]:
    wanted = {name for load in plan.only or BY_NAME for name in systems_of(load)}
    targets: dict[str, Target] = {}
    if reason := SecuredPenstock.why_missing():
        report.missing["penstock"] = reason
        return targets
    for parts in VARIANTS:
        if parts.name in wanted:
            penstock = SecuredPenstock(home / parts.name, parts)
            _start(penstock, penstock.targets, targets, report, stack)
    if not plan.with_kafka:
        report.missing["Apache Kafka"] = "left out by --no-kafka"
    elif reason := SecuredKafka.why_missing():
        report.missing["Apache Kafka"] = reason
        say(f"leaving out Apache Kafka: {reason}")
    elif KAFKA in wanted:
        peer = SecuredKafka(home / "kafka")
        _start(peer, peer.targets, targets, report, stack)
    return targets


def _start(
    peer: Peer, ways: Callable[[], list[Target]], targets: dict[str, Target], report: SecurityReport, stack: ExitStack
) -> None:
    stack.callback(peer.stop)
    try:
        seconds = peer.start()
        targets.update({target.name: target for target in ways()})
    except (BenchError, ClientError, OSError) as error:
        fail(report.failures, f"{peer.title}: {error}")
        return
    say(f"{peer.title}: ready in {seconds:.1f} s")
