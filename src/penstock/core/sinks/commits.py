"""Carries out the commits of each sink, one after the other, in steps. A crash may come between any two of them.

1. Everything is checked (``checks.py``). A refusal has no effect.
2. The intent is stored: the batch id, the targets with their ends, and an epoch of the sink's producer that no other intent has used.
   From here on the commit will be completed.
3. The leaders of the targets append the staged batches, with sequence numbers from 0 in each target. After a failed write or a crash,
   each leader reports how many of them it has (``core/partitions/status.py``), and the rest is appended.
4. One record stores the batch id as the last one and removes the intent. Then the caller is answered.
5. The staged batches are cut off, once there are enough of them.

Invariant: ``sink.stored`` is the state that is committed to ``__sinks``, and ``sink.work`` belongs to its intent.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from penstock.core.coordinators.jobs import BATCH_BYTES, NEXT_TURN, Jobs, JointOutcome, Outcome, Waiting
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.partitions.ends import PartitionEnds
from penstock.core.partitions.partition import Partition
from penstock.core.partitions.status import LeaderStatus, ProducerQuery
from penstock.core.sinks.checks import Checks, PlannedTarget
from penstock.core.sinks.sink import Sink, WaitingCommit, Work
from penstock.core.sinks.staging import Staging, check_staging_id, staged_batches
from penstock.core.sinks.stored import PARTITION, Intent, StoredSink, Target, encode, encode_key
from penstock.core.topics.config import TopicConfig
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX
from penstock.operations.sinks import CommittedBatch
from penstock.ports import Report
from penstock.records.batch import crc_matches, read_header, set_offset, set_producer
from penstock.records.builder import recompress
from penstock.types import NO_EPOCH, Acks, Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_EPOCH_MAX: Final = 2**15 - 1
_IN_FLIGHT_MAX: Final = 16
"""Turns whose appends are not committed yet: enough to keep the disk busy, with bounded memory."""
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 10_000
_QUIET_FAILURES_MAX: Final = 6
"""About six seconds: enough to notice that a node failed, and to elect another leader."""
_QUERIES_MAX: Final = 256
"""Queries to leaders under way at once."""
_TRANSIENT: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.COORDINATOR_LOAD_IN_PROGRESS,
        Reason.NOT_ENOUGH_REPLICAS,
        Reason.LINK_LOST,
        # The batch before it was lost on the way.
        Reason.OUT_OF_ORDER_SEQUENCE,
    }
)
"""Errors that end by themselves once another node leads; they are reported only if they last."""

T = TypeVar("T")


class SinkCommits:
    """The steps of all commits. ``sinks.py`` decides when, and for which sink."""

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
        """Complete the open intent, then the waiting commits."""
        while not sink.gone:
            if sink.stored.intent is not None:
                await self._finish(sink, sink.stored.intent)
                continue
            if not sink.queue:
                break
            waiting = sink.queue[0]
            if not sink.wants(waiting.asked.batch_id):
                self._broker.meters.sink_commits.add(("already",))
                sink.queue.popleft().answer(CommittedBatch(True, already=True, records=0, dropped=0))
                continue
            try:
                await self._begin(sink, waiting)
            except PenstockError as error:
                self._broker.meters.sink_commits.add(("refused",))
                if sink.queue and sink.queue[0] is waiting:
                    sink.queue.popleft()
                waiting.answer(error)
        sink.busy = False
        wake(sink)

    async def _begin(self, sink: Sink, waiting: WaitingCommit) -> None:
        planned = await self._check(sink, waiting)
        if planned:
            await self._choose_producer(sink)
            await self._intend(sink, waiting.asked.batch_id, planned)
        else:
            # The id of an empty batch is used up too.
            empty = Intent(batch_id=waiting.asked.batch_id, targets=[])
            await self._store_committed(sink, empty)
            self._finished(sink, empty)

    async def _check(self, sink: Sink, waiting: WaitingCommit) -> list[PlannedTarget]:
        while True:
            planned = await self._checks.plan(waiting.caller, waiting.asked.parts)
            staging, staged_from = self.staging.of(sink)
            # For an empty batch too: its id must not count for a newer sink of the same name.
            check_staging_id(sink, staging, waiting.asked.staging_id)
            if not planned:
                return []
            if staging is None:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"Nothing is staged in sink {sink.name}; open it, and stage the batch again",
                )
            for each in planned:
                await self._checks.batches(staging, each, staged_from)
            # The checks may have taken several turns, so the topics may have changed meanwhile.
            if self._checks.are_as_they_were(planned):
                return planned

    async def _choose_producer(self, sink: Sink) -> None:
        """Make sure that no target has seen the next epoch of the sink's producer.

        An earlier coordinator may have used more epochs than are stored, so each coordinator takes its own producer id.
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

    async def _intend(self, sink: Sink, batch_id: int, planned: list[PlannedTarget]) -> None:
        staging, staged_from = self.staging.of(sink)
        if staging is None:
            raise PenstockError(Reason.UNKNOWN_SINK, f"Sink {sink.name} was deleted meanwhile")
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

    async def _ends(self, planned: list[PlannedTarget]) -> list[int]:
        """For each target, an offset that no record of the intent can be below."""
        ends = [0] * len(planned)

        def received(at: int, outcome: JointOutcome, end: int | PenstockError) -> None:
            if isinstance(end, int):
                ends[at] = end
            outcome.add(end)

        for first in range(0, len(planned), _QUERIES_MAX):
            outcome = JointOutcome()
            for at, (topic, index, _) in enumerate(planned[first : first + _QUERIES_MAX], first):
                outcome.expect()
                self._partition_ends.reached(topic, index, partial(received, at, outcome))
            await outcome.close()
        return ends

    # The open intent.

    def resume(self, sink: Sink) -> None:
        """After a load: it is unknown how much of the open intent is in its targets."""
        intent = sink.stored.intent
        assert intent is not None
        kept_to = self.staging.kept_to(sink)
        sink.work = [Work(target, is_lost=any(end > kept_to for _, end in target.staged)) for target in intent.targets]
        sink.is_looked_at = False

    async def _look(self, sink: Sink) -> None:
        for first in range(0, len(sink.work), _QUERIES_MAX):
            outcome = JointOutcome()
            for work in sink.work[first : first + _QUERIES_MAX]:
                topic = self._topic_of(work.target)
                if topic is not None and not work.dropped:
                    outcome.expect()
                    query = ProducerQuery(sink.stored.producer_id, sink.stored.producer_epoch, work.target.end_offset)
                    received = partial(_note_status, work, outcome)
                    self._broker.peers.partition_status(topic, work.target.partition, received, query)
            await outcome.close()
        sink.is_looked_at = True

    async def _finish(self, sink: Sink, intent: Intent) -> None:
        """Carry the intent out, with as many attempts as it takes."""
        failures = 0
        while not sink.gone:
            in_flight: deque[Outcome] = deque()
            try:
                if not sink.is_looked_at:
                    await self._look(sink)
                # The first batch of each target separately, as ``_TargetWriter`` requires.
                await self._append_all(sink, in_flight, first_only=True)
                await self._append_all(sink, in_flight)
                if _is_gone(sink):
                    # Its record would belong to a newer sink of the same name.
                    return
                await self._store_committed(sink, intent)
            except PenstockError as error:
                if failures >= _QUIET_FAILURES_MAX or error.reason not in _TRANSIENT:
                    self._fail(sink, intent, error)
                failures += 1
                while in_flight:
                    # Once all answers are there, the leaders can report what they have.
                    await in_flight.popleft().known()
                sink.is_looked_at = False
                await self._pause(min(_RETRY_MS_MIN << min(failures, 10), _RETRY_MS_MAX))
            else:
                self._finished(sink, intent)
                return

    def _fail(self, sink: Sink, intent: Intent, error: PenstockError) -> None:
        is_first = sink.problem is None
        # The staged records need not be sent again.
        why = error.text.removesuffix(", and send again")
        sink.problem = f"batch {intent.batch_id} cannot be finished yet: {why}"
        if is_first:
            self._report(f"sink {sink.name}: {sink.problem}; retrying")
        waiting = list(sink.queue)
        sink.queue.clear()
        for each in waiting:
            each.answer(
                PenstockError(
                    Reason.STORAGE_ERROR,
                    f"{sink.problem}; the broker retries by itself. Repeat the commit to get the result.",
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
        # The commit may have taken longer than unused sinks are remembered.
        sink.touched_ms = self._broker.clock.monotonic_ms()
        if sink.queue and sink.queue[0].asked.batch_id == intent.batch_id:
            sink.queue.popleft().answer(CommittedBatch(True, already=False, records=records - dropped, dropped=dropped))
        self.staging.cut(sink)

    async def _append_all(self, sink: Sink, in_flight: deque[Outcome], *, first_only: bool = False) -> None:
        for work in sink.work:
            await self._append(sink, work, in_flight, first_only)
        while in_flight:
            await _settle(in_flight)

    async def _append(self, sink: Sink, work: Work, in_flight: deque[Outcome], first_only: bool) -> None:
        """Append the remaining batches of one target, and add their outcomes to ``in_flight``."""
        if not work.left or _is_gone(sink):
            return
        stored, target = sink.stored, work.target
        topic = self._topic_of(target)
        staging, _ = self.staging.of(sink)
        if topic is None or staging is None or work.is_lost:
            self._drop(sink, work, "its topic was deleted" if topic is None else "the staged records are lost")
            return
        writer = _TargetWriter(self._broker, topic, target.partition)
        skip = work.appended
        is_open = False
        for start, end in target.staged:
            if skip >= end - start:
                skip -= end - start
                continue
            for _, data in staged_batches(staging.log, start + skip, end):
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

    async def _batch(self, staging: Partition, config: TopicConfig, data: memoryview) -> bytearray:
        """A staged batch in the form in which it is appended."""
        batch = bytearray(data)
        if not crc_matches(batch):
            raise PenstockError(
                Reason.CORRUPT_RECORDS, f"A batch of {staging.topic.name} is damaged; restore the file from a backup"
            )
        compression = config.compression
        if compression is None or read_header(batch).compression is compression:
            return batch
        bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        return await self._off_loop(partial(recompress, batch, compression, bytes_max))

    def _topic_of(self, target: Target) -> Topic | None:
        """The topic; None if it was deleted, even if there is a newer one of the same name."""
        topic = self._broker.topics.get_by_id(target.topic_id)
        return None if topic is None or target.partition >= topic.partition_count else topic

    def _drop(self, sink: Sink, work: Work, why: str) -> None:
        target = work.target
        self._report(
            f"sink {sink.name}: {work.left} of {target.record_count} records for {target.topic}/{target.partition} are "
            f"dropped from a commit, because {why}"
        )
        work.dropped = True

    async def _store_committed(self, sink: Sink, intent: Intent) -> None:
        """Store that the batch is in its targets."""
        staged_from = max((end for target in intent.targets for _, end in target.staged), default=0)
        stored = replace(
            sink.stored,
            last_batch_id=intent.batch_id,
            committed_ms=self._broker.clock.now_ms(),
            # This also drops batches staged by tasks that failed or ran twice.
            staged_from=max(sink.stored.staged_from, staged_from),
            intent=None,
        )
        await self.store(sink, stored)

    # Writing ``__sinks``.

    async def store(self, sink: Sink, stored: StoredSink) -> None:
        """Store the new state of a sink. If it cannot be stored, nothing changes."""
        outcome = Outcome()
        self.write(sink.name, stored, outcome)
        await outcome
        sink.stored = stored

    def write(self, name: str, stored: StoredSink | None, done: Callable[[Reason | None], None]) -> None:
        """Append one record of ``__sinks``; None deletes the sink."""
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
    """Whether the sink was deleted while a job waited. A function, since type checkers assume that an attribute does not change."""
    return sink.gone


def wake(sink: Sink) -> None:
    """Call those that wait until the sink is idle."""
    waiters, sink.idle_waiters = sink.idle_waiters, []
    for waiter in waiters:
        waiter()


def _note_status(work: Work, outcome: JointOutcome, status: LeaderStatus | PenstockError) -> None:
    if isinstance(status, LeaderStatus):
        work.appended = status.appended
        if not status.is_settled:
            # The next leader may not have these records, so no later ones may be sent yet.
            outcome.add(PenstockError(Reason.LEADER_NOT_AVAILABLE, "the appended records are not committed yet"))
            return
    outcome.add(status)


async def _settle(in_flight: deque[Outcome]) -> None:
    outcome = in_flight[0]
    await outcome.known()
    in_flight.popleft()
    outcome.check()


class _TargetWriter:
    """Sends batches to the leader of one target, which checks no settings: the batches were checked before the intent was stored.

    A leader keeps every committed batch, and refuses one that does not follow the producer's last one. But a producer that it does not
    know may begin with any sequence number. So the first batch must be committed before the next one is sent: from then on, every
    later leader knows the producer, and no batch can be left out.
    """

    def __init__(self, broker: "Broker", topic: Topic, index: int) -> None:
        self._topics = broker.topics
        self._peers: Final = broker.peers
        self._topic = topic
        self._index = index
        self._outcome = JointOutcome()

    @property
    def is_gone(self) -> bool:
        """Whether the target's topic is deleted."""
        return self._topics.get_by_id(self._topic.topic_id) is None

    def append(self, batch: bytearray) -> None:
        """Send one batch. A leader that has it already answers with its offset."""
        self._outcome.expect()
        # Its offset in the staging log means nothing elsewhere.
        set_offset(batch, 0, NO_EPOCH)
        self._peers.produce(self._topic, self._index, batch, Acks.ALL, self._outcome.add)

    def committed(self) -> Outcome:
        """The outcome of all batches since the last call."""
        outcome, self._outcome = self._outcome, JointOutcome()
        return outcome.close()
