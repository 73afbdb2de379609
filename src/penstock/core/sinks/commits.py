"""Carrying out commits: each sink's one after the other, each in steps that a crash may come between.

1. Everything is checked (``checks.py``). A refusal leaves nothing behind.
2. The intent is stored: the batch id, the targets with where they end, and an epoch of the sink's producer that no intent had
   before. From here on the batch will be in its targets, whatever happens.
3. The staged batches are appended, numbered from 0 in each target. How far that is can be told at any time by the log's memory
   of the producer (``progress.py``), so after a failed write or a crash it goes on behind the last record that is there.
4. The batch id is stored as the last one, and the intent is gone, in one record. Then the caller is told.
5. What was staged is cut off, once it is worth a call to the disk.

Invariant: ``sink.stored`` is what ``__sinks`` has committed; ``sink.work`` belongs to its intent.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from msgspec.structs import replace

from penstock.core.internal_topic import InternalTopic
from penstock.core.partition import Partition
from penstock.core.sinks.checks import Checks, Planned
from penstock.core.sinks.jobs import BATCH_BYTES, Jobs, Outcome, Steps, Wait
from penstock.core.sinks.progress import records_appended
from penstock.core.sinks.sink import CommitRequest, Committed, Sink, Work
from penstock.core.sinks.staged import batches_in
from penstock.core.sinks.stored import STAGING_PARTITION, Intent, StoredSink, Target, encode, encode_key
from penstock.errors import PenstockError, Reason
from penstock.limits import DECOMPRESSED_RATIO_MAX, MIB
from penstock.ports import Report
from penstock.records.batch import crc_matches, read_header, set_producer
from penstock.records.recompress import recompress
from penstock.types import NO_PRODUCER_ID, Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker

CUT_BYTES: Final = 16 * MIB
"""Committed bytes that are worth a cut of the staging log."""
_EPOCH_MAX: Final = 2**15 - 1
_IN_FLIGHT_MAX: Final = 16
"""Turns whose appends are not committed yet: the disk is kept busy, and memory bounded."""
_RETRY_MS_MIN: Final = 100
_RETRY_MS_MAX: Final = 10_000

T = TypeVar("T")


class Commits:
    """The steps. The door (``sinks.py``) says when, and for which sink."""

    def __init__(
        self, broker: "Broker", log: InternalTopic, jobs: Jobs, pause: Callable[[int], Wait], report: Report
    ) -> None:
        self._broker = broker
        self._log = log
        self._jobs = jobs
        self._pause = pause
        self._report = report
        self._checks = Checks(broker, jobs, self._off_loop)

    # One sink's commits, one after the other.

    def serve(self, sink: Sink) -> Steps[None]:
        """Finish the open intent, then do what callers wait for, until nobody does."""
        while not sink.gone:
            if sink.stored.intent is not None:
                yield from self._finish(sink, sink.stored.intent)
                continue
            if not sink.queue:
                break
            request = sink.queue[0]
            if not sink.wants(request.batch_id):
                self._broker.meters.sink_commits.add(("already",))
                sink.queue.popleft().tell(Committed(already=True))
                continue
            try:
                yield from self._begin(sink, request)
            except PenstockError as error:
                self._broker.meters.sink_commits.add(("refused",))
                if sink.queue and sink.queue[0] is request:
                    sink.queue.popleft()
                request.tell(error)
        sink.busy = False
        wake(sink)

    def _begin(self, sink: Sink, request: CommitRequest) -> Steps[None]:
        planned = yield from self._check(sink, request)
        if planned:
            yield from self._choose_producer(sink, planned)
            yield from self._intend(sink, request.batch_id, planned)
        else:
            # An empty batch counts too: it must not come again with records in it.
            empty = Intent(batch_id=request.batch_id, targets=[])
            yield from self._note(sink, empty)
            self._finished(sink, empty)

    def _check(self, sink: Sink, request: CommitRequest) -> Steps[list[Planned]]:
        while True:
            planned = yield from self._checks.plan(request.caller, request.parts)
            staging, staged_from = self.staging_of(sink)
            # Also of an empty batch: its number would count for the sink that has the name now.
            _check_life(sink, staging, request.staging_id)
            if not planned:
                return []
            if staging is None:
                raise PenstockError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"nothing is staged in sink {sink.name}; open it, and stage the batch again",
                )
            configs = [each.partition.topic.config for each in planned]
            for each in planned:
                yield from self._checks.batches(staging, each, staged_from)
            # The checks took their time: what they looked at must still be so.
            if all(
                not each.partition.gone and each.partition.topic.config == config
                for each, config in zip(planned, configs, strict=True)
            ):
                return planned

    def staging_of(self, sink: Sink) -> tuple[Partition | None, int]:
        """The staging log of a sink, and from where on it holds what is neither committed nor dropped."""
        topic = self._broker.topics.get(sink.staging)
        if topic is None:
            return None, 0
        staged_from = sink.stored.staged_from if topic.topic_id == sink.stored.staging_id else 0
        return self._broker.partition(sink.staging, STAGING_PARTITION), staged_from

    def _choose_producer(self, sink: Sink, planned: list[Planned]) -> Steps[None]:
        """See to it that the next epoch of the sink's producer is one that no target has seen."""
        stored = sink.stored
        next_epoch = stored.producer_epoch + 1
        if stored.producer_id != NO_PRODUCER_ID and next_epoch <= _EPOCH_MAX:
            known = (each.partition.log.producers.get(stored.producer_id) for each in planned)
            if all(entry is None or entry[0] < next_epoch for entry in known):
                return
        outcome = Outcome()
        self._broker.background(self._take_producer_id(sink, outcome))
        yield outcome.wait
        outcome.check()

    async def _take_producer_id(self, sink: Sink, outcome: Outcome) -> None:
        try:
            producer_id = await self._broker.producer_ids.next_id()
        except PenstockError as error:
            outcome(error.reason)
            return
        # Stored with the intent that first uses it.
        sink.stored = replace(sink.stored, producer_id=producer_id, producer_epoch=-1)
        outcome(None)

    def _intend(self, sink: Sink, batch_id: int, planned: list[Planned]) -> Steps[None]:
        staging, staged_from = self.staging_of(sink)
        if staging is None:
            raise PenstockError(Reason.UNKNOWN_SINK, f"sink {sink.name} was deleted meanwhile")
        targets = [
            Target(
                topic=partition.topic.name,
                topic_id=partition.topic.topic_id,
                partition=partition.index,
                # Not the end of the log: appends that are not written yet may be taken back, and these would lie before it.
                end_offset=partition.high_watermark,
                staged=staged,
            )
            for partition, staged in planned
        ]
        stored = replace(
            sink.stored,
            staging_id=staging.topic.topic_id,
            staged_from=staged_from,
            producer_epoch=sink.stored.producer_epoch + 1,
            intent=Intent(batch_id=batch_id, targets=targets),
        )
        yield from self.store(sink, stored)
        sink.work = [Work(target) for target in targets]
        sink.is_looked_at = True

    # The open intent.

    def resume(self, sink: Sink) -> None:
        """After a start: find out how much of the open intent is there. Nobody may stage or append yet."""
        intent = sink.stored.intent
        assert intent is not None
        sink.work = [Work(target) for target in intent.targets]
        sink.is_looked_at = False
        staging, _ = self.staging_of(sink)
        staged_to = 0
        if staging is not None and staging.topic.topic_id == sink.stored.staging_id:
            staged_to = staging.high_watermark
        try:
            self._look(sink)
        except PenstockError as error:
            self._report(f"sink {sink.name}: how far its last commit came is not known yet ({error.text})")
            return
        for work in sink.work:
            # Only where acknowledged does not mean synced can a loss of power have taken what was staged.
            if work.left and any(end > staged_to for _, end in work.target.staged):
                self._drop(sink, work, "what was staged is lost")

    def _look(self, sink: Sink) -> None:
        stored = sink.stored
        for work in sink.work:
            partition = self._partition_of(work.target)
            if partition is not None and not work.dropped:
                work.appended = records_appended(
                    partition, stored.producer_id, stored.producer_epoch, work.target.end_offset
                )
        sink.is_looked_at = True

    def _finish(self, sink: Sink, intent: Intent) -> Steps[None]:
        """Carry the intent out, however often it takes."""
        failures = 0
        while not sink.gone:
            in_flight: deque[Outcome] = deque()
            try:
                if not sink.is_looked_at:
                    self._look(sink)
                for work in sink.work:
                    yield from self._append(sink, work, in_flight)
                while in_flight:
                    yield from _settle(in_flight)
                if _is_gone(sink):
                    # A record of it now would be that of a later sink of its name.
                    return
                yield from self._note(sink, intent)
            except PenstockError as error:
                self._fail(sink, intent, error, failures)
                failures += 1
                while in_flight:
                    # Each is told, one way or the other; then the log's memory says what is there.
                    yield in_flight.popleft().wait
                sink.is_looked_at = False
                yield self._pause(min(_RETRY_MS_MIN << min(failures, 10), _RETRY_MS_MAX))
            else:
                self._finished(sink, intent)
                return

    def _fail(self, sink: Sink, intent: Intent, error: PenstockError, failures: int) -> None:
        sink.problem = f"batch {intent.batch_id} cannot be finished yet: {error.text}"
        if not failures:
            self._report(f"sink {sink.name}: {sink.problem}; trying again")
        waiting = list(sink.queue)
        sink.queue.clear()
        for request in waiting:
            request.tell(
                PenstockError(
                    Reason.STORAGE_ERROR, f"{sink.problem}; it goes on by itself. Commit again to hear how it ended"
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
        self.cut(sink)

    def _append(self, sink: Sink, work: Work, in_flight: deque[Outcome]) -> Steps[None]:
        """Append what is left of one target; what is on its way to the disk is in ``in_flight``."""
        if not work.left or _is_gone(sink):
            return
        stored, target = sink.stored, work.target
        partition = self._partition_of(target)
        staging, _ = self.staging_of(sink)
        if partition is None or staging is None:
            self._drop(sink, work, "its topic was deleted" if partition is None else "what was staged is lost")
            return
        skip = work.appended
        is_open = False
        for start, end in target.staged:
            if skip >= end - start:
                skip -= end - start
                continue
            for _, data in batches_in(staging.log, start + skip, end):
                batch = bytearray(data)
                if not crc_matches(batch):
                    raise PenstockError(
                        Reason.CORRUPT_RECORDS,
                        f"a batch of {staging.topic.name} is damaged; restore the file from a backup",
                    )
                if partition.wants_recompression:
                    batch = yield from self._recompressed(partition, batch)
                if _is_gone(sink):
                    return
                if partition.gone:
                    self._drop(sink, work, "its topic was deleted")
                    return
                count = read_header(batch).record_count
                set_producer(batch, stored.producer_id, stored.producer_epoch, work.appended)
                partition.append_owed(batch, self._broker.clock.now_ms())
                work.appended += count
                is_open = True
                self._broker.meters.took_in(partition.topic.name, Gateway.INTERNAL, count, len(batch))
                if self._jobs.spend(len(batch) + BATCH_BYTES):
                    in_flight.append(_committed(partition))
                    is_open = False
                    if len(in_flight) >= _IN_FLIGHT_MAX:
                        yield from _settle(in_flight)
                    else:
                        yield None
            skip = 0
        if is_open:
            in_flight.append(_committed(partition))
            # As many targets, as many that wait: their number is bounded, and each takes little.

    def _recompressed(self, partition: Partition, batch: bytearray) -> Steps[bytearray]:
        config = partition.topic.config
        compression = config.compression
        if compression is None or read_header(batch).compression is compression:
            return batch
        bytes_max = config.max_message_bytes * DECOMPRESSED_RATIO_MAX
        found = yield from self._off_loop(partial(recompress, batch, compression, bytes_max))
        return found

    def _partition_of(self, target: Target) -> Partition | None:
        """The partition, unless its topic was deleted: one that has its name by now is another."""
        topic = self._broker.topics.get_by_id(target.topic_id)
        if topic is None or target.partition >= topic.partition_count:
            return None
        return self._broker.partition(topic.name, target.partition)

    def _drop(self, sink: Sink, work: Work, why: str) -> None:
        target = work.target
        self._report(
            f"sink {sink.name}: {work.left} of {target.record_count} records for {target.topic}/{target.partition} are "
            f"dropped from a commit, because {why}"
        )
        work.dropped = True

    def _note(self, sink: Sink, intent: Intent) -> Steps[None]:
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
        yield from self.store(sink, stored)

    # The log of sinks, and that of what is staged.

    def store(self, sink: Sink, stored: StoredSink) -> Steps[None]:
        """Make ``stored`` what holds; raises when the disk refuses, and then nothing has changed."""
        outcome = Outcome()
        self.write(sink.name, stored, outcome)
        yield outcome.wait
        outcome.check()
        sink.stored = stored

    def write(self, name: str, stored: StoredSink | None, done: Callable[[Reason | None], None]) -> None:
        """One record of ``__sinks``; None forgets the sink."""
        partition = self._log.partition_for(name)
        value = None if stored is None else encode(stored)
        next_offset = self._log.append(partition, [(encode_key(name), value)])
        self._log.when_committed(partition, next_offset, done)

    def fit(self, sink: Sink) -> None:
        """After a start: a staging log that lost its end gives the same offsets again, and what is staged there is new."""
        try:
            staging, staged_from = self.staging_of(sink)
        except PenstockError:
            # Whoever stages or commits is told the same.
            return
        if staging is not None and staged_from > staging.high_watermark:
            sink.stored = replace(sink.stored, staged_from=staging.high_watermark)

    def cut(self, sink: Sink, *, at_least_bytes: int = CUT_BYTES) -> None:
        """Give back the room of what was staged and is committed or dropped."""
        try:
            staging, staged_from = self.staging_of(sink)
            if staging is None:
                return
            log = staging.log
            staged_from = min(staged_from, log.written_offset)
            if log.bytes_between(log.start_offset, staged_from) < at_least_bytes:
                return
            now_ms = self._broker.clock.now_ms()
            # Nothing is synced for this, because the event loop would wait for it: the record in __sinks says what is staged, and
            # what a loss of power brings back is cut again. A producer that sends again what was cut stages it for nobody.
            log.delete_before(staged_from, sync=False)
            log.producers.expire(now_ms, -1)
            for removal in log.retire(now_ms, staging.high_watermark):
                self._broker.on_trash(removal)
        except (PenstockError, OSError) as error:
            self._report(
                f"sink {sink.name}: what was committed could not be removed from its staging topic yet ({error})"
            )

    def _off_loop(self, work: Callable[[], T]) -> Steps[T]:
        done: list[T] = []
        failed: list[PenstockError] = []

        def run() -> None:
            try:
                done.append(work())
            except PenstockError as error:
                failed.append(error)

        yield partial(self._broker.off_loop, run)
        if failed:
            raise failed[0]
        return done[0]


def _check_life(sink: Sink, staging: Partition | None, staging_id: UUID | None) -> None:
    """Refuse offsets of a staging topic that is not there any more: those of the one that has its name are others' records."""
    if staging_id is None or (staging is not None and staging.topic.topic_id == staging_id):
        return
    now = "it has none now" if staging is None else f"it is {staging.topic.topic_id} now"
    raise PenstockError(
        Reason.OFFSET_OUT_OF_RANGE,
        f"the staging topic {staging_id} of sink {sink.name}, which this commit names, is gone ({now}): the sink was deleted, or "
        "nobody used it for too long. Open it and stage the batch again",
    )


def _is_gone(sink: Sink) -> bool:
    """Asked anew each time: it may have been deleted while a job waited."""
    return sink.gone


def wake(sink: Sink) -> None:
    """Whoever waits for the sink to be idle looks again."""
    waiters, sink.idle_waiters = sink.idle_waiters, []
    for waiter in waiters:
        waiter()


def _committed(partition: Partition) -> Outcome:
    outcome = Outcome()
    partition.when_committed(partition.log.next_offset, outcome)
    return outcome


def _settle(in_flight: deque[Outcome]) -> Steps[None]:
    outcome = in_flight[0]
    yield outcome.wait
    in_flight.popleft()
    outcome.check()
