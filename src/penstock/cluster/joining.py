"""The way of a broker that was alone into a cluster: its data directory becomes the first node's, and its metadata the cluster's.

It happens once, when the cluster is new: before anybody has made anything there. What is in ``metadata.sqlite`` is written to the
shared store, topics last, so that nobody sees one without its partitions; then the file is renamed, and is a backup from there on. A crash in
between is no harm: the next start finds the file and goes on, and what is there already stays as it is.

``import``: the id of the directory that the cluster began with. It is made once, by compare-and-set: of two that come at once, one is refused, and
nothing of its directory was touched.
"""

import logging
from typing import Final
from uuid import UUID

from penstock.cluster.agreement import KEY as CLUSTER_KEY
from penstock.cluster.directories import DIRECTORIES_PREFIX, put_directory
from penstock.core.cluster.image import CONTROLLER_KEY, NODES_PREFIX
from penstock.core.topics.records import PARTITIONS_PREFIX, TOPICS_PREFIX
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Entry, Put, SharedStore
from penstock.metadata.sqlite import SqliteStore
from penstock.ports import Disk
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

MIGRATED: Final = ".migrated"
_OWNER_KEY: Final = "import"
_OF_A_NEW_CLUSTER: Final = (NODES_PREFIX, DIRECTORIES_PREFIX, CONTROLLER_KEY, CLUSTER_KEY)
"""What nodes that came a moment earlier may have written."""


async def import_alone(store: SharedStore, disk: Disk, path: str, node_id: NodeId, directory: UUID) -> int:
    """Bring what lies in ``path`` into the store, if it is there; returns how many entries. INVALID_CONFIG when the cluster has begun otherwise."""
    if not disk.exists(path):
        return 0
    alone = await SqliteStore.open(path)
    try:
        entries = (await alone.range("")).entries
    finally:
        await alone.close()
    await _claim(store, path, node_id, directory)
    last = [entry for entry in entries if entry.key.startswith(TOPICS_PREFIX)]
    first = [entry for entry in entries if not entry.key.startswith(TOPICS_PREFIX)]
    await _write(store, sorted(first, key=lambda entry: not entry.key.startswith(PARTITIONS_PREFIX)))
    await _write(store, last)
    disk.rename(path, path + MIGRATED)
    logger.info(
        "%d entries of %s were moved to the cluster; the file is kept as %s", len(entries), path, path + MIGRATED
    )
    return len(entries)


async def _claim(store: SharedStore, path: str, node_id: NodeId, directory: UUID) -> None:
    """Be the one directory whose metadata this cluster begins with."""
    owner = await store.get(_OWNER_KEY)
    if owner is None:
        if not await _is_new(store):
            raise _not_the_first(path)
        claim = [Put(_OWNER_KEY, directory.hex.encode()), put_directory(node_id, directory)]
        await store.txn([Compare(_OWNER_KEY, create_revision=0)], claim)
        owner = await store.get(_OWNER_KEY)
    # Somebody may have begun between the look and the claim.
    if owner is None or owner.value != directory.hex.encode() or not await _is_new(store, owner.create_revision):
        raise _not_the_first(path)


async def _is_new(store: SharedStore, revision: int | None = None) -> bool:
    """Whether nobody has made anything there, or had when ``revision`` was."""
    return all(
        entry.key.startswith(_OF_A_NEW_CLUSTER) or (revision is not None and entry.create_revision >= revision)
        for entry in (await store.range("")).entries
    )


def _not_the_first(path: str) -> PenstockError:
    return PenstockError(
        Reason.INVALID_CONFIG,
        f"{path} is the metadata of a single broker, and the cluster already exists: only the first node of a new cluster can bring its topics. Nothing was changed. Use an empty --data-dir for this node, or a new --cluster; without --cluster, it starts as a single broker as before",
    )


async def _write(store: SharedStore, entries: list[Entry]) -> None:
    """Write what is not there yet: what an earlier try has written may have been changed since, by a node that is up already."""
    at_once = min(store.operations_max, max(1, len(entries)))
    for first in range(0, len(entries), at_once):
        batch = entries[first : first + at_once]
        while batch:
            compares = [Compare(entry.key, create_revision=0) for entry in batch]
            if (await store.txn(compares, [Put(entry.key, entry.value) for entry in batch])).succeeded:
                break
            batch = [entry for entry in batch if await store.get(entry.key) is None]
