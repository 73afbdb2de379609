"""The entry ``cluster`` of the metadata store: the cluster's id, and the secret with which nodes authenticate to each other.

``cluster``: ``{"id", "secret", "version", "created_ms"}``. The first node creates it by compare-and-set, and all others read it. Any client
that can read the metadata store can act as a node, so the store must be protected like the data.
"""

import asyncio
import logging
from typing import Final

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Put, SharedStore
from penstock.ports import Clock, Entropy

logger = logging.getLogger("penstock.cluster")

KEY: Final = "cluster"
VERSION: Final = 1
_RETRY_SECONDS: Final = 1.0


class ClusterRecord(msgspec.Struct, frozen=True):
    """The value under ``cluster``."""

    id: str
    secret: bytes
    version: int = VERSION
    created_ms: int = 0


async def agree(
    store: SharedStore, clock: Clock, entropy: Entropy, cluster_id: str, *, may_make: bool = True
) -> ClusterRecord:
    """The cluster's record, created with ``cluster_id`` if there is none. Waits until the store is available.

    Without ``may_make``, this node already belongs to a cluster: STORAGE_ERROR if the store has no record.
    """
    new = ClusterRecord(cluster_id, entropy.uuid().bytes + entropy.uuid().bytes, created_ms=clock.now_ms())
    while True:
        try:
            found = await _agreed(store, new if may_make else None)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise
            logger.warning("%s; waiting for it", error.text)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if found.version != VERSION:
            raise PenstockError(
                Reason.UNSUPPORTED_VERSION,
                f"The cluster has version {found.version}, but this node supports version {VERSION}; install the same release as on the other nodes",
            )
        return found


async def _agreed(store: SharedStore, new: ClusterRecord | None) -> ClusterRecord:
    entry = await store.get(KEY)
    if entry is None and new is not None:
        # Another node may have created the record first, or an answer may have been lost: read it to find out.
        await store.txn([Compare(KEY, create_revision=0)], [Put(KEY, msgspec.json.encode(new))])
        entry = await store.get(KEY)
    if entry is None:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            "The data directory belongs to a cluster that does not exist in etcd. Check --etcd and --cluster; if etcd has lost its data, "
            "restore it from a backup. To start a new cluster, use another --data-dir.",
        )
    try:
        return msgspec.json.decode(entry.value, type=ClusterRecord)
    except msgspec.MsgspecError:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            f"The entry {KEY!r} of the metadata store cannot be read; restore the store from a backup",
        ) from None
