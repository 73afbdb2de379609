"""The rows of the Spark benchmark: each one query, once on Penstock and once on the ceiling.

Invariant: the two of a row differ in ``format(...)`` and its options alone, and both handle the same number of rows.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.bench.faults import BenchError

PER_TRIGGER = 1_000_000


@dataclass(frozen=True, slots=True)
class Bench:
    """What every query needs."""

    spark: SparkSession
    bootstrap: str
    scratch: Path
    rows: int


@dataclass(frozen=True, slots=True)
class SparkRow:
    """One row: ``run(bench, system)`` returns how many rows went through. ``system`` is penstock or ceiling."""

    name: str
    title: str
    run: Callable[[Bench, str], int]


def topic_of(value_bytes: int, tasks: int) -> str:
    """The topic that a row reads: one partition a task."""
    return f"bench-{value_bytes}-{tasks}"


def rows_of(bench: Bench, value_bytes: int) -> int:
    """Fewer of the large ones, so that a row takes about as long."""
    return bench.rows if value_bytes <= 100 else bench.rows // 4


def _options(bench: Bench, system: str, value_bytes: int, tasks: int) -> dict[str, str]:
    if system == "ceiling":
        rows = rows_of(bench, value_bytes)
        return {
            "rows": str(rows),
            "tasks": str(tasks),
            "valueBytes": str(value_bytes),
            "perTrigger": str(PER_TRIGGER),
        }
    return {
        "kafka.bootstrap.servers": bench.bootstrap,
        "subscribe": topic_of(value_bytes, tasks),
        "startingOffsets": "earliest",
    }


def _source(bench: Bench, system: str, value_bytes: int, tasks: int) -> DataFrame:
    return bench.spark.read.format(system).options(**_options(bench, system, value_bytes, tasks)).load()


def _read(value_bytes: int, tasks: int) -> Callable[[Bench, str], int]:
    def run(bench: Bench, system: str) -> int:
        _source(bench, system, value_bytes, tasks).write.format("noop").mode("overwrite").save()
        return rows_of(bench, value_bytes)

    return run


def _read_to_parquet(tasks: int) -> Callable[[Bench, str], int]:
    def run(bench: Bench, system: str) -> int:
        folder = bench.scratch / uuid.uuid4().hex
        _source(bench, system, 100, tasks).write.parquet(str(folder))
        shutil.rmtree(folder)
        return bench.rows

    return run


def _write(tasks: int, **options: str) -> Callable[[Bench, str], int]:
    def run(bench: Bench, system: str) -> int:
        made = bench.spark.range(0, bench.rows, 1, tasks).selectExpr(
            "CAST(lpad(CAST(id AS STRING), 100, 'x') AS BINARY) AS value"
        )
        writer = made.write.format(system).mode("append")
        if system == "penstock":
            given = {"kafka.bootstrap.servers": bench.bootstrap, "topic": f"bench-write-{tasks}", **options}
            writer = writer.options(**given)
        writer.save()
        return bench.rows

    return run


def _stream(sink: str) -> Callable[[Bench, str], int]:
    def run(bench: Bench, system: str) -> int:
        place = bench.scratch / uuid.uuid4().hex
        options = _options(bench, system, 100, 2)
        if system == "penstock":
            options["maxOffsetsPerTrigger"] = str(PER_TRIGGER)
        stream = bench.spark.readStream.format(system).options(**options).load().writeStream.format(sink)
        if sink == "parquet":
            stream = stream.option("path", str(place / "lake"))
        query = stream.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        handled = sum(progress["numInputRows"] for progress in query.recentProgress)
        shutil.rmtree(place)
        if handled != bench.rows:
            raise BenchError(f"{handled} rows of {bench.rows} went through")
        return int(handled)

    return run


ROWS = (
    SparkRow("read-1", "batch read, 100 B, 1 task", _read(100, 1)),
    SparkRow("read-2", "batch read, 100 B, 2 tasks", _read(100, 2)),
    SparkRow("read-1000-1", "batch read, 1000 B, 1 task", _read(1000, 1)),
    SparkRow("read-1000-2", "batch read, 1000 B, 2 tasks", _read(1000, 2)),
    SparkRow("parquet-1", "batch read into Parquet, 100 B, 1 task", _read_to_parquet(1)),
    SparkRow("parquet-2", "batch read into Parquet, 100 B, 2 tasks", _read_to_parquet(2)),
    SparkRow("write-1", "batch write, 100 B, 1 task, all or nothing", _write(1)),
    SparkRow("write-2", "batch write, 100 B, 2 tasks, all or nothing", _write(2)),
    SparkRow("write-direct-2", "batch write, 100 B, 2 tasks, exactlyOnce=false", _write(2, exactlyOnce="false")),
    SparkRow("stream", "stream of 1 M rows a batch, 100 B, 2 tasks, dropped", _stream("noop")),
    SparkRow("stream-parquet", "stream of 1 M rows a batch, 100 B, 2 tasks, into Parquet", _stream("parquet")),
)
