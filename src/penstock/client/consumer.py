"""Reads given partitions from given offsets. For groups, see ``group_consumer.py``.

:meth:`Consumer.fetch` returns whole batches as the broker sent them, for callers that decode them differently (Spark, by
columns); :meth:`Consumer.poll` decodes them into records.

Invariant: the position of a partition is the offset after the last record returned, or after the last one that compaction removed. It
only moves forward, except by :meth:`Consumer.assign` or :meth:`Consumer.seek`. The checksum of every batch is verified before it is returned.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from penstock.address import Address
from penstock.client.cluster import BACKOFF_MS_MIN, Cluster, TopicPartition
from penstock.client.connection import Connection, Ticket
from penstock.client.errors import OFFSET_OUT_OF_RANGE, ClientError, check
from penstock.client.offsets import CONSUMER, At, list_offsets
from penstock.errors import PenstockError
from penstock.limits import MIB
from penstock.records.batch import HEADER_BYTES, BatchHeader, crc_matches, read_header
from penstock.records.records import Headers, read_records
from penstock.types import Buffer, TimestampType
from penstock.wire.kafka import fetch_generated as wire

NAMES_VERSION_MAX: Final = 12
"""Later versions name topics by their ids."""
FETCH_BYTES_MAX: Final = 50 * MIB
PARTITION_BYTES_MAX: Final = 4 * MIB
WAIT_MS_MAX: Final = 500
OPENED_BYTES_MAX: Final = 1024 * MIB
"""The maximum size of a decompressed batch: a decompression bomb must not crash the reader."""


class OutOfRange(Enum):
    """What to do if the records at the position are deleted, or do not exist yet."""

    FAIL = "fail"
    EARLIEST = "earliest"
    LATEST = "latest"


class ConsumerRecord(NamedTuple):
    """A record with its position."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers


class Fetched(NamedTuple):
    """Whole batches of one partition. The first batch may begin before ``from_offset``.

    ``aborted`` are the aborted transactions among them, as producer id and first offset: a reader of committed
    records leaves out the transactional batches of that producer from there to its next marker.
    """

    topic: str
    partition: int
    from_offset: int
    batches: list[tuple[BatchHeader, memoryview]]
    high_watermark: int
    start_offset: int
    aborted: Sequence[tuple[int, int]] = ()


class _Nothing(NamedTuple):
    """An empty response of a leader for a position before the ``end`` of the partition."""

    leader: Address
    position: int
    end: int


class Consumer:
    """Reads partitions. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        out_of_range: OutOfRange = OutOfRange.FAIL,
        fetch_bytes_max: int = FETCH_BYTES_MAX,
        partition_bytes_max: int = PARTITION_BYTES_MAX,
        wait_ms_max: int = WAIT_MS_MAX,
        read_committed: bool = False,
    ) -> None:
        self._cluster = cluster
        self._out_of_range = out_of_range
        self._fetch_bytes_max = fetch_bytes_max
        self._partition_bytes_max = partition_bytes_max
        self._wait_ms_max = wait_ms_max
        self._read_committed = read_committed
        self._positions: dict[TopicPartition, int] = {}
        self._to_reset: dict[TopicPartition, int] = {}
        self._nothing: dict[TopicPartition, _Nothing] = {}
        """Partitions whose last response was empty before their end: the next response shows whether anything is left there."""
        self.high_watermarks: dict[TopicPartition, int] = {}
        """The end of each partition in the last response."""

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition."""
        return self._positions

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets, and no others."""
        self._positions = dict(positions)
        self.high_watermarks = {}

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Continue at another offset of an assigned partition."""
        assert place in self._positions, "only an assigned partition has a position"
        self._positions[place] = offset

    def poll(self, timeout_ms: int = 1000) -> list[ConsumerRecord]:
        """Return some records as soon as there are any; empty after the timeout."""
        records: list[ConsumerRecord] = []
        for fetched in self.fetch(timeout_ms):
            records.extend(open_records(fetched))
        return records

    def fetch(self, timeout_ms: int = 1000) -> list[Fetched]:
        """Return some whole batches as soon as there are any; empty after the timeout. Positions advance past them."""
        deadline = monotonic() + timeout_ms / 1000
        while self._positions:
            wait_ms = max(0, min(self._wait_ms_max, int((deadline - monotonic()) * 1000)))
            fetched = self._cluster.retry(partial(self._fetch_once, wait_ms))
            self._reset()
            some = [each for each in fetched if each.batches]
            if some or monotonic() >= deadline:
                return some
        return []

    def _reset(self) -> None:
        if self._to_reset:
            found = list_offsets(self._cluster, self._to_reset)
            self._positions.update({place: offset.offset for place, offset in found.items()})
            self._to_reset = {}

    def _fetch_once(self, wait_ms: int) -> list[Fetched]:
        """One request to each leader, all in flight at the same time. Positions move only if all of them succeed."""
        grouped = self._cluster.by_leader(self._positions)
        # Responses are read in order, so with several leaders none of them may wait long.
        wait_ms = wait_ms if len(grouped) == 1 else min(wait_ms, BACKOFF_MS_MIN)
        in_flight: deque[tuple[Connection, Ticket]] = deque()
        fetched: list[Fetched] = []
        passed: dict[TopicPartition, int] = {}
        try:
            for address, partitions in grouped.items():
                connection = self._cluster.connection_to(address)
                in_flight.append(
                    (connection, connection.send(self._request(partitions, wait_ms), version_max=NAMES_VERSION_MAX))
                )
            while in_flight:
                connection, ticket = in_flight[0]
                answer = connection.receive(ticket, wire.FetchResponse, timeout_ms=self._cluster.timeout_ms + wait_ms)
                in_flight.popleft()
                check(answer.error_code, f"fetch from {connection.address}")
                for topic in answer.responses:
                    for part in topic.partitions:
                        fetched += self._take(topic.topic, part)
                passed.update(self._pass_over(connection.address, answer))
        finally:
            # A response that is still in flight would be taken for the response to the next request.
            for connection, _ in in_flight:
                connection.close()
        for each in fetched:
            self.high_watermarks[each.topic, each.partition] = each.high_watermark
            if each.batches:
                self._positions[each.topic, each.partition] = each.batches[-1][0].next_offset
        self._positions.update(passed)
        return fetched

    def _pass_over(self, leader: Address, answer: wire.FetchResponse) -> Iterator[tuple[TopicPartition, int]]:
        """New positions for partitions that have no records between the position and an end that was reported before.

        Compaction can remove all records up to the end, and a reader that waits for them would wait forever. One empty response
        proves nothing: the end may have moved after the broker read the records and before it read the end. A second one proves it,
        up to the end in the first: all records before that end existed when the broker read again, and the first batch of a
        response is always sent, however large it is. So it only counts for a partition with no records of another partition
        before it in the response (there may have been too little space left for its batch), from the same leader (another may
        lag), and only if the broker does not throttle the client, since it then sends empty responses too.
        """
        is_first = not answer.throttle_time_ms
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                position = self._positions[place]
                end = part.last_stable_offset if self._read_committed else part.high_watermark
                before = self._nothing.pop(place, None)
                is_first = is_first and not part.records
                if part.error_code or part.records or answer.throttle_time_ms or end <= position:
                    continue
                if is_first and before is not None and before[:2] == (leader, position):
                    yield place, min(before.end, end)
                else:
                    self._nothing[place] = _Nothing(leader, position, end)

    def _request(self, partitions: list[TopicPartition], wait_ms: int) -> wire.FetchRequest:
        topics: dict[str, list[wire.FetchRequestPartition]] = {}
        # Partitions with an empty response come first: brokers answer in the order of the request, and only the first can be settled.
        for place in sorted(partitions, key=lambda place: place not in self._nothing):
            entry = wire.FetchRequestPartition(
                partition=place[1], fetch_offset=self._positions[place], partition_max_bytes=self._partition_bytes_max
            )
            topics.setdefault(place[0], []).append(entry)
        return wire.FetchRequest(
            replica_id=CONSUMER,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._fetch_bytes_max,
            isolation_level=int(self._read_committed),
            topics=[wire.FetchRequestTopic(topic=name, partitions=entries) for name, entries in topics.items()],
        )

    def _take(self, topic: str, part: wire.FetchResponsePartition) -> list[Fetched]:
        place = (topic, part.partition_index)
        position = self._positions[place]
        if part.error_code == OFFSET_OUT_OF_RANGE and self._out_of_range is not OutOfRange.FAIL:
            at = At.EARLIEST if self._out_of_range is OutOfRange.EARLIEST else At.LATEST
            self._to_reset[place] = at
            return []
        check(part.error_code, f"{topic}/{part.partition_index} at offset {position}", in_metadata=True)
        return [open_answer(topic, part, position)]


def open_answer(topic: str, part: wire.FetchResponsePartition, position: int) -> Fetched:
    """The response for one partition, after the check of its error code. Verifies the checksums of its batches."""
    batches = list(_whole_batches(part.records or b"", position, f"{topic}/{part.partition_index}"))
    aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
    return Fetched(topic, part.partition_index, position, batches, part.high_watermark, part.log_start_offset, aborted)


def open_records(fetched: Fetched) -> Iterator[ConsumerRecord]:
    """The records of fetched batches from the requested offset on, without control batches."""
    topic, partition = fetched.topic, fetched.partition
    for header, data in fetched.batches:
        if header.is_control:
            continue
        kind = TimestampType.LOG_APPEND_TIME if header.is_log_append_time else TimestampType.CREATE_TIME
        try:
            for offset, timestamp_ms, key, value, headers in read_records(data, OPENED_BYTES_MAX):
                if offset >= fetched.from_offset:
                    yield ConsumerRecord(topic, partition, offset, timestamp_ms, kind, key, value, headers)
        except PenstockError as error:
            raise ClientError(f"{topic}/{partition} at offset {header.base_offset}: {error.text}") from error


def _whole_batches(data: Buffer, position: int, where: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The complete batches (a fetch may end inside one) that do not end before ``position``."""
    view = memoryview(data)
    at = 0
    while at + HEADER_BYTES <= len(view):
        header = read_header(view, at)
        if header.magic != 2:
            raise ClientError(
                f"{where} at offset {header.base_offset}: record format {header.magic} is not supported by this client"
            )
        end = at + header.size_bytes
        if end > len(view):
            return
        batch = view[at:end]
        if not crc_matches(batch):
            raise ClientError(
                f"{where} at offset {header.base_offset}: the checksum does not match; the batch is damaged"
            )
        if header.next_offset > position:
            yield header, batch
        at = end
