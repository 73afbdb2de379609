"""Writes changes of in-sync sets to the metadata store, each by a compare-and-set on the partition's epoch and the epochs of the nodes concerned.

So the changes of a leader that was replaced, or has registered again, fail. If an answer is lost, it is unknown whether the set was changed,
or will be: joining nodes then count as members until a retry is answered. Each partition has one change at a time, many partitions
have one at the same time.

A node that was elected but cannot open its log gives up the leadership in the same way, and the controller elects another one, if an
in-sync replica is up. Otherwise the node remains the leader, since it may have the only copy.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Final

from penstock.cluster.batched_puts import BatchedPuts
from penstock.core.broker import Broker
from penstock.core.cluster.image import node_key
from penstock.core.cluster.in_sync import InSync, InSyncChange
from penstock.core.cluster.records import given_up, joined, without
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import encode, partition_key
from penstock.errors import PenstockError
from penstock.metadata.port import Compare, Put, SharedStore

logger = logging.getLogger("penstock.cluster")

_LOOK_SECONDS: Final = 0.5
"""How often followers are checked for lag."""
_AT_ONCE: Final = 1024
"""Changes under way at once; simultaneous ones share transactions."""
_RETRY_SECONDS: Final = 0.2
_PARTITIONS_PER_TURN: Final = 500


class InSyncChanges:
    """The changes of partitions that this node leads."""

    def __init__(self, broker: Broker, store: SharedStore) -> None:
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._store = store
        self._lag_ms_max = broker.settings.cluster.lag_ms_max
        self._puts = BatchedPuts(store)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._giving_up: set[TopicIdPartition] = set()
        self._looking: asyncio.Task[None] | None = None
        self.heard_ms: Final[dict[int, int]] = {}
        """The monotonic time of each node's last fetch."""
        self.problem: str | None = None
        """Why changes have to wait; None if they do not."""

    def _heard_ms(self, node: int) -> int:
        return self.heard_ms.get(node, 0)

    def start(self) -> None:
        """Begin to check followers."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Change nothing more."""
        tasks = [task for task in (self._looking, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._puts.stop()

    def consider(self, partition: Partition) -> None:
        """A follower has made progress, so it may be able to join."""
        in_sync = partition.in_sync
        if in_sync.is_changing or partition.gone:
            return
        change = in_sync.wanted(
            partition.high_watermark,
            partition.log.next_offset,
            self._broker.clock.monotonic_ms(),
            self._lag_ms_max,
            self._cluster.nodes.is_live,
            self._heard_ms,
        )
        if change is not None:
            in_sync.begin(change)
            # Joining nodes count from now on, and leaving ones until the change is agreed, so nothing more is committed yet.
            # The change is for the current record; a later one may have other replicas.
            epoch = self._broker.topics.partition_epoch(partition.topic, partition.index)
            self._run(self._change(partition, in_sync, change, epoch))

    def _run(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for number, partition in enumerate(self._cluster.replicas.leading()):
                self.consider(partition)
                if number % _PARTITIONS_PER_TURN == _PARTITIONS_PER_TURN - 1:
                    await asyncio.sleep(0)
            for place in [place for place in self._cluster.replicas.unable if place not in self._giving_up]:
                self._giving_up.add(place)
                self._run(self._give_up(place))

    async def _change(self, partition: Partition, in_sync: InSync, change: InSyncChange, epoch: int) -> None:
        async with self._room:
            # A transaction without an answer may still be carried out as long as its compares hold. So the same one is repeated
            # until it is answered: after that, the earlier one can no longer succeed.
            while not await self._is_settled(partition, change, epoch):  # noqa: ASYNC110 - the store is asked again
                await asyncio.sleep(_RETRY_SECONDS)
            in_sync.settle()
        if not partition.gone:
            partition.recount()

    async def _is_settled(self, partition: Partition, change: InSyncChange, epoch: int) -> bool:
        topic, index = partition.topic, partition.index
        if partition.gone or self._broker.topics.partition_epoch(topic, index) != epoch:
            return True
        try:
            is_settled = await self._write(partition, change, epoch)
        except PenstockError as error:
            if self.problem is None:
                logger.warning("%s/%d: the in-sync set cannot be changed: %s", topic.name, index, error.text)
            self.problem = error.text
            return False
        self.problem = None
        return is_settled

    async def _write(self, partition: Partition, change: InSyncChange, epoch: int) -> bool:
        """Whether the agreed set is known now, and this node has it."""
        topic, index = partition.topic, partition.index
        record = self._broker.topics.partition(topic, index)
        if record.leader_epoch != partition.leader_epoch:
            return True
        minimum = topic.min_in_sync
        wanted = without(joined(record, change.joining, minimum), change.leaving, minimum)
        if wanted == record:
            return True
        key = partition_key(topic.topic_id, index)
        mine = node_key(self._broker.node_id)
        compares = [
            Compare(key, mod_revision=epoch),
            Compare(mine, create_revision=self._cluster.replicas.node_epoch),
            *(Compare(node_key(node), create_revision=incarnation) for node, incarnation in change.joining.items()),
        ]
        if not self._cluster.rules.compare_and_set:
            compares = []
        # When this returns, the topics in memory have the new record, and so does the partition.
        if await self._puts.put(compares, Put(key, encode(wanted))):
            logger.info("%s/%d: the in-sync replicas are now %s", topic.name, index, [node for node, _ in wanted.isr])
            return True
        # Either a node's epoch has changed, so that this change can never be made. Or the record has changed, perhaps by an earlier attempt of this
        # change whose answer was lost: then the joined nodes are members, and count until this node receives the record.
        entry = await self._store.get(key)
        return entry is None or entry.mod_revision == epoch

    # Giving up leaderships.

    async def _give_up(self, place: TopicIdPartition) -> None:
        async with self._room:
            try:
                await self._try_to_give_up(place)
            except PenstockError as error:
                # The next check tries again, unless this attempt was carried out after all.
                if self.problem is None:
                    where = place.partition, place.topic_id
                    logger.warning(
                        "the leadership of partition %d of topic %s cannot be given up: %s", *where, error.text
                    )
                self.problem = error.text
            finally:
                self._giving_up.discard(place)

    async def _try_to_give_up(self, place: TopicIdPartition) -> None:
        topics, replicas = self._broker.topics, self._cluster.replicas
        topic = topics.get_by_id(place.topic_id)
        if topic is None or place not in replicas.unable:
            return
        record, key = topics.partition(topic, place.partition), partition_key(*place)
        left = given_up(record)
        nodes = self._cluster.nodes
        live = nodes.live()
        if not any(nodes.is_live(*member) for member in left.isr) and not any(node in live for node in left.elr):
            return
        compares = [
            Compare(key, mod_revision=topics.partition_epoch(topic, place.partition)),
            Compare(node_key(self._broker.node_id), create_revision=replicas.node_epoch),
        ]
        if await self._puts.put(compares, Put(key, encode(left))):
            logger.error(
                "%s/%d: this node gives up the leadership, and another in-sync replica is elected. %s",
                topic.name,
                place.partition,
                replicas.failed.get(place, ""),
            )
