"""The options of the tables beside records: which topics and groups, and where the broker is.

Names are looked at without their case, as everywhere in Spark. A name that a table does not know is refused: a misspelt ``topic``
would show every topic. Options that begin with ``kafka.`` are for the connection.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.client.discovery import NoHttpListener, http_addresses
from penstock.spark.connections import cluster_for
from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.client import Cluster, QueueAdmin
    from penstock.client.status import StatusClient

_EVERYWHERE: Final = frozenset({"table", "bootstrap.servers", "http", "groupidprefix"})
_SELECTIONS: Final = ("topic", "subscribe", "subscribepattern")
SELECTS_TOPICS: Final = frozenset(_SELECTIONS)


class TableOptions:
    """The validated options of one query."""

    def __init__(self, table: str, options: Mapping[str, str], takes: frozenset[str]) -> None:
        self.given: Final = SparkOptions(options)
        self._table = table
        known = _EVERYWHERE | takes
        for name in self.given:
            if name not in known and not name.startswith("kafka."):
                raise OptionError(
                    f"Unknown option {name!r}: the options of table {table} are {', '.join(sorted(known - {'table'}))}, and kafka.* for the connection"
                )
        given = [name for name in _SELECTIONS if name in self.given]
        if len(given) > 1:
            raise OptionError(f"Give one of the options {', '.join(_SELECTIONS)}, not {' and '.join(given)}")

    def get(self, name: str) -> str | None:
        """The value of an option, without blanks around it; None when it is not given or empty."""
        return self.given.get(name, "").strip() or None

    def require(self, name: str) -> str:
        """The same; OptionError when it is not given."""
        value = self.get(name)
        if value is None:
            raise OptionError(f'Table {self._table} needs the option {name}: add .option("{name}", ...)')
        return value

    def names(self, name: str) -> list[str] | None:
        """A list with commas between its names; None when it is not given."""
        value = self.get(name)
        return None if value is None else [part.strip() for part in value.split(",") if part.strip()]

    # -- which topics

    @property
    def named_topics(self) -> list[str] | None:
        """The topics that are named; None when none is."""
        return self.names("topic") or self.names("subscribe")

    def selects(self, topics: Iterable[str]) -> list[str]:
        """Those of these topics that the query means: the named ones, those whose names a pattern is found in, or all."""
        named = self.named_topics
        if named is not None:
            return [topic for topic in topics if topic in named]
        pattern = self.get("subscribepattern")
        if pattern is None:
            return list(topics)
        try:
            matcher = re.compile(pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern {pattern!r} is not a regular expression: {error}") from error
        return [topic for topic in topics if matcher.search(topic)]

    # -- the broker

    def cluster(self) -> Cluster:
        """The connection that this process keeps."""
        return cluster_for(self.given)

    @contextmanager
    def queue_admin(self) -> Iterator[QueueAdmin]:
        """The broker's HTTP API; NoHttpListener when it has none."""
        from penstock.client import QueueAdmin

        with QueueAdmin(self._http()) as admin:
            yield admin

    @contextmanager
    def numbers_if_any(self) -> Iterator[StatusClient | None]:
        """The same for numbers; None when the broker has no HTTP."""
        from penstock.client.status import StatusClient

        try:
            address = self._http()
        except NoHttpListener:
            yield None
            return
        with StatusClient(address) as client:
            yield client

    def _http(self) -> str:
        """Where the query says, else where the broker says."""
        return self.get("http") or http_addresses(self.cluster())
