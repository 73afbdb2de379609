"""Where reading starts and ends according to the options, before any broker is asked.

One time for all partitions takes precedence over times by partition, and these over offsets: ``startingTimestamp``,
``startingOffsetsByTimestamp``, ``startingOffsets``, and the same with ``ending``. The offsets -2 and -1 mean earliest and latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.client.cluster import TopicPartition
from penstock.client.offsets import At
from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark.options import SparkOptions

Offsets = dict[TopicPartition, int]
JsonOffsets = dict[str, dict[int, int]]
EARLIEST: Final = int(At.EARLIEST)
LATEST: Final = int(At.LATEST)
STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_TIME_MS_MAX: Final = 2**63 - 1
_OFFSETS_EXAMPLE: Final = '{"orders":{"0":23,"1":-1},"payments":{"0":-2}}'
_TIMES_EXAMPLE: Final = '{"orders":{"0":1735689600000,"1":1735689600000}}'


class BoundKind(Enum):
    """How a bound is specified."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Bound:
    """A start or an end. ``by_partition`` are offsets or milliseconds; ``option`` is the option that specifies it."""

    kind: BoundKind
    option: str
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int = 0
    no_match_is_latest: bool = False

    def mentions(self, offset: int) -> bool:
        """Whether the bound is this offset (earliest or latest) for any partition."""
        whole = BoundKind.LATEST if offset == LATEST else BoundKind.EARLIEST
        return self.kind is whole or (self.kind is BoundKind.OFFSETS and offset in self.by_partition.values())


def starting(options: SparkOptions, default: BoundKind) -> Bound:
    """Where to start."""
    return _bound(
        options,
        "starting",
        default,
        no_match_is_latest=options.choice(STRATEGY, {"error": False, "latest": True}, default=False),
    )


def ending(options: SparkOptions) -> Bound:
    """Where a batch query ends. A time after all records means the end of the partition."""
    return _bound(options, "ending", BoundKind.LATEST, no_match_is_latest=True)


def check_batch(start: Bound, end: Bound) -> None:
    """Refuse bounds that a batch query cannot have."""
    if start.mentions(LATEST):
        raise OptionError(
            f"{start.option} cannot be latest (-1) in a batch query, because nothing would be read; use earliest"
        )
    if end.mentions(EARLIEST):
        raise OptionError(
            f"{end.option} cannot be earliest (-2) in a batch query, because nothing would be read; use latest"
        )
    if start.kind is not end.kind or start.kind not in (BoundKind.OFFSETS, BoundKind.TIMESTAMPS):
        return
    if start.by_partition.keys() != end.by_partition.keys():
        raise OptionError(
            f"{start.option} and {end.option} must name the same partitions: "
            f"{show(start.by_partition)} and {show(end.by_partition)}"
        )
    for place, first in start.by_partition.items():
        last = end.by_partition[place]
        if 0 <= last < first:
            raise OptionError(f"{start.option} of {place[0]}/{place[1]} is {first}, after {end.option}, {last}")


def by_place(offsets: JsonOffsets) -> Offsets:
    """Offsets by topic and then partition, as one dictionary."""
    return {(topic, index): offset for topic, of_topic in offsets.items() for index, offset in of_topic.items()}


def show(partitions: Mapping[TopicPartition, int] | frozenset[TopicPartition]) -> str:
    """Partitions for a sentence: ``orders/0, orders/1``."""
    return ", ".join(f"{topic}/{index}" for topic, index in sorted(partitions)) or "none"


def _check_times(option: str, times_ms: Iterable[int]) -> None:
    if any(time_ms > _TIME_MS_MAX for time_ms in times_ms):
        raise OptionError(f"The option {option} has a time above {_TIME_MS_MAX}; use milliseconds since 1970")


def _bound(options: SparkOptions, which: str, default: BoundKind, *, no_match_is_latest: bool) -> Bound:
    option = f"{which}Timestamp"
    if option in options:
        try:
            timestamp_ms = int(options[option].strip())
        except ValueError:
            raise OptionError(f"The option {option} must be milliseconds since 1970, not {options[option]!r}") from None
        _check_times(option, [timestamp_ms])
        return Bound(BoundKind.TIMESTAMP, option, timestamp_ms=timestamp_ms, no_match_is_latest=no_match_is_latest)
    option = f"{which}OffsetsByTimestamp"
    if option in options:
        times = by_place(options.json(option, JsonOffsets, _TIMES_EXAMPLE))
        _check_times(option, times.values())
        return Bound(BoundKind.TIMESTAMPS, option, times, no_match_is_latest=no_match_is_latest)
    option = f"{which}Offsets"
    text = options.get(option, default.value).strip()
    if text.lower() in (BoundKind.EARLIEST.value, BoundKind.LATEST.value):
        return Bound(BoundKind(text.lower()), option)
    offsets = by_place(options.json(option, JsonOffsets, _OFFSETS_EXAMPLE))
    for (topic, index), offset in offsets.items():
        if offset < EARLIEST:
            raise OptionError(
                f"{option} of {topic}/{index} is {offset}: use -1 for latest, -2 for earliest, or an offset"
            )
    return Bound(BoundKind.OFFSETS, option, offsets)
