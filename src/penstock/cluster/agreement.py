"""The entry ``cluster`` of the metadata store (``core/cluster/shared_secret.py``), with which every node begins.

The first node creates it by compare-and-set, and all others read it. Any client that can read the metadata store has the nodes' secret, so
the store must be protected like the data.
"""

import asyncio
import logging
from typing import Final

import msgspec

from penstock.core.cluster.shared_secret import CLUSTER_KEY, VERSION, ClusterRecord, decode_record, new_secret
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Put, SharedStore
from penstock.ports import Clock, Entropy

logger = logging.getLogger("penstock.cluster")

_RETRY_SECONDS: Final = 1.0


async def agree(
    store: SharedStore, clock: Clock, entropy: Entropy, cluster_id: str, *, may_make: bool = True
) -> ClusterRecord:
    """The cluster's record, created with ``cluster_id`` if there is none. Waits until the store is available.

    Without ``may_make``, this node already belongs to a cluster: STORAGE_ERROR if the store has no record.
    """
    new = ClusterRecord(cluster_id, new_secret(entropy), created_ms=clock.now_ms())
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
    entry = await store.get(CLUSTER_KEY)
    if entry is None and new is not None:
        # Another node may have created the record first, or an answer may have been lost: read it to find out.
        await store.txn([Compare(CLUSTER_KEY, create_revision=0)], [Put(CLUSTER_KEY, msgspec.json.encode(new))])
        entry = await store.get(CLUSTER_KEY)
    if entry is None:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            "The data directory belongs to a cluster that does not exist in etcd. Check --etcd and --cluster; if etcd has lost its data, "
            "restore it from a backup. To start a new cluster, use another --data-dir.",
        )
    return decode_record(entry)
