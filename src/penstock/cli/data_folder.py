"""A data directory seen from outside: which folder is which topic's.

Read-only. The metadata store has the names of topics; if it cannot be read, the ids of their folders are used as names, so
that a log can be inspected whatever else is broken.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from penstock.core.topics.records import TOPICS_PREFIX, TopicRecord, topic_of_key
from penstock.log.manager import partitions
from penstock.ports import Disk

METADATA: Final = "metadata.sqlite"
_QUERY: Final = "SELECT key, value FROM entries WHERE key >= ? AND key < ?"


class PartitionFolder(NamedTuple):
    """One partition's log."""

    topic: str
    partition: int
    path: str


def partition_folders(disk: Disk, data_dir: Path) -> list[PartitionFolder]:
    """Every partition that has files, by topic name and number."""
    names = topic_names(data_dir)
    return sorted(
        PartitionFolder(names.get(topic_id, topic_id.hex), number, path)
        for topic_id, number, path in partitions(disk, str(data_dir))
    )


def topic_names(data_dir: Path) -> dict[UUID, str]:
    """The names of the topics by their ids; empty when the store cannot be read."""
    path = data_dir / METADATA
    if not path.exists():
        return {}
    # The second way needs no files beside the database, which a directory without write permission cannot have.
    for mode in ("mode=ro", "immutable=1"):
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as store:
                low = TOPICS_PREFIX.encode()
                rows = store.execute(_QUERY, (low, low + b"\xff")).fetchall()
            return {msgspec.json.decode(value, type=TopicRecord).id: topic_of_key(key.decode()) for key, value in rows}
        except (sqlite3.Error, msgspec.DecodeError, ValueError):
            continue
    return {}
