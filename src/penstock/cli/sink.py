"""``penstock sink``: lists, shows and deletes exactly-once sinks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import Exit, Failure
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Http,
    IfExists,
    Output,
    Timeout,
    Yes,
    ask_first,
    remove_each,
    sink_client,
)
from penstock.cli.output import Format, Row, as_text, emit, emit_one
from penstock.cli.places import moment

if TYPE_CHECKING:
    from penstock.client import SinkStatus

app = typer.Typer(help="List, show and delete exactly-once sinks.", no_args_is_help=True)

SinkName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the sink.")]
SinkNames = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of one or more sinks.")]


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List sinks.

    Shows the last committed batch, the time of last use, and what is staged or being committed.
    """
    with sink_client(http, timeout) as client:
        rows = [_row(sink) for sink in client.list()]
    columns = ["sink", "last_batch_id", "used", "staged_bytes", "committing", "problem"]
    emit(rows, columns, output, nothing="No sinks; a Spark query creates one when it writes to a topic")


@app.command("show")
def show(
    sink: SinkName, output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT
) -> None:
    """Show the state of a sink."""
    with sink_client(http, timeout) as client, _found(sink):
        row = _row(client.status(sink))
    if output is not Format.TABLE:
        emit_one(row, output)
        return
    for label, value in row.items():
        if value is not None:
            print(f"{label.replace('_', ' ') + ':':<15} {as_text(value)}")


@app.command("delete")
def delete(
    sinks: SinkNames,
    yes: Yes = False,
    if_exists: IfExists = False,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Delete sinks.

    Deletes their staged records and the id of their last batch, so a batch that is sent again is appended again.
    Committed records remain in their topics.
    """
    question = f"Delete {', '.join(sinks)}? A batch that is sent again would be appended again."
    ask_first(question, "Nothing was deleted", yes=yes)
    with sink_client(http, timeout) as client:

        def delete_one(name: str) -> None:
            with _found(name):
                client.delete(name)

        remove_each(sinks, "sink", delete_one, if_exists=if_exists, done="Deleted")


@contextmanager
def _found(sink: str) -> Iterator[None]:
    """The broker advises to open a sink that does not exist, which these commands would not do."""
    from penstock.client.errors import RequestRefused

    try:
        yield
    except RequestRefused as error:
        if not error.is_not_found:
            raise
        raise Failure(f"Sink {sink} does not exist; see penstock sink ls", Exit.NOT_FOUND) from error


def _row(sink: "SinkStatus") -> Row:
    # A sink that never committed has nothing to remember, and is deleted with its staging topic.
    until_ms = None if sink.last_batch_id is None else sink.used_ms + sink.remember_ms
    return {
        "sink": sink.sink,
        "last_batch_id": sink.last_batch_id,
        "committed": moment(sink.committed_ms),
        "used": moment(sink.used_ms),
        "remembered_to": moment(until_ms),
        "since": moment(sink.since_ms),
        "staging_topic": sink.staging_topic,
        "staged_bytes": sink.staged_bytes,
        "committing": sink.committing,
        "problem": sink.problem,
    }
