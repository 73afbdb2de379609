"""``stats``: statistics of topics by time window, written to a topic, a table, or both.

Windows use the records' timestamps. Latency is the time from a record's timestamp to the batch of this pipeline that read it. In a topic, a
window's row is written again whenever it changes, with the topic and the window as its key, so that a compacted topic keeps the last one. In
a table, it is written once, when the window is final: after records that are ``lateness`` later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.builtin import Arguments, Builtin, argument, option, understood
from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.model import Mode, Pipeline, PipelineHead, SinkKind, SinkTable, SourceTable, Step
from penstock.spark.pipelines.values import duration_ms, interval_of, start_options

if TYPE_CHECKING:
    from penstock.spark.pipelines.run import Execution

_QUERY: Final = """
    SELECT window.start AS window_start, window.end AS window_end, topic,
           count(*) AS records, sum(size) AS bytes, approx_count_distinct(key) AS keys,
           percentile_approx(latency_ms, 0.5) AS latency_ms_p50,
           percentile_approx(latency_ms, 0.99) AS latency_ms_p99,
           max(latency_ms) AS latency_ms_max
    FROM (SELECT timestamp, topic, key, coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS size,
                 unix_millis(current_timestamp()) - unix_millis(timestamp) AS latency_ms
          FROM records)
    GROUP BY window(timestamp, 'WINDOW'), topic
"""


class StatsArguments(Arguments, frozen=True):
    """The arguments of ``stats``."""

    topics: Annotated[tuple[str, ...], argument("TOPIC...", "The topics to measure.")]
    to: Annotated[str, option("The topic for the results; it is created if it does not exist.", metavar="TOPIC")] = ""
    table: Annotated[str, option("The folder or URI of a table for the results.", metavar="PATH")] = ""
    format: Annotated[LakeFormat, option("The format of the table.")] = LakeFormat.PARQUET
    every: Annotated[str, option("The length of a window.", metavar="TIME")] = "1 minute"
    lateness: Annotated[str, option("How late a record may be and still count.", metavar="TIME")] = "1 minute"
    start: Annotated[
        str, option("Where the first run starts: earliest, latest, a time, or offsets as JSON.", metavar="PLACE")
    ] = "earliest"


def run(arguments: StatsArguments, context: Execution) -> None:
    """Compute records, bytes, keys and latency of topics by time window.

    Each row has window_start, window_end, topic, records, bytes (of keys and values), keys (the number of distinct ones, within 5 %), and
    latency_ms_p50, latency_ms_p99, latency_ms_max: from a record's timestamp until this pipeline read it.
    """
    from penstock.spark.pipelines.run import run_file

    run_file(pipeline_of(arguments, context.name), context)


def pipeline_of(arguments: StatsArguments, name: str) -> Pipeline:
    """The pipeline, checked like one from a file."""
    from penstock.spark.pipelines.loading import checked

    if not arguments.to and not arguments.table:
        raise PipelineUsageError("stats: specify where to write the results: --to TOPIC, --table PATH, or both")
    query = _QUERY.replace("WINDOW", understood("every", interval_of, arguments.every))
    understood("lateness", duration_ms, arguments.lateness)
    understood("start", start_options, arguments.start)
    source = SourceTable(
        topics=list(arguments.topics), start=arguments.start, watermark=arguments.lateness, as_="records"
    )
    sinks = []
    if arguments.to:
        key = "concat(topic, '@', date_format(window_start, \"yyyy-MM-dd'T'HH:mm:ssX\"))"
        sinks.append(SinkTable(kind=SinkKind.TOPIC, topic=arguments.to, key=key, mode=Mode.UPDATE, name="topic"))
    if arguments.table:
        sinks.append(SinkTable(kind=SinkKind(arguments.format.value), path=arguments.table, name="table"))
    return checked(
        Pipeline(head=PipelineHead(name=name), sources={"records": source}, steps=[Step(sql=query)], sinks=sinks)
    )


def check(arguments: StatsArguments) -> None:
    """Check the arguments."""
    pipeline_of(arguments, "stats")


BUILTIN = Builtin("stats", StatsArguments, run, streams=True, check=check)
