"""A node's place in the cluster: registered under its id, on a lease that it keeps alive, in a life of its own.

A life begins when the entry is made; its create revision is the node's epoch. It ends when the lease does: then the node registers
again, and leads what it is named for in the new life. While the store cannot be reached nothing ends on this side: whoever was
named before goes on, and whether somebody else was named meanwhile is told by epochs, not by clocks.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.core.cluster_image import NodeRecord, node_key
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Put, SharedStore
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

_RETRY_SECONDS_MIN: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
_KEEP_ALIVE_SHARE: Final = 1 / 3
"""Of the time to live: two renewals may fail before the third is too late."""


class Membership:
    """Keeps one node registered until it is told to leave."""

    def __init__(
        self,
        store: SharedStore,
        node_id: NodeId,
        record: NodeRecord,
        *,
        ttl_ms: int,
        on_registered: Callable[[int], None],
    ) -> None:
        self._store = store
        self._node_id = node_id
        self._record = record
        self._ttl_ms = ttl_ms
        self._on_registered = on_registered
        self._task: asyncio.Task[None] | None = None
        self.lease = 0
        """The lease of this life; 0 before the first."""
        self.epoch = -1
        """The node's epoch."""
        self.problem: str | None = None
        """Why the store could not be reached; None when it was, last time."""

    async def start(self) -> None:
        """Register, however long it takes, and stay so."""
        await self._register()
        self._task = asyncio.create_task(self._keep_alive())

    async def announce_stop(self) -> None:
        """Let the controller move leaders elsewhere. Fine when the store cannot be reached."""
        self._record = replace(self._record, shutting_down=True)
        key = node_key(self._node_id)
        with contextlib.suppress(PenstockError):
            put = Put(key, msgspec.json.encode(self._record), self.lease)
            await self._store.txn([Compare(key, create_revision=self.epoch)], [put])

    async def leave(self) -> None:
        """End this life now, so that nobody waits for the lease to run out."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(PenstockError):
            await self._store.revoke(self.lease)

    async def _register(self) -> None:
        seconds = _RETRY_SECONDS_MIN
        while True:
            try:
                if await self._try_register():
                    return
                seconds = _RETRY_SECONDS_MIN
            except PenstockError as error:
                self._trouble(error)
                seconds = min(seconds * 2, _RETRY_SECONDS_MAX)
            await asyncio.sleep(seconds)

    async def _try_register(self) -> bool:
        """Whether this node has its entry now. The answer to an earlier try may have been lost: then the entry is ours already."""
        key = node_key(self._node_id)
        entry = await self._store.get(key)
        if entry is not None:
            found = msgspec.json.decode(entry.value, type=NodeRecord)
            if found.incarnation == self._record.incarnation:
                if entry.lease == self.lease and await self._store.keep_alive(self.lease):
                    self._begin(entry.create_revision)
                    return True
            elif found.directory != self._record.directory:
                raise PenstockError(
                    Reason.INVALID_REQUEST,
                    f"node {self._node_id} is running at {found.listeners.get('peer', 'another address')}; give this one another "
                    "--node-id, or stop that one",
                )
            # An earlier life of this data directory, which only one process can have: nobody needs to wait for its lease.
            await self._store.revoke(entry.lease)
        lease = self.lease = await self._store.grant(self._ttl_ms)
        made = await self._store.txn(
            [Compare(key, create_revision=0)], [Put(key, msgspec.json.encode(self._record), lease)]
        )
        if not made.succeeded:
            return False
        self._begin(made.revision)
        return True

    def _begin(self, epoch: int) -> None:
        self.problem = None
        self.epoch = epoch
        logger.info("node %d is registered (epoch %d)", self._node_id, epoch)
        self._on_registered(epoch)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_ms * _KEEP_ALIVE_SHARE / 1000)
            try:
                left_ms = await self._store.keep_alive(self.lease)
                # Somebody may have removed the entry though the lease lives: a controller that found this node dead.
                entry = await self._store.get(node_key(self._node_id)) if left_ms else None
            except PenstockError as error:
                self._trouble(error)
                continue
            self.problem = None
            if entry is None or entry.create_revision != self.epoch:
                logger.warning("node %d was not heard of for too long: it registers again", self._node_id)
                await self._register()

    def _trouble(self, error: PenstockError) -> None:
        if self.problem != error.text:
            logger.warning("%s", error.text)
        self.problem = error.text
