"""Turns a broker that was alone into the first node of a new cluster: its metadata becomes the cluster's.

This is possible once, while nothing has been created in the cluster yet. The entries of ``metadata.sqlite`` are written to the shared
store, topics last, so that no node sees a topic without its partitions. Then the file is renamed and serves as a backup. After a crash,
the next start continues, and leaves the entries that exist already unchanged.

``import``: the id of the directory with which the cluster began, created by compare-and-set. If two brokers try at the same time, one is
refused, and its directory stays unchanged.
"""

import logging
from typing import Final
from uuid import UUID

from penstock.cluster.directories import DIRECTORIES_PREFIX, put_directory
from penstock.core.cluster.image import CONTROLLER_KEY, NODES_PREFIX
from penstock.core.cluster.shared_secret import CLUSTER_KEY
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
"""Entries that other new nodes may have written already."""


async def import_alone(store: SharedStore, disk: Disk, path: str, node_id: NodeId, directory: UUID) -> int:
    """Write the entries of the file ``path``, if it exists, to the store; returns their number. INVALID_CONFIG if the cluster is not new."""
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
    """Claim the import for this directory."""
    owner = await store.get(_OWNER_KEY)
    if owner is None:
        if not await _is_new(store):
            raise _not_the_first(path)
        claim = [Put(_OWNER_KEY, directory.hex.encode()), put_directory(node_id, directory)]
        await store.txn([Compare(_OWNER_KEY, create_revision=0)], claim)
        owner = await store.get(_OWNER_KEY)
    # Another node may have created something between the check and the claim.
    if owner is None or owner.value != directory.hex.encode() or not await _is_new(store, owner.create_revision):
        raise _not_the_first(path)


async def _is_new(store: SharedStore, revision: int | None = None) -> bool:
    """Whether nothing has been created in the cluster, or had been at ``revision``."""
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
    """Write the entries that do not exist yet. Those from an earlier attempt may have been changed since by another node."""
    at_once = min(store.operations_max, max(1, len(entries)))
    for first in range(0, len(entries), at_once):
        batch = entries[first : first + at_once]
        while batch:
            compares = [Compare(entry.key, create_revision=0) for entry in batch]
            if (await store.txn(compares, [Put(entry.key, entry.value) for entry in batch])).succeeded:
                break
            batch = [entry for entry in batch if await store.get(entry.key) is None]
