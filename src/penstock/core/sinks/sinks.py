"""The entry point to exactly-once sinks: open, commit, abort, describe and delete them.

A sink is a name, the last batch id that it committed, and a staging topic with one partition. Writers stage batches there with plain
produce requests; readers cannot see them. One caller then commits a batch by listing its staged offsets. A batch id that is not
greater than the last one appends nothing, whichever caller sends it and whatever is staged.

Nothing here waits: each ``done`` is called exactly once, perhaps before the call returns.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.core.coordinators.jobs import Jobs, Resume, Waiting
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import InternalTopic
from penstock.core.security.access import Caller
from penstock.core.sinks.checks import check_shape
from penstock.core.sinks.commits import SinkCommits, wake
from penstock.core.sinks.refusals import busy, check_sink_name, just_removed, too_many, unknown
from penstock.core.sinks.sink import CommitDone, Sink, WaitingCommit
from penstock.core.sinks.stored import PARTITION, STAGING_PARTITION, StoredSink, decode
from penstock.core.sinks.uses import Uses, check_remember_ms
from penstock.core.topics.names import SINKS_TOPIC, STAGING_PREFIX, is_staging, staging_topic
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_WAITING_MAX
from penstock.operations.sinks import AbortedBatch, CommitSink, OpenedSink, SinkStatus
from penstock.ports import Flusher, Report
from penstock.settings import SinkSettings
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_SWEEP_MS_MAX: Final = 60_000
_SWEEP_AGAIN_MS: Final = 100
_SWEEP_SINKS_MAX: Final = 200
"""Sinks per sweep: a millisecond of the event loop, and some more if all of them are deleted."""
_NAMED_MAX: Final = 5

OpenDone = Callable[[OpenedSink | PenstockError], None]
AbortDone = Callable[[AbortedBatch | PenstockError], None]
DeleteDone = Callable[[PenstockError | None], None]


class SinksShard(Shard):
    """All sinks: ``__sinks`` has one partition. The last record of a sink is its state."""

    def __init__(self, sinks: "Sinks") -> None:
        self._sinks = sinks
        self.found: Final[dict[str, StoredSink]] = {}
        self.unreadable = 0
        """Records of a later version."""

    def replay(self, key: Buffer, value: Buffer | None, _: int) -> None:
        if value is None:
            self.found.pop(bytes(key).decode("utf-8", "replace"), None)
        elif (read := decode(key, value)) is None:
            self.unreadable += 1
        else:
            self.found[read[0]] = read[1]

    def loaded(self) -> Iterator[int]:
        self._sinks.restore(self)
        return iter(())

    def unloaded(self, reason: Reason) -> None:
        self._sinks.resign(reason)


class Sinks:
    """The sinks of this node. All calls are made on the event loop."""

    def __init__(
        self, broker: "Broker", log: InternalTopic, flusher: Flusher, report: Report, settings: SinkSettings
    ) -> None:
        self._broker = broker
        self.family: Final = Family(log, lambda _: SinksShard(self), "sinks")
        self._report = report
        self._settings = settings
        self._sinks: dict[str, Sink] = {}
        self._making: set[str] = set()
        self._dropping: set[str] = set()
        """Staging topics that are being deleted."""
        self._flusher = flusher
        self._jobs = Jobs(flusher)
        self._commits = SinkCommits(broker, self.family, self._jobs, self._pause, report)
        self._paused: list[tuple[int, Resume]] = []
        self._uses = Uses(broker.clock, settings)
        self._sweep_due_ms = 0
        self._unswept: list[str] = []
        """Sinks that this round has not checked yet."""

    # Opening and deleting.

    def open(self, name: str, done: OpenDone, *, remember_ms: int | None = None) -> None:
        """Open a sink. The sink and its staging topic are created if they do not exist.

        ``remember_ms`` is how long the sink must be remembered while it is not used, at most as long as the settings allow; None
        leaves it unchanged.
        """
        check_sink_name(name)
        check_remember_ms(remember_ms)
        self.family.served(PARTITION)
        self._broker.background(self._open(name, remember_ms, done))

    async def _open(self, name: str, remember_ms: int | None, done: OpenDone) -> None:
        topics = self._broker.topics
        self._making.add(name)
        try:
            if name not in self._sinks and len(self._sinks.keys() | self._making) > self._settings.sinks_max:
                raise too_many(len(self._sinks), self._settings)
            if staging_topic(name) in self._dropping:
                raise just_removed(name)
            topic = topics.get(staging_topic(name))
            if topic is None:
                topic = await topics.create(self._commits.staging.new_topic(name), exist_ok=True, internal=True)
        except PenstockError as error:
            done(error)
            return
        finally:
            self._making.discard(name)
        try:
            self.family.served(PARTITION)
        except PenstockError as error:
            done(error)
            return
        sink = self._sinks.get(name)
        if sink is not None:
            self._uses.touch(sink)
            self._answer_opened(sink, done, remember_ms)
            return
        clock = self._broker.clock
        stored = StoredSink(since_ms=clock.now_ms(), staging_id=topic.topic_id, remember_ms=remember_ms)
        sink = self._sinks[name] = Sink(name, stored, clock.monotonic_ms())
        sink.seen_offset = 0
        # Nothing else begins before the sink is stored.
        sink.busy = True
        sink.idle_waiters.append(partial(self._answer_opened, sink, done))
        try:
            self._commits.write(name, stored, partial(self._created, sink))
        except PenstockError as error:
            self._created(sink, error.reason)

    def _created(self, sink: Sink, reason: Reason | None) -> None:
        if sink.left is not None:
            return
        if reason is None:
            self._jobs.start(partial(self._commits.serve, sink))
            return
        del self._sinks[sink.name]
        sink.gone = True
        if reason is Reason.NOT_LEADER_OR_FOLLOWER:
            sink.left = Reason.NOT_COORDINATOR
        else:
            sink.problem = f"sink {sink.name} could not be stored: {reason.value}; open it again"
        wake(sink)

    def _answer_opened(
        self, sink: Sink, done: OpenDone, remember_ms: int | None = None, *, is_saved: bool = False
    ) -> None:
        """Answer with the last batch, once no commit is under way."""
        if sink.left is not None:
            done(PenstockError(sink.left))
        elif sink.problem is not None:
            done(PenstockError(Reason.STORAGE_ERROR, sink.problem))
        elif sink.gone:
            done(unknown(sink.name))
        elif sink.busy:
            sink.idle_waiters.append(partial(self._answer_opened, sink, done, remember_ms))
        elif not is_saved and self._uses.is_unsaved(sink, remember_ms) and self._save_use(sink, remember_ms):
            sink.idle_waiters.append(partial(self._answer_opened, sink, done, is_saved=True))
        elif (topic := self._broker.topics.get(sink.staging)) is None:
            done(just_removed(sink.name))
        else:
            done(OpenedSink(sink.name, sink.staging, topic.topic_id, 1, sink.stored.last_batch_id))

    def _save_use(self, sink: Sink, remember_ms: int | None = None) -> bool:
        """Store when the sink was last used.

        Callers are served even if this fails: at worst the sink is deleted too early, and later commits to it are refused.
        """
        stored = self._uses.saved(sink, remember_ms)
        try:
            self._commits.write(sink.name, stored, partial(self._use_saved, sink, stored))
        except PenstockError:
            return False
        sink.busy = True
        return True

    def _use_saved(self, sink: Sink, stored: StoredSink, reason: Reason | None) -> None:
        if reason is None:
            sink.stored = stored
        self._jobs.start(partial(self._commits.serve, sink))

    def delete(self, name: str, done: DeleteDone) -> None:
        """Delete a sink, its staged batches and its last batch id. A later sink of the same name is a new one."""
        sink = self._require(name)
        if sink.busy and sink.problem is None:
            raise busy(sink)
        # A new sink of this name must get another staging topic, without the batches staged here.
        self._dropping.add(sink.staging)
        try:
            self._commits.write(name, None, partial(self._deleted, sink, done))
        except PenstockError:
            self._dropping.discard(sink.staging)
            raise
        self._forget(sink)

    def _forget(self, sink: Sink) -> None:
        del self._sinks[sink.name]
        sink.gone = True
        while sink.queue:
            sink.queue.popleft().answer(unknown(sink.name))

    def _deleted(self, sink: Sink, done: DeleteDone, reason: Reason | None) -> None:
        self._dropping.discard(sink.staging)
        if reason is None:
            self._drop_staging(sink.staging)
        done(None if reason is None else PenstockError(reason))

    def _drop_staging(self, topic: str) -> None:
        if topic in self._broker.topics and topic not in self._dropping:
            self._dropping.add(topic)
            self._broker.background(self._delete_topic(topic))

    async def _delete_topic(self, topic: str) -> None:
        try:
            await self._broker.topics.delete(topic, internal=True)
        except PenstockError as error:
            if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
                self._report(f"staging topic {topic} could not be deleted ({error.text}); the next start tries again")
        finally:
            self._dropping.discard(topic)

    # Committing.

    def commit(
        self,
        caller: Caller,
        asked: CommitSink,
        done: CommitDone,
    ) -> None:
        """Append all staged batches of a commit to their targets, once. Earlier commits of the sink come first."""
        check_shape(asked.parts)
        sink = self._require(asked.sink)
        self._uses.touch(sink)
        if len(sink.queue) > SINK_WAITING_MAX:
            raise busy(sink)
        sink.queue.append(WaitingCommit(caller, asked, done))
        self._serve(sink)

    def _serve(self, sink: Sink) -> None:
        if not sink.busy:
            sink.busy = True
            self._jobs.start(partial(self._commits.serve, sink))

    def abort(self, name: str, batch_id: int, done: AbortDone) -> None:
        """Drop all staged batches, unless this batch is committed or about to be."""
        sink = self._require(name)
        self._uses.touch(sink)
        if not sink.wants(batch_id):
            done(AbortedBatch(False, f"batch {batch_id} is already committed"))
            return
        if sink.is_about(batch_id):
            done(AbortedBatch(False, f"batch {batch_id} is being committed"))
            return
        if sink.busy:
            raise busy(sink)
        staging, staged_from = self._commits.staging.of(sink)
        if staging is None or staging.log.next_offset == staged_from:
            done(AbortedBatch(True, ""))
            return
        stored = replace(sink.stored, staging_id=staging.topic.topic_id, staged_from=staging.high_watermark)
        sink.busy = True
        try:
            self._commits.write(name, stored, partial(self._aborted, sink, stored, done))
        except PenstockError:
            sink.busy = False
            raise

    def _aborted(self, sink: Sink, stored: StoredSink, done: AbortDone, reason: Reason | None) -> None:
        if reason is None:
            sink.stored = stored
            self._commits.staging.cut(sink, at_least_bytes=1)
        self._jobs.start(partial(self._commits.serve, sink))
        done(AbortedBatch(True, "") if reason is None else PenstockError(reason))

    # Describing.

    def names(self) -> list[str]:
        """The names of all sinks. NOT_COORDINATOR if another node coordinates them."""
        self.family.served(PARTITION)
        return sorted(self._sinks)

    def status(self, name: str) -> SinkStatus:
        """The status of a sink."""
        sink = self._require(name)
        stored = sink.stored
        return SinkStatus(
            name,
            sink.staging,
            stored.last_batch_id,
            stored.committed_ms,
            stored.since_ms,
            self._commits.staging.staged_bytes(sink),
            None if stored.intent is None else stored.intent.batch_id,
            sink.problem,
            self._uses.last_used_ms(sink),
            self._uses.remembered_ms(sink),
        )

    def _require(self, name: str) -> Sink:
        self.family.served(PARTITION)
        sink = self._sinks.get(name)
        if sink is None:
            raise unknown(name)
        if sink.left is not None:
            raise PenstockError(sink.left)
        return sink

    # Loading and unloading.

    def restore(self, shard: SinksShard) -> None:
        """Serve the loaded sinks, and complete the commits that a crash or a change of coordinator interrupted."""
        if shard.unreadable:
            self._report(f"{SINKS_TOPIC}: {shard.unreadable} records of a later version were skipped")
        self._uses.load()
        for name, stored in shard.found.items():
            sink = self._sinks[name] = self._uses.loaded(name, stored)
            if stored.intent is not None:
                self._commits.resume(sink)
                self._serve(sink)
            elif stored.staged_from:
                self._commits.staging.fit(sink)
        for topic in list(self._leftovers()):
            self._drop_staging(topic)

    def _leftovers(self) -> Iterator[str]:
        """Staging topics without a sink: a crash interrupted the creation or deletion of a sink."""
        used = {sink.staging for sink in self._sinks.values()}
        for topic in self._broker.topics.iterate_from(STAGING_PREFIX):
            if not is_staging(topic.name):
                break
            if topic.internal and topic.name not in used:
                yield topic.name

    def close(self) -> None:
        """The broker stops: answer all waiting callers. Open intents are completed after the next start."""
        self._end(Reason.SHUTTING_DOWN)

    def resign(self, reason: Reason) -> None:
        """Stop coordinating sinks: answer all waiting callers, stop all jobs, and write nothing more. The next coordinator continues."""
        self._end(reason)
        self._sinks = {}
        self._unswept = []
        # Answers that are still to come belong to the old ones, which are closed.
        self._jobs = Jobs(self._flusher)
        self._commits = SinkCommits(self._broker, self.family, self._jobs, self._pause, self._report)

    def _end(self, reason: Reason) -> None:
        self._jobs.close()
        self._paused.clear()
        for sink in list(self._sinks.values()):
            sink.left = reason
            sink.gone = True
            while sink.queue:
                sink.queue.popleft().answer(PenstockError(reason))
            wake(sink)

    # Time.

    def _pause(self, ms: int) -> Waiting:
        due_ms = self._broker.clock.monotonic_ms() + ms
        return Waiting(lambda resume: self._paused.append((due_ms, resume)))

    def next_deadline_ms(self) -> int | None:
        """Monotonic time at which to call :meth:`tick` next; None if there is nothing to do."""
        if not self._sinks:
            return None
        return min([self._sweep_due_ms, *(due_ms for due_ms, _ in self._paused)])

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic)."""
        due = [entry for entry in self._paused if entry[0] <= now_ms]
        self._paused = [entry for entry in self._paused if entry[0] > now_ms]
        for _, resume in due:
            resume()
        if now_ms >= self._sweep_due_ms:
            self._sweep_some(now_ms)

    def _sweep_some(self, now_ms: int) -> None:
        if not self._unswept:
            self._unswept = list(self._sinks)
        names = self._unswept[-_SWEEP_SINKS_MAX:]
        del self._unswept[-_SWEEP_SINKS_MAX:]
        rest_ms = min(self._settings.staging_idle_ms, self._settings.remember_ms, _SWEEP_MS_MAX)
        self._sweep_due_ms = now_ms + (_SWEEP_AGAIN_MS if self._unswept else rest_ms)
        swept = [sink for name in names if (sink := self._sinks.get(name)) is not None]
        for sink in swept:
            self._sweep(sink)
        forgotten = [sink.name for sink in swept if sink.gone and sink.stored.last_batch_id is not None]
        if forgotten:
            more = f" and {len(forgotten) - _NAMED_MAX} more" if len(forgotten) > _NAMED_MAX else ""
            self._report(f"sinks deleted because they were not used: {', '.join(forgotten[:_NAMED_MAX])}{more}")

    def _sweep(self, sink: Sink) -> None:
        """Delete what is not used: the staging topic, and the sink itself once its last batch need not be remembered."""
        staging = self._broker.opened(sink.staging, STAGING_PARTITION)
        if staging is not None:
            self._uses.staged_to(sink, staging.log.next_offset)
        if sink.busy or sink.name in self._making:
            return
        if self._uses.is_unsaved(sink):
            self._save_use(sink)
            return
        is_staging_idle = self._uses.is_idle(sink, self._settings.staging_idle_ms)
        if sink.stored.last_batch_id is None:
            is_over = is_staging_idle
        else:
            is_over = self._uses.is_idle(sink, self._uses.remembered_ms(sink)) and (
                is_staging_idle or not self._has_staged(sink)
            )
        if is_over:
            try:
                self._commits.write(sink.name, None, lambda _reason: None)
            except PenstockError:
                return
            self._forget(sink)
        if is_over or is_staging_idle:
            self._drop_staging(sink.staging)

    def _has_staged(self, sink: Sink) -> bool:
        try:
            staging, staged_from = self._commits.staging.of(sink)
        except PenstockError:
            # Unknown: keep it.
            return True
        return staging is not None and staging.log.next_offset > staged_from
