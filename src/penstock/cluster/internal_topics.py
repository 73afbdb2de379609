"""The controller makes the internal topics: with all their replicas once there are nodes enough, and with fewer when no more nodes come for a while.

Those that belong together (``core/coordinators/``) get the same replicas, partition by partition, so that one node can lead them. What was made with fewer
replicas grows when more nodes come (``core/cluster/moves.py``).
"""

import logging
from typing import Final

from penstock.core.broker import INTERNAL_CONFIGS, Broker
from penstock.core.cluster.records import target_of
from penstock.core.topics.names import GROUP_STATE_TOPICS, OFFSETS_TOPIC
from penstock.core.topics.topics import NewTopic
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

PATIENCE_MS: Final = 5_000
"""So long after the last node came it is waited for the next one. Nodes that are started together come within less."""


class InternalTopics:
    """A chore of the controller."""

    def __init__(self, broker: Broker, patience_ms: int = PATIENCE_MS) -> None:
        self._broker = broker
        self._nodes = broker.cluster.nodes
        self._patience_ms = patience_ms
        self._known: frozenset[int] = frozenset()
        self._changed_ms = 0

    async def make(self) -> float | None:
        """Make what is missing, if it can be; else in how many seconds to look again."""
        topics = self._broker.topics
        if all(family.topic.name in topics for family in self._broker.families):
            return None
        wait_ms = self._wait_ms()
        if wait_ms > 0:
            return wait_ms / 1000
        factor = min(topics.settings.replication_factor, len(self._nodes.racks()))
        if factor == 0:
            return None
        if factor < topics.settings.replication_factor:
            logger.warning(
                "the internal topics are created with %d of %d replicas, one per node; they get more when nodes are added",
                factor,
                topics.settings.replication_factor,
            )
        await self._make(factor)
        return None

    def _wait_ms(self) -> int:
        """How long more nodes are waited for; 0 when there are enough, or it was long enough."""
        if len(self._nodes.racks()) >= self._broker.topics.settings.replication_factor:
            return 0
        now_ms = self._broker.clock.monotonic_ms()
        known = frozenset(self._nodes.racks())
        if known != self._known:
            self._known, self._changed_ms = known, now_ms
        return max(0, self._changed_ms + self._patience_ms - now_ms)

    async def _make(self, factor: int) -> None:
        topics = self._broker.topics
        if OFFSETS_TOPIC not in topics:
            count = self._broker.settings.groups.offsets_topic_partitions
            await self._create(NewTopic(OFFSETS_TOPIC, count, factor, configs=INTERNAL_CONFIGS))
        offsets = topics.get(OFFSETS_TOPIC)
        if offsets is None:
            return
        replicas = {index: target_of(record) for index, record in enumerate(topics.partitions(offsets))}
        if not all(NodeId(node) in self._nodes.nodes for nodes in replicas.values() for node in nodes):
            # They can be made only where the others are, and one of these nodes is down.
            return
        for name in GROUP_STATE_TOPICS:
            if name not in topics:
                await self._create(NewTopic(name, configs=INTERNAL_CONFIGS, assignments=replicas))
        for topic in (family.topic for family in self._broker.families):
            if topic.name not in topics:
                await self._create(NewTopic(topic.name, topic.partition_count, factor, configs=INTERNAL_CONFIGS))

    async def _create(self, new: NewTopic) -> None:
        await self._broker.topics.create(new, internal=True, exist_ok=True)
