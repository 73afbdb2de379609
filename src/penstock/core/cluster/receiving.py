"""Limits how fast this node copies partitions: throttled replicas that are not in sync share one budget, all others are unlimited."""

from typing import Final

from penstock.core.cluster.follower import Follower
from penstock.core.cluster.replicas import Replicas
from penstock.core.cluster.throttle import ByteBudget
from penstock.core.topics.topics import Topics
from penstock.limits import MIB
from penstock.ports import Clock
from penstock.types import NodeId

PARTITION_BYTES_MAX: Final = 4 * MIB
_WAIT_MS_MAX: Final = 1_000
"""After this time, a throttled partition checks again, since the limit may have been lifted."""


class Receiving:
    """The limits on fetch requests. Every received byte is counted."""

    def __init__(self, node_id: NodeId, replicas: Replicas, topics: Topics, clock: Clock) -> None:
        self._node_id: Final = node_id
        self._replicas = replicas
        self._topics = topics
        self._clock = clock

    def wait_ms(self, follower: Follower) -> int:
        """How long a partition must wait before its next fetch; 0 if it may fetch now."""
        budget = self._budget(follower)
        if budget is None or budget.left(self._clock.monotonic_ms()) > 0:
            return 0
        return min(budget.empty_ms(), _WAIT_MS_MAX)

    def bytes_max(self, follower: Follower) -> int:
        """The maximum bytes to request."""
        budget = self._budget(follower)
        if budget is None:
            return PARTITION_BYTES_MAX
        return min(PARTITION_BYTES_MAX, max(1, budget.left(self._clock.monotonic_ms())))

    def received(self, follower: Follower, count: int) -> None:
        """This many bytes were received."""
        budget = self._budget(follower)
        if budget is not None:
            budget.take(count)

    def _budget(self, follower: Follower) -> ByteBudget | None:
        budget = self._replicas.receiving.budget(follower.topic.config, follower.index)
        if budget is None or follower.is_observer:
            return None
        record = self._topics.partition(follower.topic, follower.index)
        return None if (self._node_id, self._replicas.node_epoch) in record.isr else budget
