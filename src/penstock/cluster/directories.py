"""Which data directory each node had last: a node that comes with another one is a new node under an old number.

``directories/<node id>``: the id of the directory, in hex. It is written with every registration, so that its revision tells of each.

What a node had in sync was in its directory. Before it registers with another one, it is taken out of every in-sync set and out of all that are
eligible to lead, each by compare-and-set: else it could be elected with an empty log, and what was acknowledged would be cut off elsewhere. A
partition that was in sync nowhere else stays without a leader until somebody says that what others have of it is enough.
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
    """Where the id of a node's directory is."""
    return f"{DIRECTORIES_PREFIX}{node_id}"


def put_directory(node_id: int, directory: UUID) -> Put:
    """Remember a node's directory."""
    return Put(directory_key(node_id), directory.hex.encode())


async def settle_directory(store: SharedStore, node_id: NodeId, directory: UUID) -> Compare:
    """Make sure that nobody counts on what another directory had. What is returned holds until the node is registered by anybody."""
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
    """Take a node out of the in-sync sets of partitions of which it has lost something, wherever somebody else has everything.

    Where nobody else has, it stays: what it has left is all that there is.
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
                    Reason.METADATA_UNAVAILABLE, f"node {node_id} was registered by another process at the same time"
                )


async def _forget(store: SharedStore, node_id: NodeId) -> None:
    unregistered = Compare(node_key(node_id), create_revision=0)
    at_once = store.operations_max - 1
    while changes := await _changes(store, node_id):
        if await store.get(node_key(node_id)) is not None:
            raise PenstockError(
                Reason.METADATA_UNAVAILABLE, f"node {node_id} was registered by another process at the same time"
            )
        for first in range(0, len(changes), at_once):
            batch = changes[first : first + at_once]
            compares, puts = [compare for compare, _ in batch], [put for _, put in batch]
            if (await store.txn([unregistered, *compares], puts)).succeeded:
                continue
            # One of them was changed by its leader or by the controller: the others need not wait for it.
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
        logger.warning("%d partitions were in sync only on node %d: %s", len(lost), node_id, ", ".join(lost[:10]))
    return changes


def _has_heirs(record: PartitionRecord) -> bool:
    return bool(record.isr or record.elr)
