"""Everything for which a commit can be refused, before anything is appended: the same as for a produce, and that it is staged.

After the intent is stored nothing may be refused any more, so what a produce would look at in a batch is looked at here.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.core.access import Action, Caller
from penstock.core.partition import Partition
from penstock.core.sinks.jobs import BATCH_BYTES, CALL_BYTES, Jobs, Steps
from penstock.core.sinks.sink import Part
from penstock.core.sinks.staged import batches_in
from penstock.core.sinks.stored import STAGING_PARTITION, Range, merged
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, SINK_STAGED_MAX, SINK_TARGETS_MAX
from penstock.records.batch import BatchHeader, crc_matches, read_header
from penstock.records.recompress import recompress

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_SEQUENCES_MAX: Final = 2**31
_OPEN_BYTES: Final = 64 * CALL_BYTES
"""What it costs to open a partition that nobody has touched."""

T = TypeVar("T")


class Planned(NamedTuple):
    """One target and what goes there."""

    partition: Partition
    staged: list[Range]


def check_shape(parts: Sequence[Part]) -> None:
    """Refuse what is too much, or cannot be."""
    named = max(len(parts), sum(len(part.staged) for part in parts))
    if named > SINK_STAGED_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"this commit names {named} staged ranges, and {SINK_STAGED_MAX} is the most: stage fewer, larger batches, name batches "
            "that lie back to back as one range, or write fewer records in a batch",
        )
    targets = len({(part.topic, part.partition) for part in parts})
    if targets > SINK_TARGETS_MAX:
        raise PenstockError(
            Reason.POLICY_VIOLATION,
            f"this commit appends to {targets} partitions, and {SINK_TARGETS_MAX} is the most: write to fewer in a batch",
        )
    ranges: list[Range] = []
    for part in parts:
        for staging_partition, base_offset, count in part.staged:
            if staging_partition != STAGING_PARTITION or base_offset < 0 or count < 1:
                raise PenstockError(
                    Reason.INVALID_REQUEST,
                    f"[{staging_partition}, {base_offset}, {count}] is no staged batch; give the staging partition "
                    f"({STAGING_PARTITION}), its base offset and how many records it has",
                )
            ranges.append((base_offset, base_offset + count))
    ranges.sort()
    for (_, end), (start, _) in pairwise(ranges):
        if start < end:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"staged offset {start} is named twice; each batch goes to one place"
            )


class Checks:
    """The checks that take their time."""

    def __init__(
        self,
        broker: "Broker",
        jobs: Jobs,
        off_loop: Callable[[Callable[[], bytearray | None]], Steps[bytearray | None]],
    ) -> None:
        self._broker = broker
        self._jobs = jobs
        self._off_loop = off_loop

    def plan(self, caller: Caller, parts: Sequence[Part]) -> Steps[list[Planned]]:
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
                    Reason.POLICY_VIOLATION, f"{topic}/{index} would get 2^31 records or more at once; commit fewer"
                )
            planned.append(Planned(self._target(caller, topic, index), merged(ranges)))
            if self._jobs.spend(_OPEN_BYTES):
                yield None
        return planned

    def _target(self, caller: Caller, topic: str, index: int) -> Partition:
        broker = self._broker
        broker.access.require_topic(caller, Action.WRITE, topic)
        partition = broker.partition(topic, index)
        if partition.topic.internal:
            raise PenstockError(
                Reason.INVALID_TOPIC, f"{topic} is the broker's own topic; write to a topic of your own"
            )
        partition.check_in_sync()
        return partition

    def batches(self, staging: Partition, planned: Planned, staged_from: int) -> Steps[None]:
        """Look at every batch that goes to one target, as a produce would."""
        target = planned.partition
        now_ms = self._broker.clock.now_ms()
        for start, end in planned.staged:
            if start < staged_from or end > staging.high_watermark:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"offsets {start} to {end - 1} of {staging.topic.name} are not staged (it has {staged_from} to "
                    f"{staging.high_watermark - 1}); they were committed or dropped. Stage the batch again",
                )
            for header, data in batches_in(staging.log, start, end):
                if not crc_matches(data):
                    raise PenstockError(
                        Reason.CORRUPT_RECORDS,
                        f"the batch at offset {header.base_offset} of {staging.topic.name} is damaged; stage it again",
                    )
                target.check_owed(header, len(data), now_ms)
                if target.wants_recompression or target.is_compacted:
                    yield from self._opened(target, header, data)
                if self._jobs.spend(len(data) + BATCH_BYTES):
                    yield None

    def _opened(self, target: Partition, header: BatchHeader, data: memoryview) -> Steps[None]:
        config = target.topic.config

        def look() -> bytearray | None:
            if target.is_compacted:
                target.check_keys(data, header)
            if config.compression is None or config.compression is header.compression:
                return None
            return recompress(data, config.compression, config.max_message_bytes * DECOMPRESSED_RATIO_MAX)

        batch = yield from self._off_loop(look)
        if batch is not None:
            target.check_owed(read_header(batch), len(batch), self._broker.clock.now_ms())
