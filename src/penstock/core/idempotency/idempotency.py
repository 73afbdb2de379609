"""The entry point to produce keys: of all records sent with one key within its window, one is appended.

One node coordinates all keys of a topic: the leader of their partition of ``__idempotency``. It stores the key there with an intent (the
partition, and a lower bound for the offset) before the record is appended. Once the record is committed, it stores the record's place.

A first attempt is a normal publish if this node leads the partition. If it is unknown whether the record is in the log (after a crash, a
disk failure, or a change of coordinator or leader), the partition's leader appends it only if it does not find the key at or after the
offset of the intent (``appending.py``). An abandoned intent waits until the key is used again.

Invariants: a key in use has an :class:`Attempt`, and all requests with the key wait for it. A key is forgotten before its window is
over only if its record is known not to be in the log. Nothing here waits: ``done`` is called exactly once, perhaps before the call
returns. All writes of one turn of the event loop are one batch.
"""

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import InternalTopic, StoredDone
from penstock.core.idempotency.appending import Appended, OnceAppends
from penstock.core.idempotency.attempts import (
    NOTHING_APPENDED,
    Admit,
    Attempt,
    KeyedRequest,
    OnceDone,
    check_key,
    encoded,
)
from penstock.core.idempotency.keys import Keys
from penstock.core.idempotency.stored import (
    KEY_HEADER,
    Key,
    Note,
    decode_key,
    decode_note,
    digest_of,
    encode_key,
    encode_note,
    keys_partition,
    with_key,
)
from penstock.core.partitions.peers import AppendedRecords
from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.security.access import Caller
from penstock.core.topics.names import IDEMPOTENCY_TOPIC
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import IDEMPOTENCY_KEYS_MAX
from penstock.ports import Flusher, Report
from penstock.types import NO_TIMESTAMP, Acks, Buffer, TopicName

__all__ = ["SWEEP_MS", "Admit", "Idempotency", "OnceDone"]

if TYPE_CHECKING:
    from penstock.core.broker import Broker

SWEEP_MS: Final = 1_000
"""Between two looks for expired keys. It affects memory only: an expired key counts as unknown."""
_TOMBSTONES_MAX: Final = 1_000
"""Written in one tick."""
_KEY_BYTES: Final = 256
"""The cost of loading a key."""


class KeysShard(Shard):
    """The keys of some topics. The last record of a key is its state."""

    def __init__(self, keys: "Idempotency", index: int) -> None:
        self.index: Final = index
        self._keys = keys
        self._notes: dict[Key, Note] = {}
        self.open: dict[tuple[UUID, int], list[tuple[Key, Note]]] = {}
        """The keys whose records may be in the log, by topic and partition."""
        self.unreadable = 0
        """Records of a later version."""

    def replay(self, key: Buffer, value: Buffer | None, _: int) -> None:
        found, note = decode_key(key), None if value is None else decode_note(value)
        if found is None or (note is None and value is not None):
            self.unreadable += 1
        elif note is None:
            self._notes.pop(found, None)
        else:
            self._notes[found] = note

    def loaded(self) -> Iterator[int]:
        # In the order of their first use, in which their windows end.
        left = deque(sorted(self._notes.items(), key=lambda item: item[1].noted_ms))
        self._notes.clear()
        while left:
            key, note = left.popleft()
            if not note.is_placed:
                self.open.setdefault((key.topic_id, note.partition), []).append((key, note))
            self._keys.restore(key, note)
            yield _KEY_BYTES
        self._keys.restored(self)

    def unloaded(self, _: Reason) -> None:
        self._keys.resign(self.index)


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
        """Publish a record unless its key is known. PenstockError if the request is refused at once.

        ``admit`` is called only before a record is really appended, since a duplicate takes no space.
        """
        broker = self._broker
        found = broker.topics.require(topic)
        self.family.served(self._partition_of(found.topic_id))
        check_key(tenant, key)
        tenant_bytes, key_bytes = encoded(tenant), encoded(key)
        record = record._replace(headers=with_key(record.headers, tenant_bytes, key_bytes))
        request = KeyedRequest(caller, record, acks, admit, done)
        produce_key = Key(found.topic_id, digest_of(tenant_bytes, key_bytes))
        attempt = self._attempts.get(produce_key)
        if attempt is not None:
            if attempt.placed is None:
                attempt.requests.append(request)
            else:
                self._answer_duplicate(found.name, attempt.placed, request)
            return
        note = self._keys.get(produce_key)
        if note is not None and (self._is_over(note) or self._is_lost(found, note)):
            # Moves the key to the end of the order.
            self._keys.drop(produce_key)
            note = None
        if note is not None and note.is_placed:
            placed = Placed(note.partition, note.offset, note.timestamp_ms)
            self._answer_duplicate(found.name, placed, request, is_committed=True)
            return
        attempt = self._attempts[produce_key] = Attempt(produce_key, found.name)
        attempt.requests.append(request)
        if note is None:
            self._intend(attempt)
        else:
            # An earlier append failed, or an earlier coordinator began it: the leader searches for the record.
            self._append_once(attempt, is_first=False)

    def _partition_of(self, topic_id: UUID) -> int:
        return keys_partition(topic_id, self.family.topic.partition_count)

    def _store(self, key: Key, note: Note | None, stored: StoredDone | None = None) -> None:
        """Write at the end of this turn; None deletes the key."""
        value = None if note is None else encode_note(note)
        self.family.put(self._partition_of(key.topic_id), encode_key(key), value, stored)

    def _is_over(self, note: Note) -> bool:
        return self._broker.clock.now_ms() - note.noted_ms >= self.window_ms

    def _is_lost(self, topic: Topic, note: Note) -> bool:
        """Whether the log has lost the record, which can only happen if acknowledged does not mean synced."""
        try:
            end = self._broker.partition(topic.name, note.partition).log.next_offset
        except PenstockError:
            return False
        return note.offset + note.is_placed > end

    def _answer_duplicate(
        self, topic: TopicName, placed: Placed, request: KeyedRequest, *, is_committed: bool = False
    ) -> None:
        """Answer with the place of the first record. This request may require stronger acks than the first."""
        self._broker.meters.produce_duplicates.add((topic,))
        if is_committed or request.acks is not Acks.ALL:
            request.done(placed, True)
            return

        def answer(reason: Reason | None) -> None:
            request.done(placed if reason is None else PenstockError(reason), True)

        try:
            self._broker.partition(topic, placed.partition).when_committed(placed.offset + 1, answer)
        except PenstockError as error:
            request.done(error, True)

    # The steps of an attempt.

    def _intend(self, attempt: Attempt) -> None:
        """Choose the partition, and store the intent."""
        broker, request = self._broker, attempt.requests[0]
        try:
            topic = self._same_topic(attempt)
            index = broker.publisher.choose_partition(topic, request.record)
            self._appends.check(topic, request.record)
            if request.admit is not None:
                request.admit(topic.name, index)
            self._check_room()
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        # Not the end of the log: if appends that are not written yet fail, the record gets a lower offset.
        self._appends.ends.reached(topic, index, partial(self._intend_at, attempt, index))

    def _intend_at(self, attempt: Attempt, index: int, reached: int | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(reached, PenstockError):
            self._end(attempt, reached, forget=True)
            return
        request, now_ms = attempt.requests[0], self._broker.clock.now_ms()
        attempt.requests[0] = request._replace(record=request.record._replace(partition=index))
        given_ms = request.record.timestamp_ms
        note = Note(False, index, reached, now_ms, now_ms if given_ms is None else given_ms)
        self._keys.put(attempt.key, note)
        self._store(attempt.key, note, partial(self._intended, attempt))

    def _same_topic(self, attempt: Attempt) -> Topic:
        """The topic of the key, not a newer one of the same name."""
        topic = self._broker.topics.require(attempt.topic)
        if topic.topic_id != attempt.key.topic_id:
            raise PenstockError(
                Reason.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {attempt.topic} was deleted at the same time; send the record again",
            )
        return topic

    def _check_room(self) -> None:
        if self._keys.count >= self._keys_max:
            raise PenstockError(
                Reason.POLICY_VIOLATION,
                f"{self._keys.count} idempotency keys are remembered, which is the limit; each is kept for {self.window_ms} ms: "
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
        request, broker = attempt.requests[0], self._broker
        try:
            topic = self._same_topic(attempt)
            if not self._leads(topic, request.record):
                self._append_once(attempt)
                return
            broker.publisher.publish(
                request.caller,
                attempt.topic,
                [request.record],
                request.acks,
                partial(self._published, attempt),
                counts=False,
            )
        except PenstockError as error:
            self._end(attempt, error, forget=True)

    def _leads(self, topic: Topic, record: NewRecord) -> bool:
        """Whether this node leads the record's partition."""
        assert record.partition is not None
        if self._broker.peers.holds(topic, record.partition):
            return False
        try:
            self._broker.partition(topic.name, record.partition)
        except PenstockError as error:
            return error.reason not in (Reason.NOT_LEADER_OR_FOLLOWER, Reason.LEADER_NOT_AVAILABLE)
        return True

    def _append_once(self, attempt: Attempt, *, is_first: bool = True) -> None:
        """Have the leader append the record to the partition of the intent, unless it is there."""
        note, record = self._keys.get(attempt.key), attempt.requests[0].record
        assert note is not None, "a key in use is not forgotten"
        try:
            topic = self._same_topic(attempt)
        except PenstockError as error:
            self._end(attempt, error, forget=True)
            return
        if note.timestamp_ms == NO_TIMESTAMP:
            # Stored by an earlier version.
            note = note._replace(timestamp_ms=self._broker.clock.now_ms())
        record = record._replace(partition=note.partition, timestamp_ms=note.timestamp_ms)
        self._appends.append(attempt, topic, record, note.offset, partial(self._appended, attempt, note, is_first))

    def _appended(self, attempt: Attempt, note: Note, is_first: bool, answer: Appended | PenstockError) -> None:
        if attempt.over:
            return
        if isinstance(answer, PenstockError):
            given_ms = attempt.requests[0].record.timestamp_ms
            if answer.reason is Reason.INVALID_TIMESTAMP and given_ms is None and not attempt.is_renewed:
                # The time of the intent is too long ago by now.
                attempt.is_renewed = True
                self._keys.put(attempt.key, note._replace(timestamp_ms=self._broker.clock.now_ms()))
                self._append_once(attempt, is_first=is_first)
                return
            # The record may have been appended: the next request with the key finds out.
            self._end(attempt, answer, forget=False)
            return
        placed = Placed(note.partition, answer.offset, note.timestamp_ms)
        self._note_place(attempt.key, placed)
        attempt.over = True
        del self._attempts[attempt.key]
        first, *others = attempt.requests
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
                # Another node leads now, and can search for the record.
                self._append_once(attempt)
            else:
                self._end(attempt, placed, forget=placed.reason in NOTHING_APPENDED)
            return
        attempt.placed = placed
        first, *others = attempt.requests
        attempt.requests = []
        first.done(placed, False)
        for other in others:
            self._answer_duplicate(attempt.topic, placed, other)
        try:
            partition = self._broker.partition(attempt.topic, placed.partition)
        except PenstockError:
            self._settled(attempt, Reason.UNKNOWN_TOPIC_OR_PARTITION)
            return
        # The place is stored only after the commit. The acknowledgement may have come before that.
        partition.when_committed(placed.offset + 1, partial(self._settled, attempt))

    def _settled(self, attempt: Attempt, reason: Reason | None) -> None:
        """The record is committed, or it is unknown whether it ever will be; then the intent is kept."""
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
        """The attempt failed: answer all waiting requests, which may be retried."""
        attempt.over = True
        del self._attempts[attempt.key]
        if forget and self._keys.get(attempt.key) is not None:
            self._keys.drop(attempt.key)
            self._store(attempt.key, None)
        for request in attempt.requests:
            request.done(error, False)

    # Loading and unloading.

    def restore(self, key: Key, note: Note) -> None:
        """Add a loaded key."""
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
        shard_open, shard.open = shard.open, {}
        for (topic_id, index), keys in shard_open.items():
            self._find(topic_id, index, keys)

    def _find(self, topic_id: UUID, index: int, keys: list[tuple[Key, Note]]) -> None:
        """Search for records that an earlier coordinator may have appended, before they are deleted. Others are appended when their keys are used."""
        broker = self._broker
        topic = broker.topics.get_by_id(topic_id)
        if topic is None:
            return
        try:
            partition = broker.partition(topic.name, index)
        except PenstockError:
            # Led by another node, or it cannot be opened.
            return
        marks, offsets = [key.digest for key, _ in keys], [note.offset for _, note in keys]
        broker.cluster.appends.find(partition, KEY_HEADER, marks, offsets, partial(self._found, index, keys))

    def _found(self, index: int, keys: list[tuple[Key, Note]], found: AppendedRecords | PenstockError) -> None:
        if isinstance(found, PenstockError):
            return
        for (key, note), offset in zip(keys, found.offsets, strict=True):
            if offset >= 0 and key not in self._attempts and self._keys.get(key) == note:
                self._note_place(key, Placed(index, offset, note.timestamp_ms))

    def resign(self, partition: int) -> None:
        """Stop coordinating the keys of a partition: answer all waiting requests. Late answers change nothing."""
        for attempt in [each for each in self._attempts.values() if self._partition_of(each.key.topic_id) == partition]:
            self._end(attempt, self.family.not_coordinator(), forget=False)
        self._tombstones = deque(key for key in self._tombstones if self._partition_of(key.topic_id) != partition)
        for topic_id in self._keys.topics():
            if self._partition_of(topic_id) == partition:
                self._keys.drop_topic(topic_id)

    def forget_topic(self, topic: Topic) -> None:
        """A topic was deleted: delete its keys. Called before its name can be used again."""
        for attempt in [each for each in self._attempts.values() if each.key.topic_id == topic.topic_id]:
            self._end(attempt, PenstockError(Reason.UNKNOWN_TOPIC_OR_PARTITION), forget=False)
        self._tombstones.extend(self._keys.drop_topic(topic.topic_id))

    def close(self) -> None:
        """The broker stops: answer all waiting requests."""
        for attempt in list(self._attempts.values()):
            self._end(attempt, PenstockError(Reason.SHUTTING_DOWN), forget=False)

    # Time.

    def next_deadline_ms(self) -> int | None:
        """Monotonic time at which to call :meth:`tick` next; None if there is nothing to do."""
        if self._tombstones:
            return self._broker.clock.monotonic_ms()
        return self._sweep_due_ms if self._keys.count else None

    def tick(self, now_ms: int) -> None:
        """Do what is due at ``now_ms`` (monotonic). Each call does a bounded amount of work."""
        if now_ms >= self._sweep_due_ms and not self._tombstones:
            over = self._keys.take_over(
                self._broker.clock.now_ms(), self.window_ms, _TOMBSTONES_MAX, in_use=self._attempts
            )
            self._tombstones.extend(over)
            if len(over) < _TOMBSTONES_MAX:
                self._sweep_due_ms = now_ms + SWEEP_MS
        for _ in range(min(len(self._tombstones), _TOMBSTONES_MAX)):
            key = self._tombstones.popleft()
            # It may be in use again.
            if self._keys.get(key) is None and key not in self._attempts:
                self._store(key, None)
