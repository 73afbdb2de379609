"""Which partitions are selected, and where their replicas go: the plan that is shown before anything moves.

A plan that the cluster would refuse is refused here, before the question: a dry run ends as the run itself would. Partitions that must be led by one
node have the same replicas: if one of them is named, the others are added to the plan.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.failures import Exit, Failure
from penstock.cli.output import Row
from penstock.cli.places import partitions_there

if TYPE_CHECKING:
    from penstock.client import ClusterInfo, PartitionInfo, TopicPartition

STAYS: Final = "stays"


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One partition: which nodes have it now and then. The preferred leader is first."""

    topic: str
    partition: int
    now: tuple[int, ...]
    then: tuple[int, ...]

    @property
    def is_change(self) -> bool:
        """Whether anything changes."""
        return self.now != self.then

    def row(self) -> Row:
        """For the table."""
        adding = [node for node in self.then if node not in self.now]
        removing = [node for node in self.now if node not in self.then]
        words = [f"+{node}" for node in adding] + [f"-{node}" for node in removing]
        change = " ".join(words) or ("another order" if self.is_change else STAYS)
        return {
            "topic": self.topic,
            "partition": self.partition,
            "now": list(self.now),
            "then": list(self.then),
            "change": change,
        }


def parse_partition(text: str) -> tuple[str, int | None]:
    """``TOPIC`` or ``TOPIC/PARTITION``."""
    topic, slash, number = text.partition("/")
    if not topic or (slash and not (number.isascii() and number.isdigit() and len(number) < 10)):
        raise Failure(f"{text!r} is not a partition: write TOPIC, or TOPIC/PARTITION such as orders/0", Exit.USAGE)
    return topic, int(number) if slash else None


def parse_nodes(text: str, flag: str) -> tuple[int, ...]:
    """``1,2,3``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise Failure(f"{flag} {text!r}: write numbers of nodes, for example 1,2,3", Exit.USAGE)
    nodes = tuple(int(word) for word in words)
    if len(set(nodes)) < len(nodes):
        raise Failure(
            f"{flag} {text!r}: a node can have only one replica of a partition; list each node once", Exit.USAGE
        )
    return nodes


def chosen(info: "ClusterInfo", texts: Iterable[str]) -> "dict[TopicPartition, PartitionInfo]":
    """The named partitions; a failure for one that does not exist."""
    found: dict[TopicPartition, PartitionInfo] = {}
    for text in texts:
        topic, partition = parse_partition(text)
        if topic not in info.topics:
            raise Failure(f"Topic {topic!r} does not exist; see penstock topic ls", Exit.NOT_FOUND)
        there = info.topics[topic].partitions
        if partition is not None and partition >= len(there):
            numbers = [each.index for each in there]
            raise Failure(
                f"Partition {text} does not exist: topic {topic!r} {partitions_there(numbers)}", Exit.NOT_FOUND
            )
        found.update({(topic, each.index): each for each in there if partition in (None, each.index)})
    return found


def with_linked(info: "ClusterInfo", texts: Sequence[str]) -> tuple[list[str], str | None]:
    """What was named, with the partitions that must be moved with it; and why, if any were added."""
    from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC

    bundle = (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)
    places = list(texts)
    for text in texts:
        topic, slash, number = text.partition("/")
        if topic in bundle:
            places += [f"{other}{slash}{number}" for other in bundle if other != topic and other in info.topics]
    added = [place for place in dict.fromkeys(places) if place not in texts]
    if not added:
        return list(texts), None
    why = f"One node must lead both the offsets and the queues of a group, so {', '.join(added)} {'is' if len(added) == 1 else 'are'} moved as well"
    return [*texts, *added], why


def plan_to(
    partitions: "Mapping[TopicPartition, PartitionInfo]", nodes: Sequence[int], exact: Iterable[str]
) -> list[PlannedPartition]:
    """To these nodes. The list is rotated over the partitions of a topic, so that each node leads some; a partition that was named itself gets it as it is."""
    as_named = {parse_partition(text) for text in exact}
    planned = []
    for (topic, index), now in partitions.items():
        turn = 0 if (topic, index) in as_named else index % len(nodes)
        then = (*nodes[turn:], *nodes[:turn])
        planned.append(PlannedPartition(topic, index, now.replicas, tuple(then)))
    return planned


def check_plan(info: "ClusterInfo", planned: Iterable[PlannedPartition], draining: Collection[int]) -> None:
    """Fail for what the cluster would refuse: a new replica on a node that is down or being drained."""
    for each in planned:
        new = [node for node in each.then if node not in each.now]
        absent = [node for node in new if node not in info.nodes]
        if absent:
            raise Failure(
                f"Node {absent[0]} is not up, so {each.topic}/{each.partition} cannot be moved to it. {_up(info)}. Nothing was moved."
            )
        emptied = [node for node in new if node in draining]
        if emptied:
            raise Failure(
                f"Node {emptied[0]} is being drained and gets no new replicas. Name other nodes, or use it again with penstock cluster drain {emptied[0]} --undo. "
                "Nothing was moved."
            )


def _up(info: "ClusterInfo") -> str:
    if len(info.nodes) == 1:
        return f"Only node {next(iter(info.nodes))} is up: start other nodes"
    return f"Nodes that are up: {', '.join(map(str, sorted(info.nodes)))}"


def plan_count(
    info: "ClusterInfo",
    partitions: "Mapping[TopicPartition, PartitionInfo]",
    count: int,
    draining: Collection[int] = (),
) -> list[PlannedPartition]:
    """To this many replicas. Existing ones stay; new ones go to the nodes with the fewest, in racks that the partition is not in yet.

    Replicas are removed first from nodes that are being drained, then from those that are down, and neither get new ones. Partitions that belong together go to the same nodes.
    """
    from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC

    holds: Counter[int] = Counter()
    for topic in info.topics.values():
        for partition in topic.partitions:
            holds.update(partition.replicas)
    chooser = _Chooser(info, draining, holds)
    chosen_for: dict[TopicPartition, tuple[int, ...]] = {}
    for place, now in sorted(partitions.items(), key=lambda item: item[0][0] == QUEUE_STATE_TOPIC):
        first = (OFFSETS_TOPIC, place[1]) if place[0] == QUEUE_STATE_TOPIC else place
        chosen_for[place] = chosen_for.get(first) or chooser.chosen(now, count)
    return [
        PlannedPartition(topic, index, now.replicas, chosen_for[topic, index])
        for (topic, index), now in partitions.items()
    ]


class _Chooser:
    """Chooses the nodes of one partition after the other; each choice counts for the next."""

    def __init__(self, info: "ClusterInfo", draining: Collection[int], holds: Counter[int]) -> None:
        self._racks = {node.node_id: node.rack for node in info.nodes.values()}
        self._draining = draining
        self._able = [node for node in self._racks if node not in draining]
        self._holds = holds

    def chosen(self, now: "PartitionInfo", count: int) -> tuple[int, ...]:
        """This many nodes, the preferred leader first; a failure if there are too few."""
        able = sorted(
            (node for node in now.replicas if node in self._able),
            key=lambda node: (node != now.leader, node not in now.in_sync, now.replicas.index(node)),
        )
        down = [node for node in now.replicas if node not in self._racks and node not in self._draining]
        if not any(node in self._racks for node in now.in_sync):
            # Only these have everything that was acknowledged.
            keepers = [node for node in down if node in now.in_sync]
            able, down = keepers + able, [node for node in down if node not in keepers]
        # A node that is down may return soon, which is no reason to copy anything. But if replicas must be removed, its own go first.
        waits = len(now.replicas) <= count
        kept = (able + down if waits else able)[:count]
        then = [node for node in now.replicas if node in kept]
        while len(then) < count and (best := self._best(then, now.replicas)) is not None:
            self._holds[best] += 1
            then.append(best)
        emptied = sorted(
            (node for node in now.replicas if node in self._draining), key=lambda node: node not in self._racks
        )
        rest = [node for node in (*down, *emptied) if node not in then]
        if len(then) + len(rest) < count:
            raise self._too_few(count)
        stay = {*then, *rest[: count - len(then)]}
        return (*(node for node in now.replicas if node in stay), *(node for node in then if node not in now.replicas))

    def _best(self, then: Sequence[int], before: Sequence[int]) -> int | None:
        taken = Counter(self._racks.get(node) for node in then)
        return min(
            (node for node in self._able if node not in then and node not in before),
            key=lambda node: (taken[self._racks[node]] if self._racks[node] else 0, self._holds[node], node),
            default=None,
        )

    def _too_few(self, count: int) -> Failure:
        up = len(self._able)
        that = " and not being drained" if len(self._racks) > up else ""
        return Failure(
            f"{count} replicas need {count} nodes, but only {up} {'is' if up == 1 else 'are'} up{that}; start more nodes, or choose a lower replication factor",
            Exit.USAGE,
        )
