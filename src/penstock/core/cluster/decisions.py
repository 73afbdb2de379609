"""The decisions of a controller: how the records of partitions should change, given the live nodes. Nothing here waits or writes.

For each partition one change at a time, the most urgent first: replace a leader that is gone; complete a move; replace a leader that is
draining or stopping; remove in-sync replicas that are gone; give co-led partitions the same leader. Returning leadership to preferred
replicas is not urgent: :func:`balance` does a part of it at a time.

Co-led partitions must have the same leader, since they contain the state of one coordinator (``core/coordinators/``). An election
prefers a node that is in sync for all of them, so that no second election is needed.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from penstock.core.cluster.election import LiveNodes, elected, is_led, preferred, tidied, wants_preferred
from penstock.core.cluster.records import can_complete, completed, without_eligible
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.names import GROUP_STATE_TOPICS, SINKS_TOPIC, is_staging
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.core.topics.topics import Topic, Topics

TopicAndIndex = tuple[Topic, int]
"""A topic and the index of one of its partitions."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The new record of a partition. It is written only if the partition's epoch is still ``epoch``."""

    topic: Topic
    index: int
    epoch: int
    record: PartitionRecord


def co_led(topics: Topics, topic: Topic, index: int) -> list[TopicAndIndex]:
    """The partitions that must have the same leader as this one, including itself. The first one decides for the others."""
    if topic.name in GROUP_STATE_TOPICS:
        found = [each for name in GROUP_STATE_TOPICS if (each := topics.get(name)) is not None]
        return [(each, index) for each in found if index < each.partition_count]
    if is_staging(topic.name) and (sinks := topics.get(SINKS_TOPIC)) is not None:
        return [(sinks, 0), (topic, index)]
    return [(topic, index)]


def affected(topics: Topics, topic: Topic, index: int) -> Iterator[TopicAndIndex]:
    """The partitions that a change of this one may affect."""
    if topic.name == SINKS_TOPIC:
        yield topic, index
        for each in topics:
            if is_staging(each.name):
                yield from ((each, number) for number in range(each.partition_count))
    else:
        yield from co_led(topics, topic, index)


def decide(
    topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int], *, rules: Rules = ALL
) -> Decision | None:
    """The change that a partition needs; None if there is none. Nodes in ``avoided`` lead only if no other node can.

    The topic is looked up again, as it may have changed since the decision was scheduled.
    """
    now = topics.get_by_id(topic.topic_id)
    if now is None or index >= now.partition_count:
        return None
    topic, record = now, topics.partition(now, index)
    if not record.replicas:
        return None
    wanted = _wanted(topics, topic, index, record, live, avoided, rules)
    if wanted == record:
        return None
    return Decision(topic, index, topics.partition_epoch(topic, index), wanted)


def _wanted(
    topics: Topics,
    topic: Topic,
    index: int,
    record: PartitionRecord,
    live: LiveNodes,
    avoided: Collection[int],
    rules: Rules,
) -> PartitionRecord:
    minimum = topic.min_in_sync
    if not is_led(record, live):
        avoid = _avoid(topics, topic, index, live, avoided)
        return elected(record, live, minimum, avoid=avoid, unclean=topic.config.unclean_election, rules=rules)
    tidy = tidied(record, live, minimum)
    if can_complete(tidy):
        done = completed(tidy)
        if done.leader in done.replicas:
            return done
        return elected(done, live, minimum, avoid=_avoid(topics, topic, index, live, avoided), rules=rules)
    if record.leader in avoided:
        moved = elected(tidy, live, minimum, avoid=_avoid(topics, topic, index, live, avoided), rules=rules)
        if moved.leader not in (record.leader, NO_LEADER):
            return moved
    common = _common_leader(topics, topic, index, live, avoided)
    if common not in (None, record.leader):
        return elected(tidy, live, minimum, avoid=_others(record, common), rules=rules)
    return without_eligible(tidy, minimum)


def _others(record: PartitionRecord, node: int | None) -> list[int]:
    return [each for each in record.replicas if each != node]


def _able(records: Iterable[PartitionRecord], live: LiveNodes, avoided: Collection[int]) -> list[int]:
    """The nodes that may lead all of them, in the order of the first one's replicas."""
    found = list(records)
    return [
        node
        for node in found[0].replicas
        if node not in avoided and all((node, live.get(node)) in each.isr for each in found)
    ]


def _avoid(topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int]) -> Collection[int]:
    """The nodes that an election should avoid."""
    partitions = co_led(topics, topic, index)
    if len(partitions) == 1:
        return avoided
    records = [topics.partition(*partition) for partition in partitions]
    able = _able(records, live, avoided)
    if is_staging(topic.name):
        # The leader of the sinks is preferred, or the node that is about to be.
        decided = decide(topics, *partitions[0], live, avoided)
        leader = (records[0] if decided is None else decided.record).leader
        able = [leader] if leader in able else able
    return [node for node in topics.partition(topic, index).replicas if node not in able] if able else avoided


def _common_leader(topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int]) -> int | None:
    """The node that should lead all co-led partitions; None if they have the same leader already, or no node can."""
    partitions = co_led(topics, topic, index)
    records = [topics.partition(*partition) for partition in partitions]
    leaders = {each.leader for each in records}
    if len(leaders) == 1:
        return None
    able = _able(records, live, avoided)
    if is_staging(topic.name):
        return records[0].leader if records[0].leader in able else None
    if not able:
        return None
    # A node that leads one of them already, that of the first topic before others.
    leading = [each.leader for each in records if each.leader in able]
    return (leading or able)[0]


def decide_all(
    topics: Topics, places: Iterable[TopicAndIndex], live: LiveNodes, avoided: Collection[int], *, rules: Rules = ALL
) -> list[Decision]:
    """The changes that these partitions need."""
    found = (decide(topics, topic, index, live, avoided, rules=rules) for topic, index in places)
    return [decision for decision in found if decision is not None]


def balance(
    topics: Topics, places: Iterable[TopicAndIndex], live: LiveNodes, avoided: Collection[int], count_max: int
) -> Iterator[Decision]:
    """Return the leadership of about ``count_max`` partitions to the preferred replicas. After each move, clients look for the new leader.

    Only partitions without more urgent decisions, and co-led partitions at the same time.
    """
    count = 0
    for topic, index in places:
        partitions = co_led(topics, topic, index)
        if partitions[0] != (topic, index):
            continue
        decisions = list(_returned(topics, partitions, live, avoided))
        yield from decisions
        count += len(decisions)
        if count >= count_max:
            return


def _returned(
    topics: Topics, partitions: list[TopicAndIndex], live: LiveNodes, avoided: Collection[int]
) -> Iterator[Decision]:
    records = [topics.partition(*partition) for partition in partitions]
    home = preferred(records[0])
    if not wants_preferred(records[0], live, avoided) or home not in _able(records, live, avoided):
        return
    if any(decide(topics, *partition, live, avoided) is not None for partition in partitions):
        return
    for (topic, index), record in zip(partitions, records, strict=True):
        back = elected(record, live, topic.min_in_sync, avoid=_others(record, home))
        yield Decision(topic, index, topics.partition_epoch(topic, index), back)
