"""Creates the internal topics, a task of the controller: with all replicas if there are enough nodes, with fewer if no more nodes come for a while.

Co-led partitions (``core/coordinators/``) get the same replicas, so that one node can lead them. Topics with fewer replicas get more when
nodes are added (``core/cluster/moves.py``).
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
"""How long to wait for another node after the last one came. Nodes that are started at the same time need less."""


class InternalTopics:
    """A task of the controller."""

    def __init__(self, broker: Broker, patience_ms: int = PATIENCE_MS) -> None:
        self._broker = broker
        self._nodes = broker.cluster.nodes
        self._patience_ms = patience_ms
        self._known: frozenset[int] = frozenset()
        self._changed_ms = 0

    async def make(self) -> float | None:
        """Create the missing topics if possible; otherwise returns the seconds until the next attempt."""
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
        """How long to wait for more nodes; 0 if there are enough, or the wait is over."""
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
            # They must be on the same nodes, and one of these is down.
            return
        for name in GROUP_STATE_TOPICS:
            if name not in topics:
                await self._create(NewTopic(name, configs=INTERNAL_CONFIGS, assignments=replicas))
        for topic in (family.topic for family in self._broker.families):
            if topic.name not in topics:
                await self._create(NewTopic(topic.name, topic.partition_count, factor, configs=INTERNAL_CONFIGS))

    async def _create(self, new: NewTopic) -> None:
        await self._broker.topics.create(new, internal=True, exist_ok=True)
