"""Everything that can refuse a commit: the checks of a produce request, and whether the batches are staged.

A commit whose intent is stored can no longer be refused, so all checks come first.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.core.coordinators.jobs import BATCH_BYTES, CALL_BYTES, NEXT_TURN, Jobs
from penstock.core.partitions.partition import Partition, time_refused, too_large
from penstock.core.security.access import Caller
from penstock.core.sinks.staging import staged_batches
from penstock.core.sinks.stored import STAGING_PARTITION, Range, merged
from penstock.core.topics.config import TopicConfig
from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, SINK_STAGED_MAX, SINK_TARGETS_MAX
from penstock.operations.operation import Action
from penstock.operations.sinks import SinkPart
from penstock.records.batch import NOT_A_PRODUCERS_BITS, BatchHeader, attributes_refused, crc_matches, read_header
from penstock.records.builder import recompress
from penstock.records.records import check_keys
from penstock.types import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_SEQUENCES_MAX: Final = 2**31
_OPEN_BYTES: Final = 64 * CALL_BYTES
"""The cost of opening a partition that was not used yet."""

T = TypeVar("T")


class PlannedTarget(NamedTuple):
    """One target, with its topic as it was at the time of the checks, and the staged offsets that go there."""

    topic: Topic
    partition: int
    staged: list[Range]


def check_shape(parts: Sequence[SinkPart]) -> None:
    """Refuse a commit that is too large, or impossible."""
    named = max(len(parts), sum(len(part.staged) for part in parts))
    if named > SINK_STAGED_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"This commit has {named} staged ranges, but the limit is {SINK_STAGED_MAX}: stage fewer, larger batches, combine adjacent batches into one range, or write fewer records per batch",
        )
    targets = len({(part.topic, part.partition) for part in parts})
    if targets > SINK_TARGETS_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"This commit appends to {targets} partitions, but the limit is {SINK_TARGETS_MAX}: write to fewer partitions per batch",
        )
    ranges: list[Range] = []
    for part in parts:
        for staging_partition, base_offset, count in part.staged:
            if staging_partition != STAGING_PARTITION or base_offset < 0 or count < 1:
                raise PenstockError(
                    Reason.INVALID_REQUEST,
                    f"[{staging_partition}, {base_offset}, {count}] is not a staged batch; specify the staging partition ({STAGING_PARTITION}), the base offset and the number of records",
                )
            ranges.append((base_offset, base_offset + count))
    ranges.sort()
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"Staged offset {start} is listed twice; each batch can be appended only once"
            )


class Checks:
    """The checks that may take several turns of the event loop."""

    def __init__(
        self,
        broker: "Broker",
        jobs: Jobs,
        off_loop: Callable[[Callable[[], bytearray | None]], Awaitable[bytearray | None]],
    ) -> None:
        self._broker = broker
        self._jobs = jobs
        self._off_loop = off_loop

    async def plan(self, caller: Caller, parts: Sequence[SinkPart]) -> list[PlannedTarget]:
        """All targets; parts of one partition are merged in their order."""
        gathered: dict[tuple[str, int], list[Range]] = {}
        for part in parts:
            ranges = gathered.setdefault((part.topic, part.partition), [])
            ranges += [(base_offset, base_offset + count) for _, base_offset, count in part.staged]
        planned: list[PlannedTarget] = []
        for (topic, index), ranges in gathered.items():
            if not ranges:
                continue
            if sum(end - start for start, end in ranges) >= _SEQUENCES_MAX:
                raise PenstockError(
                    Reason.POLICY_VIOLATION,
                    f"{topic}/{index} would get 2^31 records or more at once; commit fewer records",
                )
            planned.append(PlannedTarget(self._target(caller, topic, index), index, merged(ranges)))
            if self._jobs.spend(_OPEN_BYTES):
                await NEXT_TURN
        return planned

    def _target(self, caller: Caller, name: str, index: int) -> Topic:
        broker = self._broker
        broker.access.require_topic(caller, Action.WRITE, name)
        topic = broker.topics.require(name)
        if topic.internal:
            raise PenstockError(Reason.INVALID_TOPIC, f"{name} is an internal topic; write to another topic")
        record = broker.topics.partition(topic, index)
        if record.leader == broker.node_id:
            broker.partition(name, index).check_in_sync()
        elif record.leader == NO_LEADER:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE, f"{name}/{index} has no leader at the moment; try again in a moment"
            )
        elif len(record.isr) < topic.min_in_sync:
            raise PenstockError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"Topic {name} requires {topic.min_in_sync} in-sync replicas, but {name}/{index} has {len(record.isr)}; start the missing nodes, or lower its min.insync.replicas",
            )
        return topic

    def are_as_they_were(self, planned: list[PlannedTarget]) -> bool:
        """Whether all targets still exist with the settings that were checked."""
        known = self._broker.topics.get_by_id
        found = ((known(each.topic.topic_id), each.topic) for each in planned)
        return all(now is not None and now.config == topic.config for now, topic in found)

    async def batches(self, staging: Partition, planned: PlannedTarget, staged_from: int) -> None:
        """Check every batch for one target, as a produce request is checked."""
        topic = planned.topic
        config = topic.config
        now_ms = self._broker.clock.now_ms()
        for start, end in planned.staged:
            if start < staged_from or end > staging.high_watermark:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"Offsets {start} to {end - 1} of {staging.topic.name} are not staged (it has {staged_from} to "
                    f"{staging.high_watermark - 1}); they were already committed or discarded. Stage the batch again",
                )
            for header, data in staged_batches(staging.log, start, end):
                if not crc_matches(data):
                    raise PenstockError(
                        Reason.CORRUPT_RECORDS,
                        f"The batch at offset {header.base_offset} of {staging.topic.name} is damaged; stage it again",
                    )
                check_header(config, header, len(data), now_ms)
                if config.compression is not None or config.is_compacted:
                    await self._opened(topic, header, data)
                if self._jobs.spend(len(data) + BATCH_BYTES):
                    await NEXT_TURN

    async def _opened(self, topic: Topic, header: BatchHeader, data: memoryview) -> None:
        config = topic.config
        bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX

        def look() -> bytearray | None:
            if config.is_compacted and (bad := check_keys(data, header, bytes_max)):
                raise PenstockError(
                    Reason.INVALID_RECORD,
                    f"Record {bad[0][0]} of the batch has no key, but topic {topic.name} is compacted: every record needs a key",
                    bad,
                )
            if config.compression is None or config.compression is header.compression:
                return None
            return recompress(data, config.compression, bytes_max)

        batch = await self._off_loop(look)
        if batch is not None:
            check_header(config, read_header(batch), len(batch), self._broker.clock.now_ms())


def check_header(config: TopicConfig, header: BatchHeader, size_bytes: int, now_ms: int) -> None:
    """Refuse a batch by its header, as its partition would. The keys for a compacted topic are checked elsewhere."""
    if size_bytes > config.max_message_bytes:
        raise too_large(size_bytes, config.max_message_bytes)
    if size_bytes > config.log.segment_bytes:
        raise PenstockError(
            Reason.RECORD_LIST_TOO_LARGE,
            f"A batch of {size_bytes} bytes is larger than a segment of {config.log.segment_bytes}; send smaller "
            "batches or raise segment.bytes",
        )
    if header.attributes & NOT_A_PRODUCERS_BITS:
        raise attributes_refused(header)
    is_far = (
        header.max_timestamp - now_ms > config.timestamp_after_max_ms
        or now_ms - header.base_timestamp > config.timestamp_before_max_ms
    )
    stamps = config.timestamp_type is TimestampType.LOG_APPEND_TIME
    if is_far and not stamps and header.max_timestamp != NO_TIMESTAMP:
        raise time_refused(header, now_ms)
