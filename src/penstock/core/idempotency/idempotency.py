"""The door to produce keys: of all records sent with one key within its window, one is appended.

In a cluster one node speaks for the keys of a topic, by the partition of ``__idempotency`` that they are in, and the record goes to whoever
leads its partition, which appends it only if it is not there (``appending.py``). All else is as below, but nothing need be looked for: an intent
that was left alone, by a crash or by the node that spoke before, waits for its key to come again.

How a crash leaves no doubt: the key is committed to ``__idempotency`` with where its record is about to go (the intent) before
the record is appended, and once the record is committed its place is noted there too. A key that a crash left with an
intent alone is looked for in its partition, from the offset that the intent names up to where the partition ended at the
restart: found, it is noted; not found, the record was never appended and the key is free.

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
from penstock.core.idempotency.search import Search
from penstock.core.idempotency.stored import Key, Note, digest_of, encode_key, encode_note, keys_partition, with_key
from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.topics.names import IDEMPOTENCY_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import IDEMPOTENCY_KEYS_MAX
from penstock.ports import Flusher, Report
from penstock.records.records import Record
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
        self._searches: deque[Search] = deque()
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
        digest = digest_of(tenant_bytes, key_bytes)
        mark = None if broker.cluster is None else digest
        record = record._replace(headers=with_key(record.headers, tenant_bytes, key_bytes, mark=mark))
        asker = Asker(caller, record, acks, admit, done)
        produce_key = Key(found.topic_id, digest)
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
            self._answer_duplicate(found.name, Placed(note.partition, note.offset, note.timestamp_ms), asker)
            return
        attempt = self._attempts[produce_key] = Attempt(produce_key, found.name)
        attempt.askers.append(asker)
        if note is None:
            self._intend(attempt)
        elif broker.cluster is not None:
            # An append that failed, or one of whoever spoke for the keys before: whether it is there, its leader knows.
            self._append_once(attempt, was_known=True)
        else:
            self._look_again(attempt, note)

    def _partition_of(self, topic_id: UUID) -> int:
        return keys_partition(topic_id, self.family.topic.partition_count)

    def _store(self, key: Key, note: Note | None, stored: StoredDone | None = None) -> None:
        """Write with all else that this turn brings; None forgets the key."""
        value = None if note is None else encode_note(note)
        self.family.put(self._partition_of(key.topic_id), encode_key(key), value, stored)

    def _is_over(self, note: Note) -> bool:
        return self._broker.clock.now_ms() - note.noted_ms >= self.window_ms

    def _answer_duplicate(self, topic: TopicName, placed: Placed, asker: Asker) -> None:
        """The first one's place; this asker may want to know more safely than the first that the record is there."""
        self._broker.meters.produce_duplicates.add((topic,))
        # In a cluster every place that is known is that of a committed record.
        if asker.acks is not Acks.ALL or self._broker.cluster is not None:
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
        is_alone = broker.cluster is None
        try:
            topic = self._same_topic(attempt)
            index = broker.publisher.choose_partition(topic, asker.record)
            if not is_alone:
                self._appends.check(topic, asker.record)
            if asker.admit is not None:
                asker.admit(topic.name, index)
            self._check_room()
            # Not the end of the log: appends that are not written yet may be taken back, and the record would lie before it.
            reached = broker.partition(topic.name, index).high_watermark if is_alone else -1
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        if is_alone:
            self._intend_at(attempt, index, reached)
        else:
            self._appends.ends.reached(topic, index, partial(self._intend_at, attempt, index))

    def _intend_at(self, attempt: Attempt, index: int, reached: int | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(reached, PenstockError):
            self._end(attempt, reached, forget=True)
            return
        asker, now_ms = attempt.askers[0], self._broker.clock.now_ms()
        attempt.askers[0] = asker._replace(record=asker.record._replace(partition=index))
        note = Note(False, index, reached, now_ms)
        if self._broker.cluster is not None:
            given_ms = asker.record.timestamp_ms
            note = note._replace(timestamp_ms=now_ms if given_ms is None else given_ms)
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
        if self._broker.cluster is not None:
            self._append_once(attempt, was_known=False)
            return
        asker = attempt.askers[0]
        try:
            self._same_topic(attempt)
            self._broker.publisher.publish(
                asker.caller, attempt.topic, [asker.record], asker.acks, partial(self._published, attempt)
            )
        except PenstockError as error:
            self._end(attempt, error, forget=True)

    def _append_once(self, attempt: Attempt, *, was_known: bool) -> None:
        """Have the record in the partition that the intent names, unless it is there."""
        note, record = self._keys.get(attempt.key), attempt.askers[0].record
        assert note is not None, "a key in use is not forgotten"
        try:
            topic = self._same_topic(attempt)
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        if note.timestamp_ms == NO_TIMESTAMP:
            # Noted by a broker that was alone then.
            note = note._replace(timestamp_ms=self._broker.clock.now_ms())
        record = record._replace(partition=note.partition, timestamp_ms=note.timestamp_ms)
        self._appends.append(attempt, topic, record, note.offset, partial(self._appended, attempt, note, was_known))

    def _appended(self, attempt: Attempt, note: Note, was_known: bool, answer: Appended | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(answer, PenstockError):
            # It may be there all the same: whoever brings the key again finds out.
            self._end(attempt, answer, forget=False)
            return
        placed = Placed(note.partition, answer.offset, note.timestamp_ms)
        self._note_place(attempt.key, placed)
        attempt.over = True
        del self._attempts[attempt.key]
        first, *others = attempt.askers
        if was_known:
            self._answer_duplicate(attempt.topic, placed, first)
        else:
            self._broker.meters.took_in(attempt.topic, first.caller.gateway, 1, answer.size_bytes)
            first.done(placed, False)
        for other in others:
            self._answer_duplicate(attempt.topic, placed, other)

    def _published(self, attempt: Attempt, results: Results) -> None:
        if attempt.over:
            return
        (placed,) = results
        if isinstance(placed, PenstockError):
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

    # Looking for a record whose place is not noted.

    def _look_again(self, attempt: Attempt, note: Note) -> None:
        """The disk failed under the record. Whatever is in the log is looked through, once it is sure to stay there."""
        try:
            partition = self._broker.partition(attempt.topic, note.partition)
        except PenstockError as error:
            self._end(attempt, error, forget=False)
            return
        end_offset = partition.log.next_offset

        def begin(reason: Reason | None) -> None:
            if attempt.over:
                return
            if reason is not None:
                self._end(attempt, PenstockError(reason), forget=False)
            else:
                self._searches.append(Search(partition, {attempt.key: note.offset}, end_offset, self._found))

        partition.when_committed(end_offset, begin)

    def _found(self, key: Key, record: Record | None) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        note = self._keys.get(key)
        if record is None or note is None:
            self._keys.drop(key)
            if attempt.askers:
                self._intend(attempt)
            else:
                attempt.over = True
                del self._attempts[key]
                self._store(key, None)
            return
        placed = Placed(note.partition, record.offset, record.timestamp)
        self._note_place(key, placed)
        attempt.over = True
        del self._attempts[key]
        for asker in attempt.askers:
            self._answer_duplicate(attempt.topic, placed, asker)

    # What this node coordinates.

    def restore(self, shard: KeysShard, key: Key, note: Note) -> None:
        """A key that was loaded."""
        topic = self._broker.topics.get_by_id(key.topic_id)
        if topic is None:
            self._tombstones.append(key)
            return
        self._keys.put(key, note)
        if not note.is_placed and self._broker.cluster is None:
            self._attempts[key] = Attempt(key, topic.name)
            shard.open_keys.setdefault((topic.name, note.partition), {})[key] = note.offset

    def restored(self, shard: KeysShard) -> None:
        """All keys of a partition are loaded."""
        if shard.unreadable:
            self._report(
                f"{IDEMPOTENCY_TOPIC}/{shard.index}: {shard.unreadable} records of a later version were skipped"
            )
        for (name, index), wanted in shard.open_keys.items():
            self._search_from_start(name, index, wanted)

    def _search_from_start(self, topic: TopicName, index: int, wanted: dict[Key, int]) -> None:
        try:
            source = self._broker.partition(topic, index)
        except PenstockError as error:
            # Whoever brings such a key is told the same when its partition is asked for.
            self._report(f"idempotency keys of {topic}/{index} cannot be searched: {error.text}")
            for key in wanted:
                del self._attempts[key]
            return
        self._searches.append(Search(source, wanted, source.high_watermark, self._found))

    def resign(self, partition: int) -> None:
        """Stop coordinating the keys of a partition: everyone who waits is answered, and late answers change nothing."""
        for attempt in [each for each in self._attempts.values() if self._partition_of(each.key.topic_id) == partition]:
            self._end(attempt, self.family.not_coordinator(), forget=False)
        self._searches = deque(search for search in self._searches if self._partition_of(search.topic_id) != partition)
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
        """The broker stops: whoever waits is told. What was intended is looked for at the next start."""
        self._searches.clear()
        for attempt in list(self._attempts.values()):
            self._end(attempt, PenstockError(Reason.SHUTTING_DOWN), forget=False)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """Monotonic time of the next call of :meth:`tick`; None while there is nothing to wait for."""
        if self._searches or self._tombstones:
            return self._broker.clock.monotonic_ms()
        return self._sweep_due_ms if self._keys.count else None

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic); each call does a bounded piece of work."""
        if self._searches:
            self._step_search()
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

    def _step_search(self) -> None:
        search = self._searches.popleft()
        try:
            if not search.step():
                self._searches.append(search)
        except PenstockError as error:
            self._report(f"idempotency keys cannot be searched: {error.text}")
            for key in search.give_up():
                self._end(self._attempts[key], error, forget=False)
