"""The controller makes the internal topics, once there are nodes enough for their replicas.

Those that belong together (``core/coordinators.py``) get the same replicas, partition by partition, so that one node can lead them.
"""

from penstock.core.broker import INTERNAL_CONFIGS, Broker
from penstock.core.coordinators import BUNDLE
from penstock.core.topic_names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, SINKS_TOPIC
from penstock.core.topics import NewTopic


class InternalTopics:
    """A chore of the controller."""

    def __init__(self, broker: Broker) -> None:
        assert broker.cluster is not None
        self._broker = broker
        self._nodes = broker.cluster.nodes

    async def make(self) -> None:
        """Make what is missing, if it can be."""
        topics = self._broker.topics
        missing = [name for name in (*BUNDLE, IDEMPOTENCY_TOPIC, SINKS_TOPIC) if name not in topics]
        if not missing or len(self._nodes.racks()) < topics.defaults.replication_factor:
            return
        if OFFSETS_TOPIC not in topics:
            count = self._broker.settings.groups.offsets_topic_partitions
            await topics.create(NewTopic(OFFSETS_TOPIC, count, configs=INTERNAL_CONFIGS), internal=True, exist_ok=True)
        offsets = topics.get(OFFSETS_TOPIC)
        if offsets is None:
            return
        replicas = {index: record.replicas for index, record in enumerate(topics.partitions(offsets))}
        for name in BUNDLE:
            if name not in topics:
                new = NewTopic(name, configs=INTERNAL_CONFIGS, assignments=replicas)
                await topics.create(new, internal=True, exist_ok=True)
        if IDEMPOTENCY_TOPIC not in topics:
            new = NewTopic(IDEMPOTENCY_TOPIC, offsets.partition_count, configs=INTERNAL_CONFIGS)
            await topics.create(new, internal=True, exist_ok=True)
        if SINKS_TOPIC not in topics:
            # They are few, and one commit of one of them is many records elsewhere.
            await topics.create(NewTopic(SINKS_TOPIC, 1, configs=INTERNAL_CONFIGS), internal=True, exist_ok=True)
