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


async def agree(store: SharedStore, clock: Clock, entropy: Entropy, cluster_id: str) -> ClusterRecord:
    """The cluster's record, made with ``cluster_id`` when there is none. It waits for the store, and says so."""
    new = ClusterRecord(cluster_id, entropy.uuid().bytes + entropy.uuid().bytes, created_ms=clock.now_ms())
    while True:
        try:
            found = await _agreed(store, new)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise
            logger.warning("%s; waiting for it", error.text)
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if found.version != VERSION:
            raise PenstockError(
                Reason.UNSUPPORTED_VERSION,
                f"the cluster is of version {found.version}, and this node knows {VERSION}; install the release that the others have",
            )
        return found


async def _agreed(store: SharedStore, new: ClusterRecord) -> ClusterRecord:
    await store.txn([Compare(KEY, create_revision=0)], [Put(KEY, msgspec.json.encode(new))])
    entry = await store.get(KEY)
    if entry is None:
        raise PenstockError(Reason.METADATA_UNAVAILABLE, "the cluster's record is gone as soon as it was made")
    try:
        return msgspec.json.decode(entry.value, type=ClusterRecord)
    except msgspec.MsgspecError:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            f"The entry {KEY!r} of the metadata store cannot be read. Restore the store from a backup.",
        ) from None
