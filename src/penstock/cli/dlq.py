"""``penstock dlq``: lists, redrives and purges dead letters."""

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
from penstock.cli.output import Format, Row, emit, emit_one, key_and_value, picked, print_table
from penstock.cli.places import RecordPlace, moment, parse_moment
from penstock.cli.progress import progress

if TYPE_CHECKING:
    from penstock.client.queue_admin import DeadLetter, QueueAdmin, Wanted
    from penstock.operations.dead_letters import Progress, RedrivePlan

app = typer.Typer(help="List, redrive and purge dead letters.", no_args_is_help=True)

Reason = Annotated[
    str | None,
    typer.Option("--reason", "-r", metavar="TEXT", help="Select by the last error; a * at the end matches any text."),
]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help="Select by the group that could not process them.", autocompletion=complete_group
    ),
]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Select by the original partition.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="ISO|MS", help="Select those that became dead letters at or after this time."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="ISO|MS", help="Select those that became dead letters before this time."),
]
Max = Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="Select at most N.")]


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List topics that have dead letters.

    Open dead letters are those that were neither redriven nor purged.
    """
    with queue_admin(http, timeout) as admin:
        columns = ["topic", "dead_letter_topic", "open"]
        rows = [picked(each, *columns) for each in admin.dead_letter_topics()]
    emit(rows, columns, output, nothing="No dead letters")


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
    """Show the open dead letters of a topic.

    Shows where each came from, the number of attempts, and the last error. Shows at most 100, unless --max is given.
    """
    wanted = _wanted(reason, group, partition, since, until, count)
    with queue_admin(http, timeout) as admin:
        rows = [_letter(each) for each in admin.dead_letters(topic, wanted)]
    columns = ["record", "came_from", "group", "attempts", "last_error", "died", "key", "value"]
    emit(rows, columns, output, nothing=f"No open dead letters of {topic} match")


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
        float, typer.Option("--rate", min=0, metavar="N", help="Send at most N per second; 0 for no limit.")
    ] = 0,
    yes: YesToPlan = False,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Send dead letters back to their original topic.

    Shows a plan by reason, and asks for confirmation. Attempts are counted from zero again. If it is interrupted, run it again
    to send the rest.
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
    """Discard dead letters.

    Shows a plan by reason, and asks for confirmation. The records stay in the dead-letter topic, but are no longer open.
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
    """Show the plan, ask, and carry it out."""
    plan = admin.plan(topic, wanted)
    if output is Format.TABLE:
        _print_plan(plan, topic)
    if dry_run or not plan.count:
        _print_result(plan, None, done, output)
        if plan.count:
            note(f"Nothing was {done}; run it without --dry-run to do it")
        return
    question = f"{verb.capitalize()} {plan.count} dead letters of {topic}?"
    ask_about_plan(question, f"Nothing was {done}", f"{verb} {plan.count} dead letters", yes=yes)
    result = _follow(start(), plan, topic, done)
    _print_result(plan, result, done, output)
    if result.failed:
        raise Failure(f"{result.failed} dead letters could not be {done} and are still open: {result.last_failure}")


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
        note(f"Interrupted: {so_far} of {plan.count} dead letters of {topic} were {done}; run it again to continue")
        raise
    assert last is not None, "a job that ends without a line is a lost connection"
    return last


def _print_plan(plan: "RedrivePlan", topic: str) -> None:
    if not plan.count:
        note(f"No open dead letters of {topic} match")
        return
    print_table(_reasons(plan), ["reason", "count", "oldest", "newest"])
    sys.stdout.flush()


def _reasons(plan: "RedrivePlan") -> list[Row]:
    return [
        {**picked(each, "reason", "count"), "oldest": moment(each.oldest_ms), "newest": moment(each.newest_ms)}
        for each in plan.reasons
    ]


def _print_result(plan: "RedrivePlan", result: "Progress | None", done: str, output: Format) -> None:
    if output is Format.TABLE:
        if result is not None:
            skipped = f", {result.skipped} were no longer open" if result.skipped else ""
            note(f"{result.finished} {done}{skipped}")
        return
    row: Row = {
        **picked(plan, "topic", "dead_letter_topic", planned="count"),
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
        **key_and_value(letter.key or None, letter.key_encoding, letter.value, letter.encoding),
        **picked(letter, "original_topic", "original_partition", "original_offset", "routed_at_ms", "headers"),
    }
