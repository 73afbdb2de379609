"""Moves of partitions that the controller begins: from nodes that are being drained, and of internal partitions with too few replicas.

A drained node's replica moves to the node with the fewest partitions, in a rack that has no replica of the partition yet. A node that is
both dead and drained loses its replicas too: this is how an operator replaces it. Internal topics that were created when there were
fewer nodes grow to the cluster's replication factor; the topics of users do not. Co-led partitions have the same replicas, so they move
to the same nodes.

The number of simultaneous moves is limited: if all partitions moved at once, none would be finished soon.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from penstock.core.cluster.decisions import Decision, TopicAndIndex, co_led
from penstock.core.cluster.image import ClusterImage
from penstock.core.cluster.reassignment import moved
from penstock.core.cluster.records import target_of
from penstock.core.topics.records import PartitionRecord
from penstock.core.topics.topics import Topic, Topics
from penstock.errors import PenstockError

MOVES_MAX: Final = 64
"""Moves under way at the same time, whether begun here or by an operator."""


class MovePlan:
    """The moves that the cluster needs at this moment. Call ``decisions`` only once."""

    def __init__(self, topics: Topics, nodes: ClusterImage, replication_factor: int) -> None:
        self._topics = topics
        self._racks = nodes.racks()
        self._live = nodes.live()
        self._draining: Collection[int] = nodes.draining
        self._avoided: Collection[int] = nodes.avoided()
        self._factor = replication_factor
        self._leads: Counter[int] = Counter()
        self._holds: Counter[int] = Counter()
        self._targets: dict[tuple[str, int], tuple[int, ...]] = {}

    def decisions(self, moves_max: int = MOVES_MAX) -> Iterator[Decision]:
        """The moves to begin now."""
        wanted: list[TopicAndIndex] = []
        room = moves_max
        for topic in self._topics:
            for index, record in enumerate(self._topics.partitions(topic)):
                target = target_of(record)
                self._holds.update(target)
                self._leads.update(target[:1])
                # A move that waits for a node that is down needs no bandwidth.
                room -= any(node in self._live for node in record.adding)
                if self._is_misplaced(topic, index, target):
                    wanted.append((topic, index))
        wanted.sort(key=self._order)
        for topic, index in wanted:
            if room <= 0:
                return
            decision = self._decided(topic, index)
            if decision is not None:
                room -= bool(decision.record.adding)
                yield decision

    def _order(self, partition: TopicAndIndex) -> tuple[str, int, bool]:
        """Sorts co-led partitions next to each other, the one that decides for the others first."""
        topic, index = co_led(self._topics, *partition)[0]
        return topic.name, index, partition != (topic, index)

    def _is_misplaced(self, topic: Topic, index: int, target: tuple[int, ...]) -> bool:
        if not target:
            return False
        if any(node in self._draining for node in target) or self._lacks(topic, target):
            return True
        first = co_led(self._topics, topic, index)[0]
        return first != (topic, index) and self._target(*first) != target

    def _lacks(self, topic: Topic, target: tuple[int, ...]) -> bool:
        """Whether it is an internal topic that could have more replicas."""
        return topic.internal and len(target) < self._factor <= len({*target, *self._racks} - set(self._draining))

    def _target(self, topic: Topic, index: int) -> tuple[int, ...]:
        """The future replicas of a partition, including the decisions so far."""
        known = self._targets.get((topic.name, index))
        return target_of(self._topics.partition(topic, index)) if known is None else known

    def _decided(self, topic: Topic, index: int) -> Decision | None:
        record = self._topics.partition(topic, index)
        before = target_of(record)
        first = co_led(self._topics, topic, index)[0]
        if first == (topic, index):
            after = self._placed(before)
            if self._lacks(topic, after):
                after = self._grown(after)
        else:
            after = self._target(*first)
        if after == before:
            return None
        try:
            changed = moved(record, after, self._live, topic.min_in_sync, self._avoided)
        except PenstockError:
            # No in-sync replica would be left. Try again later.
            return None
        self._targets[topic.name, index] = after
        self._holds.subtract(before)
        self._holds.update(after)
        self._leads.subtract(before[:1])
        self._leads.update(after[:1])
        return Decision(topic, index, self._topics.partition_epoch(topic, index), changed)

    def _placed(self, target: tuple[int, ...]) -> tuple[int, ...]:
        """The target with drained nodes replaced, as far as other nodes can take over."""
        after = list(target)
        for position, node in enumerate(target):
            if node in self._draining:
                kept = [each for each in after if each not in self._draining]
                other = self._next(kept, after, leads=position == 0)
                if other is not None:
                    after[position] = other
        return tuple(after)

    def _grown(self, target: tuple[int, ...]) -> tuple[int, ...]:
        """The target with as many replicas as configured. The preferred leader is the one that leads the fewest partitions."""
        after = list(target)
        while len(after) < self._factor:
            other = self._next(after, after, leads=False)
            if other is None:
                return target
            after.append(other)
        return tuple(sorted(after, key=lambda node: self._leads[node] + (node in self._avoided)))

    def _next(self, kept: Collection[int], taken: Collection[int], *, leads: bool) -> int | None:
        """The best node for one more replica; None if there is none."""
        rack_of: Mapping[int, str | None] = self._racks
        if any(rack is None for rack in rack_of.values()):
            rack_of = dict.fromkeys(rack_of)
        racks = Counter(rack_of.get(node) for node in kept)
        able = [node for node in self._racks if node not in taken]
        return min(
            able,
            key=lambda node: (racks[rack_of[node]], self._leads[node] if leads else 0, self._holds[node], node),
            default=None,
        )


def factor_of(records: Collection[PartitionRecord]) -> int | None:
    """The replication factor of a topic; None while some of its partitions are moving, or unknown."""
    if any(record.adding or record.removing or not record.replicas for record in records):
        return None
    return max((len(record.replicas) for record in records), default=None)
