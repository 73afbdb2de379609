"""What a dead letter is, which ones are meant, and how they are counted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.core.queues.envelope import (
    ATTEMPTS,
    LAST_ERROR,
    ORIGINAL_GROUP,
    ORIGINAL_OFFSET,
    ORIGINAL_PARTITION,
    ORIGINAL_TOPIC,
    ROUTED_AT_MS,
)
from penstock.core.queues.moves import DEAD_LETTER_PREFIX
from penstock.records.records import Headers, Record
from penstock.types import TopicName

UNKNOWN_REASON: Final = "unknown"
OTHER_REASONS: Final = "other reasons"
REASONS_MAX: Final = 1_000
"""Told apart in one plan; a worker that puts an order's number into its reason gets to this many rows."""
_NUMBER_CHARS_MAX: Final = 18


class DeadLetter(NamedTuple):
    """One record of a dead-letter topic, with what its headers say."""

    topic: TopicName
    partition: int
    offset: int
    original_topic: TopicName
    original_partition: int
    original_offset: int | None
    original_group: str | None
    attempts: int
    last_error: str
    routed_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


def read_dead_letter(topic: TopicName, partition: int, record: Record) -> DeadLetter:
    """What a record says of itself; where it says nothing (anyone may write to the topic) it belongs to where it lies."""
    said = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    return DeadLetter(
        topic,
        partition,
        record.offset,
        TopicName(said.get(ORIGINAL_TOPIC) or topic.removeprefix(DEAD_LETTER_PREFIX)),
        _number(said.get(ORIGINAL_PARTITION), partition),
        None if ORIGINAL_OFFSET not in said else _number(said[ORIGINAL_OFFSET], 0),
        said.get(ORIGINAL_GROUP),
        _number(said.get(ATTEMPTS), 0),
        said.get(LAST_ERROR) or UNKNOWN_REASON,
        _number(said.get(ROUTED_AT_MS), record.timestamp),
        record.key,
        record.value,
        record.headers,
        record.timestamp,
    )


def _number(text: str | None, otherwise: int) -> int:
    fits = text is not None and text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS_MAX
    return int(text) if fits and text is not None else otherwise


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant; None does not matter. A reason that ends in ``*`` is how theirs begins."""

    reason: str | None = None
    group: str | None = None
    """The group whose attempts were exhausted."""
    partition: int | None = None
    """Of the topic that they came from."""
    offset: int | None = None
    """In the dead-letter topic: a single one, of each partition that is meant."""
    from_ms: int | None = None
    until_ms: int | None = None
    """Died at or after the first and before the second."""
    chosen: Mapping[int, frozenset[int]] | None = None
    """Exactly these: offsets in the dead-letter topic, by its partitions."""

    def within(self, partition: int, start: int, end: int) -> tuple[int, int]:
        """The part of a stretch of the dead-letter topic that can hold any that are meant."""
        if self.chosen is None:
            return start, end
        offsets = self.chosen.get(partition)
        return (max(start, min(offsets)), min(end, max(offsets) + 1)) if offsets else (start, start)

    def matches(self, letter: DeadLetter) -> bool:
        """Whether this one is meant."""
        return (
            self._matches_reason(letter.last_error)
            and self.group in (None, letter.original_group)
            and self.partition in (None, letter.original_partition)
            and self.offset in (None, letter.offset)
            and (self.chosen is None or letter.offset in self.chosen.get(letter.partition, ()))
            and (self.from_ms is None or letter.routed_at_ms >= self.from_ms)
            and (self.until_ms is None or letter.routed_at_ms < self.until_ms)
        )

    def _matches_reason(self, reason: str) -> bool:
        wanted = self.reason
        if wanted is None:
            return True
        return reason.startswith(wanted[:-1]) if wanted.endswith("*") else reason == wanted


ALL: Final = DeadLetterFilter()


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How many died of one reason, and when the first and the last of them did."""

    reason: str
    count: int
    oldest_ms: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a redrive would move now. ``count`` is at most what was asked for, ``reasons`` are the most frequent first."""

    topic: TopicName
    dead_letter_topic: TopicName
    count: int
    reasons: tuple[ReasonCount, ...]

    @property
    def oldest_ms(self) -> int | None:
        """When the first of them died."""
        return min((each.oldest_ms for each in self.reasons), default=None)

    @property
    def newest_ms(self) -> int | None:
        """When the last of them died."""
        return max((each.newest_ms for each in self.reasons), default=None)


class Tally:
    """Counts dead letters by reason."""

    def __init__(self) -> None:
        self.count = 0
        self._reasons: dict[str, ReasonCount] = {}

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Count these too."""
        for letter in letters:
            self.count += 1
            reason = letter.last_error
            if reason not in self._reasons and len(self._reasons) >= REASONS_MAX:
                reason = OTHER_REASONS
            at_ms = letter.routed_at_ms
            known = self._reasons.get(reason) or ReasonCount(reason, 0, at_ms, at_ms)
            self._reasons[reason] = ReasonCount(
                reason, known.count + 1, min(known.oldest_ms, at_ms), max(known.newest_ms, at_ms)
            )

    def reasons(self) -> tuple[ReasonCount, ...]:
        """The most frequent first."""
        return tuple(sorted(self._reasons.values(), key=lambda each: (-each.count, each.reason)))
