"""The way of a broker that was alone into a cluster: its data directory becomes the first node's, and its metadata the cluster's.

It happens once, when the cluster is new: before any other node can have put anything there. What is in ``metadata.sqlite`` is written to the
shared store, topics last, so that nobody sees one without its partitions; then the file is renamed, and is a backup from there on. A crash in
between is no harm: the next start finds the file and begins again, and what is there already is written again as it was.
"""

import logging
from typing import Final

from penstock.core.topic_records import PARTITIONS_PREFIX, TOPICS_PREFIX
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Entry, Put, SharedStore
from penstock.metadata.sqlite import SqliteStore
from penstock.ports import Disk

logger = logging.getLogger("penstock.cluster")

MIGRATED: Final = ".migrated"
_OWNER_KEY: Final = "import"


async def import_alone(store: SharedStore, disk: Disk, path: str, directory: str) -> int:
    """Bring what lies in ``path`` into the store, if it is there; returns how many entries. INVALID_REQUEST when the cluster has topics of others."""
    if not disk.exists(path):
        return 0
    alone = await SqliteStore.open(path)
    try:
        entries = (await alone.range("")).entries
    finally:
        await alone.close()
    await _claim(store, path, directory)
    last = [entry for entry in entries if entry.key.startswith(TOPICS_PREFIX)]
    first = [entry for entry in entries if not entry.key.startswith(TOPICS_PREFIX)]
    await _write(store, sorted(first, key=lambda entry: not entry.key.startswith(PARTITIONS_PREFIX)))
    await _write(store, last)
    disk.rename(path, path + MIGRATED)
    logger.info("%d entries of %s are the cluster's now; the file is kept as %s", len(entries), path, path + MIGRATED)
    return len(entries)


async def _claim(store: SharedStore, path: str, directory: str) -> None:
    """Be the one directory whose metadata this cluster begins with."""
    await store.txn([Compare(_OWNER_KEY, create_revision=0)], [Put(_OWNER_KEY, directory.encode())])
    owner = await store.get(_OWNER_KEY)
    topics = await store.range(TOPICS_PREFIX)
    if (
        owner is None
        or owner.value != directory.encode()
        or (topics.entries and owner.mod_revision > _first(topics.entries))
    ):
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"{path} is the metadata of a broker that was alone, and the cluster has topics of its own: only the first node of a new "
            "cluster can bring its own. Use an empty --data-dir, or a new --cluster",
        )


def _first(entries: tuple[Entry, ...]) -> int:
    return min(entry.create_revision for entry in entries)


async def _write(store: SharedStore, entries: list[Entry]) -> None:
    for first in range(0, len(entries), store.operations_max):
        some = entries[first : first + store.operations_max]
        await store.txn([], [Put(entry.key, entry.value) for entry in some])
