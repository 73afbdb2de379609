"""Everything for which a commit can be refused, before anything is appended: the same as for a produce, and that it is staged.

After the intent is stored nothing may be refused any more, so what a produce would look at in a batch is looked at here.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.core.access import Caller
from penstock.core.coordinators.jobs import BATCH_BYTES, CALL_BYTES, NEXT_TURN, Jobs
from penstock.core.partitions.partition import Partition, time_refused, too_large
from penstock.core.sinks.sink import Part
from penstock.core.sinks.staged import batches_in
from penstock.core.sinks.stored import STAGING_PARTITION, Range, merged
from penstock.core.topics.config import TopicConfig
from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, SINK_STAGED_MAX, SINK_TARGETS_MAX
from penstock.operations.operation import Action
from penstock.records.batch import NOT_A_PRODUCERS_BITS, BatchHeader, attributes_refused, crc_matches, read_header
from penstock.records.builder import recompress
from penstock.records.records import check_keys
from penstock.types import NO_TIMESTAMP, TimestampType

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_SEQUENCES_MAX: Final = 2**31
_OPEN_BYTES: Final = 64 * CALL_BYTES
"""What it costs to open a partition that nobody has touched."""

T = TypeVar("T")


class Planned(NamedTuple):
    """One target, as its topic was when it was looked at, and what goes there."""

    topic: Topic
    partition: int
    staged: list[Range]


def check_shape(parts: Sequence[Part]) -> None:
    """Refuse what is too much, or cannot be."""
    named = max(len(parts), sum(len(part.staged) for part in parts))
    if named > SINK_STAGED_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"this commit has {named} staged ranges, but the limit is {SINK_STAGED_MAX}: stage fewer, larger batches, combine adjacent batches into one range, or write fewer records per batch",
        )
    targets = len({(part.topic, part.partition) for part in parts})
    if targets > SINK_TARGETS_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"this commit appends to {targets} partitions, but the limit is {SINK_TARGETS_MAX}: write to fewer partitions per batch",
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
                Reason.INVALID_REQUEST, f"staged offset {start} is listed twice; each batch can be appended only once"
            )


class Checks:
    """The checks that take their time."""

    def __init__(
        self,
        broker: "Broker",
        jobs: Jobs,
        off_loop: Callable[[Callable[[], bytearray | None]], Awaitable[bytearray | None]],
    ) -> None:
        self._broker = broker
        self._jobs = jobs
        self._off_loop = off_loop

    async def plan(self, caller: Caller, parts: Sequence[Part]) -> list[Planned]:
        """Where everything goes; parts of one partition are put together in their order."""
        gathered: dict[tuple[str, int], list[Range]] = {}
        for topic, index, staged in parts:
            ranges = gathered.setdefault((topic, index), [])
            ranges += [(base_offset, base_offset + count) for _, base_offset, count in staged]
        planned: list[Planned] = []
        for (topic, index), ranges in gathered.items():
            if not ranges:
                continue
            if sum(end - start for start, end in ranges) >= _SEQUENCES_MAX:
                raise PenstockError(
                    Reason.POLICY_VIOLATION,
                    f"{topic}/{index} would get 2^31 records or more at once; commit fewer records",
                )
            planned.append(Planned(self._target(caller, topic, index), index, merged(ranges)))
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
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"{name}/{index} has no leader at this moment. Try again.")
        elif len(record.isr) < topic.min_in_sync:
            raise PenstockError(
                Reason.NOT_ENOUGH_REPLICAS,
                f"topic {name} requires {topic.min_in_sync} in-sync replicas, but {name}/{index} has {len(record.isr)}; start the missing nodes, or lower its min.insync.replicas",
            )
        return topic

    def are_as_they_were(self, planned: list[Planned]) -> bool:
        """Whether all targets are there still, with the settings that were looked at."""
        known = self._broker.topics.get_by_id
        found = ((known(each.topic.topic_id), each.topic) for each in planned)
        return all(now is not None and now.config == topic.config for now, topic in found)

    async def batches(self, staging: Partition, planned: Planned, staged_from: int) -> None:
        """Look at every batch that goes to one target, as a produce would."""
        topic = planned.topic
        config = topic.config
        now_ms = self._broker.clock.now_ms()
        for start, end in planned.staged:
            if start < staged_from or end > staging.high_watermark:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"offsets {start} to {end - 1} of {staging.topic.name} are not staged (it has {staged_from} to "
                    f"{staging.high_watermark - 1}); they were already committed or discarded. Stage the batch again",
                )
            for header, data in batches_in(staging.log, start, end):
                if not crc_matches(data):
                    raise PenstockError(
                        Reason.CORRUPT_RECORDS,
                        f"the batch at offset {header.base_offset} of {staging.topic.name} is damaged; stage it again",
                    )
                check_owed(config, header, len(data), now_ms)
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
                    f"record {bad[0][0]} of the batch has no key, but topic {topic.name} is compacted: every record needs a key",
                    bad,
                )
            if config.compression is None or config.compression is header.compression:
                return None
            return recompress(data, config.compression, bytes_max)

        batch = await self._off_loop(look)
        if batch is not None:
            check_owed(config, read_header(batch), len(batch), self._broker.clock.now_ms())


def check_owed(config: TopicConfig, header: BatchHeader, size_bytes: int, now_ms: int) -> None:
    """Refuse a batch that a partition would refuse, by its header. The keys of a compacted topic are looked at elsewhere."""
    if size_bytes > config.max_message_bytes:
        raise too_large(size_bytes, config.max_message_bytes)
    if size_bytes > config.log.segment_bytes:
        raise PenstockError(
            Reason.RECORD_LIST_TOO_LARGE,
            f"a batch of {size_bytes} bytes is larger than a segment of {config.log.segment_bytes}; send smaller "
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
