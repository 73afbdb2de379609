"""The dead letters that topics, a state and an SQL condition select, for ``dlq-report`` and ``redrive``."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.preflight import check_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.pipelines.run import Execution


def letters(
    context: Execution,
    *,
    topics: Sequence[str],
    where: str,
    columns: Collection[str],
    state: str | None = None,
    http: str = "",
) -> DataFrame:
    """The selected dead letters, with these columns and those in the condition.

    Others, such as values, are not read: Spark does not omit columns of a source by itself.
    """
    if context.reaches_broker:
        check_broker(context.brokers)
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    from penstock.spark.pipelines.plan import spark_text
    from penstock.spark.tables.dead_letters import DeadLettersTable

    every = DeadLettersTable.columns
    wanted = {*columns, *mentioned(where, every.names)} | ({"state"} if state is not None else set())
    schema = StructType([field for field in every.fields if field.name in wanted])
    reader = context.spark().read.format("penstock").schema(schema)
    reader = reader.option("table", DeadLettersTable.name).options(**context.brokers)
    if topics:
        reader = reader.option("topic", ",".join(topics))
    if http:
        reader = reader.option("http", http)
    found = reader.load()
    if state is not None:
        found = found.where(found.state == state)
    if not where.strip():
        return found
    try:
        found = found.where(where)
        # Spark Connect analyzes a query only on demand.
        assert found.columns
    except (AnalysisException, ParseException) as error:
        raise PipelineUsageError(
            f"--where {where!r} is not a valid condition on dead letters: {spark_text(error).rstrip('.')}. "
            f"The columns are {', '.join(every.names)}"
        ) from error
    return found


def mentioned(where: str, columns: Collection[str]) -> set[str]:
    """The columns whose names occur in a condition, in any case: possibly more than it needs, never fewer."""
    words = {word.lower() for word in re.findall(r"\w+", where)}
    return {column for column in columns if column.lower() in words}


def moment(unix_ms: int | None) -> str | None:
    """A time as text."""
    if unix_ms is None:
        return None
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
