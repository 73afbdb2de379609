"""Fetch sessions: a client sends its partitions once, and then only changes; the answers, too, have only what changed.

The number of sessions is bounded. If there is no room for a new one, it replaces the least recently used session if that was
idle for long enough; otherwise the client gets no session and keeps sending full requests, which is always allowed.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.limits import (
    FETCH_SESSION_IDLE_MS_MIN,
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSIONS_MAX,
    FETCH_SESSIONS_PARTITIONS_MAX,
    TOPIC_NAME_CHARS_MAX,
)
from penstock.ports import Entropy
from penstock.wire.kafka.fetch_generated import FetchRequest, FetchResponsePartition

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

TopicKey = str | bytes
"""A topic's name, or its id from version 13 on."""
FetchKey = tuple[TopicKey, int]


@dataclass(slots=True)
class FetchedPartition:
    """A partition that a client fetches, and what was last sent about it in the session."""

    topic: TopicKey
    index: int
    offset: int
    bytes_max: int
    leader_epoch: int
    last_fetched_epoch: int
    sent_high_watermark: int = -1
    sent_start_offset: int = -1
    is_sent: bool = False

    def has_changed(self, answer: FetchResponsePartition) -> bool:
        """Whether an incremental answer must carry this partition; remembers what it carries."""
        changed = (
            not self.is_sent
            or bool(answer.records)
            or answer.error_code != 0
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
            or answer.high_watermark != self.sent_high_watermark
            or answer.log_start_offset != self.sent_start_offset
        )
        self.is_sent = answer.error_code == 0
        self.sent_high_watermark = answer.high_watermark
        self.sent_start_offset = answer.log_start_offset
        return changed


@dataclass(slots=True)
class FetchSession:
    """The partitions that one client fetches."""

    session_id: int
    by_id: bool
    owner: str
    """The principal that began it. The names in it are not for others, and ids can be guessed."""
    epoch: int = INITIAL_EPOCH
    used_ms: int = 0
    wanted: dict[FetchKey, FetchedPartition] = field(default_factory=dict)

    def count_new(self, request: FetchRequest) -> int:
        """How many of the partitions that a request names are not in the session."""
        wanted = self.wanted
        return sum(
            (topic.topic_id if self.by_id else topic.topic, partition.partition) not in wanted
            for topic in request.topics
            for partition in topic.partitions
        )

    def update(self, request: FetchRequest) -> None:
        """Apply what an incremental request adds, changes and removes."""
        for new in partitions_of(request, by_id=self.by_id):
            known = self.wanted.get((new.topic, new.index))
            if known is None:
                self.wanted[new.topic, new.index] = new
            else:
                known.offset = new.offset
                known.bytes_max = new.bytes_max
                known.leader_epoch = new.leader_epoch
                known.last_fetched_epoch = new.last_fetched_epoch
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self.wanted.pop((topic.topic_id if self.by_id else topic.topic, index), None)

    def move_back(self, served: Iterable[FetchedPartition]) -> None:
        """Move partitions that had records to the end, so that no partition starves when the answer is full."""
        for wanted in served:
            key = (wanted.topic, wanted.index)
            if key in self.wanted:
                self.wanted[key] = self.wanted.pop(key)


def partitions_of(request: FetchRequest, *, by_id: bool) -> list[FetchedPartition]:
    """The partitions that a request names."""
    return [
        FetchedPartition(
            topic=topic.topic_id if by_id else topic.topic,
            index=partition.partition,
            offset=partition.fetch_offset,
            bytes_max=max(partition.partition_max_bytes, 0),
            leader_epoch=partition.current_leader_epoch,
            last_fetched_epoch=partition.last_fetched_epoch,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


class FetchSessions:
    """All sessions of a gateway, the least recently used first."""

    def __init__(
        self,
        entropy: Entropy,
        sessions_max: int = FETCH_SESSIONS_MAX,
        partitions_max: int = FETCH_SESSIONS_PARTITIONS_MAX,
    ) -> None:
        self._entropy = entropy
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._partition_count = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest, owner: str, *, by_id: bool, now_ms: int) -> FetchSession:
        """The session of a request of a principal; one with id 0 is dropped after its answer."""
        known = self._sessions.get(request.session_id)
        if known is not None and known.owner != owner:
            known = None
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if known is not None:
                self._forget(known.session_id)
            session = FetchSession(NO_SESSION, by_id, owner, used_ms=now_ms)
            session.wanted = {(each.topic, each.index): each for each in partitions_of(request, by_id=by_id)}
            count = len(session.wanted)
            if request.session_epoch == INITIAL_EPOCH and count and self._has_room(request, count, count):
                session.session_id = self._new_id(now_ms)
            if session.session_id != NO_SESSION:
                session.epoch = 1
                self._sessions[session.session_id] = session
                self._partition_count += count
            return session
        if known is None:
            raise PenstockError(Reason.FETCH_SESSION_ID_NOT_FOUND)
        if known.epoch != request.session_epoch:
            raise PenstockError(Reason.INVALID_FETCH_SESSION_EPOCH)
        if known.by_id != by_id:
            raise PenstockError(Reason.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(known.wanted)
        more = known.count_new(request)
        if more and not self._has_room(request, before + more, more):
            raise PenstockError(Reason.INVALID_REQUEST, "Too many partitions in fetch sessions; fetch without one")
        known.update(request)
        self._partition_count += len(known.wanted) - before
        known.epoch = 1 if known.epoch == 0x7FFFFFFF else known.epoch + 1
        known.used_ms = now_ms
        self._sessions.move_to_end(known.session_id)
        return known

    def close(self, session_id: int) -> None:
        """Forget a session."""
        self._forget(session_id)

    def _has_room(self, request: FetchRequest, count: int, more: int) -> bool:
        """Whether a session may have ``count`` partitions, ``more`` than now, and its names are not too long."""
        return (
            count <= FETCH_SESSION_PARTITIONS_MAX
            and self._partition_count + more <= self._partitions_max
            and all(len(topic.topic) <= TOPIC_NAME_CHARS_MAX for topic in request.topics)
        )

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.wanted)

    def _new_id(self, now_ms: int) -> int:
        if len(self._sessions) >= self._sessions_max:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.used_ms < FETCH_SESSION_IDLE_MS_MIN:
                return NO_SESSION
            self._forget(oldest.session_id)
        while True:
            session_id = self._entropy.uuid().int & 0x7FFFFFFF
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id
