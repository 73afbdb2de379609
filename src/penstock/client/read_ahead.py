"""Reads one partition from one offset to another, the next answer on its way while the last one is worked on.

For a reader that takes a range in bulk (a Spark task): broker and reader work at the same time, and never more than two
answers are held. Batches come whole, as :meth:`penstock.client.Consumer.fetch` gives them, for the caller to open.

Invariant: no batch that ends before the position is given out twice; a position that cannot be reached ends in an error, never in silence.
Compaction can leave nothing between a position and the end of a partition: then the broker says, asked twice, that it ends behind the range
and that nothing is there, and the range is read.
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
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)

BYTES_MAX: Final = 4 * MIB
"""An answer of this size and what is opened of it stay in the processor's cache: with twice as much a read took a third longer."""
TIMEOUT_MS: Final = 120_000
_SAID_EMPTY_MIN: Final = 2


class _Flight(NamedTuple):
    """A request on its way."""

    connection: Connection
    ticket: Ticket
    position: int


class ReadAhead:
    """One pass over ``[from_offset, to_offset)`` of a partition. Not safe to share between threads.

    ``timeout_ms`` is how long one piece of the range may be waited for.
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
        self._flight: _Flight | None = None
        self._said_empty = 0
        """How often the broker has said in a row that the rest of the range has nothing in it."""

    @property
    def position(self) -> int:
        """The offset behind what was given out."""
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
                    # Before the caller works on this answer, so that the broker makes the next one meanwhile. The leader may have died since it sent
                    # this one: then the next is asked for when it is needed, and waited for.
                    with suppress(ClientError):
                        self._flight = self._send()
                yield fetched
        finally:
            self._abandon()

    def _next(self) -> Fetched | None:
        """The next batches, None when there are no more; waits for them, over a broker's restart too, until the time is over."""
        deadline = monotonic() + self._timeout_ms / 1000
        while True:
            fetched = self._cluster.retry(self._once, timeout_ms=max(0, int((deadline - monotonic()) * 1000)))
            if fetched.batches:
                self._said_empty = 0
                return fetched
            # Not the first time: the end may have moved between the broker's look at the records and its look at the end.
            if self._said_empty >= _SAID_EMPTY_MIN:
                return None
            if monotonic() >= deadline:
                raise RequestTimeout(
                    f"{self._topic}/{self._partition} has no record at offset {self._position} for {self._timeout_ms} ms, but should have records up to {self._to_offset}; its end is {fetched.high_watermark}"
                )

    def _once(self) -> Fetched:
        flight = self._flight or self._send()
        self._flight = None
        try:
            answer = flight.connection.receive(
                flight.ticket, FetchResponse, timeout_ms=self._cluster.timeout_ms + self._wait_ms_max
            )
            check(answer.error_code, f"fetch from {flight.connection.address}")
            part = _only(answer)
            check(part.error_code, f"{self._topic}/{self._partition} at offset {flight.position}", in_metadata=True)
            end = part.last_stable_offset if self._read_committed else part.high_watermark
            # A broker that holds a client back answers with nothing, too.
            is_empty = not part.records and end >= self._to_offset and not answer.throttle_time_ms
            self._said_empty = self._said_empty + 1 if is_empty else 0
            return open_answer(self._topic, part, flight.position)
        except BaseException:
            # Also when the answer was read whole: what is left of it must not be taken for the next one.
            flight.connection.close()
            raise

    def _send(self) -> _Flight:
        address = self._cluster.leader_address(self._topic, self._partition)
        connection = self._cluster.connection_to(address)
        entry = FetchRequestPartition(
            partition=self._partition, fetch_offset=self._position, partition_max_bytes=self._bytes_max
        )
        request = FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=max(self._wait_ms_max, BACKOFF_MS_MIN),
            min_bytes=1,
            max_bytes=self._bytes_max,
            isolation_level=int(self._read_committed),
            topics=[FetchRequestTopic(topic=self._topic, partitions=[entry])],
        )
        return _Flight(connection, connection.send(request, version_max=NAMES_VERSION_MAX), self._position)

    def _abandon(self) -> None:
        """An answer that nobody waits for would be taken for the answer to whatever is asked next."""
        if self._flight is not None:
            self._flight.connection.close()
            self._flight = None


def _only(answer: FetchResponse) -> FetchResponsePartition:
    return answer.responses[0].partitions[0]
