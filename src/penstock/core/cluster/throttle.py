"""Kafka's replication throttle: a rate that is set on a broker while it runs limits the replicas that their topics list.

The leader's broker limits what it sends of replicas in ``leader.replication.throttled.replicas``, the follower's what it receives of those in
``follower.replication.throttled.replicas``. A replica in sync is never slowed: producers wait for it.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.cluster.budget import ByteBudget
from penstock.core.topics.config import ThrottledReplicas, TopicConfig
from penstock.types import NodeId


class Throttle:
    """One direction, on one node: a budget for all throttled replicas together."""

    __slots__ = ("_budget", "_listed", "_node_id")

    def __init__(self, node_id: NodeId, listed: Callable[[TopicConfig], ThrottledReplicas]) -> None:
        """``listed`` are the replicas of a topic that it applies to."""
        self._node_id: Final = node_id
        self._listed: Final = listed
        self._budget: ByteBudget | None = None

    def set_rate(self, bytes_per_second: int | None) -> None:
        """Limit the throttled replicas to this rate; None lifts the limit."""
        if bytes_per_second is None:
            self._budget = None
        elif self._budget is None:
            self._budget = ByteBudget(bytes_per_second)
        else:
            self._budget.bytes_per_second = bytes_per_second

    def budget(self, config: TopicConfig, partition: int) -> ByteBudget | None:
        """The budget of this node's replica while it is not in sync, or copied from; None when it is not throttled."""
        if self._budget is None or not self._listed(config).has(partition, self._node_id):
            return None
        return self._budget


def sending_throttle(node_id: NodeId) -> Throttle:
    """Of what this node sends as a leader."""
    return Throttle(node_id, lambda config: config.throttled_leaders)


def receiving_throttle(node_id: NodeId) -> Throttle:
    """Of what this node receives as a follower."""
    return Throttle(node_id, lambda config: config.throttled_followers)
