"""The group rules' storage on top of the partitions of ``__consumer_offsets``."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.groups.storage import StoredDone, partition_of
from penstock.core.groups.stored import Record
from penstock.core.topic_names import OFFSETS_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, MIB
from penstock.ports import Report
from penstock.records.batch import read_header
from penstock.records.builder import BatchBuilder
from penstock.records.records import read_records
from penstock.types import Buffer, GroupId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_READ_BYTES: Final = 4 * MIB


class OffsetsTopic:
    """The real :class:`penstock.core.groups.storage.OffsetsLog`."""

    def __init__(self, broker: "Broker", partitions: int, report: Report) -> None:
        self._broker = broker
        self._partitions = partitions
        self._report = report

    def partition_for(self, group_id: GroupId) -> int:
        """By the hash of the id."""
        topic = self._broker.topics.get(OFFSETS_TOPIC)
        return partition_of(group_id, self._partitions if topic is None else topic.partition_count)

    def append(self, partition: int, records: Sequence[Record]) -> int:
        """One batch; returns the offset behind it."""
        now_ms = self._broker.clock.now_ms()
        builder = BatchBuilder()
        for key, value in records:
            builder.add(now_ms, key, value)
        return self._broker.partition(OFFSETS_TOPIC, partition).append(builder.build(), now_ms) + len(records)

    def when_committed(self, partition: int, next_offset: int, done: StoredDone) -> None:
        """Committed as every partition counts it."""
        self._broker.partition(OFFSETS_TOPIC, partition).when_committed(next_offset, done)

    def replay(self, partition: int) -> Iterator[tuple[Buffer, Buffer | None]]:
        """Every committed record, oldest first. Damaged ones are passed over: the other groups must not suffer for them."""
        source = self._broker.partition(OFFSETS_TOPIC, partition)
        bytes_max = source.topic.config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        offset, end = source.log.start_offset, source.high_watermark
        damaged = False
        while offset < end:
            try:
                data, next_offset = source.read(offset, _READ_BYTES)
            except PenstockError as error:
                if error.reason is not Reason.CORRUPT_RECORDS:
                    raise
                if not damaged:
                    self._report(f"{OFFSETS_TOPIC}/{partition}, replayed without the damaged records: {error.text}")
                damaged = True
                offset += 1
                continue
            damaged = False
            yield from _records(data, offset, bytes_max)
            # Compaction leaves gaps, so the end of what was read is not always the end of a batch.
            offset = next_offset


def _records(data: Buffer, offset: int, bytes_max: int) -> Iterator[tuple[Buffer, Buffer | None]]:
    view = memoryview(data)
    position = 0
    while position < len(view):
        end = position + read_header(view, position).size_bytes
        for record in read_records(view[position:end], bytes_max):
            if record.offset >= offset and record.key is not None:
                yield record.key, record.value
        position = end
