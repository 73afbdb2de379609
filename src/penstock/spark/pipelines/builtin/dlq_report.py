"""``penstock pipeline dlq-report``: dead letters grouped by topic, group and reason, with their number, first and last time, and a sample."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

from penstock.spark.pipelines.builtin import Arguments, Builtin, WrongArgument, argument, option
from penstock.spark.pipelines.builtin.dead_letters import letters, moment
from penstock.text import text_of

if TYPE_CHECKING:
    from pyspark.sql import Row

    from penstock.spark.pipelines.run import Execution

SAMPLE_BYTES_MAX: Final = 1_024
"""The maximum length of a sample's value."""
ROWS_MAX: Final = 10_000
_TABLE: Final = ("topic", "group", "reason", "count", "first_seen", "last_seen", "sample")


class Which(StrEnum):
    """Which dead letters are counted."""

    OPEN = "open"
    FINISHED = "finished"
    ALL = "all"


class DlqReportArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of ``dlq-report``."""

    topics: Annotated[tuple[str, ...], argument("TOPIC", "Original topics of the dead letters; all by default.")] = ()
    where: Annotated[
        str,
        option("An SQL condition on the columns of the table dead_letters.", metavar="SQL", short="-w"),
    ] = ""
    state: Annotated[Which, option("Dead letters that are open, that were redriven or purged, or all.")] = Which.OPEN
    limit: Annotated[int, option("Maximum number of rows, most frequent first.", metavar="N", short="-n")] = 100


def run(arguments: DlqReportArguments, context: Execution) -> None:
    """Show dead letters, grouped by topic, group and reason.

    The most frequent are first, with the times of the first and the last one, and the value of the last one. Use a condition for
    details: --where "reason LIKE '%timeout%' AND died_at > now() - interval 1 day".
    """
    check(arguments)
    from pyspark.sql import functions as f

    found = letters(
        context,
        topics=arguments.topics,
        where=arguments.where,
        columns=(
            "topic",
            "group",
            "reason",
            "attempts",
            "died_at",
            "value",
            "dlq_topic",
            "dlq_partition",
            "dlq_offset",
        ),
        state=None if arguments.state is Which.ALL else arguments.state.value,
    )
    sample = f.struct(
        f.substring("value", 1, SAMPLE_BYTES_MAX).alias("value"),
        (f.octet_length("value") > SAMPLE_BYTES_MAX).alias("cut"),
        "dlq_topic",
        "dlq_partition",
        "dlq_offset",
    )
    groups = (
        found.groupBy("topic", "group", "reason")
        .agg(
            f.count("*").alias("count"),
            f.unix_millis(f.min("died_at")).alias("first_ms"),
            f.unix_millis(f.max("died_at")).alias("last_ms"),
            f.max("attempts").alias("attempts_max"),
            f.max_by(sample, f.struct("died_at", "dlq_partition", "dlq_offset")).alias("sample"),
        )
        .orderBy(f.desc("count"), "topic", "group", "reason")
        .limit(arguments.limit)
    )
    rows = [_row(row) for row in groups.collect()]
    state = "" if arguments.state is Which.ALL else f"{arguments.state.value} "
    context.emit(rows, _TABLE, nothing=f"no {state}dead letters match")


def check(arguments: DlqReportArguments) -> None:
    """Check the number of rows. Only Spark can check the condition."""
    if not 1 <= arguments.limit <= ROWS_MAX:
        raise WrongArgument("limit", f"{arguments.limit} is not a number from 1 to {ROWS_MAX}")


def _row(row: Row) -> dict[str, object]:
    sample = row["sample"]
    value = None if sample["value"] is None else bytes(sample["value"])
    if value is not None and sample["cut"]:
        value = _whole_characters(value)
    text, encoding = text_of(value)
    return {
        "topic": row["topic"],
        "group": row["group"],
        "reason": row["reason"],
        "count": row["count"],
        "first_seen": moment(row["first_ms"]),
        "last_seen": moment(row["last_ms"]),
        "attempts_max": row["attempts_max"],
        "sample": text,
        **({"sample_encoding": encoding} if encoding else {}),
        "sample_record": f"{sample['dlq_topic']}/{sample['dlq_partition']}@{sample['dlq_offset']}",
    }


def _whole_characters(value: bytes) -> bytes:
    """Text without an incomplete character at its end. Other bytes are unchanged."""
    for end in range(len(value), max(0, len(value) - 4), -1):
        try:
            value[:end].decode()
        except UnicodeDecodeError:
            continue
        return value[:end]
    return value


BUILTIN: Final = Builtin("dlq-report", DlqReportArguments, run, streams=False, check=check)
