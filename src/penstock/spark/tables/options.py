"""The options of the tables other than ``records``: which topics and groups, and where the broker is.

The case of names does not matter, as everywhere in Spark. An unknown name is refused, because with a misspelt ``topic`` the query would
return every topic. Options that begin with ``kafka.`` are for the connection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.client.discovery import http_addresses
from penstock.spark.connections import cluster_for
from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.security import security_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.client import ClientSecurity, Cluster, QueueAdmin

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
        """The value of an option, stripped; None if it is missing or empty."""
        return self.given.get(name, "").strip() or None

    def require(self, name: str) -> str:
        """The same; OptionError if it is missing."""
        value = self.get(name)
        if value is None:
            raise OptionError(f'Table {self._table} needs the option {name}: add .option("{name}", ...)')
        return value

    def names(self, name: str) -> list[str] | None:
        """The names in a comma-separated option; None if it is missing."""
        value = self.get(name)
        return None if value is None else [part.strip() for part in value.split(",") if part.strip()]

    @property
    def named_topics(self) -> list[str] | None:
        """The topics that the query names; None if it names none."""
        return self.names("topic") or self.names("subscribe")

    def selects(self, topics: Iterable[str]) -> list[str]:
        """Those of these topics that the query selects: by name, by a pattern that is found in the name, or all."""
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

    def cluster(self) -> Cluster:
        """The connection that this process keeps open."""
        return cluster_for(self.given)

    def queue_admin(self) -> QueueAdmin:
        """A client of the broker's HTTP API; NoHttpListener if it has none."""
        from penstock.client import QueueAdmin

        return QueueAdmin(self.http(), security=self.security)

    @property
    def security(self) -> ClientSecurity:
        """TLS and credentials."""
        return security_of(self.given)

    def http(self) -> str:
        """The address of the HTTP API: from the option ``http``, else from the broker."""
        return self.get("http") or http_addresses(self.cluster())
