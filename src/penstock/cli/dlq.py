"""``penstock dlq``: dead letters, looked at, sent back or given up."""

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Failure, note
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    DryRun,
    Http,
    Output,
    Timeout,
    TopicName,
    YesToPlan,
    ask_about_plan,
    complete_group,
    queue_admin,
)
from penstock.cli.output import Format, Row, emit, emit_one, print_table
from penstock.cli.places import RecordPlace, moment, parse_moment
from penstock.cli.progress import progress

if TYPE_CHECKING:
    from penstock.client.queue_admin import DeadLetter, QueueAdmin, Wanted
    from penstock.operations.dead_letters import Progress, RedrivePlan

app = typer.Typer(help="Look at dead letters, send them back, or give them up.", no_args_is_help=True)

Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", "-r", metavar="TEXT", help="Only what died of this; end it with * to match how it begins."
    ),
]
Group = Annotated[
    str | None,
    typer.Option("--group", "-g", help="Only what this group gave up.", autocompletion=complete_group),
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only what came from this partition.")]
Since = Annotated[str | None, typer.Option("--since", metavar="ISO|MS", help="Only what died at or after this moment.")]
Until = Annotated[str | None, typer.Option("--until", metavar="ISO|MS", help="Only what died before this moment.")]
Max = Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="So many at the most.")]


def mount(root: typer.Typer) -> None:
    """Add the noun."""
    root.add_typer(app, name="dlq")


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List topics that have dead letters.

    Open are those that were neither sent back nor given up.
    """
    with queue_admin(http, timeout) as admin:
        rows: list[Row] = [
            {"topic": each.topic, "dead_letter_topic": each.dead_letter_topic, "open": each.open}
            for each in admin.dead_letter_topics()
        ]
    emit(rows, ["topic", "dead_letter_topic", "open"], output, nothing="no dead letters")


@app.command("show")
def show(
    topic: TopicName,
    reason: Reason = None,
    group: Group = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    count: Max = None,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Show dead letters of a topic that are open.

    Where each came from, how often it was tried, what was wrong the last time. 100 of them unless --max says otherwise.
    """
    wanted = _wanted(reason, group, partition, since, until, count)
    with queue_admin(http, timeout) as admin:
        rows = [_letter(each) for each in admin.dead_letters(topic, wanted)]
    columns = ["record", "came_from", "group", "attempts", "last_error", "died", "key", "value"]
    emit(rows, columns, output, nothing=f"no open dead letters of {topic} are like that")


@app.command("redrive")
def redrive(
    topic: TopicName,
    reason: Reason = None,
    group: Group = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    count: Max = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0, metavar="N", help="So many a second; 0 is as fast as it goes.")
    ] = 0,
    yes: YesToPlan = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Send dead letters back to the topic that they came from.

    Shows what it would do, by reason, and asks. Their attempts begin anew. Interrupted, it can be run again: it goes on with
    those that are left.
    """
    wanted = _wanted(reason, group, partition, since, until, count)
    with queue_admin(http, timeout) as admin:
        _carry_out(
            admin,
            topic,
            wanted,
            lambda: admin.redrive(topic, wanted, rate_per_second=rate),
            verb="redrive",
            done="redriven",
            yes=yes,
            dry_run=dry_run,
            output=output,
        )


@app.command("purge")
def purge(
    topic: TopicName,
    reason: Reason = None,
    group: Group = None,
    partition: Partition = None,
    since: Since = None,
    until: Until = None,
    count: Max = None,
    yes: YesToPlan = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Give dead letters up for good.

    Shows what it would do, by reason, and asks. They stay readable in the dead-letter topic, and are not open any more.
    """
    wanted = _wanted(reason, group, partition, since, until, count)
    with queue_admin(http, timeout) as admin:
        _carry_out(
            admin,
            topic,
            wanted,
            lambda: admin.purge(topic, wanted),
            verb="purge",
            done="purged",
            yes=yes,
            dry_run=dry_run,
            output=output,
        )


def _wanted(
    reason: str | None,
    group: str | None,
    partition: int | None,
    since: str | None,
    until: str | None,
    count: int | None,
) -> "Wanted":
    from penstock.client.queue_admin import Wanted

    return Wanted(
        reason=reason,
        group=group,
        partition=partition,
        from_ms=None if since is None else parse_moment(since, "--since"),
        until_ms=None if until is None else parse_moment(until, "--until"),
        max_records=count,
    )


def _carry_out(
    admin: "QueueAdmin",
    topic: str,
    wanted: "Wanted",
    start: Callable[[], "Generator[Progress, None, None]"],
    *,
    verb: str,
    done: str,
    yes: bool,
    dry_run: bool,
    output: Format,
) -> None:
    """The plan, the question, the work."""
    plan = admin.plan(topic, wanted)
    if output is Format.TABLE:
        _print_plan(plan, topic)
    if dry_run or not plan.count:
        _print_result(plan, None, done, output)
        if plan.count:
            note(f"nothing was {done}; leave --dry-run out to do it")
        return
    question = f"{verb.capitalize()} {plan.count} dead letters of {topic}?"
    ask_about_plan(question, f"nothing was {done}", f"{verb} {plan.count} dead letters", yes=yes)
    result = _follow(start(), plan, topic, done)
    _print_result(plan, result, done, output)
    if result.failed:
        raise Failure(f"{result.failed} could not be {done} and are still open: {result.last_failure}")


def _follow(lines: "Generator[Progress, None, None]", plan: "RedrivePlan", topic: str, done: str) -> "Progress":
    finished = 0
    last: Progress | None = None
    try:
        with closing(lines), progress(done, "dead letters", plan.count) as bar:
            for last in lines:
                bar.advance(last.finished + last.skipped + last.failed - finished)
                finished = last.finished + last.skipped + last.failed
    except KeyboardInterrupt:
        so_far = last.finished if last is not None else 0
        note(f"interrupted: {so_far} of {plan.count} dead letters of {topic} are {done}; run it again to go on")
        raise
    assert last is not None, "a job that ends without a line is a lost connection"
    return last


def _print_plan(plan: "RedrivePlan", topic: str) -> None:
    if not plan.count:
        note(f"no open dead letters of {topic} are like that")
        return
    print_table(_reasons(plan), ["reason", "count", "oldest", "newest"])
    sys.stdout.flush()


def _reasons(plan: "RedrivePlan") -> list[Row]:
    return [
        {
            "reason": each.reason,
            "count": each.count,
            "oldest": moment(each.oldest_ms),
            "newest": moment(each.newest_ms),
        }
        for each in plan.reasons
    ]


def _print_result(plan: "RedrivePlan", result: "Progress | None", done: str, output: Format) -> None:
    if output is Format.TABLE:
        if result is not None:
            skipped = f", {result.skipped} somebody else finished meanwhile" if result.skipped else ""
            note(f"{result.finished} {done}{skipped}")
        return
    row: Row = {
        "topic": plan.topic,
        "dead_letter_topic": plan.dead_letter_topic,
        "planned": plan.count,
        "reasons": _reasons(plan),
        done: 0 if result is None else result.finished,
        "failed": 0 if result is None else result.failed,
        "skipped": 0 if result is None else result.skipped,
    }
    emit_one(row, output)


def _letter(letter: "DeadLetter") -> Row:
    came_from = None
    if letter.original_offset is not None:
        came_from = str(RecordPlace(letter.original_topic, letter.original_partition, letter.original_offset))
    return {
        "record": str(RecordPlace(letter.dead_letter_topic, letter.partition, letter.offset)),
        "came_from": came_from,
        "group": letter.original_group,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
        "died": moment(letter.routed_at_ms),
        "key": letter.key or None,
        **({"key_encoding": letter.key_encoding} if letter.key_encoding else {}),
        "value": letter.value,
        **({"encoding": letter.encoding} if letter.encoding else {}),
        "original_topic": letter.original_topic,
        "original_partition": letter.original_partition,
        "original_offset": letter.original_offset,
        "routed_at_ms": letter.routed_at_ms,
        "headers": letter.headers,
    }
