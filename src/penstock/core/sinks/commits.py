"""Carrying out commits: each sink's one after the other, each in steps that a crash may come between.

1. Everything is checked (``checks.py``). A refusal leaves nothing behind.
2. The intent is stored: the batch id, the targets with where they end, and an epoch of the sink's producer that no intent had
   before. From here on the batch will be in its targets, whatever happens.
3. The staged batches are appended, numbered from 0 in each target. How far that is can be told at any time by the log's memory
   of the producer (``progress.py``), so after a failed write or a crash it continues after the last record that is there. The leaders
   of the targets append, and report how far they are (``writers.py``, ``core/partitions/status.py``).
4. The batch id is stored as the last one, and the intent is gone, in one record. Then the caller is answered.
5. What was staged is cut off, once it is worth a call to the disk.

Invariant: ``sink.stored`` is what ``__sinks`` has committed; ``sink.work`` belongs to its intent.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from penstock.core.coordinators.jobs import BATCH_BYTES, NEXT_TURN, Jobs, Outcome, Waiting
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.partitions.ends import PartitionEnds
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.status import PartitionStatus, ProducerQuery
from penstock.core.sinks.checks import Checks, Planned
from penstock.core.sinks.sink import CommitRequest, Committed, Sink, Work
from penstock.core.sinks.staged import batches_in
from penstock.core.sinks.staging import Staging, check_life
from penstock.core.sinks.stored import PARTITION, Intent, StoredSink, Target, encode, encode_key
from penstock.core.sinks.writers import Tally, TargetWriter
from penstock.core.topics.config import TopicConfig
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX
from penstock.ports import Report
from penstock.records.batch import crc_matches, read_header, set_producer
from penstock.records.builder import recompress
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_EPOCH_MAX: Final = 2**15 - 1
_IN_FLIGHT_MAX: Final = 16
"""Turns whose appends are not committed yet: the disk is kept busy, and memory bounded."""
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 10_000
_QUIET_FAILURES_MAX: Final = 6
"""Some six seconds: about what it takes to notice that a node is dead, and to name another."""
_ASKED_MAX: Final = 256
"""Leaders' answers that are waited for at once."""
_PASSING: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.COORDINATOR_LOAD_IN_PROGRESS,
        Reason.NOT_ENOUGH_REPLICAS,
        Reason.LINK_LOST,
        # The one before it was lost on its way.
        Reason.OUT_OF_ORDER_SEQUENCE,
    }
)
"""What is over by itself when another node leads: nobody need be told at once."""

T = TypeVar("T")


class Commits:
    """The steps. The door (``sinks.py``) says when, and for which sink."""

    def __init__(
        self, broker: "Broker", family: Family[Shard], jobs: Jobs, pause: Callable[[int], Waiting], report: Report
    ) -> None:
        self._broker = broker
        self._family = family
        self._jobs = jobs
        self._pause = pause
        self._report = report
        self._checks = Checks(broker, jobs, self._off_loop)
        self._partition_ends = PartitionEnds(broker)
        self.staging: Final = Staging(broker, report)

    # One sink's commits, one after the other.

    async def serve(self, sink: Sink) -> None:
        """Finish the open intent, then do what callers wait for, until nobody does."""
        while not sink.gone:
            if sink.stored.intent is not None:
                await self._finish(sink, sink.stored.intent)
                continue
            if not sink.queue:
                break
            request = sink.queue[0]
            if not sink.wants(request.batch_id):
                self._broker.meters.sink_commits.add(("already",))
                sink.queue.popleft().tell(Committed(already=True))
                continue
            try:
                await self._begin(sink, request)
            except PenstockError as error:
                self._broker.meters.sink_commits.add(("refused",))
                if sink.queue and sink.queue[0] is request:
                    sink.queue.popleft()
                request.tell(error)
        sink.busy = False
        wake(sink)

    async def _begin(self, sink: Sink, request: CommitRequest) -> None:
        planned = await self._check(sink, request)
        if planned:
            await self._choose_producer(sink)
            await self._intend(sink, request.batch_id, planned)
        else:
            # An empty batch counts too: it must not come again with records in it.
            empty = Intent(batch_id=request.batch_id, targets=[])
            await self._note(sink, empty)
            self._finished(sink, empty)

    async def _check(self, sink: Sink, request: CommitRequest) -> list[Planned]:
        while True:
            planned = await self._checks.plan(request.caller, request.parts)
            staging, staged_from = self.staging.of(sink)
            # Also of an empty batch: its number would count for the sink that has the name now.
            check_life(sink, staging, request.staging_id)
            if not planned:
                return []
            if staging is None:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"nothing is staged in sink {sink.name}; open it, and stage the batch again",
                )
            for each in planned:
                await self._checks.batches(staging, each, staged_from)
            # The checks took their time: what they looked at must still be so.
            if self._checks.are_as_they_were(planned):
                return planned

    async def _choose_producer(self, sink: Sink) -> None:
        """See to it that the next epoch of the sink's producer is one that no target has seen.

        An earlier coordinator may have used more epochs than are stored, so each coordinator takes a producer id of its own.
        """
        if sink.has_own_producer and sink.stored.producer_epoch < _EPOCH_MAX:
            return
        outcome = Outcome()
        self._broker.background(self._take_producer_id(sink, outcome))
        await outcome

    async def _take_producer_id(self, sink: Sink, outcome: Outcome) -> None:
        try:
            producer_id = await self._broker.producer_ids.next_id()
        except PenstockError as error:
            outcome(error.reason)
            return
        # Stored with the intent that first uses it.
        sink.stored = replace(sink.stored, producer_id=producer_id, producer_epoch=-1)
        sink.has_own_producer = True
        outcome(None)

    async def _intend(self, sink: Sink, batch_id: int, planned: list[Planned]) -> None:
        staging, staged_from = self.staging.of(sink)
        if staging is None:
            raise PenstockError(Reason.UNKNOWN_SINK, f"sink {sink.name} was deleted meanwhile")
        ends = await self._ends(planned)
        targets = [
            Target(topic=topic.name, topic_id=topic.topic_id, partition=index, end_offset=end, staged=staged)
            for (topic, index, staged), end in zip(planned, ends, strict=True)
        ]
        stored = replace(
            sink.stored,
            staging_id=staging.topic.topic_id,
            staged_from=staged_from,
            producer_epoch=sink.stored.producer_epoch + 1,
            intent=Intent(batch_id=batch_id, targets=targets),
        )
        await self.store(sink, stored)
        sink.work = [Work(target) for target in targets]
        sink.is_looked_at = True

    async def _ends(self, planned: list[Planned]) -> list[int]:
        """Offsets that no record of the intent can be below."""
        ends = [0] * len(planned)

        def told(at: int, tally: Tally, end: int | PenstockError) -> None:
            if isinstance(end, int):
                ends[at] = end
            tally.ended(end)

        for first in range(0, len(planned), _ASKED_MAX):
            tally = Tally()
            for at, (topic, index, _) in enumerate(planned[first : first + _ASKED_MAX], first):
                tally.expect()
                self._partition_ends.reached(topic, index, partial(told, at, tally))
            await tally.close()
        return ends

    # The open intent.

    def resume(self, sink: Sink) -> None:
        """After a load: how much of the open intent is in its targets is not known."""
        intent = sink.stored.intent
        assert intent is not None
        kept_to = self.staging.kept_to(sink)
        sink.work = [Work(target, is_lost=any(end > kept_to for _, end in target.staged)) for target in intent.targets]
        sink.is_looked_at = False

    async def _look(self, sink: Sink) -> None:
        for first in range(0, len(sink.work), _ASKED_MAX):
            tally = Tally()
            for work in sink.work[first : first + _ASKED_MAX]:
                topic = self._topic_of(work.target)
                if topic is not None and not work.dropped:
                    tally.expect()
                    asked = ProducerQuery(sink.stored.producer_id, sink.stored.producer_epoch, work.target.end_offset)
                    told = partial(_stands, work, tally)
                    self._broker.peers.partition_status(topic, work.target.partition, told, asked)
            await tally.close()
        sink.is_looked_at = True

    async def _finish(self, sink: Sink, intent: Intent) -> None:
        """Carry the intent out, however often it takes."""
        failures = 0
        while not sink.gone:
            in_flight: deque[Outcome] = deque()
            try:
                if not sink.is_looked_at:
                    await self._look(sink)
                # The first batch of each target by itself (``writers.py``).
                await self._append_all(sink, in_flight, first_only=True)
                await self._append_all(sink, in_flight)
                if _is_gone(sink):
                    # A record of it now would be that of a later sink of its name.
                    return
                await self._note(sink, intent)
            except PenstockError as error:
                if failures >= _QUIET_FAILURES_MAX or error.reason not in _PASSING:
                    self._fail(sink, intent, error)
                failures += 1
                while in_flight:
                    # Each is told, one way or the other; then the log's memory says what is there.
                    await in_flight.popleft().known()
                sink.is_looked_at = False
                await self._pause(min(_RETRY_MS_MIN << min(failures, 10), _RETRY_MS_MAX))
            else:
                self._finished(sink, intent)
                return

    def _fail(self, sink: Sink, intent: Intent, error: PenstockError) -> None:
        is_first = sink.problem is None
        # What is staged need not be sent again.
        why = error.text.removesuffix(", and send again")
        sink.problem = f"batch {intent.batch_id} cannot be finished yet: {why}"
        if is_first:
            self._report(f"sink {sink.name}: {sink.problem}; retrying")
        waiting = list(sink.queue)
        sink.queue.clear()
        for request in waiting:
            request.tell(
                PenstockError(
                    Reason.STORAGE_ERROR,
                    f"{sink.problem}; the broker continues on its own. Repeat the commit to get the result",
                )
            )
        wake(sink)

    def _finished(self, sink: Sink, intent: Intent) -> None:
        records = sum(target.record_count for target in intent.targets)
        dropped = sum(work.target.record_count - work.appended for work in sink.work if work.dropped)
        meters = self._broker.meters
        meters.sink_commits.add(("committed",))
        meters.sink_records += records - dropped
        sink.work = []
        sink.problem = None
        # It may have taken longer than a sink is remembered for.
        sink.touched_ms = self._broker.clock.monotonic_ms()
        if sink.queue and sink.queue[0].batch_id == intent.batch_id:
            sink.queue.popleft().tell(Committed(already=False, records=records - dropped, dropped=dropped))
        self.staging.cut(sink)

    async def _append_all(self, sink: Sink, in_flight: deque[Outcome], *, first_only: bool = False) -> None:
        for work in sink.work:
            await self._append(sink, work, in_flight, first_only)
        while in_flight:
            await _settle(in_flight)

    async def _append(self, sink: Sink, work: Work, in_flight: deque[Outcome], first_only: bool) -> None:
        """Append what is left of one target; what is on its way is in ``in_flight``."""
        if not work.left or _is_gone(sink):
            return
        stored, target = sink.stored, work.target
        topic = self._topic_of(target)
        staging, _ = self.staging.of(sink)
        if topic is None or staging is None or work.is_lost:
            self._drop(sink, work, "its topic was deleted" if topic is None else "what was staged is lost")
            return
        writer = TargetWriter(self._broker, topic, target.partition)
        skip = work.appended
        is_open = False
        for start, end in target.staged:
            if skip >= end - start:
                skip -= end - start
                continue
            for _, data in batches_in(staging.log, start + skip, end):
                batch = await self._batch(staging, topic.config, data)
                if _is_gone(sink):
                    return
                if writer.is_gone:
                    self._drop(sink, work, "its topic was deleted")
                    return
                count = read_header(batch).record_count
                set_producer(batch, stored.producer_id, stored.producer_epoch, work.appended)
                writer.append(batch)
                work.appended += count
                is_open = True
                self._broker.meters.took_in(topic.name, Gateway.INTERNAL, count, len(batch))
                if self._jobs.spend(len(batch) + BATCH_BYTES):
                    in_flight.append(writer.committed())
                    is_open = False
                    if len(in_flight) >= _IN_FLIGHT_MAX:
                        await _settle(in_flight)
                    else:
                        await NEXT_TURN
                if first_only:
                    break
            skip = 0
            if first_only:
                break
        if is_open:
            in_flight.append(writer.committed())
            # As many targets, as many that wait: their number is bounded, and each takes little.

    async def _batch(self, staging: Partition, config: TopicConfig, data: memoryview) -> bytearray:
        """A staged batch as it is appended."""
        batch = bytearray(data)
        if not crc_matches(batch):
            raise PenstockError(
                Reason.CORRUPT_RECORDS, f"a batch of {staging.topic.name} is damaged; restore the file from a backup"
            )
        compression = config.compression
        if compression is None or read_header(batch).compression is compression:
            return batch
        bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        return await self._off_loop(partial(recompress, batch, compression, bytes_max))

    def _topic_of(self, target: Target) -> Topic | None:
        """The topic, unless it was deleted: one that has its name by now is another."""
        topic = self._broker.topics.get_by_id(target.topic_id)
        return None if topic is None or target.partition >= topic.partition_count else topic

    def _drop(self, sink: Sink, work: Work, why: str) -> None:
        target = work.target
        self._report(
            f"sink {sink.name}: {work.left} of {target.record_count} records for {target.topic}/{target.partition} are "
            f"dropped from a commit, because {why}"
        )
        work.dropped = True

    async def _note(self, sink: Sink, intent: Intent) -> None:
        """The batch is in its targets."""
        staged_from = max((end for target in intent.targets for _, end in target.staged), default=0)
        stored = replace(
            sink.stored,
            last_batch_id=intent.batch_id,
            committed_ms=self._broker.clock.now_ms(),
            # What tasks staged that died, or were one too many, goes with it.
            staged_from=max(sink.stored.staged_from, staged_from),
            intent=None,
        )
        await self.store(sink, stored)

    # The log of sinks, and that of what is staged.

    async def store(self, sink: Sink, stored: StoredSink) -> None:
        """Make ``stored`` what holds; raises when the disk refuses, and then nothing has changed."""
        outcome = Outcome()
        self.write(sink.name, stored, outcome)
        await outcome
        sink.stored = stored

    def write(self, name: str, stored: StoredSink | None, done: Callable[[Reason | None], None]) -> None:
        """One record of ``__sinks``; None forgets the sink."""
        self._family.append(PARTITION, [(encode_key(name), None if stored is None else encode(stored))], done)

    async def _off_loop(self, work: Callable[[], T]) -> T:
        done: list[T] = []
        failed: list[PenstockError] = []

        def run() -> None:
            try:
                done.append(work())
            except PenstockError as error:
                failed.append(error)

        await Waiting(partial(self._broker.off_loop, run))
        if failed:
            raise failed[0]
        return done[0]


def _is_gone(sink: Sink) -> bool:
    """Asked anew each time: it may have been deleted while a job waited."""
    return sink.gone


def wake(sink: Sink) -> None:
    """Whoever waits for the sink to be idle looks again."""
    waiters, sink.idle_waiters = sink.idle_waiters, []
    for waiter in waiters:
        waiter()


def _stands(work: Work, tally: Tally, status: PartitionStatus | PenstockError) -> None:
    if isinstance(status, PartitionStatus):
        work.appended = status.appended
        if not status.is_settled:
            # Whoever leads next may not have it: what follows on it must not be sent yet.
            tally.ended(PenstockError(Reason.LEADER_NOT_AVAILABLE, "what was appended is not committed yet"))
            return
    tally.ended(status)


async def _settle(in_flight: deque[Outcome]) -> None:
    outcome = in_flight[0]
    await outcome.known()
    in_flight.popleft()
    outcome.check()
