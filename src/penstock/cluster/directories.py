"""The last data directory of each node: a node with another directory is a new node with an old id.

``directories/<node id>``: the id of the directory, in hex. It is written with every registration, so that each one changes its revision.

A node with another directory no longer has its records. So before it registers, it is removed from all in-sync sets and eligible leader
replicas by compare-and-set. Otherwise it could be elected with an empty log, and acknowledged records would be truncated elsewhere. A
partition that was in sync on no other node has no leader until an operator requests an unclean election.
"""

import logging
from collections.abc import Collection
from typing import Final
from uuid import UUID

from penstock.core.cluster.image import node_key
from penstock.core.cluster.records import forgotten
from penstock.core.topics.records import PARTITIONS_PREFIX, PartitionRecord, decode_partition, encode
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Put, SharedStore
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

DIRECTORIES_PREFIX: Final = "directories/"


def directory_key(node_id: int) -> str:
    """The key for a node's directory."""
    return f"{DIRECTORIES_PREFIX}{node_id}"


def put_directory(node_id: int, directory: UUID) -> Put:
    """The put that stores a node's directory."""
    return Put(directory_key(node_id), directory.hex.encode())


async def settle_directory(store: SharedStore, node_id: NodeId, directory: UUID) -> Compare:
    """Make sure that no other node relies on an earlier directory. The returned compare succeeds until a process registers the node."""
    key = directory_key(node_id)
    entry = await store.get(key)
    if entry is None:
        return Compare(key, mod_revision=0)
    if entry.value != directory.hex.encode():
        logger.warning(
            "node %d has another data directory than before: it leaves all in-sync sets, and copies everything from the other nodes",
            node_id,
        )
        await _forget(store, node_id)
    return Compare(key, mod_revision=entry.mod_revision)


async def settle_lacking(store: SharedStore, node_id: NodeId, keys: Collection[str]) -> None:
    """Remove a node from the in-sync sets of partitions of which it has lost records, if another node has all of them.

    Otherwise it stays in the set, since no node has more.
    """
    unregistered = Compare(node_key(node_id), create_revision=0)
    for key in keys:
        while (entry := await store.get(key)) is not None:
            record = decode_partition(key, entry.value)
            changed = forgotten(record, node_id)
            if changed == record or not _has_heirs(changed):
                break
            compares = [unregistered, Compare(key, mod_revision=entry.mod_revision)]
            if (await store.txn(compares, [Put(key, encode(changed))])).succeeded:
                break
            if await store.get(node_key(node_id)) is not None:
                raise PenstockError(
                    Reason.METADATA_UNAVAILABLE, f"Node {node_id} was registered by another process at the same time"
                )


async def _forget(store: SharedStore, node_id: NodeId) -> None:
    unregistered = Compare(node_key(node_id), create_revision=0)
    at_once = store.operations_max - 1
    while changes := await _changes(store, node_id):
        if await store.get(node_key(node_id)) is not None:
            raise PenstockError(
                Reason.METADATA_UNAVAILABLE, f"Node {node_id} was registered by another process at the same time"
            )
        for first in range(0, len(changes), at_once):
            batch = changes[first : first + at_once]
            compares, puts = [compare for compare, _ in batch], [put for _, put in batch]
            if (await store.txn([unregistered, *compares], puts)).succeeded:
                continue
            # The leader or the controller changed one of the records: write the others one by one.
            for compare, put in batch:
                await store.txn([unregistered, compare], [put])


async def _changes(store: SharedStore, node_id: NodeId) -> list[tuple[Compare, Put]]:
    changes: list[tuple[Compare, Put]] = []
    lost: list[str] = []
    for entry in (await store.range(PARTITIONS_PREFIX)).entries:
        record = decode_partition(entry.key, entry.value)
        changed = forgotten(record, node_id)
        if changed != record:
            changes.append((Compare(entry.key, mod_revision=entry.mod_revision), Put(entry.key, encode(changed))))
            if not _has_heirs(changed):
                lost.append(entry.key)
    if lost:
        logger.warning(
            "%d partitions have no in-sync replica now, because only node %d had all their records; restore its data directory, or elect leaders with 'penstock cluster elect --unclean': %s",
            len(lost),
            node_id,
            ", ".join(lost[:10]),
        )
    return changes


def _has_heirs(record: PartitionRecord) -> bool:
    return bool(record.isr or record.elr)
