"""The door to produce keys: of all records sent with one key within its window, one is appended.

One node coordinates the keys of a topic, by the partition of ``__idempotency`` that they are in. The key is committed there with the place
that its record is about to have (the intent) before the record is appended. Once the record is committed, its place is noted there too.

A first attempt is a publish like any other if this node leads the partition. Whenever it is not known whether the record is in the
log (after a crash, a failed disk, or a change of coordinator or leader), the partition's leader appends it only if it does not find the key
at or after the offset that the intent names (``appending.py``). An intent that was left alone waits for its key to come again.

Always: a key in use has an :class:`Attempt`, and everyone else who brings the key meanwhile waits with it. A key is forgotten
before its window is over only if its record is known not to be in the log. Nothing here waits: ``done`` is called exactly
once, perhaps before the call returns. What is written in one turn of the loop is one batch.
"""

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.access import Caller
from penstock.core.coordinators.runtime import Family
from penstock.core.coordinators.topic import InternalTopic, StoredDone
from penstock.core.idempotency.appending import Appended, OnceAppends
from penstock.core.idempotency.attempts import (
    NOTHING_APPENDED,
    Admit,
    Asker,
    Attempt,
    OnceDone,
    check_key,
    encoded,
)
from penstock.core.idempotency.keys import Keys
from penstock.core.idempotency.loading import KeysShard
from penstock.core.idempotency.stored import Key, Note, digest_of, encode_key, encode_note, keys_partition, with_key
from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.topics.names import IDEMPOTENCY_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import IDEMPOTENCY_KEYS_MAX
from penstock.ports import Flusher, Report
from penstock.types import NO_TIMESTAMP, Acks, TopicName

__all__ = ["SWEEP_MS", "Admit", "Idempotency", "OnceDone"]

if TYPE_CHECKING:
    from penstock.core.broker import Broker

SWEEP_MS: Final = 1_000
"""Between two looks for keys that are over. A key that is over and still here counts as unknown, so this is for memory only."""
_TOMBSTONES_MAX: Final = 1_000
"""Written in one tick."""


class Idempotency:
    """The produce keys of this node. All calls are made on the event loop."""

    def __init__(
        self,
        broker: "Broker",
        log: InternalTopic,
        flusher: Flusher,
        report: Report,
        *,
        window_ms: int,
        keys_max: int = IDEMPOTENCY_KEYS_MAX,
    ) -> None:
        self.window_ms: Final = window_ms
        self._broker = broker
        self.family: Final = Family(log, partial(KeysShard, self), "the produce keys of this topic")
        self._appends = OnceAppends(broker, flusher)
        self._report = report
        self._keys_max = keys_max
        self._keys = Keys()
        self._attempts: dict[Key, Attempt] = {}
        self._tombstones: deque[Key] = deque()
        self._sweep_due_ms = 0

    @property
    def key_count(self) -> int:
        """How many keys are remembered."""
        return self._keys.count

    # Publishing.

    def publish_once(
        self,
        caller: Caller,
        topic: str,
        record: NewRecord,
        acks: Acks,
        tenant: str,
        key: str,
        done: OnceDone,
        *,
        admit: Admit | None = None,
    ) -> None:
        """Publish a record unless its key is known. PenstockError when the request cannot be at all.

        ``admit`` is asked only for a record that is really to be appended: a duplicate takes no room.
        """
        broker = self._broker
        found = broker.topics.require(topic)
        self.family.served(self._partition_of(found.topic_id))
        check_key(tenant, key)
        tenant_bytes, key_bytes = encoded(tenant), encoded(key)
        record = record._replace(headers=with_key(record.headers, tenant_bytes, key_bytes))
        asker = Asker(caller, record, acks, admit, done)
        produce_key = Key(found.topic_id, digest_of(tenant_bytes, key_bytes))
        attempt = self._attempts.get(produce_key)
        if attempt is not None:
            if attempt.placed is None:
                attempt.askers.append(asker)
            else:
                self._answer_duplicate(found.name, attempt.placed, asker)
            return
        note = self._keys.get(produce_key)
        if note is not None and self._is_over(note):
            # Its place in the order of the windows is at the end again.
            self._keys.drop(produce_key)
            note = None
        if note is not None and note.is_placed:
            placed = Placed(note.partition, note.offset, note.timestamp_ms)
            self._answer_duplicate(found.name, placed, asker, is_committed=True)
            return
        attempt = self._attempts[produce_key] = Attempt(produce_key, found.name)
        attempt.askers.append(asker)
        if note is None:
            self._intend(attempt)
        else:
            # An append that failed, or that an earlier coordinator began: the leader knows whether the record is there.
            self._append_once(attempt, is_first=False)

    def _partition_of(self, topic_id: UUID) -> int:
        return keys_partition(topic_id, self.family.topic.partition_count)

    def _store(self, key: Key, note: Note | None, stored: StoredDone | None = None) -> None:
        """Write with all else that this turn brings; None forgets the key."""
        value = None if note is None else encode_note(note)
        self.family.put(self._partition_of(key.topic_id), encode_key(key), value, stored)

    def _is_over(self, note: Note) -> bool:
        return self._broker.clock.now_ms() - note.noted_ms >= self.window_ms

    def _answer_duplicate(self, topic: TopicName, placed: Placed, asker: Asker, *, is_committed: bool = False) -> None:
        """The place of the first one. This caller may want to know more safely than the first that the record is there."""
        self._broker.meters.produce_duplicates.add((topic,))
        if is_committed or asker.acks is not Acks.ALL:
            asker.done(placed, True)
            return

        def answer(reason: Reason | None) -> None:
            asker.done(placed if reason is None else PenstockError(reason), True)

        try:
            self._broker.partition(topic, placed.partition).when_committed(placed.offset + 1, answer)
        except PenstockError as error:
            asker.done(error, True)

    # The steps of one record.

    def _intend(self, attempt: Attempt) -> None:
        """Note where the record is about to go."""
        broker, asker = self._broker, attempt.askers[0]
        try:
            topic = self._same_topic(attempt)
            index = broker.publisher.choose_partition(topic, asker.record)
            self._appends.check(topic, asker.record)
            if asker.admit is not None:
                asker.admit(topic.name, index)
            self._check_room()
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        # Not the end of the log: appends that are not written yet may be taken back, and the record would get a lower offset.
        self._appends.ends.reached(topic, index, partial(self._intend_at, attempt, index))

    def _intend_at(self, attempt: Attempt, index: int, reached: int | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(reached, PenstockError):
            self._end(attempt, reached, forget=True)
            return
        asker, now_ms = attempt.askers[0], self._broker.clock.now_ms()
        attempt.askers[0] = asker._replace(record=asker.record._replace(partition=index))
        given_ms = asker.record.timestamp_ms
        note = Note(False, index, reached, now_ms, now_ms if given_ms is None else given_ms)
        self._keys.put(attempt.key, note)
        self._store(attempt.key, note, partial(self._intended, attempt))

    def _same_topic(self, attempt: Attempt) -> Topic:
        """The topic that the key was brought for: not another one that has its name by now."""
        topic = self._broker.topics.require(attempt.topic)
        if topic.topic_id != attempt.key.topic_id:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {attempt.topic} was deleted at the same time. Send the record again.",
            )
        return topic

    def _check_room(self) -> None:
        if self._keys.count >= self._keys_max:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{self._keys.count} idempotency keys are remembered, which is the limit, each for {self.window_ms} ms; "
                "send fewer records with a key, or lower queues.idempotency_ms",
            )

    def _intended(self, attempt: Attempt, reason: Reason | None) -> None:
        if attempt.over:
            return
        if reason is not None:
            # The record was not appended, whether the intent survives or not.
            has_moved = reason is Reason.NOT_LEADER_OR_FOLLOWER
            self._end(attempt, self.family.not_coordinator() if has_moved else PenstockError(reason), forget=True)
            return
        asker, broker = attempt.askers[0], self._broker
        try:
            topic = self._same_topic(attempt)
            if not self._leads(topic, asker.record):
                self._append_once(attempt)
                return
            broker.publisher.publish(
                asker.caller, attempt.topic, [asker.record], asker.acks, partial(self._published, attempt)
            )
        except PenstockError as error:
            self._end(attempt, error, forget=True)

    def _leads(self, topic: Topic, record: NewRecord) -> bool:
        """Whether this node can append the record itself."""
        assert record.partition is not None
        if self._broker.peers.holds(topic, record.partition):
            return False
        try:
            self._broker.partition(topic.name, record.partition)
        except PenstockError as error:
            return error.reason not in (Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE)
        return True

    def _append_once(self, attempt: Attempt, *, is_first: bool = True) -> None:
        """Have the leader append the record to the partition that the intent names, unless it is there."""
        note, record = self._keys.get(attempt.key), attempt.askers[0].record
        assert note is not None, "a key in use is not forgotten"
        try:
            topic = self._same_topic(attempt)
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        if note.timestamp_ms == NO_TIMESTAMP:
            # Noted by an earlier version.
            note = note._replace(timestamp_ms=self._broker.clock.now_ms())
        record = record._replace(partition=note.partition, timestamp_ms=note.timestamp_ms)
        self._appends.append(attempt, topic, record, note.offset, partial(self._appended, attempt, note, is_first))

    def _appended(self, attempt: Attempt, note: Note, is_first: bool, answer: Appended | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(answer, PenstockError):
            # It may be there all the same: the next request with the key finds out.
            self._end(attempt, answer, forget=False)
            return
        placed = Placed(note.partition, answer.offset, note.timestamp_ms)
        self._note_place(attempt.key, placed)
        attempt.over = True
        del self._attempts[attempt.key]
        first, *others = attempt.askers
        if answer.is_new or is_first:
            self._broker.meters.took_in(attempt.topic, first.caller.gateway, 1, answer.size_bytes)
            first.done(placed, False)
        else:
            self._answer_duplicate(attempt.topic, placed, first, is_committed=True)
        for other in others:
            self._answer_duplicate(attempt.topic, placed, other, is_committed=True)

    def _published(self, attempt: Attempt, results: Results) -> None:
        if attempt.over:
            return
        (placed,) = results
        if isinstance(placed, PenstockError):
            if placed.reason is Reason.LINK_LOST:
                # Another node leads now. It knows whether the record is there.
                self._append_once(attempt)
            else:
                self._end(attempt, placed, forget=placed.reason in NOTHING_APPENDED)
            return
        attempt.placed = placed
        first, *others = attempt.askers
        attempt.askers = []
        first.done(placed, False)
        for other in others:
            self._answer_duplicate(attempt.topic, placed, other)
        try:
            partition = self._broker.partition(attempt.topic, placed.partition)
        except PenstockError:
            self._settled(attempt, Reason.UNKNOWN_TOPIC_OR_PARTITION)
            return
        # Noted only when the record is there for good: its acknowledgement may have asked for less.
        partition.when_committed(placed.offset + 1, partial(self._settled, attempt))

    def _settled(self, attempt: Attempt, reason: Reason | None) -> None:
        """The record is committed, or it is not known whether it ever will be: then the intent stays."""
        if attempt.over:
            return
        placed = attempt.placed
        assert placed is not None
        if reason is None:
            self._note_place(attempt.key, placed)
        attempt.over = True
        del self._attempts[attempt.key]

    def _note_place(self, key: Key, placed: Placed) -> None:
        noted = self._keys.get(key)
        if noted is None:
            return
        note = Note(True, placed.partition, placed.offset, noted.noted_ms, placed.timestamp_ms)
        self._keys.put(key, note)
        self._store(key, note)

    def _end(self, attempt: Attempt, error: PenstockError, *, forget: bool) -> None:
        """No place for this record. Everyone who waits is told, and may come again."""
        attempt.over = True
        del self._attempts[attempt.key]
        if forget and self._keys.get(attempt.key) is not None:
            self._keys.drop(attempt.key)
            self._store(attempt.key, None)
        for asker in attempt.askers:
            asker.done(error, False)

    # What this node coordinates.

    def restore(self, key: Key, note: Note) -> None:
        """A key that was loaded."""
        if self._broker.topics.get_by_id(key.topic_id) is None:
            self._tombstones.append(key)
        else:
            self._keys.put(key, note)

    def restored(self, shard: KeysShard) -> None:
        """All keys of a partition are loaded."""
        if shard.unreadable:
            self._report(
                f"{IDEMPOTENCY_TOPIC}/{shard.index}: {shard.unreadable} records of a later version were skipped"
            )

    def resign(self, partition: int) -> None:
        """Stop coordinating the keys of a partition: everyone who waits is answered, and late answers change nothing."""
        for attempt in [each for each in self._attempts.values() if self._partition_of(each.key.topic_id) == partition]:
            self._end(attempt, self.family.not_coordinator(), forget=False)
        self._tombstones = deque(key for key in self._tombstones if self._partition_of(key.topic_id) != partition)
        for topic_id in self._keys.topics():
            if self._partition_of(topic_id) == partition:
                self._keys.drop_topic(topic_id)

    def forget_topic(self, topic: Topic) -> None:
        """A topic was deleted, and with it its keys. Call this before its name can be used again."""
        for attempt in [each for each in self._attempts.values() if each.key.topic_id == topic.topic_id]:
            self._end(attempt, PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION), forget=False)
        self._tombstones.extend(self._keys.drop_topic(topic.topic_id))

    def close(self) -> None:
        """The broker stops: everyone who waits is answered."""
        for attempt in list(self._attempts.values()):
            self._end(attempt, PenstockError(Reason.SHUTTING_DOWN), forget=False)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next call of :meth:`tick`; None while there is nothing to wait for."""
        if self._tombstones:
            return self._broker.clock.monotonic_ms()
        return self._sweep_due_ms if self._keys.count else None

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic); each call does a bounded piece of work."""
        if now_ms >= self._sweep_due_ms and not self._tombstones:
            over = self._keys.take_over(
                self._broker.clock.now_ms(), self.window_ms, _TOMBSTONES_MAX, in_use=self._attempts
            )
            self._tombstones.extend(over)
            if len(over) < _TOMBSTONES_MAX:
                self._sweep_due_ms = now_ms + SWEEP_MS
        for _ in range(min(len(self._tombstones), _TOMBSTONES_MAX)):
            key = self._tombstones.popleft()
            # It may be in use again since it was over.
            if self._keys.get(key) is None and key not in self._attempts:
                self._store(key, None)
