"""One run of a pipeline in this process: its session, its queries, its record in the registry, and how it ends.

A run is ``starting`` until its first query runs, then ``running``. It ends as ``finished`` (everything is done), ``stopped`` (on request) or
``failed`` with a reason. After a signal, it lets the current batch finish, for a bounded time, before it stops the queries: otherwise the
batch would be repeated, although its results are never duplicated.
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

from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.model import STEPS, Pipeline
from penstock.spark.pipelines.plan import AGAIN_MAX, TOO_SLOW, PipelinePlan, query_name, retry_slow_start, spark_text
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
"""How long a batch may continue after a stop was requested."""
START_TURN_S: Final = 30.0
"""How long a query may take to start before the next one is started too."""
DATA_LOSS: Final = "failOnDataLoss"
"""The option that all errors about lost records mention."""


class StopSignal(BaseException):
    """A signal ends the run while no query could be stopped gracefully."""


class RunProgress(Protocol):
    """The progress of a pipeline that ends by itself."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """``amount`` more records are done; ``note`` describes the current work."""
        ...


class Screen(Protocol):
    """The output of a run: the terminal of the command line."""

    def show(self, run: Run) -> None:
        """Show the new numbers of the run."""
        ...

    def clear(self) -> None:
        """End the line of progress, because other output follows."""
        ...

    def progress(self, what: str, total: int | None) -> RunProgress:
        """Show the progress of a pipeline that ends by itself."""
        ...

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], nothing: str) -> None:
        """Print results."""
        ...

    def note(self, text: str) -> None:
        """Print a message for people."""
        ...

    def stopping(self) -> None:
        """Confirm a request to stop. Called in a signal handler."""
        ...

    def need_answer(self) -> None:
        """Raise if there is no terminal to ask on."""
        ...

    def confirm(self, question: str) -> bool:
        """Ask; raise if there is no terminal."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run."""

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
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """TLS and credentials, as options of queries."""


@dataclass(slots=True)
class _Started:
    """A query that can be restarted from its checkpoint."""

    name: str
    writer: DataStreamWriter
    again: int = 0


class Execution:
    """A run, with what a pipeline needs: the session, the broker, queries and output."""

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
        """The pipeline's name, by default the kind and what it works on."""
        return self._settings.name

    @property
    def bootstrap(self) -> str:
        """The brokers to connect to first."""
        return self._settings.bootstrap

    @property
    def brokers(self) -> dict[str, str]:
        """The options that a query needs to connect: addresses, TLS and credentials."""
        return {"kafka.bootstrap.servers": self.bootstrap, **self._settings.security}

    @property
    def rate(self) -> int | None:
        """The maximum of records per batch (``maxOffsetsPerTrigger``), if it is set."""
        return self._settings.rate

    @property
    def checkpoint(self) -> str:
        """The folder with the checkpoints of all queries."""
        return self._settings.checkpoint or str(self._registry.checkpoint(self._settings.name))

    @property
    def reaches_broker(self) -> bool:
        """Whether the driver runs in this process, so that this process reaches the broker too. Not with Spark Connect."""
        return not self._settings.master.startswith("sc://")

    def execute(self, work: Callable[[Execution], None]) -> Run:
        """Do the work and record the result; raises its error."""
        self._check_checkpoint()
        with self._registry.running(self.name), self._signals():
            self._record(state=PipelineState.STARTING)
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
        """The session, started at first use, which takes seconds: check arguments before."""
        if self._spark is None:
            self._screen.note("starting Spark...")
            self._spark = self._make_session(self._settings)
            # Spark replaces the signal handlers.
            self._take_signals()
        return self._spark

    def close(self) -> None:
        """Stop the session of this run."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None

    def read_stream(self, options: Mapping[str, object]) -> DataFrame:
        """``readStream.format("penstock")`` with the brokers, the rate, and these options."""
        given = self.brokers
        if self.rate is not None:
            given["maxOffsetsPerTrigger"] = str(self.rate)
        given |= {name: str(value) for name, value in options.items()}
        return self.spark().readStream.format("penstock").options(**given).load()

    def start(self, writer: DataStreamWriter, suffix: str = "") -> StreamingQuery:
        """Start a query with its name, the trigger, and its own checkpoint below ``checkpoint``.

        ``suffix`` distinguishes several queries of one pipeline, and must be the same in every run.
        """
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
        # Each query starts Python programs for its source and its sink, and Spark allows each ten seconds: not all at once.
        _wait(lambda: not query.isActive or query.lastProgress is not None or _is_past_start(query), START_TURN_S)
        return query

    def follow(self, queries: Sequence[StreamingQuery]) -> None:
        """Show progress until all queries have ended, or stop them on request; raises the error of a query."""
        named = [(self._started.get(str(query.id)), query) for query in queries]
        self._followers = [
            QueryProgress(started.name if started else str(query.name), query) for started, query in named
        ]
        self._following = True
        try:
            self._record(state=PipelineState.RUNNING)
            while not self._stop.is_set():
                self._ask()
                # Before failures are checked: a query that fails later is still active here.
                active = any(follower.query.isActive for follower in self._followers)
                if not self._restart_or_raise() and not active:
                    break
                self._stop.wait(ASK_INTERVAL_S)
            if self._stop.is_set():
                self._record(state=PipelineState.STOPPING)
        finally:
            _stop_gently([follower.query for follower in self._followers], self._hurry)
            self._ask()
            self._following = False
            self._screen.clear()
        # The last batch may have failed while it was finishing.
        self._restart_or_raise()

    def progress(self, what: str, total: int | None = None) -> RunProgress:
        """Show the progress of a pipeline that ends by itself, also in ``penstock pipeline status``."""
        self._record(state=PipelineState.RUNNING)
        return _CountedProgress(self._screen.progress(what, total), self._count)

    def emit(self, rows: Sequence[Mapping[str, object]], columns: Sequence[str], *, nothing: str = "") -> None:
        """Print the result: a table of ``columns``, or JSON with everything. ``nothing`` is printed if there are no rows."""
        self._screen.emit(rows, columns, nothing)

    def note(self, text: str) -> None:
        """Print a message for people."""
        self._screen.clear()
        self._screen.note(text)

    def need_answer(self) -> None:
        """Raise before long work what ``confirm`` would raise after it: there is no terminal to ask on."""
        self._screen.need_answer()

    def confirm(self, question: str) -> bool:
        """Ask before what cannot be undone; always true with ``--yes``."""
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
            self._record(queries=[follower.status for follower in self._followers])
            self._screen.show(self._run)

    def _count(self, amount: int) -> None:
        before = self._run
        self._run = msgspec.structs.replace(before, done=before.done + amount)
        if now_ms() - before.updated_at_ms >= 1_000:
            self._record()

    def _restart_or_raise(self) -> bool:
        """End the run if a query failed, unless Python only started too slowly: then restart the query (true)."""
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
        # A Spark Connect server plans the query before it answers, with Python programs that may start too slowly.
        return retry_slow_start(started.writer.start, lambda error: self._note_busy(started, error))

    def _note_busy(self, started: _Started, error: BaseException) -> None:
        self.note(f"{started.name}: {_reason(error)} This machine is busy; the query is restarted.")

    def _advice(self, reason: str) -> str:
        """How to set the option of Spark's source in a pipeline, which the source itself does not know."""
        if DATA_LOSS not in reason:
            return ""
        if self._settings.kind == "archive":
            return " For an archive, this option is --skip-lost."
        in_file = forget = ""
        if self._settings.kind == STEPS:
            in_file = f' In a pipeline file, write options = {{ {DATA_LOSS} = "false" }} in [source].'
        if not self._settings.checkpoint:
            forget = f" (penstock pipeline forget {self.name} --checkpoint does)"
        return f"{in_file} Or start over: remove the checkpoint {self.checkpoint}{forget}."

    def _record(self, **changes: object) -> None:
        self._run = msgspec.structs.replace(self._run, updated_at_ms=now_ms(), **changes)
        self._registry.save(self._run)

    def _end(self, state: PipelineState, reason: str = "") -> None:
        self._record(state=state, reason=reason, ended_at_ms=now_ms())

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
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first signal lets the current batch finish, the second does not, the third ends at once."""
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


class _CountedProgress:
    """Progress that is shown and recorded."""

    def __init__(self, shown: RunProgress, count: Callable[[int], None]) -> None:
        self._shown = shown
        self._count = count

    def advance(self, amount: int = 1, note: str = "") -> None:
        self._shown.advance(amount, note)
        self._count(amount)


def run_file(pipeline: Pipeline, context: Execution) -> None:
    """Run a pipeline from a file, or from a built-in that makes one."""
    written = topics_written(pipeline)
    if context.reaches_broker:
        check_topics(context.brokers, topics_read(pipeline), written)
    check_folders(pipeline, context.checkpoint)
    plan = PipelinePlan(pipeline, context.spark(), context.brokers, context.rate, context.name)
    plan.build()
    outputs = list(plan.outputs())
    if context.reaches_broker:
        # Only after Spark has analyzed the whole pipeline.
        for text in make_topics(context.brokers, written):
            context.note(text)
    queries: list[StreamingQuery] = []
    try:
        for output in outputs:
            with plan.located(output.path, "source", about=f"sink {output.name}"):
                queries.append(context.start(output.writer, output.name))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    context.follow(queries)


def session_for(name: str, master: str, conf: Mapping[str, object]) -> SparkSession:
    """A session for a pipeline, with UTC for the days and hours of windows: a file must mean the same on every machine."""
    from penstock.spark import session

    # Spark's progress bar would overwrite ours.
    settings = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": False}
    return session(name, master, **{**settings, **conf})


def session_of(settings: RunSettings) -> SparkSession:
    """The session of a run."""
    return session_for(settings.name, settings.master, settings.conf)


def _stop_gently(queries: Sequence[StreamingQuery], hurry: threading.Event) -> None:
    """Stop each query when its batch has ended. If that takes too long, Spark repeats the batch in the next run."""
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


def _is_past_start(query: StreamingQuery) -> bool:
    return not str(query.status["message"]).startswith(("Initializing", "Starting"))


def _batch_of(query: StreamingQuery) -> str:
    last = query.lastProgress
    return "" if last is None else last.timestamp


def _reason(error: BaseException) -> str:
    """Why a run failed. Errors of Spark are shortened to the useful part."""
    text = str(error).strip()
    if isinstance(error, PipelineError) or not type(error).__module__.startswith(("pyspark", "py4j")):
        return text or type(error).__name__
    return spark_text(error)
