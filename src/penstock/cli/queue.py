"""``penstock queue``: the state of queues, and processing records by hand."""

import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failures import note
from penstock.cli.options import (
    HTTP_DEFAULT,
    TIMEOUT_S_DEFAULT,
    Http,
    Output,
    Timeout,
    TopicName,
    WorkGroup,
    queue_admin,
    queue_client,
)
from penstock.cli.output import Format, Row, emit, key_and_value, picked
from penstock.cli.places import RecordPlace, moment, parse_record
from penstock.text import text_of

if TYPE_CHECKING:
    from penstock.client import LeasedRecord
    from penstock.client.queue_admin import PeekedRecord
    from penstock.operations.queues import QueueStatus

app = typer.Typer(help="Inspect queues, and process records by hand.", no_args_is_help=True)

Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1000, metavar="N", help="Return at most N records.")]
Owner = Annotated[
    str | None,
    typer.Option("--owner", help="Use this name for the worker.  [default: cli@ and the name of this machine]"),
]
Records = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC/PARTITION@OFFSET...", help="Records that are leased to you, for example orders/0@42."
    ),
]


@app.command("ls")
def ls(output: Output = Format.TABLE, http: Http = HTTP_DEFAULT, timeout: Timeout = TIMEOUT_S_DEFAULT) -> None:
    """List queues.

    A queue is a topic that a group consumes with leases. Lag is the number of unfinished records: those that are leased,
    waiting (for a backoff or a scheduled time), ready to be delivered again, moving to the dead letters, or untouched.
    """
    with queue_admin(http, timeout) as admin:
        rows = [_summary(queue) for queue in admin.queues()]
    columns = ["topic", "group", "lag", "leased", "waiting", "ready", "untouched", "moving", "owners"]
    emit(
        rows,
        columns,
        output,
        nothing='No queues; a topic becomes one when a worker or "penstock queue lease" asks for its records',
    )


@app.command("peek")
def peek(
    topic: TopicName,
    group: WorkGroup,
    count: Count = 20,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Show the unfinished records of a queue and their state.

    Changes nothing: it takes no lease and counts no attempt.
    """
    with queue_admin(http, timeout) as admin:
        rows = [_peeked(record) for record in admin.peek(topic, group, count)]
    columns = ["record", "state", "attempts", "owner", "until", "last_error", "key", "value"]
    emit(rows, columns, output, nothing=f"No unfinished records in {topic} for {group}")


@app.command("lease")
def lease(
    topic: TopicName,
    group: WorkGroup,
    count: Count = 1,
    owner: Owner = None,
    lease_ms: Annotated[
        int, typer.Option("--lease-ms", min=1, help="Lease the records for this many milliseconds.")
    ] = 60_000,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", "-w", min=0, max=60, metavar="SECONDS", help="Wait at most this long for the first record."
        ),
    ] = 0,
    output: Output = Format.TABLE,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Lease records of a queue.

    Run "penstock queue ack" or "penstock queue nack" before the lease expires, or the records are delivered again.
    """
    with queue_client(http, timeout, owner or _default_owner()) as client:
        records = client.lease(topic, group, max_records=count, lease_ms=lease_ms, wait_ms=int(wait * 1000))
        emit(
            [_leased(record) for record in records],
            ["record", "attempts", "until", "last_error", "key", "value"],
            output,
            nothing=f"No records to lease in {topic} for {group} at the moment",
        )
        if records and output is Format.TABLE:
            flag = "" if owner is None else f" --owner {owner}"
            note(f"Leased to {client.owner}; to finish one: penstock queue ack {records[0].id} --group {group}{flag}")


@app.command("ack")
def ack(
    records: Records,
    group: WorkGroup,
    owner: Owner = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Ack records that are leased to you.

    They are finished, and not delivered to the group again.
    """
    with queue_client(http, timeout, owner or _default_owner()) as client:
        for (topic, partition), offsets in _by_partition(records).items():
            with _explained(http, timeout, topic, partition, offsets, group):
                client.ack_offsets(topic, group, partition, offsets)
    note(f"Acked {len(records)} {'record' if len(records) == 1 else 'records'}")


@app.command("nack")
def nack(
    records: Records,
    group: WorkGroup,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Record why processing failed.")] = "",
    owner: Owner = None,
    http: Http = HTTP_DEFAULT,
    timeout: Timeout = TIMEOUT_S_DEFAULT,
) -> None:
    """Nack records that are leased to you.

    They are delivered again after their backoff, or become dead letters after their last attempt.
    """
    with queue_client(http, timeout, owner or _default_owner()) as client:
        for (topic, partition), offsets in _by_partition(records).items():
            with _explained(http, timeout, topic, partition, offsets, group):
                client.nack_offsets(topic, group, partition, offsets, reason)
    note(f"Nacked {len(records)} {'record' if len(records) == 1 else 'records'}")


@contextmanager
def _explained(
    http: str, timeout_s: float, topic: str, partition: int, offsets: Iterable[int], group: str
) -> Generator[None, None, None]:
    """Adds the state of a record to the error if it cannot be acked or nacked."""
    from penstock.client.errors import RequestRefused

    try:
        yield
    except RequestRefused as error:
        if error.code != "FAILED_PRECONDITION":
            raise
        with queue_admin(http, timeout_s) as admin:
            sentences = {admin.why(topic, partition, offset, group).sentence for offset in offsets}
        raise RequestRefused(error.status, error.code, f"{error.sentence}: {' '.join(sorted(sentences))}") from error


def _default_owner() -> str:
    """The same for every command on one machine, so that one can ack what another leased."""
    return f"cli@{socket.gethostname()}"


def _by_partition(texts: Iterable[str]) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for text in texts:
        place = parse_record(text)
        found.setdefault((place.topic, place.partition), []).append(place.offset)
    return found


def _summary(queue: "QueueStatus") -> Row:
    return {
        **picked(queue, "topic", "group", "lag", leased="in_flight", leased_max="in_flight_max"),
        "waiting": sum(each.waiting for each in queue.partitions),
        "ready": sum(each.ready for each in queue.partitions),
        "untouched": max(
            0, queue.lag - sum(each.leased + each.waiting + each.ready + each.moving for each in queue.partitions)
        ),
        "moving": sum(each.moving for each in queue.partitions),
        "owners": len(queue.owners),
        "owner_list": [picked(each, "owner", "leased", "workers") for each in queue.owners],
        "partitions": [picked(each, "partition", "floor", "end", "lag", "leased") for each in queue.partitions],
    }


def _peeked(record: "PeekedRecord") -> Row:
    return {
        "record": str(RecordPlace(record.topic, record.partition, record.offset)),
        **picked(record, "topic", "partition", "offset", "state", "attempts", "owner"),
        "until": moment(record.until_ms),
        "last_error": record.last_error or None,
        **key_and_value(record.key or None, record.key_encoding, record.value, record.encoding),
        "timestamp": record.timestamp,
    }


def _leased(record: "LeasedRecord") -> Row:
    return {
        "record": record.id,
        **picked(record, "topic", "partition", "offset", "group", "owner", "attempts"),
        "until": moment(record.lease_until_ms),
        "last_error": record.last_error or None,
        **key_and_value(*text_of(record.key or None), *text_of(record.value)),
        "timestamp": record.timestamp,
    }
