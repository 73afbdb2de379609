"""One run of a pipeline in this process: its session, its queries, what is remembered of it, and how it ends.

A run is ``starting`` until its first query runs, then ``running``; it ends ``finished`` (all there was is done), ``stopped`` (somebody said so)
or ``failed`` with its reason. Told to stop by a signal, it lets the batch at hand end, for a bounded time, before it stops the queries: what
the batch began would be done again otherwise, though never twice.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from penstock.spark.pipelines.builtin import RunContext, RunProgress
from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.model import STEPS, Pipeline
from penstock.spark.pipelines.patience import AGAIN_MAX, TOO_SLOW, patiently
from penstock.spark.pipelines.plan import PipelinePlan, query_name, spark_text
from penstock.spark.pipelines.preflight import check_folders, check_topics, make_topics, topics_read, topics_written
from penstock.spark.pipelines.process import own_birth
from penstock.spark.pipelines.progress import QueryProgress
from penstock.spark.pipelines.registry import PipelineState, Registry, Run, now_ms
from penstock.spark.pipelines.values import Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ASK_INTERVAL_S: Final = 0.5
STOP_GRACE_S: Final = 60.0
"""How long a batch may go on after a stop was asked for."""


START_TURN_S: Final = 30.0
"""How long a query may take to begin before the next one is started beside it."""
DATA_LOSS: Final = "failOnDataLoss"
"""The option that every error about lost records names."""


class StopSignal(BaseException):
    """A signal that ends the run while it waits for nothing that could be stopped gently."""


class Screen(Protocol):
    """Where a run shows what it does; the command line's."""

    def show(self, run: Run) -> None:
        """There is news of the run's numbers."""
        ...

    def clear(self) -> None:
        """Something else is about to be written."""
        ...

    def progress(self, what: str, total: int | None) -> RunProgress:
        """Of a pipeline that ends."""
        ...

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], nothing: str) -> None:
        """Results."""
        ...

    def note(self, text: str) -> None:
        """For people."""
        ...

    def stopping(self) -> None:
        """A stop was asked for. Called in a signal handler."""
        ...

    def need_answer(self) -> None:
        """Raise when nobody is there to ask."""
        ...

    def confirm(self, question: str) -> bool:
        """Ask; raise when nobody is there."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run was asked for."""

    name: str
    kind: str
    bootstrap: str
    master: str = "local[*]"
    checkpoint: str = ""
    trigger: Trigger = field(default_factory=Trigger)
    rate: int | None = None
    conf: Mapping[str, object] = field(default_factory=dict)
    file: str = ""
    description: str = ""
    log: str = ""
    streams: bool = True


@dataclass(slots=True)
class _Started:
    """A query that can be begun again, from its checkpoint."""

    name: str
    writer: DataStreamWriter
    again: int = 0


class Execution:
    """The :class:`~penstock.spark.pipelines.builtin.RunContext` of a run, and its life."""

    def __init__(
        self,
        settings: RunSettings,
        registry: Registry,
        screen: Screen,
        make_session: Callable[[RunSettings], SparkSession] | None = None,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._screen = screen
        self._make_session = make_session or session_of
        self._spark: SparkSession | None = None
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._following = False
        self._followers: list[QueryProgress] = []
        self._started: dict[str, _Started] = {}
        self._run = Run(
            name=settings.name,
            kind=settings.kind,
            pid=os.getpid(),
            birth=own_birth(),
            state=PipelineState.STARTING,
            file=settings.file,
            description=settings.description,
            master=settings.master,
            checkpoint=self.checkpoint if settings.streams else "",
            log=settings.log,
            started_at_ms=now_ms(),
        )

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def bootstrap(self) -> str:
        return self._settings.bootstrap

    @property
    def rate(self) -> int | None:
        return self._settings.rate

    @property
    def checkpoint(self) -> str:
        return self._settings.checkpoint or str(self._registry.checkpoint(self._settings.name))

    @property
    def reaches_broker(self) -> bool:
        """Whether the driver is here, so that a broker which it reaches can be reached from here."""
        return not self._settings.master.startswith("sc://")

    def execute(self, work: Callable[[Execution], None]) -> Run:
        """Do the work and remember how it went; raises what made it fail."""
        self._check_checkpoint()
        with self._registry.running(self.name), self._signals():
            self._remember(state=PipelineState.STARTING)
            try:
                work(self)
            except StopSignal:
                self._end(PipelineState.STOPPED)
            except KeyboardInterrupt:
                # Spark's own handler may have taken the signal.
                self._stop_once()
                self._end(PipelineState.STOPPED, "interrupted")
                raise
            except Exception as error:
                self._end(PipelineState.FAILED, _reason(error))
                raise
            else:
                self._end(PipelineState.STOPPED if self._stop.is_set() else PipelineState.FINISHED)
            return self._run

    def spark(self) -> SparkSession:
        if self._spark is None:
            self._screen.note("starting Spark...")
            self._spark = self._make_session(self._settings)
            # Spark puts a handler of its own in place of ours.
            self._take_signals()
        return self._spark

    def close(self) -> None:
        """Stop the session, when this run made one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def read_stream(self, options: Mapping[str, object]) -> DataFrame:
        given = {"kafka.bootstrap.servers": self.bootstrap}
        if self.rate is not None:
            given["maxOffsetsPerTrigger"] = str(self.rate)
        given |= {name: str(value) for name, value in options.items()}
        return self.spark().readStream.format("penstock").options(**given).load()

    def start(self, writer: DataStreamWriter, suffix: str = "") -> StreamingQuery:
        trigger = self._settings.trigger
        if trigger.once:
            writer = writer.trigger(availableNow=True)
        elif trigger.every_ms:
            writer = writer.trigger(processingTime=f"{trigger.every_ms} milliseconds")
        place = f"{self.checkpoint.rstrip('/')}/{suffix or 'query'}"
        writer = writer.queryName(query_name(self.name, suffix)).option("checkpointLocation", place)
        started = _Started(suffix or "query", writer)
        query = self._begin(started)
        self._started[str(query.id)] = started
        # Each query starts Python programs for its source and its sink, and Spark gives each ten seconds: not all at once.
        _wait(lambda: not query.isActive or query.lastProgress is not None or _is_past_beginning(query), START_TURN_S)
        return query

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        named = [(self._started.get(str(query.id)), query) for query in queries]
        self._followers = [
            QueryProgress(started.name if started else str(query.name), query) for started, query in named
        ]
        self._following = True
        try:
            self._remember(state=PipelineState.RUNNING)
            while not self._stop.is_set():
                self._ask()
                # Asked for before failures are: one that failed was active, or has its failure by now.
                active = any(follower.query.isActive for follower in self._followers)
                if not self._begin_again_or_raise() and not active:
                    break
                self._stop.wait(ASK_INTERVAL_S)
            if self._stop.is_set():
                self._remember(state=PipelineState.STOPPING)
        finally:
            _stop_gently([follower.query for follower in self._followers], self._hurry)
            self._ask()
            self._following = False
            self._screen.clear()
        # The last batch may have failed while it was waited for.
        self._begin_again_or_raise()

    def progress(self, what: str, total: int | None = None) -> RunProgress:
        self._remember(state=PipelineState.RUNNING)
        return _Remembered(self._screen.progress(what, total), self._count)

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, nothing: str = "") -> None:
        self._screen.emit(rows, columns, nothing)

    def note(self, text: str) -> None:
        self._screen.clear()
        self._screen.note(text)

    def need_answer(self) -> None:
        self._screen.need_answer()

    def confirm(self, question: str) -> bool:
        return self._screen.confirm(question)

    def _check_checkpoint(self) -> None:
        settings = self._settings
        if settings.streams and not settings.checkpoint and not settings.master.startswith("local"):
            raise PipelineUsageError(
                f"On {settings.master} the checkpoint must be in a place that the driver and the executors can both reach; "
                'write checkpoint = "s3a://..." or a shared folder in [pipeline], or give --checkpoint'
            )

    def _ask(self) -> None:
        news = [follower.ask() for follower in self._followers]
        if any(news):
            self._remember(queries=[follower.status for follower in self._followers])
            self._screen.show(self._run)

    def _count(self, amount: int) -> None:
        before = self._run
        self._run = msgspec.structs.replace(before, done=before.done + amount)
        if now_ms() - before.updated_at_ms >= 1_000:
            self._remember()

    def _begin_again_or_raise(self) -> bool:
        """A query that failed ends the run, unless Spark only could not start Python in time: then it begins again (true)."""
        begun = False
        for follower in self._followers:
            error = follower.query.exception()
            if error is None:
                continue
            reason = _reason(error)
            started = self._started.get(str(follower.query.id))
            if started is None or self._stop.is_set() or started.again >= AGAIN_MAX or TOO_SLOW not in reason:
                raise PipelineError(f"Query {follower.query.name} failed: {reason}{self._advice(reason)}") from None
            started.again += 1
            self._note_busy(started, error)
            follower.query = self._begin(started)
            begun = True
        return begun

    def _begin(self, started: _Started) -> StreamingQuery:
        # A server of Spark Connect plans the query before it answers, with Python programs that may be too slow.
        return patiently(started.writer.start, lambda error: self._note_busy(started, error))

    def _note_busy(self, started: _Started, error: BaseException) -> None:
        self.note(f"{started.name}: {_reason(error)} This machine is busy; the query is restarted.")

    def _advice(self, reason: str) -> str:
        """What an option of Spark's source is called in a pipeline; the source itself does not know that it is in one."""
        if DATA_LOSS not in reason:
            return ""
        if self._settings.kind == "archive":
            return " For an archive, this option is --skip-lost."
        told = forget = ""
        if self._settings.kind == STEPS:
            told = f' In a pipeline file, write options = {{ {DATA_LOSS} = "false" }} in [source].'
        if not self._settings.checkpoint:
            forget = f" (penstock pipeline forget {self.name} --checkpoint does)"
        return f"{told} Or start over: remove the checkpoint {self.checkpoint}{forget}."

    def _remember(self, **changes: object) -> None:
        self._run = msgspec.structs.replace(self._run, updated_at_ms=now_ms(), **changes)
        self._registry.save(self._run)

    def _end(self, state: PipelineState, reason: str = "") -> None:
        self._remember(state=state, reason=reason, ended_at_ms=now_ms())

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._take_signals()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take_signals(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._told)
            signal.signal(signal.SIGINT, self._told)

    def _told(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the batch end, the second does not, the third waits for nothing."""
        del frame
        if not self._following or self._hurry.is_set():
            self._stop_once()
            raise KeyboardInterrupt if number == signal.SIGINT else StopSignal
        if self._stop.is_set():
            self._hurry.set()
        self._stop_once()

    def _stop_once(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._screen.stopping()


class _Remembered:
    """Progress that is shown and remembered."""

    def __init__(self, shown: RunProgress, count: Callable[[int], None]) -> None:
        self._shown = shown
        self._count = count

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._shown.advance(amount, note)
        self._count(amount)


def run_file(pipeline: Pipeline, context: RunContext) -> None:
    """The work of a pipeline whose file, or whose built-in, says all of it."""
    written = topics_written(pipeline)
    if context.reaches_broker:
        check_topics(context.bootstrap, topics_read(pipeline), written)
    check_folders(pipeline, context.checkpoint)
    plan = PipelinePlan(pipeline, context.spark(), context.bootstrap, context.rate, context.name)
    plan.build()
    outputs = list(plan.outputs())
    if context.reaches_broker:
        # Not before Spark has understood all of it.
        for text in make_topics(context.bootstrap, written):
            context.note(text)
    queries: list[StreamingQuery] = []
    try:
        for output in outputs:
            with plan.blaming(output.path, "source", about=f"sink {output.name}"):
                queries.append(context.start(output.writer, output.name))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    context.follow(queries)


def session_for(name: str, master: str, conf: Mapping[str, object]) -> SparkSession:
    """A session for a pipeline. A file must mean the same on every machine: days and hours of windows are UTC's."""
    from penstock.spark import session

    # Spark's bar of stages would be written over our own line.
    settings = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": False}
    return session(name, master, **{**settings, **conf})


def session_of(settings: RunSettings) -> SparkSession:
    """The session of a run."""
    return session_for(settings.name, settings.master, settings.conf)


def _stop_gently(queries: Sequence[StreamingQuery], hurry: threading.Event) -> None:
    """Stop each when its batch has ended, or when that takes too long: then Spark does the batch again next time."""
    deadline = time.monotonic() + STOP_GRACE_S
    for query in queries:
        batch = _batch_of(query)
        while (
            query.isActive
            and query.status["isTriggerActive"]
            and _batch_of(query) == batch
            and time.monotonic() < deadline
            and not hurry.wait(0.05)
        ):
            pass
        if query.isActive:
            query.stop()


def _wait(holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not holds() and time.monotonic() < deadline:
        pause.wait(0.1)


def _is_past_beginning(query: StreamingQuery) -> bool:
    return not str(query.status["message"]).startswith(("Initializing", "Starting"))


def _batch_of(query: StreamingQuery) -> str:
    last = query.lastProgress
    return "" if last is None else last.timestamp


def _reason(error: BaseException) -> str:
    """Why a run failed, for people. Its own errors say it already; what Spark says is cut to what it means."""
    text = str(error).strip()
    if isinstance(error, PipelineError) or not type(error).__module__.startswith(("pyspark", "py4j")):
        return text or type(error).__name__
    return spark_text(error)
