"""The groups, queues, produce keys and sinks that this node coordinates: those in the internal partitions that it leads.

Partition i of ``__consumer_offsets`` and of ``__queue_state`` are co-led: they contain the state of the same groups, so one node must
lead both. Until the controller has elected the same leader for them, no node serves them. Produce keys are stored by topic, not by
group, so ``__idempotency`` is led independently. ``__sinks`` has one partition. Its leader, the coordinator of the sinks, also reads and
cuts their staging topics, so these have the same replicas and the same leader.

A partition is served once all records that an earlier leader may have acknowledged are committed: the high watermark must have reached
the end that the log had when this leader's epoch began. Then the log is replayed (``runtime.py``), after the turn of the event loop in
which this node was elected. By then, all topics that were created earlier are known.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.cluster.image import ClusterImage
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.coordinators.jobs import NEXT_TURN, TURN_BYTES, Jobs
from penstock.core.coordinators.runtime import Family, Shard
from penstock.core.coordinators.topic import partition_of
from penstock.core.idempotency.stored import keys_partition
from penstock.core.partitions.partition import Partition
from penstock.core.topics.names import GROUP_STATE_TOPICS, IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, SINKS_TOPIC
from penstock.core.topics.records import PartitionRecord
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.ports import Report
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_Key = tuple[str, int]
"""The name of the first of the co-led topics, and the index of the partition."""


def co_led_topics(name: str) -> tuple[str, ...]:
    """The topics whose partitions with the same index one node must lead, in the order in which they are loaded."""
    return GROUP_STATE_TOPICS if name in GROUP_STATE_TOPICS else (name,)


class Coordinators:
    """Loads a shard when this node becomes the leader of its partition, and unloads it when that ends."""

    def __init__(self, broker: "Broker", nodes: ClusterImage, report: Report, rules: Rules = ALL) -> None:
        self._broker = broker
        self._nodes = nodes
        self._report = report
        self._rules = rules
        self._jobs = Jobs(broker.flusher)
        self._families: Final[dict[str, Family[Shard]]] = {family.topic.name: family for family in broker.families}
        self._led: dict[str, dict[int, Partition]] = {name: {} for name in self._families}
        self._watched: dict[Partition, Callable[[], None]] = {}
        self._expected: set[_Key] = set()
        """Led here, but not known to be committed yet."""
        self._loading_groups = 0
        """The number of partitions of groups that are being loaded."""

    # Finding coordinators.

    def node_of(self, group: str) -> NodeId:
        """The coordinator of a group; COORDINATOR_NOT_AVAILABLE if there is none."""
        return self._leader(OFFSETS_TOPIC, partition_of(group, self._made(OFFSETS_TOPIC).partition_count))

    def keys_node(self, topic: Topic) -> NodeId:
        """The coordinator of the produce keys of a topic; COORDINATOR_NOT_AVAILABLE if there is none."""
        return self._leader(
            IDEMPOTENCY_TOPIC, keys_partition(topic.topic_id, self._made(IDEMPOTENCY_TOPIC).partition_count)
        )

    def sinks_node(self) -> NodeId:
        """The coordinator of the sinks; COORDINATOR_NOT_AVAILABLE if there is none."""
        return self._leader(SINKS_TOPIC, 0)

    def _made(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise PenstockError(
                Reason.COORDINATOR_NOT_AVAILABLE,
                "The cluster has not created its internal topics yet; start more nodes, or try again in a moment",
            )
        return topic

    def _leader(self, family: str, index: int) -> NodeId:
        topics, names = self._broker.topics, co_led_topics(family)
        found = [topics.partition(topic, index) for name in names if (topic := topics.get(name)) is not None]
        leaders = {record.leader for record in found}
        # A leader that has restarted since its election coordinates nothing until it is elected again.
        if len(found) < len(names) or len(leaders) != 1 or not all(map(self._is_led, found)):
            raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, "No coordinator is available; try again in a moment")
        return NodeId(leaders.pop())

    def _is_led(self, record: PartitionRecord) -> bool:
        node = self._nodes.nodes.get(NodeId(record.leader))
        return node is not None and node.epoch == record.leader_node_epoch

    # Following the leadership.

    def lead(self, partition: Partition) -> None:
        """This node has become the leader of a partition."""
        led = self._led.get(partition.topic.name)
        if led is None:
            return
        led[partition.index] = partition
        self._look(partition.topic.name, partition.index)

    def resign(self, partition: Partition) -> None:
        """This node no longer leads a partition."""
        name, index = partition.topic.name, partition.index
        led = self._led.get(name)
        if led is None:
            return
        led.pop(index, None)
        self._unwatch(partition)
        self._expected.discard((co_led_topics(name)[0], index))
        for each in reversed(co_led_topics(name)):
            self._families[each].unload(index)

    def _look(self, name: str, index: int) -> None:
        """If this node leads all co-led partitions, load them once their records are known to be committed."""
        names = co_led_topics(name)
        key = names[0], index
        partitions = [found for each in names if (found := self._led[each].get(index)) is not None]
        if len(partitions) < len(names):
            return
        if index not in self._families[name].shards:
            self._expected.add(key)
            for each in names:
                self._families[each].expect(index)
        elif key not in self._expected:
            return
        unknown = [partition for partition in partitions if not self._is_known(partition)]
        for partition in unknown:
            if partition not in self._watched:
                self._watched[partition] = partial(self._look, name, index)
                partition.watch(self._watched[partition])
        if unknown:
            return
        for partition in partitions:
            self._unwatch(partition)
        self._expected.discard(key)
        self._loading_groups += OFFSETS_TOPIC in names
        self._jobs.start(partial(self._load, names, index, [self._families[each].shards[index] for each in names]))

    def _is_known(self, partition: Partition) -> bool:
        return partition.high_watermark >= partition.in_sync.epoch_start or not self._rules.replay_before_serving

    def finish_loading(self) -> None:
        """Load everything to the end. For a broker that is alone, which serves no clients before that."""
        self._jobs.finish()

    def _unwatch(self, partition: Partition) -> None:
        wake = self._watched.pop(partition, None)
        if wake is not None:
            partition.unwatch(wake)

    async def _load(self, names: tuple[str, ...], index: int, shards: Sequence[Shard]) -> None:
        try:
            for name, shard in zip(names, shards, strict=True):
                family = self._families[name]
                if family.shards.get(index) is shard:
                    family.begin_load(index)
                while family.shards.get(index) is shard and not family.load_some(index):
                    self._jobs.spend(TURN_BYTES)
                    await NEXT_TURN
        except PenstockError as error:
            # This node no longer leads, or its disk fails, and then it will not lead for long.
            self._report(f"{names[0]}/{index} cannot be loaded: {error.text}")
        if OFFSETS_TOPIC in names:
            self._loading_groups -= 1
            if not self._loading_groups:
                # Once for all partitions that were loaded at the same time.
                self._broker.awaited_groups.begin_all()
