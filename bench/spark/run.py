"""The order of a run of the Spark connector beside its ceilings.

Invariant: a row's two systems run one right after the other, in an order that turns with every round, on one warm session; the first round
does not count. The broker is a process of its own on the same machine, so its work is in Penstock's numbers and in no ceiling's.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.saying import fail, machine, say
from bench.spark.ceilings import CeilingSource, ready_batch
from bench.spark.rows import ROWS, Bench, rows_of, topic_of
from penstock.bench.context import Options
from penstock.bench.faults import BenchError
from penstock.client import Admin, Cluster, watermarks
from penstock.client.batches import BatchSender
from penstock.records.batch import Compression
from penstock.records.columnar import encode
from penstock.testing.process import BrokerProcess

CHUNK_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """What to run."""

    only: list[str]
    rounds: int
    rows: int
    flush: str


@dataclass(frozen=True, slots=True)
class Timed:
    """One query: rows and the seconds they took."""

    name: str
    system: str
    round: int
    rows: int
    seconds: float


@dataclass(slots=True)
class SparkReport:
    """What a run found."""

    machine: dict[str, str | int | float]
    failures: list[str] = field(default_factory=list)
    results: list[Timed] = field(default_factory=list)


def run(plan: SparkPlan) -> SparkReport:
    """Run everything; a row that fails is noted, and the rest continues."""
    about = machine(plan.rounds, 1, Options())
    about["method"] = (
        f"best of {plan.rounds} rounds after one that did not count; {plan.rows} rows of 100 B a query (a quarter of 1000 B), "
        f"local[2], broker on the same cores, flush={plan.flush}"
    )
    report = SparkReport(about)
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    # The tasks import the ceiling from here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    from penstock.spark import session

    spark = session(
        "penstock bench",
        "local[2]",
        **{"spark.driver.memory": "2g", "spark.local.dir": str(home), "spark.ui.showConsoleProgress": False},
    )
    try:
        spark.dataSource.register(CeilingSource)
        settings = {"log.flush": plan.flush}
        with BrokerProcess(home / "data", settings, http="127.0.0.1:0") as broker:
            bench = Bench(spark, broker.bootstrap, home, plan.rows)
            _fill(bench)
            for turn in range(-1, plan.rounds):
                say(f"round {turn + 1} of {plan.rounds}" if turn >= 0 else "round that does not count")
                _round(bench, plan, turn, report)
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)
    return report


def _round(bench: Bench, plan: SparkPlan, turn: int, report: SparkReport) -> None:
    for row in ROWS:
        if plan.only and row.name not in plan.only:
            continue
        for system in ("penstock", "ceiling") if turn % 2 else ("ceiling", "penstock"):
            started = time.perf_counter()
            try:
                rows = row.run(bench, system)
            except Exception as error:  # noqa: BLE001  whatever a query fails of, the others are measured
                fail(report.failures, f"{row.name} of {system}: {str(error)[:500]}")
                continue
            seconds = time.perf_counter() - started
            say(f"  {row.name:<16} {system:<9} {rows / seconds / 1000:8.0f} k rows/s")
            if turn >= 0:
                report.results.append(Timed(row.name, system, turn, rows, seconds))


def _fill(bench: Bench) -> None:
    """The topics that the rows read, from one chunk that is encoded once and sent again and again."""
    with Cluster(bench.bootstrap) as cluster:
        admin = Admin(cluster)
        for tasks in (1, 2):
            admin.create_topic(f"bench-write-{tasks}", partitions=2)
            for value_bytes in (100, 1000):
                topic = topic_of(value_bytes, tasks)
                # The records are of a fixed day: retention would take them for old.
                admin.create_topic(topic, partitions=tasks, configs={"retention.ms": "-1"})
                columns = ready_batch(CHUNK_ROWS, value_bytes)
                batches = encode(
                    value=columns.column("value"),
                    key=columns.column("key"),
                    headers=None,
                    timestamps_ms=pa.array(np.full(CHUNK_ROWS, 1_767_225_600_000)),
                    compression=Compression.NONE,
                    batch_bytes_max=1_000_000,
                    batch_records_max=CHUNK_ROWS,
                )
                sender = BatchSender(cluster)
                for partition in range(tasks):
                    for _ in range(rows_of(bench, value_bytes) // tasks // CHUNK_ROWS):
                        for batch in batches:
                            count = int.from_bytes(batch[57:61], "big")
                            sender.send(topic, partition, bytearray(batch), count)
                sender.flush()
                _check_filled(cluster, topic, tasks, rows_of(bench, value_bytes))


def _check_filled(cluster: Cluster, topic: str, partitions: int, rows: int) -> None:
    """A row that reads less than it counts would measure nothing."""
    spans = watermarks(cluster, [(topic, partition) for partition in range(partitions)]).values()
    found = sum(end - start for start, end in spans)
    if found != rows:
        raise BenchError(f"{topic} has {found} records where {rows} were sent: --rows must be a multiple of 400,000")
