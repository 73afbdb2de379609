"""A node's place in the cluster: registered under its id, on a lease that it keeps alive, in an incarnation of its own.

An incarnation begins when the entry is made; its create revision is the node's epoch. It ends when the lease does: then the node registers
again, and leads what it is named for in the new incarnation. While the store cannot be reached nothing ends on this side: a leader
that was named before continues, and epochs, not clocks, show whether another one was named meanwhile.

An entry under this node's id is one of four things: its own, made by a try whose answer was lost (it has the lease of that try); its own of an
earlier try or incarnation (the process is the same, or the data directory, which one process at a time can have); a dead node's, until its lease ends; or that
of another node with the same id, by mistake.
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
"""Of the time to live: two renewals may fail before the third is too late."""
_DEAD_LEASES: Final = 3
"""An entry that outlives so many times to live has somebody who keeps it alive. One is due; etcd's change of leader begins them anew."""


class NodeIdTakenError(PenstockError):
    """Another node has this one's id. It may be dead, and its lease not over yet."""

    def __init__(self, node_id: NodeId, entry: Entry, found: NodeRecord) -> None:
        super().__init__(
            Reason.INVALID_CONFIG,
            f"node {node_id} is already running, at {found.listeners.get('peer', 'another address')} with another data directory; use another --node-id for this node, or stop the other one",
        )
        self.epoch: Final = entry.create_revision
        self.where: Final = found.listeners.get("peer", "another address")


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
        lacking: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """``lacking`` tells of which partitions (by their keys) this node has lost something before it started."""
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
        """Why the store could not be reached; None when it was, last time."""

    async def start(self) -> None:
        """Register, however long it takes, and stay so. INVALID_CONFIG when a live node has the id."""
        self._unsubscribe = self._store.subscribe(node_key(self._node_id), self._take)
        await self._register(gives_up=True)
        self._task = asyncio.create_task(self._keep_alive())

    async def announce_stop(self) -> bool:
        """Let the controller move leaders elsewhere. False when it cannot be told: then there is nothing to wait for."""
        self._record = replace(self._record, shutting_down=True)
        key = node_key(self._node_id)
        put = Put(key, msgspec.json.encode(self._record), self.lease)
        try:
            return (await self._store.txn([Compare(key, create_revision=self.epoch)], [put])).succeeded
        except PenstockError as error:
            logger.warning("node %d stops without a handover of its partitions: %s", self._node_id, error.text)
            return False

    async def leave(self) -> None:
        """End this incarnation now, so that nobody waits for the lease to run out."""
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
                    # The error itself comes when it is certain, and is not said twice.
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
        """Whether this node has its entry now."""
        key = node_key(self._node_id)
        entry = await self._store.get(key)
        if entry is not None:
            found = _record_of(entry)
            is_this_process = found.incarnation == self._record.incarnation
            if is_this_process and entry.lease == self.lease and await self._store.keep_alive(self.lease):
                # The answer to an earlier try was lost.
                self._begin(entry.create_revision)
                return True
            if not is_this_process and found.directory != self._record.directory:
                raise NodeIdTakenError(self._node_id, entry, found)
            # An earlier incarnation of this data directory, which only one process can have: nobody needs to wait for its lease.
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

    # Staying.

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
                # A node that does not keep itself alive is dead to the others, whatever else it does.
                logger.exception("node %d could not renew its registration; retrying", self._node_id)

    def _take(self, events: list[Event]) -> None:
        """Whoever took this node for dead is to be told otherwise at once."""
        if any(event.key == node_key(self._node_id) and event.entry is None for event in events):
            self._removed.set()

    async def _is_alive(self) -> bool:
        """Whether this incarnation continues. Somebody may have removed the entry though the lease is alive."""
        if not await self._store.keep_alive(self.lease):
            return False
        entry = await self._store.get(node_key(self._node_id))
        return entry is not None and entry.create_revision == self.epoch

    def _trouble(self, error: PenstockError) -> None:
        # Once each: a store that cannot be reached says every time for how long.
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
            f"The entry {entry.key!r} of the metadata store cannot be read. Remove it; the node that has it registers again.",
        ) from None
