"""The controller: one of the nodes, elected by having made the entry ``controller``, has the agreed records follow what happens to nodes.

It keeps nothing of its own. What it knows is the image that every node has; what it decides (``core/replication/decisions.py``) it
writes by transactions that name its own epoch and the epochs of the partitions they change, so one that was replaced changes nothing.
A transaction whose fate is unknown needs no care: the image tells what became of it, and the next look decides anew.

Failovers go in batches, as many partitions as a transaction may have.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.broker import Broker, ClusterSide
from penstock.core.cluster_image import CONTROLLER_KEY, ControllerRecord
from penstock.core.replication.decisions import Decision, decide_all
from penstock.core.topic_records import PARTITIONS_PREFIX, encode, partition_key, partition_of_key
from penstock.core.topics import Topic
from penstock.errors import PenstockError
from penstock.metadata.port import Compare, Delete, Put, SharedStore

if TYPE_CHECKING:
    from penstock.cluster.membership import Membership

logger = logging.getLogger("penstock.cluster")

_RETRY_SECONDS: Final = 0.2
_DECISIONS_AT_ONCE: Final = 5_000
"""Partitions looked at before the event loop has its turn again."""

Chore = Callable[[], Awaitable[None]]


class Controller:
    """Stands for election for as long as the node runs, and does the work when it is elected."""

    def __init__(
        self, broker: Broker, store: SharedStore, membership: "Membership", *, balance_seconds: float = 300.0
    ) -> None:
        assert broker.cluster is not None
        self._broker = broker
        self._cluster: ClusterSide = broker.cluster
        self._store = store
        self._membership = membership
        self._balance_seconds = balance_seconds
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._dirty: dict[tuple[Topic, int], None] = {}
        self._all_dirty = True
        self._balance_due = False
        self._orphans: dict[str, int] = {}
        self.chores: Final[list[Chore]] = []
        """What else an elected controller looks after, once after each change."""
        self.epoch = 0
        """Of the controller that this node is; 0 while another one is."""
        self._cluster.nodes.on_changed.append(self._nodes_changed)
        broker.topics.on_partition.append(self._partition_changed)
        broker.topics.on_created.append(self._topic_changed)
        broker.topics.on_changed.append(self._topic_changed)

    def start(self) -> None:
        """Stand for election."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Do no more; the entry goes with the node's lease."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def is_elected(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        controller = self._cluster.nodes.controller
        return controller is not None and self.epoch == controller.epoch

    # What happens.

    def _nodes_changed(self) -> None:
        self._all_dirty = True
        self._woken.set()

    def _partition_changed(self, topic: Topic, index: int) -> None:
        self._dirty[topic, index] = None
        self._woken.set()

    def _topic_changed(self, topic: Topic) -> None:
        for index in range(topic.partition_count):
            self._dirty[topic, index] = None
        self._woken.set()

    # The loop.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        balance_at = loop.time() + self._balance_seconds
        while True:
            try:
                async with asyncio.timeout(max(0.0, balance_at - loop.time())):
                    await self._woken.wait()
            except TimeoutError:
                balance_at = loop.time() + self._balance_seconds
                self._balance_due = self._all_dirty = True
            self._woken.clear()
            try:
                if self._cluster.nodes.controller is None:
                    await self._stand()
                if self.is_elected:
                    await self._work()
            except PenstockError as error:
                logger.warning("the controller's work waits: %s", error.text)
                self._all_dirty = True
                self._woken.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _stand(self) -> None:
        """Try to become the controller; whoever was first is in the image soon."""
        if not self._membership.lease:
            return
        node_id = self._broker.node_id
        put = Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(node_id)), self._membership.lease)
        made = await self._store.txn([Compare(CONTROLLER_KEY, create_revision=0)], [put])
        entry = await self._store.get(CONTROLLER_KEY)
        # An answer that was lost may have been ours: the entry says so by its lease.
        if entry is not None and entry.lease == self._membership.lease:
            self.epoch = entry.create_revision
            self._all_dirty = True
            self._woken.set()
            if made.succeeded:
                logger.info("node %d is the controller (epoch %d)", node_id, self.epoch)

    async def _work(self) -> None:
        """Decide until there is nothing to decide."""
        everything, self._all_dirty = self._all_dirty, False
        balance, self._balance_due = self._balance_due, False
        dirty, self._dirty = self._dirty, {}
        nodes = self._cluster.nodes
        decisions: list[Decision] = []
        for places in _portions(self._places() if everything else iter(dirty)):
            live, avoided = nodes.live(), nodes.avoided()
            decisions += decide_all(
                self._broker.topics, places, live, avoided, balance=balance, rules=self._cluster.rules
            )
            await asyncio.sleep(0)
        await self._write(decisions)
        if balance:
            await self._sweep()
        for chore in self.chores:
            await chore()

    def _places(self) -> Iterator[tuple[Topic, int]]:
        for topic in self._broker.topics:
            for index in range(topic.partition_count):
                yield topic, index

    async def _write(self, decisions: list[Decision]) -> None:
        size = self._store.operations_max - 1
        while decisions:
            batch, decisions = decisions[:size], decisions[size:]
            done = await self._store.txn(
                [
                    Compare(CONTROLLER_KEY, create_revision=self.epoch),
                    *(Compare(_key(each), mod_revision=each.epoch) for each in batch),
                ],
                [Put(_key(each), encode(each.record)) for each in batch],
            )
            if done.succeeded:
                logger.info("decided on %d partitions, %d to go", len(batch), len(decisions))
                size = self._store.operations_max - 1
            elif len(batch) > 1:
                # One of them was changed by its leader: the others are not to wait for it.
                decisions = batch + decisions
                size = max(1, len(batch) // 2)
            elif not await self._is_still_elected():
                return

    async def _is_still_elected(self) -> bool:
        entry = await self._store.get(CONTROLLER_KEY)
        return entry is not None and entry.create_revision == self.epoch

    async def _sweep(self) -> None:
        """Remove records of partitions whose topic is gone, or was never finished: what a crash left.

        A large topic that is being made has such records for a moment, so only those go that were there unchanged a round ago.
        """
        found = await self._store.range(PARTITIONS_PREFIX)
        topics = self._broker.topics
        orphans = {
            entry.key: entry.mod_revision
            for entry in found.entries
            if topics.get_by_id(partition_of_key(entry.key)[0]) is None
        }
        before, self._orphans = self._orphans, orphans
        for key, revision in orphans.items():
            if before.get(key) == revision:
                mine = Compare(CONTROLLER_KEY, create_revision=self.epoch)
                await self._store.txn([mine, Compare(key, mod_revision=revision)], [Delete(key)])


def _key(decision: Decision) -> str:
    return partition_key(decision.topic.topic_id, decision.index)


def _portions(places: Iterator[tuple[Topic, int]]) -> Iterator[list[tuple[Topic, int]]]:
    portion: list[tuple[Topic, int]] = []
    for place in places:
        portion.append(place)
        if len(portion) == _DECISIONS_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
