"""How fast this node copies what it follows: throttled replicas that are not in sync share one budget, all others are not limited."""

from typing import Final

from penstock.core.cluster.budget import ByteBudget
from penstock.core.cluster.follower import Follower
from penstock.core.cluster.replicas import Replicas
from penstock.core.topics.topics import Topics
from penstock.limits import MIB
from penstock.ports import Clock
from penstock.types import NodeId

PARTITION_BYTES_MAX: Final = 4 * MIB
_WAIT_MS_MAX: Final = 1_000
"""A partition that waits for its share looks again after this: the limit may be gone by then."""


class Receiving:
    """Asked before each fetch of a partition, and told what came."""

    def __init__(self, node_id: NodeId, replicas: Replicas, topics: Topics, clock: Clock) -> None:
        self._node_id: Final = node_id
        self._replicas = replicas
        self._topics = topics
        self._clock = clock

    def wait_ms(self, follower: Follower) -> int:
        """How long this one must wait before it asks again; 0 when it may ask now."""
        budget = self._budget(follower)
        if budget is None or budget.left(self._clock.monotonic_ms()) > 0:
            return 0
        return min(budget.empty_ms(), _WAIT_MS_MAX)

    def bytes_max(self, follower: Follower) -> int:
        """How much it may ask for."""
        budget = self._budget(follower)
        if budget is None:
            return PARTITION_BYTES_MAX
        return min(PARTITION_BYTES_MAX, max(1, budget.left(self._clock.monotonic_ms())))

    def received(self, follower: Follower, count: int) -> None:
        """So many bytes came."""
        budget = self._budget(follower)
        if budget is not None:
            budget.take(count)

    def _budget(self, follower: Follower) -> ByteBudget | None:
        budget = self._replicas.receiving.budget(follower.topic.config, follower.index)
        if budget is None or follower.is_observer:
            return None
        record = self._topics.partition(follower.topic, follower.index)
        return None if (self._node_id, self._replicas.node_epoch) in record.isr else budget
