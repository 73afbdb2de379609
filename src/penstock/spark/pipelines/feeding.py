"""Finds pipelines that read what they write, and so would process their own output endlessly.

A place is a topic or the folder of a lake. A pipeline may write a place that another of its sources reads (a chain), but not in a circle. A
static source does not close a circle, because it starts no batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.spark.pipelines.model import OnBad, SinkTable, SourceTable, Step, topics_of
from penstock.spark.pipelines.sqltext import views_read
from penstock.spark.pipelines.typed import bad_topic

if TYPE_CHECKING:
    from penstock.spark.pipelines.locate import Path


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A place that is written: specified by the key at ``path``, with rows from these sources."""

    path: Path
    place: str
    is_topic: bool
    sources: frozenset[str]


def circles(sources: Mapping[str, SourceTable], steps: Sequence[Step], sinks: Sequence[SinkTable]) -> list[OutputTable]:
    """The places that are written with rows that originate from them."""
    written = [*_of_sinks(sources, steps, sinks), *_of_bad_values(sources)]
    feeds = {each: [other for other in written if _feeds(each, other, sources)] for each in written}
    return [each for each in written if _comes_back(each, feeds)]


def _of_sinks(
    sources: Mapping[str, SourceTable], steps: Sequence[Step], sinks: Sequence[SinkTable]
) -> list[OutputTable]:
    of_views = origins(sources, steps)
    last = list(of_views)[-1]
    found = []
    for number, sink in enumerate(sinks):
        if sink.topic or sink.path:
            of_sources = of_views.get((sink.from_ or last).lower(), frozenset())
            key = "topic" if sink.topic else "path"
            found.append(
                OutputTable(("sinks", number, key), sink.topic or _folder(sink.path), bool(sink.topic), of_sources)
            )
    return found


def _of_bad_values(sources: Mapping[str, SourceTable]) -> list[OutputTable]:
    return [
        OutputTable(("sources", name, "dead_letters"), bad_topic(source), True, frozenset([name]))
        for name, source in sources.items()
        if source.on_bad is OnBad.DEAD_LETTER
    ]


def origins(sources: Mapping[str, SourceTable], steps: Sequence[Step]) -> dict[str, frozenset[str]]:
    """The sources of the rows of each view. SQL ignores the case of names."""
    found = {name.lower(): frozenset([name]) for name in sources}
    for number, step in enumerate(steps, start=1):
        if step.sql is not None:
            views = [view for view, _ in views_read(step.sql)]
        else:
            views = [step.from_ or list(found)[-1]]
        name = (step.as_ or f"step{number}").lower()
        found[name] = frozenset().union(*(found.get(view.lower(), frozenset()) for view in views))
    return found


def _feeds(written: OutputTable, other: OutputTable, sources: Mapping[str, SourceTable]) -> bool:
    return any(_reads(sources[name], written) for name in other.sources)


def _reads(source: SourceTable, written: OutputTable) -> bool:
    if source.static or source.table is not None:
        return False
    if not written.is_topic:
        return source.lake is not None and _folder(source.lake) == written.place
    if source.pattern is None:
        return written.place in topics_of(source)
    try:
        return re.search(source.pattern, written.place) is not None
    except re.error:
        # The source reports the wrong pattern.
        return False


def _comes_back(begin: OutputTable, feeds: Mapping[OutputTable, Sequence[OutputTable]]) -> bool:
    ahead, seen = list(feeds[begin]), set[OutputTable]()
    while ahead:
        at = ahead.pop()
        if at == begin:
            return True
        if at not in seen:
            seen.add(at)
            ahead += feeds[at]
    return False


def _folder(path: str) -> str:
    return path.rstrip("/")
