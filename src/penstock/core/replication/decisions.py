"""What a controller decides: which records should be other than they are, given the nodes that are up. Nothing here waits or writes.

Of each partition one thing at a time, the most urgent first: a move that can be completed; a leader that is gone, or should lead
nothing; members of the in-sync set that are gone; a bundle that is led by several nodes; leadership that belongs elsewhere.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from penstock.core.coordinators import BUNDLE
from penstock.core.replication.election import LiveNodes, elected, is_led, preferred, tidied, wants_preferred
from penstock.core.replication.records import can_complete, completed
from penstock.core.replication.rules import ALL, Rules
from penstock.core.topic_image import Topic, TopicImage
from penstock.core.topic_records import NO_LEADER, PartitionRecord


@dataclass(frozen=True, slots=True)
class Decision:
    """A record as it should be. It is written only if the partition's epoch is still ``epoch``."""

    topic: Topic
    index: int
    epoch: int
    record: PartitionRecord


def decide(
    topics: TopicImage,
    topic: Topic,
    index: int,
    live: LiveNodes,
    avoided: Collection[int],
    *,
    balance: bool = False,
    rules: Rules = ALL,
) -> Decision | None:
    """What to change about a partition; None when it is as it should be. ``balance`` also gives leadership back to where it belongs."""
    record = topics.partition(topic, index)
    wanted = _wanted(topics, topic, index, record, live, avoided, balance, rules)
    if wanted == record:
        return None
    return Decision(topic, index, topics.partition_epoch(topic, index), wanted)


def _wanted(
    topics: TopicImage,
    topic: Topic,
    index: int,
    record: PartitionRecord,
    live: LiveNodes,
    avoided: Collection[int],
    balance: bool,
    rules: Rules,
) -> PartitionRecord:
    if not record.replicas:
        return record
    minimum = topic.min_in_sync
    if can_complete(record):
        done = completed(record)
        return elected(done, live, minimum, avoid=avoided, rules=rules) if done.leader not in done.replicas else done
    if not is_led(record, live):
        return elected(record, live, minimum, avoid=avoided, rules=rules)
    tidy = tidied(record, live, minimum)
    if record.leader in avoided:
        moved = elected(tidy, live, minimum, avoid=avoided, rules=rules)
        if moved.leader not in (record.leader, NO_LEADER):
            return moved
    if topic.name in BUNDLE:
        together = _together(topics, index, live, avoided)
        if together is not None and together != record.leader:
            others = [node for node in record.replicas if node != together]
            return elected(tidy, live, minimum, avoid=others, rules=rules)
    elif balance and wants_preferred(record, live, avoided):
        others = [node for node in record.replicas if node != preferred(record)]
        return elected(tidy, live, minimum, avoid=others, rules=rules)
    return tidy


def _together(topics: TopicImage, index: int, live: LiveNodes, avoided: Collection[int]) -> int | None:
    """Who should lead the partition because it leads those that belong with it; None when it is all the same, or nobody can."""
    family = [found for name in BUNDLE if (found := topics.get(name)) is not None and index < found.partition_count]
    records = [topics.partition(each, index) for each in family]
    leaders = {each.leader for each in records}
    if len(leaders) == 1:
        return None
    able = [
        node
        for node in records[0].replicas
        if node not in avoided and all((node, live.get(node)) in each.isr for each in records)
    ]
    if not able:
        return None
    # Who leads one of them already is spared a move; the first topic's leader is everybody's choice then.
    leading = [each.leader for each in records if each.leader in able]
    return (leading or able)[0]


def decide_all(
    topics: TopicImage,
    places: Iterable[tuple[Topic, int]],
    live: LiveNodes,
    avoided: Collection[int],
    *,
    balance: bool = False,
    rules: Rules = ALL,
) -> list[Decision]:
    """What to change about these partitions."""
    found = (decide(topics, topic, index, live, avoided, balance=balance, rules=rules) for topic, index in places)
    return [decision for decision in found if decision is not None]
