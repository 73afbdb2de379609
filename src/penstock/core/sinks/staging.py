"""The staging topic of a sink: finding it, reading the batches that are neither committed nor dropped, and freeing the space of all others.

It has the replicas of ``__sinks`` and the same leader, the coordinator of the sinks, as soon as the controller has elected that node.
Until then nothing can be committed, and callers get COORDINATOR_LOAD_IN_PROGRESS.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from uuid import UUID

from msgspec.structs import replace

from penstock.core.partitions.partition import Partition
from penstock.core.sinks.sink import Sink
from penstock.core.sinks.stored import STAGING_PARTITION
from penstock.core.topics.names import SINKS_TOPIC, staging_topic
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, REQUEST_BYTES_MAX
from penstock.log.log import Log
from penstock.ports import Report
from penstock.records.batch import BatchHeader, batches_in

if TYPE_CHECKING:
    from penstock.core.broker import Broker

CUT_BYTES: Final = 16 * MIB
"""The staging log is cut once it has this many committed bytes."""
_CONFIGS: Final = {
    # Staged records are removed once they are committed or dropped, and not before.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    # The target checks the timestamps.
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "segment.bytes": str(128 * MIB),
    # The target has its own limit, which the commit checks.
    "max.message.bytes": str(REQUEST_BYTES_MAX),
}
_READ_BYTES: Final = 1 * MIB
_ELSEWHERE: Final = frozenset({Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE})


class Staging:
    """The staging topics of all sinks."""

    def __init__(self, broker: "Broker", report: Report) -> None:
        self._broker = broker
        self._report = report

    def new_topic(self, sink: str) -> NewTopic:
        """The staging topic of a sink that has none; this node leads it at once."""
        name = staging_topic(sink)
        topics, node_id, live = self._broker.topics, self._broker.node_id, self._broker.cluster.nodes.live()
        found = topics.partition(topics.require(SINKS_TOPIC), 0).replicas
        # The controller adds the nodes that are down: it keeps both topics on the same nodes.
        replicas = [node_id, *(node for node in found if node != node_id and node in live)]
        return NewTopic(name, configs=_CONFIGS, assignments={STAGING_PARTITION: replicas})

    def of(self, sink: Sink) -> tuple[Partition | None, int]:
        """The staging log of a sink, and the first offset that is neither committed nor dropped."""
        topic = self._broker.topics.get(sink.staging)
        if topic is None:
            return None, 0
        staged_from = sink.stored.staged_from if topic.topic_id == sink.stored.staging_id else 0
        try:
            partition = self._broker.partition(sink.staging, STAGING_PARTITION)
        except PenstockError as error:
            if error.reason not in _ELSEWHERE:
                raise
            raise _moving(sink) from None
        if partition.high_watermark < partition.in_sync.epoch_start:
            # There may be acknowledged records above the high watermark.
            raise _moving(sink)
        return partition, staged_from

    def staged_bytes(self, sink: Sink) -> int:
        """About how much is staged; 0 while the log is moving to this node."""
        try:
            staging, staged_from = self.of(sink)
        except PenstockError as error:
            if error.reason is not Reason.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return 0
        return 0 if staging is None else staging.log.bytes_between(staged_from, staging.high_watermark)

    def kept_to(self, sink: Sink) -> int:
        """The end of the staging log. A power loss may have cut it, and then the offsets from here on are assigned again."""
        topic = self._broker.topics.get(sink.staging)
        if topic is None or topic.topic_id != sink.stored.staging_id:
            return 0
        try:
            staging = self._broker.partition(sink.staging, STAGING_PARTITION)
        except PenstockError:
            # This node does not lead it yet, or cannot read it: nothing can be committed.
            return sys.maxsize
        return max(staging.high_watermark, staging.in_sync.epoch_start)

    def fit(self, sink: Sink) -> None:
        """After a load: do not skip new records at offsets that a shortened staging log assigns again."""
        sink.stored = replace(sink.stored, staged_from=min(sink.stored.staged_from, self.kept_to(sink)))

    def cut(self, sink: Sink, *, at_least_bytes: int = CUT_BYTES) -> None:
        """Free the space of staged records that are committed or dropped."""
        try:
            staging, staged_from = self.of(sink)
            if staging is None:
                return
            log = staging.log
            staged_from = min(staged_from, log.written_offset)
            if log.bytes_between(log.start_offset, staged_from) < at_least_bytes:
                return
            now_ms = self._broker.clock.now_ms()
            # Not synced, because the event loop would wait for the disk. The record in __sinks has the offset up to which the log is
            # cut, so records that a power loss brings back are cut again.
            log.delete_before(staged_from, sync=False)
            log.producers.expire(now_ms, -1)
            for removal in log.retire(now_ms, staging.high_watermark):
                self._broker.on_trash(removal)
        except (PenstockError, OSError) as error:
            self._report(
                f"sink {sink.name}: committed records could not be removed from its staging topic yet ({error})"
            )


def _moving(sink: Sink) -> PenstockError:
    return PenstockError(
        Reason.COORDINATOR_LOAD_IN_PROGRESS, f"{sink.staging} is being moved to this node; try again in a moment"
    )


def check_staging_id(sink: Sink, staging: Partition | None, staging_id: UUID | None) -> None:
    """Refuse offsets of a staging topic that was deleted: in a newer one with the same name, they belong to other records."""
    if staging_id is None or (staging is not None and staging.topic.topic_id == staging_id):
        return
    now = "it has none now" if staging is None else f"it is {staging.topic.topic_id} now"
    raise PenstockError(
        Reason.OFFSET_OUT_OF_RANGE,
        f"The staging topic {staging_id} of sink {sink.name}, which this commit names, no longer exists ({now}): the sink was deleted, or was not used for too long. Open it and stage the batch again",
    )


def staged_batches(log: Log, start: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The staged batches from offset ``start`` up to ``end``, read a bounded piece at a time.

    OFFSET_OUT_OF_RANGE if they are not there, INVALID_REQUEST if the range begins or ends within a batch.
    """
    offset = start
    while offset < end:
        if end > log.written_offset:
            raise PenstockError(
                Reason.OFFSET_OUT_OF_RANGE,
                f"Offsets {start} to {end - 1} are not staged: the staging log ends at {log.written_offset}; stage the "
                "batch again and commit that",
            )
        data = log.read(offset, _READ_BYTES, end).data
        for header, batch in batches_in(data):
            if header.base_offset != offset:
                raise _inside_batch(offset)
            yield header, batch
            offset = header.next_offset
        if not data:
            raise _inside_batch(end)


def _inside_batch(offset: int) -> PenstockError:
    return PenstockError(
        Reason.INVALID_REQUEST,
        f"Staged offset {offset} is inside a batch; specify whole batches, with the base offset and the number of records from the produce response",
    )
