"""What happened in a simulation, as clients saw it, and what must be true of it.

Clients report what they sent, what was acknowledged and what they read. Some rules are checked immediately: two readers never
find different records at one offset, and the high watermark never decreases. The others are checked at the end, when all faults
are over: no acknowledged or read record is missing or at another offset, none is there twice, and each producer's records are
in its order.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

MORTAL: Final = "u"
"""The topic that is created and deleted again and again."""
_LAST_EVENTS: Final = 60


def label(topic: str, topic_id: UUID) -> str:
    """The name of a topic in a history: for a topic that is created again, with its incarnation."""
    return f"{topic}~{topic_id.hex[:8]}" if topic == MORTAL else topic


class TopicPartition(NamedTuple):
    """A partition, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Acknowledged(NamedTuple):
    """An acknowledged record; its offset, if the response had one."""

    offset: int | None
    time: float


class History:
    """The history of one run."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._digest = sha256()
        self.last: Final[deque[str]] = deque(maxlen=_LAST_EVENTS)
        """The last events."""
        self.on_event: Callable[[str], None] = lambda _: None
        self.on_violation: Callable[[], None] = lambda: None
        self.violation: str | None = None
        """The first violation that was found."""
        self.sent: Final[dict[TopicPartition, dict[bytes, int]]] = {}
        """By value, its position in the order in which its producer sent it."""
        self.acknowledged: Final[dict[TopicPartition, dict[bytes, Acknowledged]]] = {}
        self.taken: Final[dict[TopicPartition, dict[bytes, int]]] = {}
        """By value, the offset of a record that only its leader has acknowledged: it may be lost, but not be at another offset."""
        self.read: Final[dict[TopicPartition, dict[int, bytes]]] = {}
        self.excused: Final[set[TopicPartition]] = set()
        """Partitions of topics that were deleted on request: they are not checked."""
        self._high_watermarks: dict[tuple[object, TopicPartition], int] = {}
        self.counts: Final[dict[str, int]] = {}

    @property
    def digest(self) -> str:
        """The digest of all events."""
        return self._digest.hexdigest()

    def note(self, what: str, *details: object) -> None:
        """Add an event."""
        line = f"{self._time():10.4f} {what} " + " ".join(map(str, details))
        self._digest.update(line.encode())
        self.last.append(line)
        self.counts[what] = self.counts.get(what, 0) + 1
        self.on_event(line)

    def violate(self, what: str) -> None:
        """A rule is violated."""
        self.note("VIOLATION", what)
        if self.violation is None:
            self.violation = what
            self.on_violation()

    # Reports of clients.

    def sends(self, producer: object, place: TopicPartition, values: Sequence[bytes]) -> None:
        """A producer will send these after the previous ones."""
        sent = self.sent.setdefault(place, {})
        for value in values:
            sent[value] = len(sent)
        self.note("send", producer, place, values[0].decode(), len(values))

    def was_acknowledged(
        self, producer: object, place: TopicPartition, offset: int | None, values: Sequence[bytes]
    ) -> None:
        """All in-sync replicas have acknowledged them."""
        self.note("acked", producer, place, offset, values[0].decode(), len(values))
        known = self.acknowledged.setdefault(place, {})
        for number, value in enumerate(values):
            at = None if offset is None else offset + number
            known[value] = Acknowledged(at, self._time())
            if at is not None:
                self._is_at(producer, place, at, value)

    def was_taken(self, producer: object, place: TopicPartition, offset: int, values: Sequence[bytes]) -> None:
        """Only the leader has acknowledged them."""
        self.note("taken", producer, place, offset, values[0].decode(), len(values))
        known = self.taken.setdefault(place, {})
        for number, value in enumerate(values):
            known[value] = offset + number

    def reads(self, reader: object, place: TopicPartition, offset: int, value: bytes) -> None:
        """A reader found a record."""
        self.note("read", reader, place, offset, value.decode())
        self._is_at(reader, place, offset, value)
        self.read.setdefault(place, {})[offset] = value
        if value not in self.sent.get(place, {}):
            self.violate(f"{reader} read {value!r} at {place} offset {offset}, which nobody sent")

    def _is_at(self, who: object, place: TopicPartition, offset: int, value: bytes) -> None:
        known = self.read.get(place, {}).get(offset)
        if known is not None and known != value:
            self.violate(f"two records at {place} offset {offset}: {known!r} was read, and {who} has {value!r}")

    def sees_high_watermark(self, viewer: object, place: TopicPartition, high_watermark: int) -> None:
        """A node, in one incarnation, has reported its high watermark."""
        before = self._high_watermarks.get((viewer, place), 0)
        if high_watermark < before:
            self.violate(
                f"the high watermark of {place} went back from {before} to {high_watermark}, as {viewer} saw it"
            )
        self._high_watermarks[viewer, place] = high_watermark

    # At the end.

    def check(self, found: Mapping[TopicPartition, Mapping[int, bytes]]) -> None:
        """Check that everything that was acknowledged or read is in the logs."""
        for place in sorted({*self.sent, *found} - self.excused):
            self._check(place, found.get(place, {}))

    def _check(self, place: TopicPartition, found: Mapping[int, bytes]) -> None:
        where: dict[bytes, int] = {}
        for offset, value in found.items():
            if value in where:
                self.violate(f"{value!r} is in {place} twice, at {where[value]} and at {offset}")
                return
            where[value] = offset
        for value, acknowledged in self.acknowledged.get(place, {}).items():
            at = where.get(value)
            if at is None:
                self.violate(f"{value!r} of {place} was acknowledged at {acknowledged.time:.3f} s and is lost")
                return
            if acknowledged.offset not in (None, at):
                self.violate(f"{value!r} of {place} was acknowledged at offset {acknowledged.offset} and is at {at}")
                return
        for value, offset in self.taken.get(place, {}).items():
            if where.get(value, offset) != offset:
                self.violate(f"{value!r} of {place} was written at offset {offset} and is at {where[value]}")
                return
        for offset, value in self.read.get(place, {}).items():
            if found.get(offset) != value:
                self.violate(f"{value!r} was read at {place} offset {offset}, and there is {found.get(offset)!r} now")
                return
        self._check_order(place, found)

    def _check_order(self, place: TopicPartition, found: Mapping[int, bytes]) -> None:
        sent = self.sent.get(place, {})
        last: dict[bytes, int] = {}
        for offset in sorted(found):
            value = found[offset]
            number = sent.get(value)
            if number is None:
                self.violate(f"{value!r} is in {place} at {offset}, and nobody sent it")
                return
            producer = value.split(b"-", 1)[0]
            if number < last.get(producer, -1):
                self.violate(f"{value!r} is in {place} at {offset}, behind what {producer!r} sent after it")
                return
            last[producer] = number
