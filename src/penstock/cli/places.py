"""How people write a position in a topic: earliest, latest, an offset, a time; and a record: ``TOPIC/PARTITION@OFFSET``."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.failures import Exit, Failure

if TYPE_CHECKING:
    from penstock.client import Cluster, TopicPartition

MOMENT_MS_MIN: Final = 100_000_000_000
"""A bare number is a time in milliseconds from here on (March 1973), and an offset below. ``offset:N`` is always an offset."""


class ReadFrom(NamedTuple):
    """At most one of these is set; none of them means the earliest."""

    latest: bool = False
    offset: int | None = None
    moment_ms: int | None = None


class RecordPlace(NamedTuple):
    """One record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"


_RECORD: Final = re.compile(r"([^/@]+)/([0-9]{1,9})@([0-9]{1,18})", re.ASCII)


def parse_record(text: str) -> RecordPlace:
    """Parse ``orders/0@42``, as the APIs write it."""
    found = _RECORD.fullmatch(text)
    if found is None:
        raise Failure(f"{text!r} is not a record: write TOPIC/PARTITION@OFFSET, for example orders/0@42", Exit.USAGE)
    return RecordPlace(found[1], int(found[2]), int(found[3]))


def moment(time_ms: int | None) -> str | None:
    """A time as people read it and ``--from`` accepts it."""
    if time_ms is None:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def partitions_there(numbers: Sequence[int]) -> str:
    """Which partitions a topic has, for an error about one that it does not have."""
    if not numbers:
        return "has no partitions"
    low, high = min(numbers), max(numbers)
    return f"has only partition {low}" if low == high else f"has partitions {low} to {high}"


def parse_place(text: str, flag: str = "--from") -> ReadFrom:
    """``earliest``, ``latest``, OFFSET, ``offset:N``, milliseconds, or an ISO date and time (local without a zone)."""
    if text == "earliest":
        return ReadFrom()
    if text == "latest":
        return ReadFrom(latest=True)
    number = text.removeprefix("offset:")
    if number.isascii() and number.isdigit():
        value = int(number)
        return ReadFrom(moment_ms=value) if value >= MOMENT_MS_MIN and number == text else ReadFrom(offset=value)
    return ReadFrom(moment_ms=parse_moment(text, flag))


def parse_moment(text: str, flag: str) -> int:
    """Milliseconds since 1970, from an ISO date and time or from that number."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        wanted = "a time such as 2026-01-31T12:00:00Z or 2026-01-31, or milliseconds since 1970"
        if flag == "--from":
            wanted = f"earliest, latest, an offset, or {wanted}"
        raise Failure(f"{flag} {text!r}: write {wanted}", Exit.USAGE) from error


def resolve(
    cluster: "Cluster", places: Sequence["TopicPartition"], place: ReadFrom, *, nearest: bool = False
) -> dict["TopicPartition", int]:
    """The offset in each partition. For a single partition, a given offset must exist, unless the ``nearest`` is wanted."""
    from penstock.client import list_offsets, watermarks

    bounds = watermarks(cluster, places)
    if place.moment_ms is not None:
        found = list_offsets(cluster, dict.fromkeys(places, place.moment_ms))
        return {each: found[each].offset if found[each].offset >= 0 else bounds[each][1] for each in places}
    if place.offset is not None:
        if len(places) == 1 and not nearest:
            first, end = bounds[places[0]]
            if not first <= place.offset <= end:
                topic, partition = places[0]
                raise Failure(
                    f"Offset {place.offset} is out of range: {topic}/{partition} has the offsets from {first} up to, but not including, {end}"
                )
        return {each: min(max(place.offset, bounds[each][0]), bounds[each][1]) for each in places}
    return {each: bounds[each][1 if place.latest else 0] for each in places}
