"""``penstock pipeline``: check and run pipeline files, run the built-in ones, and see what runs.

A run goes on in this process until it ends, fails or is stopped; ``--detach`` starts another process for it. Exit codes of a run: 0 when
all is done or when it was told to stop (Ctrl-C, SIGTERM, ``stop``), 1 when it failed, 2 for a wrong file or wrong options, 3 when
a topic is not there, 4 when no broker answers.
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
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, TypeVar

import typer

from penstock.cli.failures import Exit, Failure, note
from penstock.cli.options import BOOTSTRAP_DEFAULT, parse_pairs
from penstock.cli.output import Format, Row, emit, emit_one, print_table
from penstock.cli.pipeline_builtins import BuiltinGroup
from penstock.cli.pipeline_options import (
    Bootstrap,
    Checkpoint,
    Conf,
    Detach,
    Master,
    Name,
    Once,
    Output,
    Rate,
    RunOptions,
    StateDir,
    Trigger,
    Yes,
)
from penstock.cli.pipeline_screen import LOG_LINES, SparkLog, TerminalScreen, rows_read
from penstock.cli.places import moment
from penstock.spark.pipelines.errors import FileErrors, PipelineError, PipelineNotFoundError, PipelineUsageError
from penstock.spark.pipelines.registry import ALIVE, PipelineState, Registry, Run, state_folder

if TYPE_CHECKING:
    from penstock.spark.pipelines.builtin import Arguments, Builtin
    from penstock.spark.pipelines.model import Pipeline
    from penstock.spark.pipelines.run import Execution
    from penstock.spark.pipelines.values import Trigger as ReadTrigger

T = TypeVar("T")

app = typer.Typer(
    help="Run pipelines on Spark: files, and ready-made ones.",
    no_args_is_help=True,
    cls=BuiltinGroup,
    rich_markup_mode=None,
)
START_WAIT_S: Final = 120.0
POLL_S: Final = 0.2
LOG_VARIABLE: Final = "PENSTOCK_PIPELINE_LOG"
"""How a detached process learns where its output goes."""

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline file (TOML).")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Instead of what the file says, as source.start=latest; repeat it."
    ),
]


def mount(root: typer.Typer) -> None:
    """Add the noun."""
    root.add_typer(app, name="pipeline")


@app.command("check")
def check(
    file: FileArgument,
    sets: Sets = None,
    deep: Annotated[bool, typer.Option("--deep", help="Let Spark look at the queries, and show the columns.")] = False,
    bootstrap: Bootstrap = None,
    output: Output = Format.TABLE,
) -> None:
    """Check a file without running it: every mistake with its line and what to write instead.

    Needs neither Spark nor a broker; --deep needs Spark.
    """
    from penstock.spark.pipelines.loading import load

    problems: list[Row] = []
    views: list[Row] = []
    pipeline: Pipeline | None = None
    try:
        with _told(FileErrors):
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
def run(
    file: FileArgument,
    sets: Sets = None,
    bootstrap: Bootstrap = None,
    master: Master = "local[*]",
    once: Once = False,
    trigger: Trigger = None,
    rate: Rate = None,
    checkpoint: Checkpoint = None,
    name: Name = None,
    conf: Conf = None,
    state_dir: StateDir = None,
    detach: Detach = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Run a pipeline file until it ends or is stopped (Ctrl-C, SIGTERM, penstock pipeline stop)."""
    from penstock.spark.pipelines.builtin import builtin_named
    from penstock.spark.pipelines.loading import load
    from penstock.spark.pipelines.run import run_file

    with _told():
        pipeline = load(file, parse_pairs(sets, "--set"))
    given = RunOptions(bootstrap, master, name, conf, state_dir, yes, output, checkpoint, trigger, once, rate, detach)
    if pipeline.arguments is None:
        _execute(pipeline, given, lambda execution: run_file(pipeline, execution), streams=True)
        return
    builtin, arguments = builtin_named(pipeline.head.kind), pipeline.arguments
    _execute(pipeline, given, lambda execution: builtin.run(arguments, execution), streams=builtin.streams)  # type: ignore[arg-type]


def run_builtin(builtin: Builtin[Arguments], arguments: Arguments, given: RunOptions) -> None:
    """What the command of a built-in does."""
    from penstock.spark.pipelines.model import NAME_LENGTH_MAX, Pipeline, PipelineHead

    called = "-".join(filter(None, (builtin.name, arguments.subject())))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", called)[:NAME_LENGTH_MAX]
    pipeline = Pipeline(head=PipelineHead(name=name, kind=builtin.name), arguments=arguments)
    _execute(pipeline, given, lambda execution: builtin.run(arguments, execution), streams=builtin.streams)


@app.command("ls")
def list_all(state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """List pipelines: what runs, and how the last run of the others ended."""
    with _told():
        runs = _registry(state_dir).all()
    columns = ["name", "kind", "state", "rows_read", "rows_per_second", "lag", "last_batch", "started", "pid"]
    rows = [_row(each) for each in runs]
    if output is Format.TABLE:
        # A number that is a name: not one to group by thousands.
        rows = [{**_for_people(row), "pid": str(row["pid"])} for row in rows]
    emit(rows, columns, output, nothing="no pipeline has run yet; see penstock pipeline run --help")


@app.command("status")
def status(name: NameArgument, state_dir: StateDir = None, output: Output = Format.TABLE) -> None:
    """Say how a pipeline stands: rows a second, lag, the last batch; of one that failed, why."""
    with _told():
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
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for the end.")
    ] = 90.0,
    kill: Annotated[bool, typer.Option("--kill", help="Kill it when it has not ended by then.")] = False,
    state_dir: StateDir = None,
) -> None:
    """Stop a pipeline: the batch at hand ends first. Run again, it goes on from there."""
    with _told():
        registry = _registry(state_dir)
        found = registry.load(name)
    if found.state not in ALIVE:
        note(f"pipeline {name} does not run: {found.state}")
        return
    os.kill(found.pid, signal.SIGTERM)
    ended = _wait(lambda: None if (now := registry.load(name)).state in ALIVE else now, timeout)
    if ended is None and kill:
        os.kill(found.pid, signal.SIGKILL)
        ended = _wait(lambda: None if (now := registry.load(name)).state in ALIVE else now, timeout)
    if ended is None:
        raise Failure(f"pipeline {name} (pid {found.pid}) has not ended after {timeout:g} s; wait, or add --kill")
    note(f"pipeline {name} is {ended.state}")


@app.command("forget")
def forget(
    name: NameArgument,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Remove its checkpoint too: run again, it begins anew.")
    ] = False,
    state_dir: StateDir = None,
) -> None:
    """Forget a pipeline that does not run; its checkpoint stays unless --checkpoint is given."""
    with _told():
        registry = _registry(state_dir)
        run = registry.load(name)
        if checkpoint:
            _remove_checkpoint(registry, run)
        registry.forget(name)
    kept = f"; its checkpoint is still in {run.checkpoint}" if run.checkpoint else ""
    note(f"forgot pipeline {name}{' and its checkpoint' if checkpoint else kept}")


def _remove_checkpoint(registry: Registry, run: Run) -> None:
    """Remove it where this program made it. Another folder may hold what is not a checkpoint, or be on another machine."""
    folder = Path(run.checkpoint or registry.checkpoint(run.name))
    ours = (registry.folder / "checkpoints").resolve()
    if ours not in folder.resolve().parents:
        raise PipelineUsageError(
            f"the checkpoint of {run.name} is not in the state folder: remove {run.checkpoint} yourself, then forget {run.name} without --checkpoint"
        )
    if run.state in ALIVE:
        raise PipelineError(f"pipeline {run.name} is running (pid {run.pid}); penstock pipeline stop {run.name} first")
    # Whoever starts it at this moment waits for nothing, and must not lose its checkpoint.
    with registry.running(run.name):
        if folder.exists():
            shutil.rmtree(folder)


def _execute(pipeline: Pipeline, given: RunOptions, work: Callable[[Execution], None], *, streams: bool) -> None:
    from penstock.spark.pipelines.loading import problem_with_name
    from penstock.spark.pipelines.run import Execution, RunSettings, session_of
    from penstock.spark.sessions import need_spark

    with _told():
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
        note(f"continues from the checkpoint of {other}; use --name or --checkpoint to start anew")
    # The process that was started for it is told by its environment: -d may stand in one word with others.
    if given.detach and LOG_VARIABLE not in os.environ:
        _detach(registry, name)
        return
    settings = RunSettings(
        name=name,
        kind=head.kind,
        bootstrap=given.bootstrap or head.bootstrap or BOOTSTRAP_DEFAULT,
        master=given.master,
        checkpoint=checkpoint,
        trigger=_trigger(given, head.trigger),
        rate=given.rate or head.rate,
        conf={**head.conf, **parse_pairs(given.conf, "--conf")},
        file=file,
        description=head.description,
        log=str(registry.log(name)),
        streams=streams,
    )
    with _told(), TerminalScreen(given.output, yes=given.yes) as screen:
        # All that a detached process says is in its log already.
        log = None if LOG_VARIABLE in os.environ else SparkLog(registry.log(name))
        begin = session_of if log is None else log.around(session_of)
        execution = Execution(settings, registry, screen, begin)
        try:
            run = execution.execute(work)
        except Exception:
            if log is not None:
                log.tell()
            raise
        finally:
            execution.close()
            if log is not None:
                log.close()
        if streams:
            screen.clear()
            if given.output is Format.TABLE:
                note(f"pipeline {name} is {run.state}: {rows_read(run)}")
            else:
                emit_one(_row(run), given.output)


def _trigger(given: RunOptions, of_file: str) -> ReadTrigger:
    from penstock.spark.pipelines.values import trigger_of

    try:
        return trigger_of("once" if given.once else given.trigger or of_file)
    except ValueError as error:
        raise Failure(f"--trigger: {error}", Exit.USAGE) from error


def _detach(registry: Registry, name: str) -> None:
    """Start another process for the same command, and say when it runs."""
    with registry.running(name):
        log = registry.log(name)
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--detach", "-d")]
    with log.open("ab") as sink:
        child = subprocess.Popen(
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
        # One that failed is about to end, and its exit code says how.
        told = run.pid == child.pid and run.state not in (PipelineState.STARTING, PipelineState.FAILED)
        return _Settled(None, run) if told else None

    found = _wait(settled, START_WAIT_S)
    if found is not None and found.code:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])
        raise Failure(f"pipeline {name} did not start; {log} ends with:\n{tail}", _exit_of(found.code))
    state = "still starting" if found is None else "done" if found.run is None else found.run.state
    note(f"pipeline {name} is {state}, pid {child.pid}; its log is {log}")


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
def _told(*left_alone: type[Exception]) -> Iterator[None]:
    """What goes wrong with pipelines, as a sentence and an exit code; but for those that the caller tells itself."""
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
    """What Spark, and our parts in it, have to say to people; None for what is none of theirs. Whoever raised it has imported its module."""
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
        plan = PipelinePlan(pipeline, spark, bootstrap or pipeline.head.bootstrap or BOOTSTRAP_DEFAULT)
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
    """A table says of its rows what programs find documented: they were read, and perhaps fewer or more were written."""
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
