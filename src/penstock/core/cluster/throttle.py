"""Limits on the rate at which replicas that are not in sync are copied. A replica in sync is never slowed, because producers wait for it.

Kafka's replication throttle is a rate that is set on a broker while it runs. The leader's broker limits what it sends to the replicas in
``leader.replication.throttled.replicas`` of their topics, the follower's what it receives for those in
``follower.replication.throttled.replicas``. A rate is for all partitions of a node together, with bursts of at most one second.
"""

from collections.abc import Callable
from typing import Final

from penstock.core.topics.config import ThrottledReplicas, TopicConfig
from penstock.types import NodeId


class ByteBudget:
    """The bytes that may be copied now: it refills with time. The last batch may overdraw it. Times are monotonic."""

    __slots__ = ("_left", "_now_ms", "bytes_per_second")

    def __init__(self, bytes_per_second: int) -> None:
        assert bytes_per_second > 0, "nothing would ever be copied"
        self.bytes_per_second = bytes_per_second
        """May change at any time."""
        self._left = float(bytes_per_second)
        self._now_ms: int | None = None

    def left(self, now_ms: int) -> int:
        """How many bytes may be copied now; 0 if none."""
        earned = 0.0
        if self._now_ms is not None and now_ms > self._now_ms:
            earned = (now_ms - self._now_ms) * self.bytes_per_second / 1000
        self._left = min(self._left + earned, float(self.bytes_per_second))
        self._now_ms = now_ms if self._now_ms is None else max(now_ms, self._now_ms)
        return max(0, int(self._left))

    def take(self, count: int) -> None:
        """This many bytes were copied."""
        self._left -= count

    def empty_ms(self) -> int:
        """How long the budget stays empty, after :meth:`left` returned 0."""
        return max(1, int((1 - self._left) * 1000 / self.bytes_per_second) + 1)


class Throttle:
    """One direction on one node: a budget for all throttled replicas together."""

    __slots__ = ("_budget", "_listed", "_node_id")

    def __init__(self, node_id: NodeId, listed: Callable[[TopicConfig], ThrottledReplicas]) -> None:
        """``listed`` returns the throttled replicas of a topic."""
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
        """The budget for this node's replica of a partition; None if it is not throttled."""
        if self._budget is None or not self._listed(config).has(partition, self._node_id):
            return None
        return self._budget
