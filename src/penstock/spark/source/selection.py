"""Which partitions a query reads: exactly one of ``subscribe``, ``subscribePattern`` and ``assign``.

A pattern selects the topics whose name contains a match, as in Spark's Kafka connector: write ``^orders$`` for one name. A pattern never
selects internal topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from penstock.client.cluster import TopicPartition
from penstock.client.errors import UNKNOWN_TOPIC_OR_PARTITION, check
from penstock.spark.errors import OptionError

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster, TopicInfo
    from penstock.spark.options import SparkOptions

SELECTORS: Final = ("subscribe", "subscribePattern", "assign")
_Assigned = dict[str, list[Annotated[int, msgspec.Meta(ge=0)]]]
_ASSIGN_EXAMPLE: Final = '{"orders":[0,1],"payments":[0]}'


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options select. ``pattern`` selects by name; ``partitions`` are those of ``assign``."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class FoundPartitions:
    """The selected partitions that exist, and the named topics, and partitions of existing topics, that do not."""

    partitions: frozenset[TopicPartition]
    missing: frozenset[str]
    missing_partitions: frozenset[TopicPartition] = frozenset()


def selection_of(options: SparkOptions) -> Selection:
    """What the options select; :class:`OptionError` unless exactly one of the three is set and not empty."""
    given = [name for name in SELECTORS if name in options]
    if len(given) != 1:
        wrong = "none is set" if not given else f"{' and '.join(given)} are set"
        raise OptionError(f"Set exactly one of the options {', '.join(SELECTORS)} to say what is read: {wrong}")
    name = given[0]
    value = options[name].strip()
    if name == "subscribe":
        topics = frozenset(topic.strip() for topic in value.split(",") if topic.strip())
        if not topics:
            raise OptionError(
                f'The option subscribe contains no topic: it is {options[name]!r}; write "orders,payments"'
            )
        return Selection(topics=topics)
    if name == "subscribePattern":
        return Selection(pattern=_pattern(value))
    assigned = options.json("assign", _Assigned, _ASSIGN_EXAMPLE)
    partitions = frozenset((topic, index) for topic, indexes in assigned.items() for index in indexes)
    if not partitions:
        raise OptionError(f"The option assign names no partition; write, for example, {_ASSIGN_EXAMPLE}")
    return Selection(topics=frozenset(topic for topic, _ in partitions), partitions=partitions)


def find(cluster: Cluster, selection: Selection) -> FoundPartitions:
    """The selected partitions that exist now, always asked of the broker."""
    if selection.pattern is not None:
        info = cluster.describe(None)
        wanted = re.compile(selection.pattern)
        matched = [topic for name, topic in info.topics.items() if wanted.search(name) and not topic.internal]
        return FoundPartitions(frozenset(_partitions(matched)), frozenset())
    info = cluster.describe(sorted(selection.topics))
    internal = sorted(name for name, topic in info.topics.items() if topic.internal)
    if internal:
        raise OptionError(f"The topic {internal[0]} is internal and cannot be read as a table")
    for name, code in info.errors.items():
        if code != UNKNOWN_TOPIC_OR_PARTITION:
            check(code, f"topic {name!r}")
    there = frozenset(_partitions(list(info.topics.values())))
    if selection.partitions is None:
        return FoundPartitions(there, frozenset(info.errors))
    absent = frozenset(place for place in selection.partitions - there if place[0] not in info.errors)
    return FoundPartitions(there & selection.partitions, frozenset(info.errors), absent)


def _partitions(topics: list[TopicInfo]) -> list[TopicPartition]:
    return [(topic.name, partition.index) for topic in topics for partition in topic.partitions]


def _pattern(text: str) -> str:
    if not text:
        raise OptionError('The option subscribePattern is empty; write a pattern such as "orders.*"')
    # Of all that a pattern for names needs, only named groups are written differently in Java.
    pattern = re.sub(r"\(\?<(?![=!])", "(?P<", text)
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"The option subscribePattern is not a valid pattern: {error}: {text!r}") from None
    return pattern
