"""The part of the driver: one commit for all that the tasks of a batch staged.

Spark may call ``abort`` after a ``commit`` that failed late, when the batch is in its topics already. The broker refuses to abort a batch
that is committed or about to be, so nothing that was read is undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.client.errors import CannotConnect, ClientError, RequestRefused
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.client.sinks import COMMIT_TIMEOUT_MS, SinkClient
from penstock.operations.sinks import OpenedSink, SinkPart
from penstock.spark.errors import LOG
from penstock.spark.sink.staging import Staged

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import WriterCommitMessage

    from penstock.client.cluster import TopicPartition


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """Where batches are committed, and how to connect."""

    address: str
    security: ClientSecurity = UNSECURED

    def client(self, *, timeout_ms: int = COMMIT_TIMEOUT_MS) -> SinkClient:
        """A client, for a ``with`` statement."""
        return SinkClient(self.address, timeout_ms=timeout_ms, security=self.security)


CLEANING_TIMEOUT_MS: Final = 10_000
"""The clean-up must not delay the end of a job for long: staged batches are invisible."""


def open_sink(place: SinkPlace, name: str, *, remember_ms: int | None = None) -> OpenedSink:
    """Open the sink. If the place does not answer, the error explains that it came from the broker."""
    try:
        with place.client() as client:
            return client.open(name, remember_ms=remember_ms)
    except CannotConnect as error:
        raise CannotConnect(
            f"The HTTP listener of the broker, {place.address}, is needed for exactly-once writes and cannot be reached from here: start the broker with --http on an address that the driver and the executors can reach ({error})"
        ) from error


def staged_by(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """The messages of the tasks. A failed task has none."""
    return [message for message in messages if isinstance(message, Staged)]


def merged(staged: Iterable[Staged]) -> list[SinkPart]:
    """One part for each partition, with the ranges of all tasks in order."""
    ranges: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for message in staged:
        for part in message.parts:
            ranges.setdefault((part.topic, part.partition), []).extend(part.staged)
    return [SinkPart(topic, partition, found) for (topic, partition), found in ranges.items()]


def commit(place: SinkPlace, staged: Sequence[Staged]) -> None:
    """Append everything at once. A batch that is committed already is not changed."""
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
    logged: set[str] = set()

    def log_once(error: ClientError) -> None:
        if str(error) not in logged:
            logged.add(str(error))
            LOG.warning("batch %d is staged and waits for its commit by the sink %s: %s", batch_id, sink, error)

    with place.client() as client:
        done = client.commit(sink, batch_id, parts, staging_id=staging_ids.pop(), on_wait=log_once)
    if done.dropped:
        LOG.warning(
            "%d records of batch %d were dropped: their topic was deleted while they were committed",
            done.dropped,
            batch_id,
        )


def abort(place: SinkPlace, sink: str, batch_id: int) -> bool | None:
    """Drop what is staged, unless the batch is committed or about to be. None if the broker does not answer: it is dropped later."""
    try:
        with place.client(timeout_ms=CLEANING_TIMEOUT_MS) as client:
            return client.abort(sink, batch_id).aborted
    except ClientError as error:
        _log_not_deleted(sink, error)
        # A sink that does not exist has nothing staged.
        return True if isinstance(error, RequestRefused) and error.is_not_found else None


def not_committed(place: SinkPlace, sink: str, batch_id: int, error: ClientError) -> ClientError:
    """The error for a write that cannot be repeated, because another write would append its rows again."""
    is_dropped = abort(place, sink, batch_id)
    if is_dropped:
        return error
    known = (
        "It is unknown whether its rows are in the topic or will be appended later"
        if is_dropped is None
        else "The broker has the rows and will append them when it can: running this again would append them twice"
    )
    return ClientError(f"{error}. {known}. To see the result, run penstock sink show {sink}")


def forget(place: SinkPlace, sink: str) -> None:
    """Delete the sink of a write that has ended. A failure is only logged."""
    try:
        with place.client(timeout_ms=CLEANING_TIMEOUT_MS) as client:
            client.delete(sink)
    except ClientError as error:
        _log_not_deleted(sink, error)


def _log_not_deleted(sink: str, error: ClientError) -> None:
    if isinstance(error, RequestRefused) and error.is_not_found:
        return
    LOG.warning("the sink %s was not deleted and remains until it expires: %s", sink, error)
