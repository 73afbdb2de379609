"""``transform``: SQL from topics to a topic. The same as a pipeline file with one step, without the file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from penstock.spark.pipelines.builtin import Arguments, Builtin, WrongArgument, option, understood
from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.model import Mode, OnBad, Pipeline, PipelineHead, SinkKind, SinkTable, SourceTable, Step
from penstock.spark.pipelines.values import check_schema, duration_ms, start_options

if TYPE_CHECKING:
    from penstock.spark.pipelines.run import Execution

_OF_QUERY: Final = "[[steps]] sql: "
"""The prefix of problems with the query in a file."""


class TransformArguments(Arguments, frozen=True):
    """The arguments of ``transform``."""

    from_: Annotated[
        tuple[str, ...],
        option(
            "A topic to read; NAME=TOPIC sets another name for the query; repeat the option to join topics.",
            metavar="TOPIC",
        ),
    ] = msgspec.field(name="from")
    sql: Annotated[str, option("The query; @FILE reads it from a file.", metavar="QUERY")]
    to: Annotated[str, option("The topic to write; it is created if it does not exist.", metavar="TOPIC")]
    schema: Annotated[
        tuple[str, ...],
        option(
            'The fields of the JSON values, such as "id INT, amount DOUBLE"; NAME=FIELDS for one of several topics.',
            metavar="FIELDS",
        ),
    ] = ()
    watermark: Annotated[
        tuple[str, ...],
        option(
            'How late a row may be and still count, such as "10 minutes"; NAME=TIME for one of several topics.',
            metavar="TIME",
        ),
    ] = ()
    event_time: Annotated[
        tuple[str, ...],
        option("The column with the event time; NAME=COLUMN for one of several topics.", metavar="COLUMN"),
    ] = ()
    on_bad: Annotated[OnBad, option("What to do with values that do not match the schema.")] = OnBad.NULL
    start: Annotated[
        str, option("Where the first run starts: earliest, latest, a time, or offsets as JSON.", metavar="PLACE")
    ] = "earliest"
    key: Annotated[str, option("An SQL expression for the key.", metavar="EXPRESSION")] = ""
    value: Annotated[
        str, option("An SQL expression for the value.  [default: the columns as JSON]", metavar="EXPRESSION")
    ] = ""
    mode: Annotated[Mode, option("Which rows of a changing result to write.")] = Mode.APPEND

    def subject(self) -> str:
        """The topics that are read and written."""
        return "-".join([*(text.rpartition("=")[2] for text in self.from_), self.to])


def run(arguments: TransformArguments, context: Execution) -> None:
    """Run SQL from topics to a topic, exactly once.

    With --schema, values are parsed as JSON, and each field is a column. Windows and joins need --watermark, so that Spark can discard old
    state. Without a schema, the columns are those of format("penstock"): key, value, topic, partition, offset, timestamp.
    """
    from penstock.spark.pipelines.run import run_file

    run_file(pipeline_of(arguments, context.name), context)


def pipeline_of(arguments: TransformArguments, name: str) -> Pipeline:
    """The pipeline, checked like one from a file."""
    from penstock.spark.pipelines.loading import checked

    topics = dict(_split(text) for text in arguments.from_)
    if len(topics) < len(arguments.from_):
        raise WrongArgument("from", "Two topics have the same name in the query; specify --from NAME=TOPIC")
    if arguments.to in topics.values():
        raise WrongArgument(
            "to",
            f"{arguments.to} is also read, so the pipeline would process its own output endlessly; write to another topic",
        )
    schemas = _by_name("--schema", arguments.schema, topics)
    watermarks = _by_name("--watermark", arguments.watermark, topics)
    times = _by_name("--event-time", arguments.event_time, topics)
    understood("start", start_options, arguments.start)
    for schema in schemas.values():
        understood("schema", check_schema, schema)
    for watermark in watermarks.values():
        understood("watermark", duration_ms, watermark)
    sources = {
        view: SourceTable(
            topics=topic,
            start=arguments.start,
            schema=schemas.get(view, ""),
            on_bad=arguments.on_bad if view in schemas else OnBad.NULL,
            watermark=watermarks.get(view, ""),
            event_time=times.get(view, ""),
        )
        for view, topic in topics.items()
    }
    sink = SinkTable(
        kind=SinkKind.TOPIC, topic=arguments.to, key=arguments.key, value=arguments.value, mode=arguments.mode
    )
    steps = [Step(sql=_query(arguments.sql))]
    try:
        return checked(Pipeline(head=PipelineHead(name=name), sources=sources, steps=steps, sinks=[sink]))
    except PipelineUsageError as error:
        if not str(error).startswith(_OF_QUERY):
            raise
        raise WrongArgument("sql", str(error).replace(_OF_QUERY, "")) from None


def _split(text: str) -> tuple[str, str]:
    name, equals, topic = text.partition("=")
    return (name.strip(), topic.strip()) if equals else (text.strip(), text.strip())


def _by_name(flag: str, texts: Iterable[str], topics: dict[str, str]) -> dict[str, str]:
    """An option of each source: ``NAME=VALUE``, or one value for all."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name.strip() in topics:
            found[name.strip()] = value.strip()
        elif flag == "--schema" and len(topics) > 1:
            raise PipelineUsageError(
                f'{flag} {text!r}: there are several topics; write {flag} "{next(iter(topics))}={text}"'
            )
        else:
            found |= {each: text.strip() for each in topics if each not in found}
    return found


def _query(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineUsageError(f"--sql {text}: cannot be read: {error}") from error


def check(arguments: TransformArguments) -> None:
    """Check the arguments."""
    pipeline_of(arguments, "transform")


BUILTIN = Builtin("transform", TransformArguments, run, streams=True, check=check)
