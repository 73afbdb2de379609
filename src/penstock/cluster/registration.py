"""A node's registration in the cluster: an entry under its id, on a lease that it keeps alive.

An incarnation begins when the entry is created; its create revision is the node's epoch. It ends with the lease: then the node registers
again, and leads the partitions for which it is elected in the new incarnation. While the store is unavailable, nothing ends on this side: a
leader continues, and epochs, not clocks, show whether another one was elected meanwhile.

An existing entry under this node's id is one of four: its own, from an attempt whose answer was lost (it has the lease of that attempt);
its own from an earlier attempt or incarnation (with the same process or data directory, which only one process at a time can use); a dead
node's, until its lease ends; or that of another node that was given the same id by mistake.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.cluster.directories import put_directory, settle_directory, settle_lacking
from penstock.core.cluster.image import NodeRecord, node_key
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Entry, Event, Put, SharedStore, Unsubscribe
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

_RETRY_SECONDS_MIN: Final = 0.1
_RETRY_SECONDS_MAX: Final = 2.0
_KEEP_ALIVE_SHARE: Final = 1 / 3
"""The share of the lease after which it is renewed: two renewals may fail before it ends."""
_DEAD_LEASES: Final = 3
"""If an entry exists for this many lease times, a live process renews it. One would be enough, but a new leader of etcd restarts all leases."""


class NodeIdTakenError(PenstockError):
    """Another node has this id. It may be dead, and its lease not over yet."""

    def __init__(self, node_id: NodeId, entry: Entry, found: NodeRecord) -> None:
        super().__init__(
            Reason.INVALID_CONFIG,
            f"Node {node_id} is already running, at {found.listeners.get('peer', 'another address')} with another data directory; use another --node-id for this node, or stop the other one",
        )
        self.epoch: Final = entry.create_revision
        self.where: Final = found.listeners.get("peer", "another address")


class NodeRegistration:
    """Keeps one node registered until :meth:`leave`."""

    def __init__(
        self,
        store: SharedStore,
        node_id: NodeId,
        record: NodeRecord,
        *,
        ttl_ms: int,
        on_registered: Callable[[int], None],
        lacking: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """``lacking`` returns the keys of the partitions of which this node has lost records."""
        self._store = store
        self._node_id = node_id
        self._record = record
        self._ttl_ms = ttl_ms
        self._on_registered = on_registered
        self._lacking = lacking
        self._task: asyncio.Task[None] | None = None
        self._removed = asyncio.Event()
        self._unsubscribe: Unsubscribe = lambda: None
        self.lease = 0
        """The lease of this incarnation; 0 before the first."""
        self.epoch = -1
        """The node's epoch."""
        self.problem: str | None = None
        """Why the store could not be reached the last time; None if it was."""

    async def start(self) -> None:
        """Register, however long it takes, and stay registered. INVALID_CONFIG if a live node has the id."""
        self._unsubscribe = self._store.subscribe(node_key(self._node_id), self._take)
        await self._register(gives_up=True)
        self._task = asyncio.create_task(self._keep_alive())

    async def announce_stop(self) -> bool:
        """Let the controller move leaderships to other nodes. False if the store is unavailable: then do not wait for that."""
        self._record = replace(self._record, shutting_down=True)
        key = node_key(self._node_id)
        put = Put(key, msgspec.json.encode(self._record), self.lease)
        try:
            return (await self._store.txn([Compare(key, create_revision=self.epoch)], [put])).succeeded
        except PenstockError as error:
            logger.warning("node %d stops without a handover of its partitions: %s", self._node_id, error.text)
            return False

    async def leave(self) -> None:
        """End this incarnation now, so that other nodes need not wait until the lease ends."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.lease:
            with contextlib.suppress(PenstockError):
                await self._store.revoke(self.lease)

    # Registering.

    async def _register(self, *, gives_up: bool) -> None:
        loop = asyncio.get_running_loop()
        seconds = _RETRY_SECONDS_MIN
        rival: tuple[int, float] | None = None
        while True:
            try:
                if await self._try_register():
                    return
                seconds = _RETRY_SECONDS_MIN
            except NodeIdTakenError as error:
                if not gives_up:
                    self._trouble(error)
                elif rival is None:
                    logger.warning(
                        "node %d is already registered, from %s with another data directory: waiting to see whether that process is alive",
                        self._node_id,
                        error.where,
                    )
                self.problem = error.text
                if rival is None or rival[0] != error.epoch:
                    rival = error.epoch, loop.time()
                elif gives_up and loop.time() - rival[1] > self._ttl_ms * _DEAD_LEASES / 1000:
                    raise
                seconds = min(self._ttl_ms * _KEEP_ALIVE_SHARE / 1000, _RETRY_SECONDS_MAX)
            except PenstockError as error:
                self._trouble(error)
                seconds = min(seconds * 2, _RETRY_SECONDS_MAX)
            await asyncio.sleep(seconds)

    async def _try_register(self) -> bool:
        """Whether this node is registered now."""
        key = node_key(self._node_id)
        entry = await self._store.get(key)
        if entry is not None:
            found = _record_of(entry)
            is_this_process = found.incarnation == self._record.incarnation
            if is_this_process and entry.lease == self.lease and await self._store.keep_alive(self.lease):
                # The answer to an earlier attempt was lost.
                self._begin(entry.create_revision)
                return True
            if not is_this_process and found.directory != self._record.directory:
                raise NodeIdTakenError(self._node_id, entry, found)
            # An earlier incarnation with this data directory, which only one process can use: its lease can end now.
            await self._store.revoke(entry.lease)
        settled = await settle_directory(self._store, self._node_id, self._record.directory)
        if self.epoch < 0:
            await settle_lacking(self._store, self._node_id, self._lacking())
        lease = self.lease = await self._store.grant(self._ttl_ms)
        made = await self._store.txn(
            [Compare(key, create_revision=0), settled],
            [Put(key, msgspec.json.encode(self._record), lease), put_directory(self._node_id, self._record.directory)],
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

    # Staying registered.

    async def _keep_alive(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._ttl_ms * _KEEP_ALIVE_SHARE / 1000):
                    await self._removed.wait()
            self._removed.clear()
            try:
                if not await self._is_alive():
                    logger.warning("node %d has lost its registration: registering again", self._node_id)
                    await self._register(gives_up=False)
                self.problem = None
            except PenstockError as error:
                self._trouble(error)
            except Exception:
                # Without its lease, the node is dead to the others, so this must never end.
                logger.exception("node %d could not renew its registration; retrying", self._node_id)

    def _take(self, events: list[Event]) -> None:
        """If another node has removed this one's entry, register again at once."""
        if any(event.key == node_key(self._node_id) and event.entry is None for event in events):
            self._removed.set()

    async def _is_alive(self) -> bool:
        """Whether this incarnation continues. The entry may have been removed although the lease is alive."""
        if not await self._store.keep_alive(self.lease):
            return False
        entry = await self._store.get(node_key(self._node_id))
        return entry is not None and entry.create_revision == self.epoch

    def _trouble(self, error: PenstockError) -> None:
        # Logged once: the text of METADATA_UNAVAILABLE changes with each attempt.
        is_new = self.problem is None or error.reason is not Reason.METADATA_UNAVAILABLE
        if is_new and self.problem != error.text:
            logger.warning("node %d: %s", self._node_id, error.text)
        self.problem = error.text


def _record_of(entry: Entry) -> NodeRecord:
    try:
        return msgspec.json.decode(entry.value, type=NodeRecord)
    except msgspec.MsgspecError:
        raise PenstockError(
            Reason.STORAGE_ERROR,
            f"The entry {entry.key!r} of the metadata store cannot be read; remove it, and its node registers again",
        ) from None
