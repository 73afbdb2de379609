"""Makes Spark's queries from a pipeline: sources and steps are views, and each sink is a separate streaming query.

Each query has its own checkpoint, so each is exactly-once by itself: a batch that one sink could not write is repeated only for that sink.
The cost is that each query reads the source itself.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.spark.pipelines import python_steps
from penstock.spark.pipelines.errors import FileErrors, PipelineError, Problem
from penstock.spark.pipelines.hints import schema_hint
from penstock.spark.pipelines.loading import bad_name
from penstock.spark.pipelines.model import OnBad, Pipeline, SourceTable, Step
from penstock.spark.pipelines.sinks import topic_writer, writer_of
from penstock.spark.pipelines.typed import bad_records, bad_topic, read, typed
from penstock.spark.pipelines.values import interval_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

T = TypeVar("T")
AGAIN_MAX: Final = 5
TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark waits ten seconds for a Python program that it starts, and no setting changes that."""
_POSITION: Final = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Refused|Connect|Lost|Timeout): (.+)$", re.MULTILINE)
_STATE_CHANGED: Final = re.compile(r"\[STATE_STORE_\w+_NOT_COMPATIBLE|NOT_MATCH_IN_STATE_METADATA")
_CODES: Final = re.compile(r"\[[A-Z0-9_.]{5,}\] |\s*SQLSTATE: .*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Output:
    """A query to start: the name of its checkpoint, its writer, and the path of its table in the file."""

    name: str
    writer: DataStreamWriter
    path: str


def retry_slow_start(ask: Callable[[], T], note: Callable[[BaseException], None] | None = None) -> T:
    """Call ``ask`` again, up to five times, if Python started too slowly on a busy machine. ``note`` gets each such error."""
    for again in range(AGAIN_MAX + 1):
        try:
            return ask()
        except Exception as error:
            if again == AGAIN_MAX or TOO_SLOW not in str(error):
                raise
            if note is not None:
                note(error)
    raise AssertionError("The last attempt returns or raises")


def query_name(pipeline: str, output: str = "") -> str:
    """The name of an output's query in Spark, which is unique in a session."""
    return f"{pipeline}-{output}" if output else pipeline


class PipelinePlan:
    """The views of one pipeline in one session."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        brokers: Mapping[str, str],
        rate: int | None = None,
        name: str = "",
    ) -> None:
        """``brokers`` are options of each query: addresses, TLS and credentials. ``name`` is that of this run."""
        self._pipeline = pipeline
        self._spark = spark
        self._brokers = brokers
        self._rate = rate
        self._name = name
        self._folder = Path(pipeline.file).parent
        self._views: dict[str, DataFrame] = {}

    def build(self) -> dict[str, DataFrame]:
        """Make every source and step, in order. Errors name the line."""
        self._ship_python()
        for name, source in self._pipeline.sources.items():
            with self.located(f"sources.{name}", "source", about=f"source {name}", view=name):
                self._keep(name, typed(self._read(source), source))
        for number, step in enumerate(self._pipeline.steps):
            paths = [f"steps.{number}.{key}" for key in ("sql", "python", "deduplicate")]
            with self.located(*paths, about=f"step {step.as_}", view=step.as_):
                self._keep(step.as_, self._step(step))
        return dict(self._views)

    def outputs(self) -> Iterator[Output]:
        """The queries of the sinks in order, then those that write bad values."""
        for number, sink in enumerate(self._pipeline.sinks):
            path = f"sinks.{number}"
            with self.located(path, about=f"sink {sink.name}", view=sink.from_):
                writer = writer_of(
                    self._views[sink.from_], sink, self._brokers, query_name=query_name(self._name, sink.name)
                )
            yield Output(sink.name, writer, path)
        for name, source in self._pipeline.sources.items():
            if source.on_bad is OnBad.DEAD_LETTER:
                bad = bad_records(self._read(source), source)
                yield Output(bad_name(name), topic_writer(bad, bad_topic(source), self._brokers), f"sources.{name}")

    @contextmanager
    def located(self, *paths: str, about: str, view: str = "") -> Iterator[None]:
        """Report errors of a part with the line of the first of these paths that is in the file.

        ``view`` is the one that the part makes or reads.
        """
        from pyspark.errors import PySparkException

        try:
            yield
        except FileErrors:
            raise
        except (PySparkException, PipelineError, ValueError, ImportError, AttributeError, TypeError) as error:
            path = next((each for each in paths if each in self._pipeline.lines), "")
            line = self._pipeline.lines.get(path, 1)
            position = _POSITION.search(str(error))
            if position and path.endswith(".sql"):
                line += int(position[1]) - 1
            hint = schema_hint(self._pipeline, view, error)
            text = f"{about}: {spark_text(error)}{f' {hint}' if hint else ''}"
            if not self._pipeline.lines:
                raise PipelineError(text) from error
            raise FileErrors([Problem(self._pipeline.file, line, text)]) from error

    def _ship_python(self) -> None:
        """Send the files of steps to every executor, where their functions may be called."""
        from penstock.spark.shipping import is_remote

        named = [step.python for step in self._pipeline.steps if step.python is not None]
        for source in {python_steps.source_file(text, self._folder) for text in named} - {None}:
            if is_remote(self._spark):
                self._spark.addArtifacts(str(source), pyfile=True)
            else:
                self._spark.sparkContext.addPyFile(str(source))

    def _read(self, source: SourceTable) -> DataFrame:
        return retry_slow_start(lambda: read(self._spark, source, self._brokers, self._rate))

    def _keep(self, name: str, frame: DataFrame) -> None:
        # Spark Connect analyzes a query lazily: do it here, where the line is known.
        retry_slow_start(lambda: frame.schema)
        self._views[name] = frame
        frame.createOrReplaceTempView("`" + name.replace("`", "``") + "`")

    def _step(self, step: Step) -> DataFrame:
        before = self._views[step.from_ or list(self._views)[-1]]
        if step.sql is not None:
            frame = self._spark.sql(step.sql)
        elif step.python is not None:
            frame = _called(step.python, self._folder, before, self._spark)
            if not hasattr(frame, "createOrReplaceTempView"):
                raise PipelineError(f"{step.python} returned {type(frame).__name__}; it must return a DataFrame")
        else:
            assert step.deduplicate is not None, "a step is one of three"
            frame = before.dropDuplicatesWithinWatermark(step.deduplicate)
        return frame.withWatermark(step.event_time, interval_of(step.watermark)) if step.watermark else frame


def _called(text: str, folder: Path, before: DataFrame, spark: SparkSession) -> DataFrame:
    """Call a function of the user. Anything that it raises is an error of the pipeline."""
    from pyspark.errors import PySparkException

    try:
        return python_steps.load(text, folder)(before, spark)
    except (PySparkException, PipelineError, ImportError):
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        raise PipelineError(f"{text} failed ({where}): {type(error).__name__}: {error}") from error


_NOT_ON_SERVER: Final = "Penstock is not installed in the Python of the Spark Connect server, and Spark does not send it there for streams: run pip install 'penstock[spark]' there"


def spark_text(error: BaseException) -> str:
    """An error of Spark without codes, plans and traces, and with what to write if that is known."""
    text = str(error).strip().partition("\n\nJVM stacktrace")[0].partition("=== Streaming Query ===")[0]
    text = text.rpartition("terminated with exception: ")[2].strip()
    raised = _RAISED.findall(text) if "Traceback (most recent call last)" in text else []
    if raised:
        # The last line of a Python worker's traceback is the useful part.
        message = str(raised[-1]).strip()
        return _NOT_ON_SERVER if message == "No module named 'penstock'" else message
    message = _CODES.sub("", text).strip().partition("\n")[0].strip()
    if "STREAMING_OUTPUT_MODE" in text and "append" in text:
        return f'{message} Write mode = "update", or set a watermark for the source.'
    if _STATE_CHANGED.search(text):
        return f"{message} The state in the checkpoint is from a different query: set a new checkpoint for the pipeline, or rename the sink."
    if "dropDuplicatesWithinWatermark" in text:
        return f'{message} Write watermark = "10 minutes" in the source.'
    return message or type(error).__name__
