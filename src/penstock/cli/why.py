"""``penstock why``: explains in one sentence why a record is not being delivered."""

from typing import Annotated

import typer

from penstock.cli.failures import Exit
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Http,
    Output,
    Timeout,
    WorkGroup,
    queue_admin,
)
from penstock.cli.output import Format, emit_one
from penstock.cli.places import parse_record

_NOT_THERE = frozenset({"no_such_topic", "no_such_partition", "no_such_group"})


def why(
    record: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION@OFFSET", help="Record, for example orders/0@42.")],
    group: WorkGroup,
    principal: Annotated[
        str | None,
        typer.Option("--principal", metavar="User:NAME", help="Check whether this worker lacks the rights, too."),
    ] = None,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Explain why a record is not delivered to a group.

    Prints one sentence: who holds the record and until when, what it is waiting for, or that it is finished or does not exist.
    """
    place = parse_record(record)
    with queue_admin(http, timeout) as admin:
        found = admin.why(place.topic, place.partition, place.offset, group, principal)
    if output is Format.TABLE:
        print(found.sentence)
    else:
        emit_one(found, output)
    if found.state in _NOT_THERE:
        raise typer.Exit(Exit.NOT_FOUND)
