"""What the first node of a cluster writes down for all of them: the cluster's id, and the secret by which nodes know each other.

``cluster``: ``{"id", "secret", "version", "created_ms"}``. Whoever can read the metadata store can act as a node, so the store is to be guarded as the
data is. It is made once, by compare-and-set; a node that comes later, or at the same time, takes what is there.
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
    """The cluster's record, made with ``cluster_id`` when there is none. It waits for the store, and says so.

    Without ``may_make`` this node belongs to a cluster already: STORAGE_ERROR when the store knows nothing of any.
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
                f"the cluster has version {found.version}, but this node supports version {VERSION}; install the same release as on the other nodes",
            )
        return found


async def _agreed(store: SharedStore, new: ClusterRecord | None) -> ClusterRecord:
    entry = await store.get(KEY)
    if entry is None and new is not None:
        # Whether it is this one's record or another's is told by reading it, also when the answer is lost and all begins again.
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
            f"The entry {KEY!r} of the metadata store cannot be read. Restore the store from a backup.",
        ) from None
