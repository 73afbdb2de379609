"""The progress of a query: the important numbers from Spark's reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.spark.pipelines.registry import QueryStatus

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(slots=True)
class QueryProgress:
    """The progress of one query, polled periodically."""

    name: str
    query: StreamingQuery
    _query_id: str = ""
    _seen: str = ""
    _batch: int = -1
    _rows: int = 0
    _status: QueryStatus | None = field(default=None)

    def __post_init__(self) -> None:
        self._query_id = str(self.query.id)

    @property
    def status(self) -> QueryStatus:
        """The last known status."""
        return self._status or QueryStatus(name=self.name, query_id=self._query_id)

    def ask(self) -> bool:
        """Poll; whether there is a new report."""
        last = self.query.lastProgress
        if last is None or last.timestamp == self._seen:
            return False
        # Each report takes many calls to Java: get the others only if some were missed. Spark keeps a hundred.
        missed = self._batch < 0 or last.batchId > self._batch + 1
        for each in self.query.recentProgress if missed else [last]:
            if each.timestamp > self._seen:
                self._rows += each.numInputRows or 0
        self._batch = last.batchId
        self._seen = last.timestamp
        self._status = status_of(self.name, json.loads(last.json), self._rows)
        return True


def status_of(name: str, progress: Mapping[str, object], rows: int) -> QueryStatus:
    """The numbers of one report."""
    sources = progress.get("sources") or []
    assert isinstance(sources, list)
    lags = [lag_of(source.get("endOffset"), source.get("latestOffset")) for source in sources]
    known = [lag for lag in lags if lag is not None]
    durations = progress.get("durationMs") or {}
    assert isinstance(durations, dict)
    return QueryStatus(
        name=name,
        query_id=str(progress["id"]),
        batch_id=int(str(progress["batchId"])),
        rows=rows,
        rows_per_second=float(str(progress.get("processedRowsPerSecond") or 0.0)),
        batch_rows=int(str(progress.get("numInputRows") or 0)),
        batch_ms=int(durations.get("triggerExecution") or 0),
        lag=sum(known) if known else None,
        batch_at_ms=int(datetime.fromisoformat(str(progress["timestamp"])).timestamp() * 1000),
    )


def lag_of(done: object, latest: object) -> int | None:
    """Records between two offsets of a source, each ``{topic: {partition: offset}}`` or JSON of it; None for anything else."""
    at, end = _offsets(done), _offsets(latest)
    if at is None or end is None:
        return None
    lag = 0
    for topic, partitions in end.items():
        for partition, offset in partitions.items():
            lag += max(0, offset - at.get(topic, {}).get(partition, 0))
    return lag


def _offsets(value: object) -> dict[str, dict[str, int]] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        return None
    return {topic: {str(number): int(offset) for number, offset in each.items()} for topic, each in value.items()}
