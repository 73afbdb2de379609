"""What happened in a simulation, as everybody outside the cluster saw it, and what must hold of it.

Clients say what they sent, what was acknowledged and what they read. What can be told at once is held at once: two readers never find different
records at one offset, and the high watermark never goes back. The rest is told from the log at the end, when everything is healed: nothing that was acknowledged or read
is missing or elsewhere, nothing is there twice, and each producer's records are in its order.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

MORTAL: Final = "u"
"""The topic that is made and deleted again and again."""
_LAST_EVENTS: Final = 60


def label(topic: str, topic_id: UUID) -> str:
    """What a topic is called in a history: one that can be made again, by its incarnation."""
    return f"{topic}~{topic_id.hex[:8]}" if topic == MORTAL else topic


class TopicPartition(NamedTuple):
    """A partition, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Acknowledged(NamedTuple):
    """A record that its producer was told is kept; its offset, unless the answer did not say."""

    offset: int | None
    time: float


class History:
    """Of one run."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._digest = sha256()
        self.last: Final[deque[str]] = deque(maxlen=_LAST_EVENTS)
        """The last events, to be shown."""
        self.on_event: Callable[[str], None] = lambda _: None
        self.on_violation: Callable[[], None] = lambda: None
        self.violation: str | None = None
        """What does not hold; the first thing that was found."""
        self.sent: Final[dict[TopicPartition, dict[bytes, int]]] = {}
        """By value, in which order its producer sent it."""
        self.acknowledged: Final[dict[TopicPartition, dict[bytes, Acknowledged]]] = {}
        self.taken: Final[dict[TopicPartition, dict[bytes, int]]] = {}
        """By value, where its leader put a record that nobody else was waited for: it may be lost, but is not anywhere else."""
        self.read: Final[dict[TopicPartition, dict[int, bytes]]] = {}
        self.excused: Final[set[TopicPartition]] = set()
        """Partitions of topics that somebody wanted to be deleted, and that are: nothing is expected of them."""
        self._high_watermarks: dict[tuple[object, TopicPartition], int] = {}
        self.counts: Final[dict[str, int]] = {}

    @property
    def digest(self) -> str:
        """Of everything that happened."""
        return self._digest.hexdigest()

    def note(self, what: str, *details: object) -> None:
        """Something happened."""
        line = f"{self._time():10.4f} {what} " + " ".join(map(str, details))
        self._digest.update(line.encode())
        self.last.append(line)
        self.counts[what] = self.counts.get(what, 0) + 1
        self.on_event(line)

    def violate(self, what: str) -> None:
        """Something does not hold."""
        self.note("VIOLATION", what)
        if self.violation is None:
            self.violation = what
            self.on_violation()

    # What clients say.

    def sends(self, producer: object, place: TopicPartition, values: Sequence[bytes]) -> None:
        """A producer will send these, behind those before them."""
        sent = self.sent.setdefault(place, {})
        for value in values:
            sent[value] = len(sent)
        self.note("send", producer, place, values[0].decode(), len(values))

    def was_acknowledged(
        self, producer: object, place: TopicPartition, offset: int | None, values: Sequence[bytes]
    ) -> None:
        """A producer was told that they are kept."""
        self.note("acked", producer, place, offset, values[0].decode(), len(values))
        known = self.acknowledged.setdefault(place, {})
        for number, value in enumerate(values):
            at = None if offset is None else offset + number
            known[value] = Acknowledged(at, self._time())
            if at is not None:
                self._is_at(producer, place, at, value)

    def was_taken(self, producer: object, place: TopicPartition, offset: int, values: Sequence[bytes]) -> None:
        """A producer was told that the leader has written them, and no more."""
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
        """Somebody was told by one node, in one incarnation of it, how much is committed."""
        before = self._high_watermarks.get((viewer, place), 0)
        if high_watermark < before:
            self.violate(
                f"the high watermark of {place} went back from {before} to {high_watermark}, as {viewer} saw it"
            )
        self._high_watermarks[viewer, place] = high_watermark

    # At the end.

    def check(self, found: Mapping[TopicPartition, Mapping[int, bytes]]) -> None:
        """Everything that was promised is in what the logs have now."""
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
