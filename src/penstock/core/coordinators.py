"""Which groups, queues, produce keys and sinks this node speaks for: those of the internal partitions that it leads.

Partition i of the topics of offsets and queue states belong together (a bundle): what a group has in both is looked after by one node.
The controller names one leader for the two; until it has, nobody serves them. Produce keys are by topic, not by group, so ``__idempotency``
stands alone. ``__sinks`` has one partition. What is staged for a sink is read, checked and cut by whoever speaks for the sinks, so the
staging topics have its replicas, and the controller names its leader for them too: everything but the targets is at hand then.

Before anything is served, everything that an earlier leader may have promised must be committed: the high watermark must have reached the
end that the log had when this leader's epoch began. Only then is the log replayed, a piece at a time. Until the end of that, whoever
asks is told COORDINATOR_LOAD_IN_PROGRESS. From the moment that a partition is led here no more, the answer is NOT_COORDINATOR, also for those who
wait, and nothing is written.

What is loaded is looked at only after the turn of the event loop in which this node was named: topics that were made before are known then,
in whatever order the news came.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.groups.storage import partition_of
from penstock.core.idempotency.stored import keys_partition
from penstock.core.partition import Partition
from penstock.core.replication.rules import ALL, Rules
from penstock.core.sinks.jobs import TURN_BYTES, Jobs, Steps
from penstock.core.topic_names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC
from penstock.core.topic_records import PartitionRecord
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.ports import Report
from penstock.types import NodeId, TopicName

if TYPE_CHECKING:
    from penstock.core.broker import Broker

BUNDLE: Final = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)
"""In the order in which they are loaded."""
_FAMILIES: Final[dict[str, tuple[TopicName, ...]]] = {
    OFFSETS_TOPIC: BUNDLE,
    QUEUE_STATE_TOPIC: BUNDLE,
    IDEMPOTENCY_TOPIC: (IDEMPOTENCY_TOPIC,),
    SINKS_TOPIC: (SINKS_TOPIC,),
}
"""What is served when all of it is led here; the first gives the family its name."""


class Taken:
    """What this node has taken on itself, until it resigns."""

    __slots__ = ("has_queues", "loading", "over")

    def __init__(self) -> None:
        self.loading = False
        """All of it is committed: it is being replayed, or was."""
        self.has_queues = False
        self.over = False


_Key = tuple[str, int]
"""The name of a family and the number of the partition."""


class Coordinators:
    """Loads and unloads what this node speaks for, as it comes to lead and ceases to."""

    def __init__(self, broker: "Broker", report: Report, rules: Rules = ALL) -> None:
        self._broker = broker
        self._report = report
        self._rules = rules
        self._jobs = Jobs(broker.flusher)
        self._led: dict[str, dict[int, Partition]] = {name: {} for name in _FAMILIES}
        self._watched: dict[Partition, Callable[[], None]] = {}
        self._taken: dict[_Key, Taken] = {}

    # Asking.

    def node_of(self, group: str) -> NodeId:
        """The node that speaks for a group; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(OFFSETS_TOPIC, partition_of(group, self._made(OFFSETS_TOPIC).partition_count))

    def keys_node(self, topic: Topic) -> NodeId:
        """The node that speaks for the produce keys of a topic; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(
            IDEMPOTENCY_TOPIC, keys_partition(topic.topic_id, self._made(IDEMPOTENCY_TOPIC).partition_count)
        )

    def sinks_node(self) -> NodeId:
        """The node that speaks for sinks; COORDINATOR_NOT_AVAILABLE while there is none."""
        return self._leader(SINKS_TOPIC, 0)

    def _made(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise PenstockError(
                Reason.COORDINATOR_NOT_AVAILABLE,
                "The internal topics of the cluster do not exist yet: too few nodes are up.",
            )
        return topic

    def _leader(self, family: str, index: int) -> NodeId:
        topics, names = self._broker.topics, _FAMILIES[family]
        found = [topics.partition(topic, index) for name in names if (topic := topics.get(name)) is not None]
        leaders = {record.leader for record in found}
        # One that is named in an earlier life speaks for nobody: it may be named again, or another.
        if len(found) < len(names) or len(leaders) != 1 or not all(map(self._is_led, found)):
            raise PenstockError(
                Reason.COORDINATOR_NOT_AVAILABLE, "No coordinator is available at the moment. Try again in a moment."
            )
        return NodeId(leaders.pop())

    def _is_led(self, record: PartitionRecord) -> bool:
        assert self._broker.cluster is not None
        node = self._broker.cluster.nodes.nodes.get(NodeId(record.leader))
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
        """It does not any more."""
        name, index = partition.topic.name, partition.index
        led = self._led.get(name)
        if led is None:
            return
        led.pop(index, None)
        self._unwatch(partition)
        self._let_go((_FAMILIES[name][0], index))

    def _look(self, name: str, index: int) -> None:
        """Take what belongs together, if all of it is led here, and load it once it is known to be committed."""
        names = _FAMILIES[name]
        key = names[0], index
        partitions = [found for each in names if (found := self._led[each].get(index)) is not None]
        if len(partitions) < len(names):
            return
        taken = self._taken.get(key)
        if taken is None:
            taken = self._taken[key] = Taken()
            self._expect(*key)
        elif taken.loading:
            return
        behind = [partition for partition in partitions if not self._is_known(partition)]
        for partition in behind:
            if partition not in self._watched:
                self._watched[partition] = partial(self._look, name, index)
                partition.watch(self._watched[partition])
        if behind:
            return
        for partition in partitions:
            self._unwatch(partition)
        taken.loading = True
        self._jobs.start(self._load(key, taken))

    def _is_known(self, partition: Partition) -> bool:
        in_sync = partition.in_sync
        if in_sync is None or not self._rules.replay_before_serving:
            return True
        return partition.high_watermark >= in_sync.epoch_start

    def _unwatch(self, partition: Partition) -> None:
        wake = self._watched.pop(partition, None)
        if wake is not None:
            partition.unwatch(wake)

    def _expect(self, family: str, index: int) -> None:
        broker = self._broker
        if family == SINKS_TOPIC:
            broker.sinks.expect()
        elif family == IDEMPOTENCY_TOPIC:
            broker.idempotency.expect(index)
        else:
            broker.groups.expect(index)

    def _load(self, key: _Key, taken: Taken) -> Steps[None]:
        try:
            yield from self._load_all(key, taken)
        except PenstockError as error:
            # Resigned, or the disk fails: then this node will not lead for long.
            self._report(f"{key[0]}/{key[1]} cannot be loaded: {error.text}")

    def _load_all(self, key: _Key, taken: Taken) -> Steps[None]:
        broker, (family, index) = self._broker, key
        if _is_over(taken):
            return
        if family == SINKS_TOPIC:
            broker.sinks.begin_load([index])
            load_some = broker.sinks.load_some
        elif family == IDEMPOTENCY_TOPIC:
            broker.idempotency.begin_load(index)
            load_some = partial(broker.idempotency.load_some, index)
        else:
            broker.groups.begin_load(index)
            load_some = partial(broker.groups.load_some, index)
        while not load_some():
            self._jobs.spend(TURN_BYTES)
            yield None
            if _is_over(taken):
                return
        if family == OFFSETS_TOPIC and index in broker.groups.loaded_partitions:
            taken.has_queues = True
            broker.queues.begin_load(index)
            while not broker.queues.load_some(index):
                self._jobs.spend(TURN_BYTES)
                yield None
                if _is_over(taken):
                    return
            broker.awaited_groups.begin_all()

    def _let_go(self, key: _Key) -> None:
        taken = self._taken.pop(key, None)
        if taken is None:
            return
        taken.over = True
        broker, (family, index) = self._broker, key
        if family == SINKS_TOPIC:
            broker.sinks.unload()
        elif family == IDEMPOTENCY_TOPIC:
            broker.idempotency.unload(index)
        else:
            if taken.has_queues:
                broker.queues.unload(index)
            broker.groups.unload(index)


def _is_over(taken: Taken) -> bool:
    """Asked anew each time: this node may have resigned while others had their turn."""
    return taken.over
