"""Which groups, queues, produce keys and sinks this node coordinates: those of the internal partitions that it leads.

Partition i of the topics of offsets and of queue states belong together: one node coordinates what a group has in both. The controller
names one leader for the two; until it has, no node serves them. Produce keys are stored by topic, not by group, so ``__idempotency`` is
led independently. ``__sinks`` has one partition. The coordinator of the sinks reads, checks and cuts what is staged for them. So the staging
topics have the replicas of ``__sinks``, and the controller names the same leader for them.

Before anything is served, everything that an earlier leader may have promised must be committed: the high watermark must have reached the
end that the log had when this leader's epoch began. Then the log is replayed (``runtime.py``), after the turn of the event loop in which this
node was named: by then all topics that were made before are known, in whatever order the news came.
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
from penstock.core.topics.names import BUNDLE, IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, SINKS_TOPIC
from penstock.core.topics.records import PartitionRecord
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.ports import Report
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_Key = tuple[str, int]
"""The name of the first topic of those that belong together, and the number of the partition."""


def together(name: str) -> tuple[str, ...]:
    """The topics whose partitions of one number are coordinated by one node, in the order in which they are loaded."""
    return BUNDLE if name in BUNDLE else (name,)


class Coordinators:
    """Loads a shard when this node begins to lead its partition, and unloads it when that ends."""

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
        """Led here, and not known to be committed yet."""
        self._loading_groups = 0
        """Partitions of groups that are being loaded."""

    # Asking.

    def node_of(self, group: str) -> NodeId:
        """The coordinator of a group; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(OFFSETS_TOPIC, partition_of(group, self._made(OFFSETS_TOPIC).partition_count))

    def keys_node(self, topic: Topic) -> NodeId:
        """The coordinator of the produce keys of a topic; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(
            IDEMPOTENCY_TOPIC, keys_partition(topic.topic_id, self._made(IDEMPOTENCY_TOPIC).partition_count)
        )

    def sinks_node(self) -> NodeId:
        """The coordinator of sinks; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(SINKS_TOPIC, 0)

    def _made(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise PenstockError(
                Reason.COORDINATOR_NOT_AVAILABLE,
                "The cluster has not made its internal topics yet: too few nodes are up.",
            )
        return topic

    def _leader(self, family: str, index: int) -> NodeId:
        topics, names = self._broker.topics, together(family)
        found = [topics.partition(topic, index) for name in names if (topic := topics.get(name)) is not None]
        leaders = {record.leader for record in found}
        # A leader that was named before it started again coordinates nothing: it may be named again, or another node.
        if len(found) < len(names) or len(leaders) != 1 or not all(map(self._is_led, found)):
            raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, "No coordinator is available. Try again in a moment.")
        return NodeId(leaders.pop())

    def _is_led(self, record: PartitionRecord) -> bool:
        node = self._nodes.nodes.get(NodeId(record.leader))
        return node is not None and node.epoch == record.leader_node_epoch

    # Following who leads.

    def lead(self, partition: Partition) -> None:
        """This node leads a partition from now on."""
        led = self._led.get(partition.topic.name)
        if led is None:
            return
        led[partition.index] = partition
        self._look(partition.topic.name, partition.index)

    def resign(self, partition: Partition) -> None:
        """This node does not lead it any more."""
        name, index = partition.topic.name, partition.index
        led = self._led.get(name)
        if led is None:
            return
        led.pop(index, None)
        self._unwatch(partition)
        self._expected.discard((together(name)[0], index))
        for each in reversed(together(name)):
            self._families[each].unload(index)

    def _look(self, name: str, index: int) -> None:
        """Expect what belongs together, if all of it is led here, and load it once it is known to be committed."""
        names = together(name)
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
        """Load to the end what is being loaded: a broker that is alone has no other clients to serve meanwhile."""
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
            # Resigned, or the disk fails: then this node will not lead for long.
            self._report(f"{names[0]}/{index} cannot be loaded: {error.text}")
        if OFFSETS_TOPIC in names:
            self._loading_groups -= 1
            if not self._loading_groups:
                # Once for all that were loaded together.
                self._broker.awaited_groups.begin_all()
