"""The controller: the node that has created the entry ``controller``. It adapts the records of partitions when nodes come and go.

It has no state of its own: it decides (``core/cluster/decisions.py``) from what every node knows. Its transactions compare its own epoch
and the epochs of the partitions that they change, so a controller that was replaced changes nothing. If the answer to a transaction is
lost, the next round finds out whether it was carried out, and decides again.

Failovers are written in batches, as many partitions as fit into a transaction. Moves of partitions (``core/cluster/moves.py``) and returns
of leadership to preferred replicas are begun a few at a time: they are not urgent, and clients notice them.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.broker import Broker
from penstock.core.cluster.decisions import Decision, TopicAndIndex, affected, balance, decide_all
from penstock.core.cluster.image import CONTROLLER_KEY, ControllerRecord
from penstock.core.cluster.moves import MovePlan, factor_of
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.topics.records import (
    DELETED_PREFIX,
    PARTITIONS_PREFIX,
    decode_deleted,
    encode,
    partition_key,
    partition_of_key,
)
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError
from penstock.metadata.port import Compare, Delete, Put, SharedStore
from penstock.types import TopicId

if TYPE_CHECKING:
    from penstock.cluster.registration import NodeRegistration

logger = logging.getLogger("penstock.cluster")

_RETRY_SECONDS: Final = 0.2
_DECISIONS_AT_ONCE: Final = 5_000
"""Partitions to check before other tasks get their turn."""
_MOVES_SECONDS: Final = 0.5
"""How often to look for moves to begin, while any are needed."""
_MOVES_SHARE: Final = 10
"""The search for moves in many partitions takes time: at most one part in this many is spent on it."""
_DELETED_MS: Final = 90 * 24 * 3600 * 1000
"""How long a node may be down and still learn that a topic was deleted."""
_BALANCED_AT_ONCE: Final = 100
_BALANCE_MORE_SECONDS: Final = 2.0
"""If more leaderships must be returned than are done at once, the next ones follow after this time."""


@dataclass(slots=True)
class ControllerWrites:
    """Counts the writes of this controller, to measure the cost of a failover."""

    transactions: int = 0
    operations: int = 0
    refused: int = 0
    """Transactions that failed because another node had changed a record."""


Chore = Callable[[], Awaitable[float | None]]
"""Another task of the controller. It may return the seconds after which to call it again."""


class Controller:
    """A candidate for as long as the node runs, and the controller while it is elected."""

    def __init__(self, broker: Broker, store: SharedStore, registration: "NodeRegistration") -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._store = store
        self._registration = registration
        self._balance_seconds = broker.settings.cluster.balance_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._dirty: dict[TopicIdPartition, None] = {}
        """Partitions to check. By topic id, because a change of a topic makes another ``Topic`` of it."""
        self._all_dirty = True
        self._moves_due = True
        self._balance_due = False
        self._balance_at = 0.0
        self._moves_at = 0.0
        self._chores_at: float | None = None
        self._orphans: dict[str, int] = {}
        self.written: Final = ControllerWrites()
        self.chores: Final[list[Chore]] = []
        """Other tasks of an elected controller, called after each change."""
        self.epoch = 0
        """The epoch with which this node was last elected; 0 before that."""
        self._cluster.nodes.on_changed.append(self._nodes_changed)
        broker.topics.on_partition.append(self._partition_changed)
        broker.topics.on_created.append(self._topic_changed)
        broker.topics.on_changed.append(self._topic_changed)

    def start(self) -> None:
        """Become a candidate."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; the entry is removed with the node's lease."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def is_elected(self) -> bool:
        """Whether this node is the controller, as far as it knows."""
        controller = self._cluster.nodes.controller
        return controller is not None and self.epoch == controller.epoch

    # Changes to react to.

    def _nodes_changed(self) -> None:
        self._all_dirty = self._moves_due = True
        self._woken.set()

    def _partition_changed(self, topic: Topic, index: int) -> None:
        if not self.is_elected:
            # An elected controller begins by checking everything.
            return
        for other, number in affected(self._broker.topics, topic, index):
            self._dirty[TopicIdPartition(other.topic_id, number)] = None
        self._woken.set()

    def _topic_changed(self, topic: Topic) -> None:
        if not self.is_elected:
            return
        for index in range(topic.partition_count):
            self._dirty[TopicIdPartition(topic.topic_id, index)] = None
        # An internal topic may need more replicas.
        self._moves_due = self._moves_due or topic.internal
        self._woken.set()

    # The loop.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        self._balance_at = loop.time() + self._balance_seconds
        while True:
            await self._sleep(loop)
            try:
                if self._needs_election():
                    await self._try_to_be_elected()
                if self.is_elected:
                    await self._work()
            except PenstockError as error:
                logger.warning("the controller is waiting: %s", error.text)
                await self._look_again()
            except Exception:
                # Continue: the cluster needs a controller, even if one thing fails.
                logger.exception("the controller failed; retrying")
                await self._look_again()

    async def _look_again(self) -> None:
        self._all_dirty = self._moves_due = True
        self._woken.set()
        await asyncio.sleep(_RETRY_SECONDS)

    async def _sleep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until something changes, or something is due."""
        until = self._balance_at
        if self.is_elected:
            until = min(until, self._moves_at if self._moves_due else until, self._chores_at or until)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._woken.wait()
        self._woken.clear()
        if loop.time() >= self._balance_at:
            self._balance_at = loop.time() + self._balance_seconds
            self._balance_due = self._all_dirty = self._moves_due = True

    def _needs_election(self) -> bool:
        """Whether there is no controller, or it is this node by an election whose answer was lost."""
        controller = self._cluster.nodes.controller
        if controller is None:
            return True
        return controller.node_id == self._broker.node_id and controller.epoch != self.epoch

    async def _try_to_be_elected(self) -> None:
        """Try to become the controller: the first node to create the entry."""
        if not self._registration.lease:
            return
        node_id = self._broker.node_id
        put = Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(node_id)), self._registration.lease)
        made = await self._store.txn([Compare(CONTROLLER_KEY, create_revision=0)], [put])
        entry = await self._store.get(CONTROLLER_KEY)
        # Even if an answer was lost, the lease of the entry shows whether this node created it.
        if entry is not None and entry.lease == self._registration.lease and entry.create_revision != self.epoch:
            self.epoch = entry.create_revision
            self._all_dirty = self._moves_due = True
            self._woken.set()
            if made.succeeded:
                logger.info("node %d is the controller (epoch %d)", node_id, self.epoch)

    async def _work(self) -> None:
        """Decide what to change, and write it, the most urgent changes first."""
        everything, self._all_dirty = self._all_dirty, False
        dirty, self._dirty = self._dirty, {}
        nodes, topics = self._cluster.nodes, self._broker.topics
        decisions: list[Decision] = []
        for places in _portions(self._places() if everything else self._places_of(dirty)):
            decisions += decide_all(topics, places, nodes.live(), nodes.avoided(), rules=self._cluster.rules)
            await asyncio.sleep(0)
        # Elections first: without a leader, nothing can be read or written.
        decisions.sort(
            key=lambda each: each.record.leader_epoch == topics.partition(each.topic, each.index).leader_epoch
        )
        await self._write(decisions)
        noted = (topic.topic_id for topic in topics) if everything else dict.fromkeys(topic_id for topic_id, _ in dirty)
        for topic_id in noted:
            await self._note_factor(topic_id)
        if self._moves_due and asyncio.get_running_loop().time() >= self._moves_at:
            await self._begin_moves()
        if self._balance_due:
            self._balance_due = False
            if not await self._balance():
                await self._sweep()
        again = [seconds for chore in self.chores if (seconds := await chore()) is not None]
        self._chores_at = asyncio.get_running_loop().time() + min(again) if again else None

    async def _begin_moves(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        moves = MovePlan(self._broker.topics, self._cluster.nodes, self._broker.topics.settings.replication_factor)
        begun = list(moves.decisions())
        self._moves_at = loop.time() + max(_MOVES_SECONDS, _MOVES_SHARE * (loop.time() - began))
        # Look again until all drains are over. Moves that are begun are completed when their records change.
        self._moves_due = bool(begun) or bool(self._cluster.nodes.draining)
        await self._write(begun)

    async def _note_factor(self, topic_id: TopicId) -> None:
        topics = self._broker.topics
        topic = topics.get_by_id(topic_id)
        if topic is None:
            return
        factor = factor_of(topics.partitions(topic))
        if factor is not None and factor != topic.replication_factor:
            await topics.note_factor(topic, factor)

    async def _balance(self) -> bool:
        """Return some leaderships to preferred replicas; whether there are more to return."""
        nodes = self._cluster.nodes
        back = list(
            balance(self._broker.topics, self._places(), nodes.live(), nodes.avoided(), count_max=_BALANCED_AT_ONCE)
        )
        has_more = len(back) >= _BALANCED_AT_ONCE
        if has_more:
            self._balance_at = asyncio.get_running_loop().time() + min(_BALANCE_MORE_SECONDS, self._balance_seconds)
        await self._write(back)
        return has_more

    def _places(self) -> Iterator[TopicAndIndex]:
        for topic in self._broker.topics:
            for index in range(topic.partition_count):
                yield topic, index

    def _places_of(self, noted: Iterable[TopicIdPartition]) -> Iterator[TopicAndIndex]:
        """The same for some partitions, except those of topics deleted meanwhile."""
        for topic_id, index in noted:
            topic = self._broker.topics.get_by_id(topic_id)
            if topic is not None:
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
            self.written.transactions += 1
            self.written.operations += len(batch)
            self.written.refused += not done.succeeded
            if done.succeeded:
                logger.info("made decisions for %d partitions, %d left", len(batch), len(decisions))
                size = self._store.operations_max - 1
            elif len(batch) > 1:
                # A leader has changed one of the records: write the others without it.
                decisions = batch + decisions
                size = max(1, len(batch) // 2)
            elif not await self._is_still_elected():
                return

    async def _is_still_elected(self) -> bool:
        entry = await self._store.get(CONTROLLER_KEY)
        return entry is not None and entry.create_revision == self.epoch

    async def _sweep(self) -> None:
        """Remove records of partitions without a topic, which a crash may leave, and old deletions of topics.

        A large topic that is being created has such records for a moment, so only those are removed that have not changed since the last round.
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
        until_ms = self._broker.clock.now_ms() - _DELETED_MS
        notes = (await self._store.range(DELETED_PREFIX)).entries
        old = [entry.key for entry in notes if decode_deleted(entry)[1].deleted_ms < until_ms]
        for first in range(0, len(old), self._store.operations_max):
            await self._store.txn([], [Delete(key) for key in old[first : first + self._store.operations_max]])


def _key(decision: Decision) -> str:
    return partition_key(decision.topic.topic_id, decision.index)


def _portions(places: Iterator[TopicAndIndex]) -> Iterator[list[TopicAndIndex]]:
    portion: list[TopicAndIndex] = []
    for place in places:
        portion.append(place)
        if len(portion) == _DECISIONS_AT_ONCE:
            yield portion
            portion = []
    if portion:
        yield portion
