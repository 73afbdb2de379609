"""A data directory seen from outside: which folder is which topic's.

Read-only. The metadata store has the names of topics; if it cannot be read, the ids of their folders are used as names, so
that a log can be inspected whatever else is broken.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from penstock.cli.failures import Exit, Failure, note
from penstock.core.topics.records import TOPICS_PREFIX, TopicRecord, topic_of_key
from penstock.errors import PenstockError
from penstock.log.manager import partitions
from penstock.ports import Disk, Keys
from penstock.runtime.disk import RealDisk

METADATA: Final = "metadata.sqlite"
_QUERY: Final = "SELECT key, value FROM entries WHERE key >= ? AND key < ?"


class PartitionFolder(NamedTuple):
    """One partition's log."""

    topic: str
    partition: int
    path: str


def keys_of(key_file: Path | None) -> Keys | None:
    """The master keys from the file or the environment; None if there are none."""
    from penstock.encryption.keys import load_keys

    with refusals():
        return load_keys("" if key_file is None else str(key_file), os.environ)


def disk_of(data_dir: Path, key_file: Path | None) -> Disk:
    """The disk of a data directory, which is encrypted if the directory is."""
    from penstock.encryption.directory import open_encrypted

    with refusals():
        keys = keys_of(key_file)
        return open_encrypted(RealDisk(), str(data_dir), keys, note) or RealDisk()


@contextmanager
def refusals() -> Iterator[None]:
    """A missing or wrong key is wrong usage."""
    try:
        yield
    except PenstockError as error:
        raise Failure(error.text, Exit.USAGE) from error


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
