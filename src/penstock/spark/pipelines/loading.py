"""Reads a file as a ``Pipeline``, or reports all its problems at once, without Spark.

There are four passes, and each runs only if the one before found no problem that would confuse it: TOML; the keys and types of each table;
the content of single texts (durations, queries, functions); and references (inputs must exist, sinks must have a target).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final, TypeVar

import msgspec

from penstock.spark.pipelines import python_steps
from penstock.spark.pipelines.builtin import SUMMARIES, WrongArgument, builtin_named
from penstock.spark.pipelines.convert import named, shown, suggestion, table_of
from penstock.spark.pipelines.errors import FileErrors, PipelineUsageError, Problem
from penstock.spark.pipelines.feeding import circles
from penstock.spark.pipelines.locate import LineNumbers, Path, lines_of
from penstock.spark.pipelines.model import (
    NAME_LENGTH_MAX,
    SINKS_MAX,
    SOURCES_MAX,
    STEPS,
    STEPS_MAX,
    Mode,
    OnBad,
    Pipeline,
    PipelineHead,
    SinkKind,
    SinkTable,
    SourceTable,
    Step,
    topics_of,
)
from penstock.spark.pipelines.sqltext import slips_of, views_read
from penstock.spark.pipelines.values import check_schema, duration_ms, start_options, trigger_of
from penstock.spark.tables import TABLES

FILE_BYTES_MAX: Final = 1 << 20
LAKES: Final = (SinkKind.PARQUET, SinkKind.DELTA, SinkKind.ICEBERG)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VIEW: Final = re.compile(r"[^`\n]+")
_TABLES: Final = ("pipeline", "source", "sources", "steps", "sinks")
_SPANS: Final = ("trigger", "watermark", "every", "lateness", "local_retention")
_T = TypeVar("_T", bound=msgspec.Struct)
_AT: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


def load(path: FilePath, overrides: Mapping[str, str] | None = None) -> Pipeline:
    """Read and check a file. ``overrides`` are ``--set``: values by path, as ``source.start`` or ``sinks.0.topic``."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise PipelineUsageError(f"{path} has more than {FILE_BYTES_MAX} bytes; check that it is a pipeline file")
        # Some editors write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PipelineUsageError(_no_file(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineUsageError(f"{path} cannot be read: {error}") from error
    return loads(text, path, overrides or {})


def _no_file(path: FilePath) -> str:
    beside = [each.name for each in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    return f"File {path} does not exist" + (
        f"; {suggestion(path.name, beside)}" if beside else "; specify the path of a .toml file"
    )


def loads(text: str, file: FilePath, overrides: Mapping[str, str]) -> Pipeline:
    """The same for a text. ``file`` is its name in errors, and Python files are in the same folder."""
    try:
        document: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileErrors([_toml_problem(str(error), text, file)]) from None
    except (RecursionError, ValueError) as error:
        raise FileErrors([Problem(str(file), 1, f"invalid TOML: {error}")]) from None
    reading = _Reading(file, lines_of(text))
    for path_text, value in overrides.items():
        reading.override(document, path_text, value)
    pipeline = reading.pipeline(document)
    if reading.problems or pipeline is None:
        raise FileErrors(reading.problems)
    return pipeline


def checked(pipeline: Pipeline) -> Pipeline:
    """Check a pipeline that a program made, as :func:`loads` does for a file. Its errors have no lines."""
    reading = _Reading(FilePath(pipeline.head.name), LineNumbers())
    for name, source in pipeline.sources.items():
        reading.check_source(source, ("sources", name))
    whole = reading.whole(pipeline.head, pipeline.sources, pipeline.steps, pipeline.sinks)
    if whole is None:
        raise PipelineUsageError("\n".join(problem.text for problem in reading.problems))
    return msgspec.structs.replace(whole, file="", lines={})


def _toml_problem(message: str, text: str, file: FilePath) -> Problem:
    found = _AT.search(message)
    line = int(found[1]) if found and found[1] else text.count("\n") + 1
    reason = message[: found.start()] if found else message
    at = text.splitlines()[line - 1].strip() if 0 < line <= text.count("\n") + 1 and text.strip() else ""
    hints = {
        "Invalid value": 'strings need quotes: key = "value"',
        "Expected '=' after a key": "a key is followed by = and its value",
        "Illegal character": 'a string of several lines needs """three quotes"""',
        "Unterminated string": "close the quotes",
        "Cannot overwrite a value": "the key appears twice; remove one",
        "Cannot declare": "the table appears twice; remove one, or write [[steps]] and [[sinks]] for lists",
    }
    hint = next((hint for start, hint in hints.items() if reason.startswith(start)), "")
    return Problem(
        str(file), line, f"invalid TOML: {reason}{f' in {shown(at)}' if at else ''}{f'; {hint}' if hint else ''}"
    )


@dataclass(slots=True)
class _Reading:
    file: FilePath
    lines: LineNumbers
    problems: list[Problem] = field(default_factory=list)
    overridden: set[Path] = field(default_factory=set)

    def report(self, path: Path, text: str, line: int | None = None) -> None:
        at = 0 if path in self.overridden else (line or self.lines.of(path))
        self.problems.append(Problem(str(self.file), at, text))

    def at_table(self, path: Path, text: str) -> None:
        """Report a problem of a table."""
        self.report(path, f"{named(path)}: {text}")

    def at_key(self, path: Path, text: str) -> None:
        """Report a problem of one key of a table."""
        self.report(path, f"{named(path[:-1])} {path[-1]}: {text}")

    def report_type(self, path: Path, text: str) -> None:
        """Report a value of the wrong type. For a duration, a number needs a unit in addition to quotes."""
        if path and path[-1] in _SPANS:
            text = re.sub(r'; write "([\d.]+)"$', r'; write "\1s"', text)
        self.report(path, text)

    def override(self, document: dict[str, object], path_text: str, value: str) -> None:
        """Apply one ``--set``."""
        path: Path = tuple(int(part) if part.isdigit() else part for part in path_text.split("."))
        self.overridden.add(path)
        at: object = document
        for part in path[:-1]:
            if isinstance(at, dict):
                at = at.setdefault(part, {})
            elif isinstance(at, list) and isinstance(part, int) and part < len(at):
                at = at[part]
            else:
                self.report(
                    path, f"{path_text}: {part} does not exist; write TABLE.KEY=VALUE, such as source.start=latest"
                )
                return
        if not isinstance(at, dict) or not isinstance(path[-1], str):
            self.report(
                path,
                f"{path_text} is not a key; write TABLE.KEY=VALUE, such as source.start=latest or sinks.0.topic=out",
            )
            return
        at[path[-1]] = _toml_value(value)

    def pipeline(self, document: Mapping[str, object]) -> Pipeline | None:
        raw = document.get("pipeline", {})
        head = self._head(raw)
        if (raw.get("kind", STEPS) if isinstance(raw, dict) else STEPS) != STEPS:
            return None if head is None else self._builtin(head, document)
        for key in document:
            if key not in _TABLES:
                text = f"unknown; {suggestion(key, _TABLES)}"
                if key in SUMMARIES:
                    text = f'the table of a built-in requires kind = "{key}" in [pipeline]'
                self.at_table((key,), text)
        sources = self._sources(document)
        steps = self._list("steps", Step, document.get("steps", []), STEPS_MAX)
        sinks = self._list("sinks", SinkTable, document.get("sinks", []), SINKS_MAX)
        if document.get("sinks", []) == []:
            self.report((), 'the sink is missing; write [[sinks]], kind = "topic" and topic = "..."')
        return None if self.problems or head is None else self.whole(head, sources, steps, sinks)

    def whole(
        self, head: PipelineHead, sources: dict[str, SourceTable], steps: list[Step], sinks: list[SinkTable]
    ) -> Pipeline | None:
        """Check valid parts together."""
        if all(source.static for source in sources.values()):
            path: Path = ("source", "static") if ("source",) in self.lines.keys else ("sources",)
            self.report(
                path, "every source is static, but a pipeline needs at least one stream: remove static from a source"
            )
        names = self._check_names(sources, steps)
        self._check_steps(steps, names)
        self._check_sinks(sinks, names)
        self._check_places(sources, sinks)
        self._check_circles(sources, steps, sinks)
        if len(sources) > 1 and not steps:
            for number, sink in enumerate(sinks):
                if not sink.from_:
                    self.report(("sinks", number), f'[[sinks]]: there are several sources; write from = "{names[0]}"')
        if self.problems:
            return None
        return Pipeline(
            head=head,
            file=str(self.file),
            sources=sources,
            steps=[_named_step(step, number) for number, step in enumerate(steps, start=1)],
            sinks=_named_sinks(sinks, names[-1]),
            lines=self._lines_for_spark(steps),
        )

    def _head(self, value: object) -> PipelineHead | None:
        path = ("pipeline",)
        head = table_of(PipelineHead, value, path, self.report_type)
        if head is None:
            # Check the other key with content too.
            trigger = value.get("trigger") if isinstance(value, dict) else None
            if isinstance(trigger, str):
                self._parsed((*path, "trigger"), trigger_of, trigger)
            return None
        head = msgspec.structs.replace(head, name=head.name or self.file.name.removesuffix(".toml"))
        wrong = problem_with_name(head.name)
        if wrong:
            self.at_key((*path, "name"), wrong)
        if head.kind != STEPS and head.kind not in SUMMARIES:
            self.at_key((*path, "kind"), f"{shown(head.kind)} is unknown; {suggestion(head.kind, [STEPS, *SUMMARIES])}")
        if head.rate is not None and head.rate < 1:
            self.at_key((*path, "rate"), f"got {head.rate}, expected an integer of at least 1; omit it for no limit")
        self._parsed((*path, "trigger"), trigger_of, head.trigger)
        return None if self.problems else head

    def _builtin(self, head: PipelineHead, document: Mapping[str, object]) -> Pipeline | None:
        for key in document:
            if key not in ("pipeline", head.kind):
                self.at_table(
                    (key,), f'a pipeline of kind "{head.kind}" can contain only the tables [pipeline] and [{head.kind}]'
                )
        if head.kind not in document:
            self.report(("pipeline", "kind"), f"[{head.kind}] is missing; add this table with the options")
            return None
        builtin = builtin_named(head.kind)
        arguments = table_of(builtin.arguments, document[head.kind], (head.kind,), self.report_type)
        if arguments is not None and builtin.check is not None and not self.problems:
            try:
                builtin.check(arguments)
            except WrongArgument as error:
                self.at_key((head.kind, error.key), error.problem)
            except PipelineUsageError as error:
                self.at_table((head.kind,), str(error).removeprefix(f"{head.kind}: "))
        if self.problems:
            return None
        return Pipeline(head=head, file=str(self.file), arguments=arguments)

    def _sources(self, document: Mapping[str, object]) -> dict[str, SourceTable]:
        if "source" in document and "sources" in document:
            self.at_table(("sources",), "there is also a [source]; rename it to [sources.NAME] like the others")
            return {}
        if "sources" not in document:
            if "source" not in document:
                self.report((), 'the source is missing; write [source] and topics = ["..."]')
                return {}
            source = self._source(document["source"], ("source",))
            return {} if source is None else {_view_of(source): source}
        tables = document["sources"]
        if not isinstance(tables, dict) or not tables:
            self.at_table(("sources",), "expected a table for each source: write [sources.NAME]")
            return {}
        if len(tables) > SOURCES_MAX:
            self.at_table(("sources",), f"there are {len(tables)} sources, but at most {SOURCES_MAX} are allowed")
        found: dict[str, SourceTable] = {}
        for name, table in tables.items():
            source = self._source(table, ("sources", name))
            if source is not None:
                if source.as_:
                    self.at_key(("sources", name, "as"), f"the name is already {name}; remove this key")
                found[name] = source
        return found

    def _source(self, value: object, path: Path) -> SourceTable | None:
        source = table_of(SourceTable, value, path, self.report_type)
        if source is not None:
            self.check_source(source, path)
        return source

    def check_source(self, source: SourceTable, path: Path) -> None:
        """Check the texts of a source."""
        self._check_source_place(source, path)
        self._parsed((*path, "start"), start_options, source.start)
        if source.watermark:
            self._parsed((*path, "watermark"), duration_ms, source.watermark)
        if source.schema:
            self._parsed((*path, "schema"), check_schema, source.schema)
        if source.table is not None and source.table not in TABLES:
            self.at_key((*path, "table"), f"{shown(source.table)} is unknown; {suggestion(source.table, TABLES)}")
        for key, given in (("on_bad", source.on_bad is not OnBad.NULL), ("dead_letters", bool(source.dead_letters))):
            if given and not source.schema:
                self.at_key((*path, key), 'applies to JSON values and requires a schema; write schema = "id INT, ..."')
        if source.dead_letters and source.on_bad is not OnBad.DEAD_LETTER:
            self.at_key((*path, "dead_letters"), 'also requires on_bad = "dead_letter"')
        if source.event_time and not source.watermark:
            self.at_key((*path, "event_time"), 'also requires a watermark; write watermark = "10 minutes"')

    def _check_source_place(self, source: SourceTable, path: Path) -> None:
        given = [key for key in ("topics", "pattern", "lake") if getattr(source, key) is not None]
        if len(given) > 1:
            self.report((*path, given[1]), f"{named(path)}: {' and '.join(given)} are both set; remove one")
        elif not given and source.table is None:
            self.at_table(path, 'the input is missing; write topics = ["..."], pattern = "..." or lake = "..."')
        if source.topics is not None and not list(filter(None, topics_of(source))):
            self.at_key((*path, "topics"), 'the list is empty; write topics = ["orders"]')

    def _list(self, key: str, kind: type[_T], value: object, count_max: int) -> list[_T]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.at_table((key,), f"expected a list of tables; write [[{key}]] with two brackets")
            return []
        if len(value) > count_max:
            self.report((key,), f"[[{key}]]: there are {len(value)} tables, but at most {count_max} are allowed")
        found = [table_of(kind, each, (key, number), self.report_type) for number, each in enumerate(value)]
        return [each for each in found if each is not None]

    def _parsed(self, path: Path, read: object, value: object) -> None:
        assert callable(read)
        try:
            read(value)
        except ValueError as error:
            self.at_key(path, str(error))

    def _check_names(self, sources: Mapping[str, SourceTable], steps: Iterable[Step]) -> list[str]:
        """The names of sources and steps in order. The last is the default input of sinks."""
        names = list(sources)
        for number, step in enumerate(steps):
            name = step.as_ or f"step{number + 1}"
            if name.lower() in (known.lower() for known in names):
                self.at_key(("steps", number, "as"), f"the name {name} is already used; choose another name")
            if not _VIEW.fullmatch(name):
                self.at_key(("steps", number, "as"), f"got {shown(name)}, expected a name")
            names.append(name)
        return names

    def _check_steps(self, steps: list[Step], names: list[str]) -> None:
        source_count = len(names) - len(steps)
        for number, step in enumerate(steps):
            path: Path = ("steps", number)
            known = names[: source_count + number]
            given = [key for key in ("sql", "python", "deduplicate") if getattr(step, key) is not None]
            if len(given) != 1:
                also = (
                    f"{' and '.join(given)} are both set; remove one"
                    if given
                    else 'the step is empty; write sql = "SELECT ..."'
                )
                self.report((*path, *given[1:2]), f"[[steps]]: {also}")
                continue
            if step.sql is not None:
                self._check_sql(step.sql, path, known)
                if step.from_:
                    self.at_key((*path, "from"), "a query names its own inputs; remove this key")
            elif step.from_:
                self._check_view(step.from_, (*path, "from"), known)
            elif number == 0 and source_count > 1:
                self.at_table(path, f'there are several sources; write from = "{known[0]}"')
            if step.python is not None:
                wrong = python_steps.problem_with(step.python, self.file.parent)
                if wrong:
                    self.at_key((*path, "python"), wrong)
            if step.watermark:
                self._parsed((*path, "watermark"), duration_ms, step.watermark)
            if bool(step.watermark) != bool(step.event_time):
                missing = 'event_time = "COLUMN"' if step.watermark else 'watermark = "10 minutes"'
                self.report(
                    (*path, "watermark" if step.watermark else "event_time"), f"[[steps]]: {missing} is also required"
                )

    def _check_sql(self, sql: str, path: Path, known: list[str]) -> None:
        first = self.lines.of_value((*path, "sql"))
        slips = slips_of(sql)
        for slip in slips:
            self.report((*path, "sql"), f"[[steps]] sql: {slip.text}", first + slip.line)
        if slips:
            return
        folded = {name.lower(): name for name in known}
        for view, line in views_read(sql):
            if view.lower() in folded:
                if not view.isidentifier() and f"`{view}`" not in sql:
                    self.report((*path, "sql"), f"[[steps]] sql: write `{view}` in backquotes", first + line)
            else:
                text = f"[[steps]] sql: unknown source or step {view}; {suggestion(view, known)}"
                self.report((*path, "sql"), text, first + line)

    def _check_view(self, name: str, path: Path, known: list[str]) -> None:
        if name not in known:
            self.at_key(path, f"unknown source or step {name}; {suggestion(name, known)}")

    def _check_sinks(self, sinks: list[SinkTable], names: list[str]) -> None:
        seen: dict[str, int] = {}
        for number, sink in enumerate(sinks):
            path: Path = ("sinks", number)
            self._check_sink(sink, path)
            if sink.from_:
                self._check_view(sink.from_, (*path, "from"), names)
            name = sink_name(sink)
            if name in seen:
                self.at_table(path, f'two sinks have the name {name}; write name = "..." to distinguish them')
            seen[name] = number

    def _check_places(self, sources: Mapping[str, SourceTable], sinks: list[SinkTable]) -> None:
        """Two queries must not share a checkpoint or a folder: each would take the other's batches for its own."""
        taken = {bad_name(name): name for name, source in sources.items() if source.on_bad is OnBad.DEAD_LETTER}
        folders: set[str] = set()
        for number, sink in enumerate(sinks):
            path: Path = ("sinks", number)
            if sink_name(sink) in taken:
                text = f"{sink_name(sink)} is the name of the query that writes the dead letters of {taken[sink_name(sink)]}"
                self.at_key((*path, "name"), f"{text}; choose another name")
            folder = sink.path.rstrip("/") if sink.kind in LAKES else ""
            if folder and folder in folders:
                self.at_key((*path, "path"), f"two sinks write to {folder}; use a separate folder for each")
            folders.add(folder)

    def _check_circles(self, sources: Mapping[str, SourceTable], steps: list[Step], sinks: list[SinkTable]) -> None:
        for written in circles(sources, steps, sinks):
            path = written.path
            if path[0] == "sources" and ("source",) in self.lines.keys:
                path = ("source", *path[2:])
            instead = f"write to another {'topic' if written.is_topic else 'folder'}"
            self.at_key(
                path, f"{written.place} is also read, so the pipeline would process its own output endlessly; {instead}"
            )

    def _check_sink(self, sink: SinkTable, path: Path) -> None:
        kind = sink.kind
        for key, kinds in (
            ("topic", (SinkKind.TOPIC,)),
            ("key", (SinkKind.TOPIC,)),
            ("value", (SinkKind.TOPIC,)),
            ("headers", (SinkKind.TOPIC,)),
            ("path", LAKES),
            ("partition_by", LAKES),
        ):
            if getattr(sink, key) and kind not in kinds:
                self.at_key((*path, key), f'a sink of kind "{kind}" does not have this key; remove it')
        if kind is SinkKind.TOPIC and not sink.topic:
            self.report(path, '[[sinks]] topic is missing; write topic = "..."')
        if kind in LAKES and not sink.path:
            self.report(path, '[[sinks]] path is missing; write path = "./lake"')
        if kind in LAKES and sink.mode is not Mode.APPEND:
            text = f'[[sinks]] mode: a {kind} table supports only "append": each row is written once it is final'
            self.report((*path, "mode"), f"{text}; set a watermark for windows, or write to a topic")
        if sink.name and not _NAME.fullmatch(sink.name):
            self.at_key((*path, "name"), f"got {shown(sink.name)}, expected letters, digits, ., _ and -")

    def _lines_for_spark(self, steps: list[Step]) -> dict[str, int]:
        found = {f"steps.{number}": self.lines.of(("steps", number)) for number in range(len(steps))}
        for number, step in enumerate(steps):
            for key in ("sql", "python", "deduplicate"):
                if getattr(step, key) is not None:
                    found[f"steps.{number}.{key}"] = self.lines.of_value(("steps", number, key))
        for path, line in self.lines.keys.items():
            if path[0] in ("source", "sources", "sinks", "pipeline"):
                found[".".join(map(str, path))] = line
        return found


def problem_with_name(name: str) -> str | None:
    """Why a pipeline cannot have this name, which is used for files; None if it can."""
    if _NAME.fullmatch(name) and len(name) <= NAME_LENGTH_MAX:
        return None
    return f"got {shown(name)}, expected at most {NAME_LENGTH_MAX} letters, digits, ., _ and -"


def sink_name(sink: SinkTable) -> str:
    """The name of a sink's checkpoint."""
    if sink.name:
        return sink.name
    place = sink.topic or sink.path.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"{sink.kind}-{place}" if place else str(sink.kind))


def bad_name(source: str) -> str:
    """The same for the query that writes the bad values of a source."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", f"bad-{source}")


def _view_of(source: SourceTable) -> str:
    topics = topics_of(source)
    return source.as_ or (topics[0] if len(topics) == 1 else "source")


def _named_step(step: Step, number: int) -> Step:
    return step if step.as_ else msgspec.structs.replace(step, as_=f"step{number}")


def _named_sinks(sinks: list[SinkTable], last: str) -> list[SinkTable]:
    return [msgspec.structs.replace(sink, from_=sink.from_ or last, name=sink_name(sink)) for sink in sinks]


def _toml_value(text: str) -> object:
    """A value of ``--set``: as TOML, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
