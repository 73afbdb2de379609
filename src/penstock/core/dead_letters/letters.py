"""Decodes, filters and counts dead letters."""

from collections.abc import Iterable
from typing import Final

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
from penstock.operations.dead_letters import DeadLetter, DeadLetterFilter, ReasonCount, RedrivePlan
from penstock.records.records import Record
from penstock.types import TopicName

UNKNOWN_REASON: Final = "unknown"
OTHER_REASONS: Final = "other reasons"
REASONS_MAX: Final = 1_000
"""Different reasons in one plan; a worker that puts an order number into each reason would need many more."""
_NUMBER_CHARS_MAX: Final = 18


def read_dead_letter(topic: TopicName, partition: int, record: Record) -> DeadLetter:
    """The dead letter in a record. Headers may be missing, since anyone may write to the topic: defaults come from the record."""
    headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    return DeadLetter(
        topic,
        partition,
        record.offset,
        TopicName(headers.get(ORIGINAL_TOPIC) or topic.removeprefix(DEAD_LETTER_PREFIX)),
        _number(headers.get(ORIGINAL_PARTITION), partition),
        None if ORIGINAL_OFFSET not in headers else _number(headers[ORIGINAL_OFFSET], 0),
        headers.get(ORIGINAL_GROUP),
        _number(headers.get(ATTEMPTS), 0),
        headers.get(LAST_ERROR) or UNKNOWN_REASON,
        _number(headers.get(ROUTED_AT_MS), record.timestamp),
        record.key,
        record.value,
        record.headers,
        record.timestamp,
    )


def _number(text: str | None, otherwise: int) -> int:
    fits = text is not None and text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS_MAX
    return int(text) if fits and text is not None else otherwise


def within(wanted: DeadLetterFilter, partition: int, start: int, end: int) -> tuple[int, int]:
    """The part of a range of offsets in which the filter may select dead letters."""
    if wanted.chosen is None:
        return start, end
    offsets = wanted.chosen.get(partition)
    return (max(start, min(offsets)), min(end, max(offsets) + 1)) if offsets else (start, start)


def is_wanted(wanted: DeadLetterFilter, letter: DeadLetter) -> bool:
    """Whether the filter selects this dead letter."""
    return (
        _matches_reason(wanted.reason, letter.last_error)
        and wanted.group in (None, letter.original_group)
        and wanted.partition in (None, letter.original_partition)
        and wanted.offset in (None, letter.offset)
        and (wanted.chosen is None or letter.offset in wanted.chosen.get(letter.partition, ()))
        and (wanted.from_ms is None or letter.routed_at_ms >= wanted.from_ms)
        and (wanted.until_ms is None or letter.routed_at_ms < wanted.until_ms)
    )


def _matches_reason(wanted: str | None, reason: str) -> bool:
    if wanted is None:
        return True
    return reason.startswith(wanted[:-1]) if wanted.endswith("*") else reason == wanted


class ReasonCounts:
    """Counts dead letters by reason."""

    def __init__(self) -> None:
        self.count = 0
        self._reasons: dict[str, ReasonCount] = {}

    def add(self, letters: Iterable[DeadLetter]) -> None:
        """Count more dead letters."""
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

    def plan(self, topic: TopicName, dead_letter_topic: TopicName) -> RedrivePlan:
        """The counts as the plan of a redrive."""
        reasons = tuple(sorted(self._reasons.values(), key=lambda each: (-each.count, each.reason)))
        return RedrivePlan(
            topic,
            dead_letter_topic,
            self.count,
            min((each.oldest_ms for each in reasons), default=None),
            max((each.newest_ms for each in reasons), default=None),
            reasons,
        )
