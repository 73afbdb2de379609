"""What a pipeline file may say: a struct per table, and for every key what it means. ``docs/pipelines.md`` is made of it.

A ``Pipeline`` is whole and checked: names are unique, every step and sink reads something that exists.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from penstock.spark.lake.formats import LakeFormat

STEPS: Final = "steps"
"""The kind of a pipeline that is written out in its file, as opposed to a built-in."""
NAME_LENGTH_MAX: Final = 100
STEPS_MAX: Final = 100
SINKS_MAX: Final = 20
SOURCES_MAX: Final = 20


class OnBad(StrEnum):
    """What becomes of a value that is not JSON, or does not fit its schema."""

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
    """Which rows of a result that changes are written."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


def _says(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class TomlTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the tables of a file."""


class PipelineHead(TomlTable, frozen=True):
    """What the pipeline is called, and how it runs."""

    name: Annotated[
        str, _says("What `ls`, `status` and `stop` call it; unless given, the name of the file without `.toml`.")
    ] = ""
    description: Annotated[str, _says("A sentence for people.")] = ""
    kind: Annotated[
        str, _says("`steps`: this file says all. Or a built-in, whose options are then in a table of its name.")
    ] = STEPS
    bootstrap: Annotated[str, _says("Brokers to ask first, `HOST:PORT[,...]`. `--bootstrap` wins.")] = ""
    checkpoint: Annotated[
        str, _says("The folder where Spark keeps how far it is; unless given, one in the state folder, by the name.")
    ] = ""
    trigger: Annotated[
        str,
        _says(
            '`"10s"`: a batch every ten seconds; `"once"`: all there is, then stop; unless given, one batch after the other.'
        ),
    ] = ""
    rate: Annotated[int | None, _says("Records a batch reads at most, of each source.")] = None
    conf: Annotated[dict[str, str | int | float | bool], _says("Settings of Spark.")] = {}


class SourceTable(TomlTable, frozen=True):
    """Where rows come from. One table `[source]`, or several `[sources.NAME]`."""

    topics: Annotated[str | list[str] | None, _says("A topic, or a list of topics.")] = None
    pattern: Annotated[str | None, _says("A regular expression (Java's) of topic names.")] = None
    table: Annotated[
        str | None,
        _says("Another table of the source, as `dead_letters` or `groups`; `topics` and `options` say of what."),
    ] = None
    lake: Annotated[str | None, _says("The folder or address of a lake.")] = None
    format: Annotated[LakeFormat, _says("What the lake is made of.")] = LakeFormat.PARQUET
    static: Annotated[
        bool,
        _says("Read once when the pipeline starts, not as a stream: for joins with something that hardly changes."),
    ] = False
    start: Annotated[
        str | dict[str, dict[str, int]],
        _says(
            'Where the first run begins: `"earliest"`, `"latest"`, a time (`"2026-03-01T12:00:00Z"`), or offsets by topic and partition.'
        ),
    ] = "earliest"
    schema: Annotated[
        str, _says('The value is JSON with these fields: `"id INT, amount DOUBLE"`. Each is a column then.')
    ] = ""
    on_bad: Annotated[OnBad, _says("What becomes of a value that is not JSON or does not fit the schema.")] = OnBad.NULL
    dead_letters: Annotated[
        str,
        _says('The topic for them with `on_bad = "dead_letter"`; unless given, the first topic\'s name and `.bad`.'),
    ] = ""
    event_time: Annotated[
        str, _says("The column that says when something happened; unless given, the record's timestamp.")
    ] = ""
    watermark: Annotated[
        str, _says('How late a row may be and still count: `"10 minutes"`. Windows and joins need it to forget.')
    ] = ""
    headers: Annotated[bool, _says("With a column of the records' headers.")] = False
    options: Annotated[dict[str, str | int | float | bool], _says("Options of the source, as in Spark.")] = {}
    as_: Annotated[
        str, _says("The name by which steps read it; unless given, the topic's, or `source` when there are several.")
    ] = msgspec.field(name="as", default="")


class Step(TomlTable, frozen=True):
    """One change of the rows; exactly one of `sql`, `python`, `deduplicate`."""

    sql: Annotated[str | None, _says("A query. It reads sources and earlier steps by their names.")] = None
    python: Annotated[
        str | None,
        _says(
            'A function from DataFrame to DataFrame: `"steps.py:function"` (beside this file) or `"package.module:function"`.'
        ),
    ] = None
    deduplicate: Annotated[
        list[str] | None,
        _says("Columns that tell a row from another: the first of each is kept, for as long as the watermark says."),
    ] = None
    from_: Annotated[
        str, _says("What `python` and `deduplicate` read; unless given, the step before, or the source.")
    ] = msgspec.field(name="from", default="")
    as_: Annotated[
        str, _says("The name by which later steps and sinks read it; unless given, `step1` for the first, and so on.")
    ] = msgspec.field(name="as", default="")
    event_time: Annotated[
        str, _says("With `watermark`: the column of the result that says when something happened.")
    ] = ""
    watermark: Annotated[str, _says("How late a row of the result may be, as in a source.")] = ""


class SinkTable(TomlTable, frozen=True):
    """Where rows go. Each sink is a Spark query of its own, with its own checkpoint."""

    kind: Annotated[SinkKind, _says("Where to.")]
    name: Annotated[
        str, _says("Its folder in the checkpoint; unless given, the kind and the topic or the last part of the path.")
    ] = ""
    from_: Annotated[str, _says("The step or source that is written; unless given, the last step.")] = msgspec.field(
        name="from", default=""
    )
    topic: Annotated[str, _says("Of kind `topic`: its name; it is made when it is not there.")] = ""
    key: Annotated[
        str,
        _says(
            "Of kind `topic`: an SQL expression for the key; unless given, the record's own while the rows have `_key`, else none."
        ),
    ] = ""
    value: Annotated[
        str,
        _says(
            "Of kind `topic`: an SQL expression for the value; unless given, `to_json(struct(*))` without the columns that begin with `_`; rows that have the columns `value`, `key`, `headers` only are taken as they are."
        ),
    ] = ""
    headers: Annotated[
        str, _says("Of kind `topic`: an SQL expression of type `ARRAY<STRUCT<key: STRING, value: BINARY>>`.")
    ] = ""
    path: Annotated[str, _says("Of the lake kinds: the folder or address.")] = ""
    partition_by: Annotated[list[str], _says("Of the lake kinds: columns that become folders.")] = []
    mode: Annotated[
        Mode,
        _says(
            "`append`: rows once they are final; `update`: rows that changed; `complete`: all, each time. Lakes take `append`."
        ),
    ] = Mode.APPEND
    options: Annotated[dict[str, str | int | float | bool], _says("Options of the sink, as in Spark.")] = {}


class Pipeline(TomlTable, frozen=True):
    """A whole file, checked. ``arguments`` are a built-in's, when ``head.kind`` names one."""

    head: PipelineHead
    file: str = ""
    sources: dict[str, SourceTable] = {}
    steps: list[Step] = []
    sinks: list[SinkTable] = []
    arguments: msgspec.Struct | None = None
    lines: dict[str, int] = {}
    """The line of each step's SQL and of each table, by path: what errors of Spark are told with."""


def topics_of(source: SourceTable) -> list[str]:
    """The topics that a source names, as a list."""
    if source.topics is None:
        return []
    return [source.topics] if isinstance(source.topics, str) else list(source.topics)
