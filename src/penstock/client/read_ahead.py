"""Reads one partition from one offset to another, and requests the next batches while the last ones are processed.

For bulk readers (a Spark task): broker and reader work at the same time, with at most two responses in memory. Batches are
whole, as from :meth:`penstock.client.Consumer.fetch`.

Invariant: no batch is returned twice, and if an offset cannot be reached, an error is raised. Compaction can remove all records between the
position and the end of the range: the range ends when two responses in a row show that the end of the partition is past the range and that
there is nothing before it.
"""

from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from penstock.client.cluster import BACKOFF_MS_MIN, Cluster
from penstock.client.connection import Connection, Ticket
from penstock.client.consumer import NAMES_VERSION_MAX, WAIT_MS_MAX, Fetched, open_answer
from penstock.client.errors import ClientError, RequestTimeout, check
from penstock.client.offsets import CONSUMER
from penstock.limits import MIB
from penstock.wire.kafka import fetch_generated as wire

BYTES_MAX: Final = 4 * MIB
"""A response of this size and its decoded records fit into the processor's cache: with twice as much, a read took a third longer."""
TIMEOUT_MS: Final = 120_000
_EMPTY_RESPONSES_MIN: Final = 2


class _InFlight(NamedTuple):
    """A request in flight."""

    connection: Connection
    ticket: Ticket
    position: int


class ReadAhead:
    """One pass over ``[from_offset, to_offset)`` of a partition. Not safe to share between threads.

    ``timeout_ms`` is the maximum wait for the next batches.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        from_offset: int,
        to_offset: int,
        *,
        bytes_max: int = BYTES_MAX,
        wait_ms_max: int = WAIT_MS_MAX,
        timeout_ms: int = TIMEOUT_MS,
        read_committed: bool = False,
    ) -> None:
        self._cluster: Final = cluster
        self._topic: Final = topic
        self._partition: Final = partition
        self._to_offset: Final = to_offset
        self._bytes_max: Final = bytes_max
        self._wait_ms_max: Final = wait_ms_max
        self._timeout_ms: Final = timeout_ms
        self._read_committed: Final = read_committed
        self._position = from_offset
        self._in_flight: _InFlight | None = None
        self._empty_responses = 0
        """Responses in a row that show that the rest of the range is empty."""

    @property
    def position(self) -> int:
        """The offset after the returned batches."""
        return self._position

    def __iter__(self) -> Iterator[Fetched]:
        try:
            while self._position < self._to_offset:
                fetched = self._next()
                if fetched is None:
                    self._position = self._to_offset
                    return
                self._position = fetched.batches[-1][0].next_offset
                if self._position < self._to_offset:
                    # The broker prepares the next response while the caller processes this one. If the leader has failed meanwhile, the request is
                    # sent again when its response is needed.
                    with suppress(ClientError):
                        self._in_flight = self._send()
                yield fetched
        finally:
            self._abandon()

    def _next(self) -> Fetched | None:
        """The next batches, or None if there are no more. Waits for them until the timeout, even if the broker restarts."""
        deadline = monotonic() + self._timeout_ms / 1000
        while True:
            fetched = self._cluster.retry(self._once, timeout_ms=max(0, int((deadline - monotonic()) * 1000)))
            if fetched.batches:
                self._empty_responses = 0
                return fetched
            # One is not enough: the end may have moved after the broker read the records and before it read the end.
            if self._empty_responses >= _EMPTY_RESPONSES_MIN:
                return None
            if monotonic() >= deadline:
                raise RequestTimeout(
                    f"{self._topic}/{self._partition} has no record at offset {self._position} for {self._timeout_ms} ms, but should have records up to {self._to_offset}; its end is {fetched.high_watermark}"
                )

    def _once(self) -> Fetched:
        request = self._in_flight or self._send()
        self._in_flight = None
        try:
            answer = request.connection.receive(
                request.ticket, wire.FetchResponse, timeout_ms=self._cluster.timeout_ms + self._wait_ms_max
            )
            check(answer.error_code, f"fetch from {request.connection.address}")
            part = answer.responses[0].partitions[0]
            check(part.error_code, f"{self._topic}/{self._partition} at offset {request.position}", in_metadata=True)
            end = part.last_stable_offset if self._read_committed else part.high_watermark
            # A broker that throttles the client sends empty responses too.
            is_empty = not part.records and end >= self._to_offset and not answer.throttle_time_ms
            self._empty_responses = self._empty_responses + 1 if is_empty else 0
            return open_answer(self._topic, part, request.position)
        except BaseException:
            # The rest of a response must not be taken for the next one.
            request.connection.close()
            raise

    def _send(self) -> _InFlight:
        address = self._cluster.leader_address(self._topic, self._partition)
        connection = self._cluster.connection_to(address)
        entry = wire.FetchRequestPartition(
            partition=self._partition, fetch_offset=self._position, partition_max_bytes=self._bytes_max
        )
        request = wire.FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=max(self._wait_ms_max, BACKOFF_MS_MIN),
            min_bytes=1,
            max_bytes=self._bytes_max,
            isolation_level=int(self._read_committed),
            topics=[wire.FetchRequestTopic(topic=self._topic, partitions=[entry])],
        )
        return _InFlight(connection, connection.send(request, version_max=NAMES_VERSION_MAX), self._position)

    def _abandon(self) -> None:
        """Close the connection if a response is in flight, which would be taken for the response to the next request."""
        if self._in_flight is not None:
            self._in_flight.connection.close()
            self._in_flight = None
