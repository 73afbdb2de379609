"""The driver's part: one commit for all that the tasks of a batch staged.

Spark may call ``abort`` after a ``commit`` that failed late, when the batch is in its topics: the broker is asked to abort, and
refuses that by itself once a batch is committed or about to be. Nothing is undone that somebody may have read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client.errors import CannotConnect, ClientError, RequestRefused
from penstock.client.sinks import SinkClient
from penstock.operations.sinks import OpenedSink, SinkPart
from penstock.spark.errors import LOG
from penstock.spark.sink.staging import Staged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import WriterCommitMessage

    from penstock.client.cluster import TopicPartition

CLEANING_TIMEOUT_MS: Final = 10_000
"""A job that is over is not kept waiting for long: what is staged is seen by nobody."""


def open_sink(address: str, name: str, *, remember_ms: int | None = None) -> OpenedSink:
    """The sink, ready. An address that nobody answers at is told as the one that the broker gave."""
    try:
        with SinkClient(address) as client:
            return client.open(name, remember_ms=remember_ms)
    except CannotConnect as error:
        raise CannotConnect(
            f"The HTTP listener of the broker, {address}, is needed for exactly-once writes and cannot be reached from here: start the broker with --http on an address that the driver and the executors can reach ({error})"
        ) from error


def staged_by(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """What the tasks told; a task that failed told nothing."""
    return [message for message in messages if isinstance(message, Staged)]


def merged(staged: Iterable[Staged]) -> list[SinkPart]:
    """One part for each partition, with what the tasks staged for it, task by task."""
    ranges: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for message in staged:
        for part in message.parts:
            ranges.setdefault((part.topic, part.partition), []).extend(part.staged)
    return [SinkPart(topic, partition, found) for (topic, partition), found in ranges.items()]


def commit(address: str, staged: Sequence[Staged]) -> None:
    """Let everything be seen at once; a batch that is committed already stays as it is."""
    parts = merged(staged)
    if not parts:
        return
    sink, batch_id = staged[0].sink, staged[0].batch_id
    assert all((message.sink, message.batch_id) == (sink, batch_id) for message in staged), "one batch at a time"
    staging_ids = {message.staging_id for message in staged if message.parts}
    if len(staging_ids) > 1:
        raise ClientError(
            f"The sink {sink!r} was deleted while the tasks of batch {batch_id} staged their rows, so some of them are lost; nothing was committed. Run the batch again"
        )
    told: set[str] = set()

    def tell(error: ClientError) -> None:
        if str(error) not in told:
            told.add(str(error))
            LOG.warning("batch %d is staged and waits for its commit by the sink %s: %s", batch_id, sink, error)

    with SinkClient(address) as client:
        done = client.commit(sink, batch_id, parts, staging_id=staging_ids.pop(), on_wait=tell)
    if done.dropped:
        LOG.warning(
            "%d records of batch %d were dropped: their topic was deleted while they were committed",
            done.dropped,
            batch_id,
        )


def abort(address: str, sink: str, batch_id: int) -> bool | None:
    """Drop what is staged, unless the batch is committed or about to be. None if nobody answers: then it goes by itself, later."""
    try:
        with SinkClient(address, timeout_ms=CLEANING_TIMEOUT_MS) as client:
            return client.abort(sink, batch_id).aborted
    except ClientError as error:
        _log_kept(sink, error)
        # Of a sink that is gone, nothing is staged.
        return True if isinstance(error, RequestRefused) and error.is_not_found else None


def not_committed(address: str, sink: str, batch_id: int, error: ClientError) -> ClientError:
    """What to tell of a write that cannot be asked for again: the next one is another, and would append its rows once more."""
    is_dropped = abort(address, sink, batch_id)
    if is_dropped:
        return error
    known = (
        "It is unknown whether its rows are in the topic or will be appended later"
        if is_dropped is None
        else "The broker has the rows and will append them when it can: running this again would append them twice"
    )
    return ClientError(f"{error}. {known}. To see the result, run penstock sink show {sink}")


def forget(address: str, sink: str) -> None:
    """Delete the sink of a write that is over; there is nothing to do for the caller if that fails."""
    try:
        with SinkClient(address, timeout_ms=CLEANING_TIMEOUT_MS) as client:
            client.delete(sink)
    except ClientError as error:
        _log_kept(sink, error)


def _log_kept(sink: str, error: ClientError) -> None:
    if isinstance(error, RequestRefused) and error.is_not_found:
        return
    LOG.warning("the sink %s was not deleted and remains until it expires: %s", sink, error)
