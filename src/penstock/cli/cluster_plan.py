"""Which partitions people mean, and where their replicas are to go: the plan that is shown before anything moves."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.cli.failures import Exit, Failure
from penstock.cli.output import Row
from penstock.cli.places import partitions_there

if TYPE_CHECKING:
    from penstock.client import ClusterInfo, PartitionInfo, TopicPartition

STAYS: Final = "stays"


@dataclass(frozen=True, slots=True)
class Planned:
    """One partition: who has it, and who is to have it. The preferred leader stands first."""

    topic: str
    partition: int
    now: tuple[int, ...]
    then: tuple[int, ...]

    @property
    def is_change(self) -> bool:
        """Whether anything is to be done."""
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


def parse_place(text: str) -> tuple[str, int | None]:
    """``TOPIC`` or ``TOPIC/PARTITION``."""
    topic, slash, number = text.partition("/")
    if not topic or (slash and not (number.isascii() and number.isdigit() and len(number) < 10)):
        raise Failure(f"{text!r} names no partition: write TOPIC, or TOPIC/PARTITION as orders/0", Exit.USAGE)
    return topic, int(number) if slash else None


def parse_nodes(text: str, flag: str) -> tuple[int, ...]:
    """``1,2,3``."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise Failure(f"{flag} {text!r}: write numbers of nodes, as 1,2,3", Exit.USAGE)
    nodes = tuple(int(word) for word in words)
    if len(set(nodes)) < len(nodes):
        raise Failure(f"{flag} {text!r}: a node has one replica of a partition at the most; name each once", Exit.USAGE)
    return nodes


def chosen(info: "ClusterInfo", texts: Iterable[str]) -> "dict[TopicPartition, PartitionInfo]":
    """The partitions that people named; a failure for one that there is not."""
    found: dict[TopicPartition, PartitionInfo] = {}
    for text in texts:
        topic, partition = parse_place(text)
        if topic not in info.topics:
            raise Failure(f"there is no topic {topic!r}; see penstock topic ls", Exit.NOT_FOUND)
        there = info.topics[topic].partitions
        if partition is not None and partition >= len(there):
            numbers = [each.index for each in there]
            raise Failure(f"there is no {text}: topic {topic!r} {partitions_there(numbers)}", Exit.NOT_FOUND)
        found.update({(topic, each.index): each for each in there if partition in (None, each.index)})
    return found


def plan_to(
    partitions: "Mapping[TopicPartition, PartitionInfo]", nodes: Sequence[int], exact: Iterable[str]
) -> list[Planned]:
    """To these nodes. Over the partitions of a topic the list is turned, so that each node leads some; one that was named itself gets it as it is."""
    as_named = {parse_place(text) for text in exact}
    planned = []
    for (topic, index), now in partitions.items():
        turn = 0 if (topic, index) in as_named else index % len(nodes)
        then = (*nodes[turn:], *nodes[:turn])
        planned.append(Planned(topic, index, now.replicas, tuple(then)))
    return planned


def plan_count(info: "ClusterInfo", partitions: "Mapping[TopicPartition, PartitionInfo]", count: int) -> list[Planned]:
    """To so many replicas: those that are there stay; more go where fewest are, in racks that the partition is not in yet."""
    if count > len(info.nodes):
        raise Failure(
            f"{count} replicas need {count} nodes, and {len(info.nodes)} are up; start more, or ask for fewer",
            Exit.USAGE,
        )
    holds: Counter[int] = Counter()
    for topic in info.topics.values():
        for partition in topic.partitions:
            holds.update(partition.replicas)
    planned = []
    for (topic_name, index), now in partitions.items():
        then = _shrunk(now, count) if len(now.replicas) > count else _grown(info, now.replicas, count, holds)
        planned.append(Planned(topic_name, index, now.replicas, then))
    return planned


def _shrunk(now: "PartitionInfo", count: int) -> tuple[int, ...]:
    # The leader first, then those in sync: what they have need not be copied.
    by_worth = sorted(
        now.replicas, key=lambda node: (node != now.leader, node not in now.in_sync, now.replicas.index(node))
    )
    kept = by_worth[:count]
    return tuple(node for node in now.replicas if node in kept)


def _grown(info: "ClusterInfo", replicas: tuple[int, ...], count: int, holds: Counter[int]) -> tuple[int, ...]:
    racks = {node.node_id: node.rack for node in info.nodes.values()}
    then = list(replicas)
    while len(then) < count:
        taken = Counter(racks.get(node) for node in then)
        rest = [node for node in racks if node not in then]
        if not rest:
            break
        best = min(rest, key=lambda node: (taken[racks[node]] if racks[node] else 0, holds[node], node))
        holds[best] += 1
        then.append(best)
    return tuple(then)
