"""Dead letters: list, show, count, redrive and purge them. ``topic`` is the topic that they came from."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from penstock.operations.operation import (
    Action,
    Operation,
    Owner,
    OwnerKind,
    Repeat,
    Resource,
    Stream,
    listing,
    on_dead_letters,
    on_topic,
)
from penstock.records.records import Headers
from penstock.types import TopicName

REDRIVE_COORDINATOR: Final = Owner(OwnerKind.GROUP)
"""One group has the offsets of what was redriven and purged, for all topics."""
NO_LIMIT: Final = 2**63 - 1


class DeadLetterFilter(msgspec.Struct, frozen=True):
    """Selects dead letters; None does not matter. A reason that ends in ``*`` selects by the beginning.

    ``partition`` is one of the original topic, ``offset`` one of the dead-letter topic; ``from_ms`` and ``until_ms`` bound the time of
    death. ``chosen`` names the letters themselves: offsets in the dead-letter topic by its partitions.
    """

    reason: str | None = None
    group: str | None = None
    partition: int | None = None
    offset: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    chosen: Mapping[int, frozenset[int]] | None = None


ALL: Final = DeadLetterFilter()


class DeadLetterTopic(msgspec.Struct, frozen=True):
    """A topic that has dead letters. ``open`` counts those that were neither redriven nor purged."""

    topic: str
    dead_letter_topic: str
    open: int


class ListDeadLetterTopics(Operation[tuple[DeadLetterTopic, ...]], frozen=True):
    """The dead-letter topics that the caller may describe, by name."""

    rights = (listing(Resource.TOPIC),)
    belongs_to = REDRIVE_COORDINATOR
    repeat = Repeat.ALWAYS


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


class ShowDeadLetters(Operation[tuple[DeadLetter, ...]], frozen=True):
    """Open dead letters that the filter selects, partition by partition, oldest first."""

    topic: str
    wanted: DeadLetterFilter
    max_records: int

    rights = (on_dead_letters(Action.READ),)
    belongs_to = REDRIVE_COORDINATOR
    repeat = Repeat.ALWAYS


class ReasonCount(msgspec.Struct, frozen=True):
    """The number of dead letters with one reason, and the times of the first and the last."""

    reason: str
    count: int
    oldest_ms: int
    newest_ms: int


class RedrivePlan(msgspec.Struct, frozen=True):
    """What a redrive would move now, the most frequent reason first."""

    topic: str
    dead_letter_topic: str
    count: int
    oldest_ms: int | None
    newest_ms: int | None
    reasons: tuple[ReasonCount, ...]


class PlanRedrive(Operation[RedrivePlan], frozen=True):
    """Count by reason what a redrive with this filter would move now."""

    topic: str
    wanted: DeadLetterFilter
    max_records: int = NO_LIMIT

    rights = (on_dead_letters(Action.READ),)
    belongs_to = REDRIVE_COORDINATOR
    repeat = Repeat.ALWAYS


class Progress(msgspec.Struct, frozen=True):
    """The progress of a redrive or purge. ``total`` was counted at its start; ``skipped`` letters were finished by another one meanwhile."""

    total: int
    finished: int
    failed: int
    skipped: int
    done: bool = False
    last_failure: str | UnsetType = UNSET


class Redrive(Stream[Progress], frozen=True):
    """Put dead letters back into the topic that each came from; a rate of 0 is as fast as possible. The last item says ``done``.

    Credit is not used: a slow reader gets the newest progress.
    """

    topic: str
    wanted: DeadLetterFilter
    rate_per_second: float = 0.0
    max_records: int = NO_LIMIT

    is_change = True
    rights = (on_dead_letters(Action.WRITE), on_topic(Action.WRITE))
    belongs_to = REDRIVE_COORDINATOR


class Purge(Stream[Progress], frozen=True):
    """Finish dead letters without a redrive. The last item says ``done``."""

    topic: str
    wanted: DeadLetterFilter
    max_records: int = NO_LIMIT

    is_change = True
    rights = (on_dead_letters(Action.WRITE),)
    belongs_to = REDRIVE_COORDINATOR
