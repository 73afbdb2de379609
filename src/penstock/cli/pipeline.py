"""``penstock pipeline``: checks and runs pipeline files and built-in pipelines, and shows what is running.

A pipeline runs in this process until it ends, fails or is stopped; ``--detach`` starts another process for it. Exit codes of a run: 0 if
it ended or was stopped (Ctrl-C, SIGTERM, ``stop``), 1 if it failed, 2 for an invalid file or invalid options, 3 if a topic does
not exist, 4 if no broker answers.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from penstock.cli import connecting
from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, parse_pairs, with_parameters
from penstock.cli.output import Format, Row, emit, emit_one, print_table
from penstock.cli.pipeline_builtins import BuiltinGroup
from penstock.cli.pipeline_options import Bootstrap, Output, RunOptions, StateDir, run_parameters
from penstock.cli.pipeline_screen import LOG_LINES, SparkLog, TerminalScreen, rows_read
from penstock.cli.places import moment
from penstock.spark.pipelines.errors import FileErrors, PipelineError, PipelineNotFoundError, PipelineUsageError
from penstock.spark.pipelines.registry import ALIVE, PipelineState, Registry, Run, state_folder

if TYPE_CHECKING:
    from penstock.spark.pipelines.builtin import Arguments, Builtin
    from penstock.spark.pipelines.model import Pipeline, PipelineHead
    from penstock.spark.pipelines.run import Execution
    from penstock.spark.pipelines.values import Trigger as ReadTrigger

T = TypeVar("T")

app = typer.Typer(
    help="Run pipelines on Spark: from files, and built-in ones.",
    no_args_is_help=True,
    cls=BuiltinGroup,
    rich_markup_mode=None,
)
START_WAIT_S: Final = 120.0
POLL_S: Final = 0.2
LOG_VARIABLE: Final = "PENSTOCK_PIPELINE_LOG"
"""Tells a detached process where its output goes."""

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file (TOML).")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a setting of the file, such as source.start=latest; can be repeated.",
    ),
]


@app.command("check")
def check(
    file: FileArgument,
    sets: Sets = None,
    deep: Annotated[bool, typer.Option("--deep", help="Let Spark check the queries, and show the columns.")] = False,
    bootstrap: Bootstrap = None,
    output: Output = Format.TABLE,
) -> None:
    """Check a file without running it.

    Shows every mistake with its line and a correction. Requires neither Spark nor a broker; --deep requires Spark.
    """
    from penstock.spark.pipelines.loading import load

    problems: list[Row] = []
    views: list[Row] = []
    pipeline: Pipeline | None = None
    try:
        with _reported(FileErrors):
            pipeline = load(file, parse_pairs(sets, "--set"))
            views = _analysed(pipeline, bootstrap) if deep else []
    except FileErrors as error:
        if output is Format.TABLE:
            raise Failure(str(error), Exit.USAGE) from error
        problems = [{"file": each.file, "line": each.line, "text": each.text} for each in error.problems]
    if output is not Format.TABLE:
        name = None if pipeline is None else pipeline.head.name
        row: Row = {"file": str(file), "name": name, "ok": not problems, "problems": problems, "views": views}
        emit_one(row, output)
    elif pipeline is not None:
        if views:
            print_table(views, ["view", "column", "type"])
        note(_summary(file, pipeline))
    if problems:
        raise typer.Exit(Exit.USAGE)


@app.command("run")
@with_parameters(run_parameters())
def run(file: FileArgument, sets: Sets = None, **options: Any) -> None:
    """Run a pipeline file.

    Runs until the pipeline ends or is stopped (Ctrl-C, SIGTERM, penstock pipeline stop).
    """
    from penstock.spark.pipelines.builtin import builtin_named
    from penstock.spark.pipelines.loading import load
    from penstock.spark.pipelines.run import run_file

    with _reported():
        pipeline = load(file, parse_pairs(sets, "--set"))
    given = RunOptions(**options)
    if pipeline.arguments is None:
        _execute(pipeline, given, lambda execution: run_file(pipeline, execution), streams=True)
        return
    builtin, arguments = builtin_named(pipeline.head.kind), pipeline.arguments
    _execute(pipeline, given, lambda execution: builtin.run(arguments, execution), streams=builtin.streams)  # type: ignore[arg-type]


def run_builtin(builtin: Builtin[Arguments], arguments: Arguments, given: RunOptions) -> None:
    """Run the command of a built-in pipeline."""
    from penstock.spark.pipelines.model import NAME_LENGTH_MAX, Pipeline, PipelineHead

    called = "-".join(filter(None, (builtin.name, arguments.subject())))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", called)[:NAME_LENGTH_MAX]
    pipeline = Pipeline(head=PipelineHead(name=name, kind=builtin.name), arguments=arguments)
    _execute(pipeline, given, lambda execution: builtin.run(arguments, execution), streams=builtin.streams)


@app.command("ls")
def list_all(state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """List pipelines.

    Shows those that are running, and how the last run of the others ended.
    """
    with _reported():
        runs = _registry(state_dir).all()
    columns = ["name", "kind", "state", "rows_read", "rows_per_second", "lag", "last_batch", "started", "pid"]
    rows = [_row(each) for each in runs]
    if output is Format.TABLE:
        # This number is a name, and must not be grouped by thousands.
        rows = [{**_for_people(row), "pid": str(row["pid"])} for row in rows]
    emit(rows, columns, output, nothing="No pipeline has run yet; see penstock pipeline run --help")


@app.command("status")
def status(name: NameArgument, state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """Show the status of a pipeline.

    Shows rows per second, lag and the last batch, and for a failed pipeline the reason.
    """
    with _reported():
        run = _registry(state_dir).load(name)
    if output is not Format.TABLE:
        emit_one(_row(run), output)
        return
    shown: list[tuple[str, object]] = [
        ("pipeline", f"{run.name} ({run.kind})"),
        ("state", f"{run.state}{f': {run.reason}' if run.reason else ''}"),
        ("description", run.description),
        ("file", run.file),
        ("started", f"{moment(run.started_at_ms)}, pid {run.pid}, on {run.master}"),
        ("ended", moment(run.ended_at_ms)),
        ("checkpoint", run.checkpoint),
        ("log", run.log if run.log and Path(run.log).exists() else None),
        ("records", run.done or None),
    ]
    for label, value in shown:
        if value:
            print(f"{label + ':':<12} {value}")
    if run.queries:
        print()
        columns = ["sink", "batch", "rows_read", "rows_per_second", "lag", "last_batch"]
        print_table([_for_people(row) for row in _query_rows(run)], columns)


@app.command("stop")
def stop(
    name: NameArgument,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait at most this long for the pipeline to end."),
    ] = 90.0,
    kill: Annotated[bool, typer.Option("--kill", help="Kill the pipeline if it has not ended by then.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Stop a pipeline after the current batch.

    When it is run again, it continues from there.
    """
    with _reported():
        registry = _registry(state_dir)
        found = registry.load(name)
    if found.state not in ALIVE:
        note(f"Pipeline {name} is not running: {found.state}")
        return
    os.kill(found.pid, signal.SIGTERM)
    ended = _wait(lambda: None if (now := registry.load(name)).state in ALIVE else now, timeout)
    if ended is None and kill:
        os.kill(found.pid, signal.SIGKILL)
        ended = _wait(lambda: None if (now := registry.load(name)).state in ALIVE else now, timeout)
    if ended is None:
        raise Failure(f"Pipeline {name} (pid {found.pid}) has not ended after {timeout:g} s; wait, or add --kill")
    note(f"Pipeline {name} is {ended.state}")


@app.command("forget")
def forget(
    name: NameArgument,
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Also delete its checkpoint, so that a new run starts from the beginning."),
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Forget a pipeline that is not running.

    Its checkpoint is kept unless --checkpoint is given.
    """
    with _reported():
        registry = _registry(state_dir)
        run = registry.load(name)
        if checkpoint:
            _remove_checkpoint(registry, run)
        registry.forget(name)
    kept = f"; its checkpoint is still in {run.checkpoint}" if run.checkpoint else ""
    note(f"Forgot pipeline {name}{' and deleted its checkpoint' if checkpoint else kept}")


def _remove_checkpoint(registry: Registry, run: Run) -> None:
    """Delete the checkpoint if this program created it. Another folder may contain other files, or be on another machine."""
    folder = Path(run.checkpoint or registry.checkpoint(run.name))
    ours = (registry.folder / "checkpoints").resolve()
    if ours not in folder.resolve().parents:
        raise PipelineUsageError(
            f"The checkpoint of {run.name} is not in the state folder; remove {run.checkpoint} yourself, then forget {run.name} without --checkpoint"
        )
    if run.state in ALIVE:
        raise PipelineError(
            f"Pipeline {run.name} is running (pid {run.pid}); run penstock pipeline stop {run.name} first"
        )
    # A process that starts it at this moment must not lose its checkpoint.
    with registry.running(run.name):
        if folder.exists():
            shutil.rmtree(folder)


def _execute(pipeline: Pipeline, given: RunOptions, work: Callable[[Execution], None], *, streams: bool) -> None:
    from penstock.spark.pipelines.loading import problem_with_name
    from penstock.spark.pipelines.run import Execution, RunSettings, session_of
    from penstock.spark.sessions import need_spark

    with _reported():
        need_spark()
    head = pipeline.head
    registry = _registry(given.state_dir)
    name = given.name or head.name
    wrong = problem_with_name(name)
    if wrong:
        raise Failure(f"--name: {wrong}", Exit.USAGE)
    file = pipeline.file and str(Path(pipeline.file).absolute())
    checkpoint = given.checkpoint or head.checkpoint
    other = registry.continued_file(name, file, checkpoint or str(registry.checkpoint(name))) if streams else None
    if other is not None:
        note(f"Continues from the checkpoint of {other}; use --name or --checkpoint to start from the beginning")
    # The detached process is recognized by its environment, since -d may be part of a group of short options.
    if given.detach and LOG_VARIABLE not in os.environ:
        _detach(registry, name)
        return
    bootstrap, security = _brokers(head, given.bootstrap)
    settings = RunSettings(
        name=name,
        kind=head.kind,
        bootstrap=bootstrap,
        master=given.master,
        checkpoint=checkpoint,
        trigger=_trigger(given, head.trigger),
        rate=given.rate or head.rate,
        conf={**head.conf, **parse_pairs(given.conf, "--conf")},
        file=file,
        description=head.description,
        log=str(registry.log(name)),
        streams=streams,
        security=security,
    )
    with _reported(), TerminalScreen(given.output, yes=given.yes) as screen:
        # All output of a detached process is in its log already.
        log = None if LOG_VARIABLE in os.environ else SparkLog(registry.log(name))
        begin = session_of if log is None else log.around(session_of)
        execution = Execution(settings, registry, screen, begin)
        try:
            run = execution.execute(work)
        except Exception:
            if log is not None:
                log.point_out()
            raise
        finally:
            execution.close()
            if log is not None:
                log.close()
        if streams:
            screen.clear()
            if given.output is Format.TABLE:
                note(f"Pipeline {name} is {run.state}: {rows_read(run)}")
            else:
                emit_one(_row(run), given.output)


def _trigger(given: RunOptions, of_file: str) -> ReadTrigger:
    from penstock.spark.pipelines.values import trigger_of

    try:
        return trigger_of("once" if given.once else given.trigger or of_file)
    except ValueError as error:
        raise Failure(f"--trigger: {error}", Exit.USAGE) from error


def _detach(registry: Registry, name: str) -> None:
    """Start another process for the same command, and report when it runs."""
    with registry.running(name):
        log = registry.log(name)
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "-d")]
    with log.open("ab") as sink:
        child = subprocess.Popen(  # noqa: S603  our own program and arguments
            [sys.executable, "-m", "penstock", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            env={**os.environ, LOG_VARIABLE: str(log)},
        )

    def settled() -> _Settled | None:
        code = child.poll()
        if code is not None:
            return _Settled(code, None)
        try:
            run = registry.load(name)
        except PipelineNotFoundError:
            return None
        # A failed process is about to end, and its exit code shows why.
        is_settled = run.pid == child.pid and run.state not in (PipelineState.STARTING, PipelineState.FAILED)
        return _Settled(None, run) if is_settled else None

    found = _wait(settled, START_WAIT_S)
    if found is not None and found.code:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
        raise Failure(f"Pipeline {name} did not start; {log} ends with:\n{tail}", _exit_of(found.code))
    state = "still starting" if found is None else "done" if found.run is None else found.run.state
    note(f"Pipeline {name} is {state}, pid {child.pid}; its log is {log}")


class _Settled(NamedTuple):
    """A process that has ended, with its code, or that runs its pipeline."""

    code: int | None
    run: Run | None


def _exit_of(code: int) -> Exit:
    return Exit(code) if code in list(map(int, Exit)) else Exit.FAILED


def _wait(ask: Callable[[], T | None], timeout_s: float) -> T | None:
    deadline = time.monotonic() + timeout_s
    while (found := ask()) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return found


def _registry(state_dir: str | None) -> Registry:
    return Registry(state_folder(state_dir, os.environ))


@contextmanager
def _reported(*left_alone: type[Exception]) -> Iterator[None]:
    """Turn errors of pipelines into a sentence and an exit code, except those that the caller reports itself."""
    try:
        yield
    except left_alone:
        raise
    except PipelineNotFoundError as error:
        raise Failure(str(error), Exit.NOT_FOUND) from error
    except PipelineUsageError as error:
        raise Failure(str(error), Exit.USAGE) from error
    except PipelineError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        failure = _of_spark(error)
        if failure is None:
            raise
        raise failure from error


def _of_spark(error: Exception) -> Failure | None:
    """An error of Spark, or of our parts in it; None for any other. Its module has been imported by the code that raised it."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    if names & {"penstock.spark.errors.OptionError", "penstock.spark.sessions.SparkMissing"}:
        return Failure(str(error), Exit.USAGE)
    if any(name.startswith(("pyspark.errors.", "py4j.", "penstock.spark.")) for name in names):
        from penstock.spark.pipelines.plan import spark_text

        return Failure(spark_text(error))
    return None


def _analysed(pipeline: Pipeline, bootstrap: str | None) -> list[Row]:
    """The columns of every view, as Spark sees them."""
    from penstock.spark.pipelines.plan import PipelinePlan
    from penstock.spark.pipelines.run import session_for

    if pipeline.arguments is not None:
        return []
    spark = session_for(pipeline.head.name, "local[1]", pipeline.head.conf)
    try:
        address, security = _brokers(pipeline.head, bootstrap)
        plan = PipelinePlan(pipeline, spark, {"kafka.bootstrap.servers": address, **security})
        views = plan.build()
        for _ in plan.outputs():
            pass
        return [
            {"view": name, "column": field.name, "type": field.dataType.simpleString()}
            for name, frame in views.items()
            for field in frame.schema.fields
        ]
    finally:
        spark.stop()


def _brokers(head: PipelineHead, given: str | None) -> tuple[str, dict[str, str]]:
    """The brokers, with TLS and credentials as options of queries: from the command, else from the file, else from the current context."""
    from penstock.spark.security import options_for

    of_file = given is None and bool(head.bootstrap or head.kafka)
    bootstrap = given or head.bootstrap or connecting.running().address("bootstrap") or BOOTSTRAP_DEFAULT
    # The current context is about other brokers than those in the file.
    security = connecting.named_security() if of_file else connecting.client_security()
    return bootstrap, options_for(security) or {f"kafka.{name}": value for name, value in head.kafka.items()}


def _summary(file: Path, pipeline: Pipeline) -> str:
    if pipeline.arguments is not None:
        return f"{file} is valid: {pipeline.head.name}, a {pipeline.head.kind} pipeline"
    parts = [
        f"{len(each)} {word}{'' if len(each) == 1 else 's'}"
        for each, word in ((pipeline.sources, "source"), (pipeline.steps, "step"), (pipeline.sinks, "sink"))
    ]
    return f"{file} is valid: {pipeline.head.name}, {', '.join(parts)}"


def _row(run: Run) -> Row:
    return {
        "name": run.name,
        "kind": run.kind,
        "state": run.state.value,
        "reason": run.reason or None,
        "rows": run.rows,
        "rows_per_second": round(run.rows_per_second, 1),
        "lag": run.lag,
        "last_batch": run.last_batch,
        "started": moment(run.started_at_ms),
        "ended": moment(run.ended_at_ms),
        "updated": moment(run.updated_at_ms),
        "pid": run.pid,
        "master": run.master,
        "file": run.file or None,
        "description": run.description or None,
        "checkpoint": run.checkpoint or None,
        "log": run.log or None,
        "sinks": _query_rows(run),
    }


def _for_people(row: Row) -> Row:
    """In a table the heading shows what the documentation explains to programs: these rows were read, not written."""
    return {**row, "rows_read": row["rows"]}


def _query_rows(run: Run) -> list[Row]:
    return [
        {
            "sink": query.name,
            "query_id": query.query_id,
            "batch": query.batch_id,
            "rows": query.rows,
            "rows_per_second": round(query.rows_per_second, 1),
            "lag": query.lag,
            "last_batch": moment(query.batch_at_ms),
            "batch_rows": query.batch_rows,
            "batch_ms": query.batch_ms,
        }
        for query in run.queries
    ]
