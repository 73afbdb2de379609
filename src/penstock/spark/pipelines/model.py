"""The content of a pipeline file: a struct for each table, with a description of each key. ``docs/pipelines.md`` contains these.

A ``Pipeline`` is complete and checked: names are unique, and the input of every step and sink exists.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from penstock.spark.lake.formats import LakeFormat

STEPS: Final = "steps"
"""The kind of a pipeline that is defined in its file, as opposed to a built-in."""
NAME_LENGTH_MAX: Final = 100
STEPS_MAX: Final = 100
SINKS_MAX: Final = 20
SOURCES_MAX: Final = 20


class OnBad(StrEnum):
    """What to do with a value that is not JSON, or does not match its schema."""

    NULL = "null"
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"


class SinkKind(StrEnum):
    """Where rows go."""

    TOPIC = "topic"
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    CONSOLE = "console"


class Mode(StrEnum):
    """Which rows of a changing result are written."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


def _says(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class TomlTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the tables of a file."""


class PipelineHead(TomlTable, frozen=True):
    """The name of the pipeline, and how it runs."""

    name: Annotated[
        str, _says("The name in `ls`, `status` and `stop`; defaults to the name of the file without `.toml`.")
    ] = ""
    description: Annotated[str, _says("A description for people.")] = ""
    kind: Annotated[
        str,
        _says(
            "`steps`: the pipeline is defined in this file. Otherwise the name of a built-in; a table of that name has its options."
        ),
    ] = STEPS
    bootstrap: Annotated[
        str, _says("Brokers to connect to first, `HOST:PORT[,...]`. `--bootstrap` takes precedence.")
    ] = ""
    kafka: Annotated[
        dict[str, str],
        _says(
            'TLS and credentials: the options of [Spark](spark.md#tls-and-credentials) without `kafka.`, such as `"security.protocol" = "SASL_SSL"`. Options of the command take precedence.'
        ),
    ] = {}
    checkpoint: Annotated[
        str,
        _says("The folder for Spark's checkpoints; defaults to a folder with the pipeline's name in the state folder."),
    ] = ""
    trigger: Annotated[
        str,
        _says(
            '`"10s"`: a batch every ten seconds; `"once"`: process all available records, then stop; by default, batches follow each other immediately.'
        ),
    ] = ""
    rate: Annotated[int | None, _says("Maximum records per batch, for each source.")] = None
    conf: Annotated[dict[str, str | int | float | bool], _says("Spark settings.")] = {}


class SourceTable(TomlTable, frozen=True):
    """Where rows are read from. One table `[source]`, or several `[sources.NAME]`."""

    topics: Annotated[str | list[str] | None, _says("A topic, or a list of topics.")] = None
    pattern: Annotated[str | None, _says("A regular expression (Java syntax) for topic names.")] = None
    table: Annotated[
        str | None,
        _says("Another table, such as `dead_letters` or `groups`; `topics` and `options` select its rows."),
    ] = None
    lake: Annotated[str | None, _says("The folder or URI of a lake.")] = None
    format: Annotated[LakeFormat, _says("The format of the lake.")] = LakeFormat.PARQUET
    static: Annotated[
        bool,
        _says("Read once when the pipeline starts, not as a stream: for joins with data that rarely changes."),
    ] = False
    start: Annotated[
        str | dict[str, dict[str, int]],
        _says(
            'Where the first run starts: `"earliest"`, `"latest"`, a time (`"2026-03-01T12:00:00Z"`), or offsets by topic and partition.'
        ),
    ] = "earliest"
    schema: Annotated[
        str, _says('Parse the value as JSON with these fields: `"id INT, amount DOUBLE"`. Each field becomes a column.')
    ] = ""
    on_bad: Annotated[OnBad, _says("What to do with a value that is not JSON or does not match the schema.")] = (
        OnBad.NULL
    )
    dead_letters: Annotated[
        str,
        _says(
            'The topic for these values with `on_bad = "dead_letter"`; defaults to the name of the first topic with `.bad` appended.'
        ),
    ] = ""
    event_time: Annotated[str, _says("The column with the event time; defaults to the record's timestamp.")] = ""
    watermark: Annotated[
        str,
        _says('How late a row may be and still count: `"10 minutes"`. Windows and joins need it to discard old state.'),
    ] = ""
    headers: Annotated[bool, _says("Add a column with the records' headers.")] = False
    options: Annotated[dict[str, str | int | float | bool], _says("Options of the Spark source.")] = {}
    as_: Annotated[
        str, _says("The name for use in steps; defaults to the topic's name, or `source` if there are several topics.")
    ] = msgspec.field(name="as", default="")


class Step(TomlTable, frozen=True):
    """One transformation of the rows; exactly one of `sql`, `python`, `deduplicate`."""

    sql: Annotated[str | None, _says("A query. It refers to sources and earlier steps by name.")] = None
    python: Annotated[
        str | None,
        _says(
            'A function from DataFrame to DataFrame: `"steps.py:function"` (beside this file) or `"package.module:function"`.'
        ),
    ] = None
    deduplicate: Annotated[
        list[str] | None,
        _says(
            "Columns that identify a row: later rows with the same values are dropped, within the time of the watermark."
        ),
    ] = None
    from_: Annotated[
        str, _says("The input of `python` and `deduplicate`; defaults to the previous step, or the source.")
    ] = msgspec.field(name="from", default="")
    as_: Annotated[
        str, _says("The name for use in later steps and sinks; defaults to `step1` for the first step, and so on.")
    ] = msgspec.field(name="as", default="")
    event_time: Annotated[str, _says("With `watermark`: the column of the result with the event time.")] = ""
    watermark: Annotated[str, _says("How late a row of the result may be and still count, as in a source.")] = ""


class SinkTable(TomlTable, frozen=True):
    """Where rows are written. Each sink is a separate Spark query with its own checkpoint."""

    kind: Annotated[SinkKind, _says("The kind of target.")]
    name: Annotated[
        str,
        _says("The sink's folder in the checkpoint; defaults to the kind and the topic, or the last part of the path."),
    ] = ""
    from_: Annotated[str, _says("The step or source to write; defaults to the last step.")] = msgspec.field(
        name="from", default=""
    )
    topic: Annotated[str, _says("Kind `topic`: the name of the topic; it is created if it does not exist.")] = ""
    key: Annotated[
        str,
        _says(
            "Kind `topic`: an SQL expression for the key; defaults to `_key` if the rows have this column, otherwise no key."
        ),
    ] = ""
    value: Annotated[
        str,
        _says(
            "Kind `topic`: an SQL expression for the value; defaults to `to_json(struct(*))` without the columns that start with `_`. Rows with only the columns `value`, `key` and `headers` are written unchanged."
        ),
    ] = ""
    headers: Annotated[
        str,
        _says("Kind `topic`: an SQL expression for the headers, of type `ARRAY<STRUCT<key: STRING, value: BINARY>>`."),
    ] = ""
    path: Annotated[str, _says("Lakes: the folder or URI.")] = ""
    partition_by: Annotated[list[str], _says("Lakes: columns that become folders.")] = []
    mode: Annotated[
        Mode,
        _says(
            "`append`: each row once it is final; `update`: rows that changed; `complete`: all rows, every time. Lakes support only `append`."
        ),
    ] = Mode.APPEND
    options: Annotated[dict[str, str | int | float | bool], _says("Options of the Spark sink.")] = {}


class Pipeline(TomlTable, frozen=True):
    """A checked file. ``arguments`` are those of a built-in, if ``head.kind`` names one."""

    head: PipelineHead
    file: str = ""
    sources: dict[str, SourceTable] = {}
    steps: list[Step] = []
    sinks: list[SinkTable] = []
    arguments: msgspec.Struct | None = None
    lines: dict[str, int] = {}
    """The line of each step's SQL and of each table, by path, for errors of Spark."""


def topics_of(source: SourceTable) -> list[str]:
    """The topics that a source names, as a list."""
    if source.topics is None:
        return []
    return [source.topics] if isinstance(source.topics, str) else list(source.topics)
