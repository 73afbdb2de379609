"""A run without Spark: what is recorded when it ends, fails, or is stopped."""

import os
import signal
from typing import Never

import pytest

from penstock.spark.pipelines.errors import PipelineError, PipelineUsageError
from penstock.spark.pipelines.registry import PipelineState, Registry
from penstock.spark.pipelines.run import Execution, RunSettings


class Screen:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.done = 0
        self.stops = 0

    def stopping(self) -> None:
        self.stops += 1

    def clear(self) -> None:
        pass

    def progress(self, what, total):
        return self

    def advance(self, amount=1, note="") -> None:
        self.done += amount


class Query:
    """A query that has done what it had to, or that failed."""

    def __init__(self, error=None) -> None:
        self.id, self.name, self.error, self.active, self.stopped = "q", "name", error, error is None, False
        self.lastProgress = None
        self.status = {"isTriggerActive": False}

    @property
    def isActive(self):  # noqa: N802  Spark's name
        return self.active and not self.stopped

    def exception(self):
        return self.error

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    """Look at the queries as often as can be: these answer at once."""
    monkeypatch.setattr("penstock.spark.pipelines.run.ASK_INTERVAL_S", 0.001)


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path)


def execution(registry, screen=None, **more):
    given = {"name": "p", "kind": "steps", "bootstrap": "h:1", "description": "d"} | more
    return Execution(RunSettings(**given), registry, screen or Screen())


def test_one_that_ends_is_finished_and_was_starting_before(registry) -> None:
    seen = []
    run = execution(registry).execute(lambda _: seen.append(registry.load("p").state))
    assert seen == [PipelineState.STARTING]
    assert run == registry.load("p")
    assert (run.state, run.reason, run.description) == (PipelineState.FINISHED, "", "d")
    assert run.ended_at_ms >= run.started_at_ms > 0


def test_one_that_fails_says_why_and_lets_its_name_go(registry) -> None:
    def work(_) -> Never:
        raise PipelineError("no more disk; make some")

    with pytest.raises(PipelineError):
        execution(registry).execute(work)
    run = registry.load("p")
    assert (run.state, run.reason) == (PipelineState.FAILED, "no more disk; make some")
    assert execution(registry).execute(lambda _: None).state is PipelineState.FINISHED


def test_a_signal_while_nothing_can_be_stopped_gently_ends_it_at_once(registry) -> None:
    before = signal.getsignal(signal.SIGTERM)
    screen = Screen()
    run = execution(registry, screen).execute(lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert screen.stops == 1
    assert run.state is PipelineState.STOPPED
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt):
        execution(registry).execute(lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert registry.load("p").reason == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_queries_run_stops_them_and_is_no_failure(registry, number) -> None:
    queries = [Query(), Query()]

    def told_once() -> None:
        queries[0].exception = lambda: None
        os.kill(os.getpid(), number)

    def work(context) -> None:
        queries[0].exception = told_once
        context.follow(queries)

    screen = Screen()
    assert execution(registry, screen).execute(work).state is PipelineState.STOPPED
    assert [query.stopped for query in queries] == [True, True]
    assert screen.stops == 1


def test_one_query_that_fails_stops_the_others(registry) -> None:
    queries = [Query(), Query(error=ValueError("boom"))]
    with pytest.raises(PipelineError, match="Query name failed: boom"):
        execution(registry).execute(lambda context: context.follow(queries))
    assert queries[0].stopped
    assert registry.load("p").state is PipelineState.FAILED


class Writer:
    """Starts queries, each the next of a list."""

    def __init__(self, *queries) -> None:
        self.queries = list(queries)

    def queryName(self, name):  # noqa: N802  Spark's name
        return self

    def option(self, name, value):
        return self

    def start(self):
        query = self.queries.pop(0)
        if isinstance(query, Exception):
            raise query
        return query


class Done(Query):
    """One that is done when it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.active = False


def test_a_query_for_which_the_machine_was_too_busy_begins_again(registry) -> None:
    slow = RuntimeError("Python worker failed to connect back.")
    notes = []

    def work(context) -> None:
        writer = Writer(Query(slow), Query(slow), Done())
        context.follow([context.start(writer, "sink")])
        assert writer.queries == []

    run = execution(registry)
    run.note = notes.append
    assert run.execute(work).state is PipelineState.FINISHED
    assert notes == ["sink: Python worker failed to connect back. This machine is busy; the query is restarted."] * 2


def test_a_query_whose_start_was_refused_because_the_machine_was_too_busy_begins_again(registry) -> None:
    slow = RuntimeError("Python worker failed to connect back.")
    notes = []

    def work(context) -> None:
        writer = Writer(slow, Query(slow), slow, slow, Done())
        context.follow([context.start(writer, "sink")])
        assert writer.queries == []

    run = execution(registry)
    run.note = notes.append
    assert run.execute(work).state is PipelineState.FINISHED
    assert notes == ["sink: Python worker failed to connect back. This machine is busy; the query is restarted."] * 4


@pytest.mark.parametrize("error", ["Python worker failed to connect back.", "boom"])
def test_a_start_that_fails_otherwise_or_for_ever_is_not_tried_again(registry, error) -> None:
    writer = Writer(*[RuntimeError(error)] * 7)
    run = execution(registry)
    run.note = lambda text: None
    with pytest.raises(RuntimeError, match=error):
        run.execute(lambda context: context.start(writer, "sink"))
    assert len(writer.queries) == (6 if error == "boom" else 1)


def test_it_does_not_begin_again_for_ever(registry) -> None:
    slow = RuntimeError("Python worker failed to connect back.")
    run = execution(registry)
    run.note = lambda text: None
    with pytest.raises(PipelineError, match="failed to connect back"):
        run.execute(lambda context: context.follow([context.start(Writer(*[Query(slow)] * 6), "sink")]))


def test_progress_is_shown_and_remembered(registry) -> None:
    def work(context) -> None:
        progress = context.progress("copying", 10)
        assert registry.load("p").state is PipelineState.RUNNING
        progress.advance(3)
        progress.advance(4)

    assert execution(registry, streams=False).execute(work).rows == 7


def test_checkpoints_are_in_the_state_folder_by_default_and_must_be_set_on_a_cluster(registry) -> None:
    assert execution(registry).checkpoint == str(registry.folder / "checkpoints" / "p")
    assert execution(registry, checkpoint="s3a://there").checkpoint == "s3a://there"
    with pytest.raises(
        PipelineUsageError,
        match="On yarn the checkpoint must be in a place that the driver and the executors can both reach",
    ):
        execution(registry, master="yarn").execute(lambda _: None)
    execution(registry, master="yarn", streams=False).execute(lambda _: None)


LOST = 'orders/1 is gone. Set the option failOnDataLoss to "false" to continue without them.'


@pytest.mark.parametrize(
    ("more", "advice"),
    [
        ({}, ' In a pipeline file, write options = { failOnDataLoss = "false" } in [source]. Or start over: remove the checkpoint STATE/checkpoints/p (penstock pipeline forget p --checkpoint does).'),
        ({"checkpoint": "/c"}, ' In a pipeline file, write options = { failOnDataLoss = "false" } in [source]. Or start over: remove the checkpoint /c.'),
        ({"kind": "stats"}, " Or start over: remove the checkpoint STATE/checkpoints/p (penstock pipeline forget p --checkpoint does)."),
        ({"kind": "archive"}, " For an archive, this option is --skip-lost."),
    ],
)  # fmt: skip
def test_lost_records_are_reported_with_what_to_do_in_a_pipeline(registry, more, advice) -> None:
    with pytest.raises(PipelineError) as caught:
        execution(registry, **more).execute(lambda context: context.follow([Query(RuntimeError(LOST))]))
    assert str(caught.value) == f"Query name failed: {LOST}{advice}".replace("STATE", str(registry.folder))
    assert registry.load("p").reason == str(caught.value)
