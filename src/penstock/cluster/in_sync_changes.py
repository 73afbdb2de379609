"""Has changes of in-sync sets agreed on: each by one compare-and-set that names the partition's epoch, this leader's incarnation and the joiners'.

A leader that was replaced, or has a new incarnation, finds its compares failed. When an answer is lost, nobody knows whether the set was changed, or will be: those who
were to join count as members until the same question was answered. One change at a time for a partition; many partitions at the same time.

A node that is named to lead a partition and cannot open its log takes itself out in the same way, and leaves it without a leader for the controller to name
another, if any that is in sync is up. Otherwise it stays: what it has may be all that there is.
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
"""How often followers are looked through for those that fall behind."""
_AT_ONCE: Final = 1024
"""Changes under way; those of one moment go to the store together."""
_RETRY_SECONDS: Final = 0.2
_PARTITIONS_PER_TURN: Final = 500


class InSyncChanges:
    """The changes that the leaders of this node want."""

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
        """When each node last asked for anything, in monotonic time."""
        self.problem: str | None = None
        """Why changes wait; None when they do not."""

    def _heard_ms(self, node: int) -> int:
        return self.heard_ms.get(node, 0)

    def start(self) -> None:
        """Look after everything that is led here."""
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
        """A follower has told how far it is: perhaps it can join."""
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
            # What joins counts from now on, and what leaves does until it is agreed: nothing more is committed by this alone.
            # It is for the record as it is in this moment: another one may have other replicas.
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
            # A transaction that was not answered may still happen, as long as the record is what it compares with. So the same is
            # asked again until it is answered: either way the earlier one cannot happen any more.
            while not await self._is_settled(partition, change, epoch):  # noqa: ASYNC110 - it is the store that is asked again
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
        """Whether it is known what is agreed now, and the image has it."""
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
        # When this returns, the image has the new record, and through it the partition.
        if await self._puts.put(compares, Put(key, encode(wanted))):
            logger.info("%s/%d: the in-sync replicas are now %s", topic.name, index, [node for node, _ in wanted.isr])
            return True
        # Somebody's incarnation was over, so that this change can never happen; or the record is another by now, perhaps by an earlier sending of this
        # very change whose answer was lost. Then whoever joined is a member, and counts until the image says so.
        entry = await self._store.get(key)
        return entry is None or entry.mod_revision == epoch

    # What cannot be led.

    async def _give_up(self, place: TopicIdPartition) -> None:
        async with self._room:
            try:
                await self._try_to_give_up(place)
            except PenstockError as error:
                # The next look tries again, unless it was done after all.
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
