"""What ``format("penstock")`` shows as tables: the records of topics, and what the broker knows of queues, groups and topics.

The option ``table`` selects one. The records of topics are in ``penstock.spark.source``; each of the others is a module here. A table
is imported when it is used, because Spark's Python workers restart now and then and need only one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.source.table import RecordsTable
    from penstock.spark.tables.table import Table

RECORDS: Final = "records"
TABLES: Final = {
    RECORDS: ("penstock.spark.source.table", "RecordsTable"),
    "dead_letters": ("penstock.spark.tables.dead_letters", "DeadLettersTable"),
    "queue": ("penstock.spark.tables.queue", "QueueTable"),
    "groups": ("penstock.spark.tables.groups", "GroupsTable"),
    "topics": ("penstock.spark.tables.topics", "TopicsTable"),
    "partitions": ("penstock.spark.tables.topics", "PartitionsTable"),
}


def table_named(options: Mapping[str, str]) -> RecordsTable | Table:
    """The table that the option ``table`` names, by default ``records``."""
    wanted = next((value for name, value in options.items() if name.lower() == "table"), RECORDS)
    found = TABLES.get(wanted.strip().lower().replace("-", "_"))
    if found is None:
        raise ValueError(f"Unknown table {wanted!r}: the option table must be one of {', '.join(TABLES)}")
    module, kind = found
    return cast("RecordsTable | Table", getattr(import_module(module), kind)())
