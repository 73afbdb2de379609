"""What a controller decides: which records should be other than they are, given the nodes that are up. Nothing here waits or writes.

Of each partition one thing at a time, the most urgent first: a leader that is gone; a move that can be completed; a leader that should lead nothing; members of the
in-sync set that are gone; partitions that belong together (``core/coordinators/``) and are led by several nodes. Leadership that belongs elsewhere can
wait: :func:`balance` gives some of it back at a time.

What belongs together is elected together: a node that is in sync for all of it comes first, so that nobody waits for a second election.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from penstock.core.cluster.election import LiveNodes, elected, is_led, preferred, tidied, wants_preferred
from penstock.core.cluster.records import can_complete, completed, without_eligible
from penstock.core.cluster.rules import ALL, Rules
from penstock.core.topics.names import BUNDLE, SINKS_TOPIC, is_staging
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.core.topics.topics import Topic, Topics

Seat = tuple[Topic, int]
"""A topic and the number of one of its partitions."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A record as it should be. It is written only if the partition's epoch is still ``epoch``."""

    topic: Topic
    index: int
    epoch: int
    record: PartitionRecord


def family(topics: Topics, topic: Topic, index: int) -> list[Seat]:
    """The partitions that must have the same leader as this one, itself too; the first is the one that the others go by."""
    if topic.name in BUNDLE:
        found = [each for name in BUNDLE if (each := topics.get(name)) is not None]
        return [(each, index) for each in found if index < each.partition_count]
    if is_staging(topic.name) and (sinks := topics.get(SINKS_TOPIC)) is not None:
        return [(sinks, 0), (topic, index)]
    return [(topic, index)]


def touched(topics: Topics, topic: Topic, index: int) -> Iterator[Seat]:
    """The partitions to look at because of a change of this one."""
    if topic.name == SINKS_TOPIC:
        yield topic, index
        for each in topics:
            if is_staging(each.name):
                yield from ((each, number) for number in range(each.partition_count))
    else:
        yield from family(topics, topic, index)


def decide(
    topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int], *, rules: Rules = ALL
) -> Decision | None:
    """What to change about a partition; None when it is as it should be. ``avoided`` are nodes that lead only if nobody else can.

    The topic is taken as it is now, whatever it was when somebody noted that there is something to decide.
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
    """Who may lead all of them, in the order of the first one's replicas."""
    found = list(records)
    return [
        node
        for node in found[0].replicas
        if node not in avoided and all((node, live.get(node)) in each.isr for each in found)
    ]


def _avoid(topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int]) -> Collection[int]:
    """Whom an election passes over while there is anybody else."""
    seats = family(topics, topic, index)
    if len(seats) == 1:
        return avoided
    records = [topics.partition(*seat) for seat in seats]
    able = _able(records, live, avoided)
    if is_staging(topic.name):
        # It follows: first of all, whoever leads the other, or is about to.
        decided = decide(topics, *seats[0], live, avoided)
        leader = (records[0] if decided is None else decided.record).leader
        able = [leader] if leader in able else able
    return [node for node in topics.partition(topic, index).replicas if node not in able] if able else avoided


def _common_leader(topics: Topics, topic: Topic, index: int, live: LiveNodes, avoided: Collection[int]) -> int | None:
    """Who should lead the partition because it leads those that belong with it; None when it is all the same, or nobody can."""
    seats = family(topics, topic, index)
    records = [topics.partition(*seat) for seat in seats]
    leaders = {each.leader for each in records}
    if len(leaders) == 1:
        return None
    able = _able(records, live, avoided)
    if is_staging(topic.name):
        return records[0].leader if records[0].leader in able else None
    if not able:
        return None
    # Who leads one of them already is spared a move; the first topic's leader is everybody's choice then.
    leading = [each.leader for each in records if each.leader in able]
    return (leading or able)[0]


def decide_all(
    topics: Topics, places: Iterable[Seat], live: LiveNodes, avoided: Collection[int], *, rules: Rules = ALL
) -> list[Decision]:
    """What to change about these partitions."""
    found = (decide(topics, topic, index, live, avoided, rules=rules) for topic, index in places)
    return [decision for decision in found if decision is not None]


def balance(
    topics: Topics, places: Iterable[Seat], live: LiveNodes, avoided: Collection[int], count_max: int
) -> Iterator[Decision]:
    """Give leadership back to where it belongs, of about ``count_max`` partitions: each move makes clients look for the new leader.

    Only partitions of which nothing more urgent is to be decided, and what belongs together goes together.
    """
    count = 0
    for topic, index in places:
        seats = family(topics, topic, index)
        if seats[0] != (topic, index):
            continue
        decisions = list(_returned(topics, seats, live, avoided))
        yield from decisions
        count += len(decisions)
        if count >= count_max:
            return


def _returned(topics: Topics, seats: list[Seat], live: LiveNodes, avoided: Collection[int]) -> Iterator[Decision]:
    records = [topics.partition(*seat) for seat in seats]
    home = preferred(records[0])
    if not wants_preferred(records[0], live, avoided) or home not in _able(records, live, avoided):
        return
    if any(decide(topics, *seat, live, avoided) is not None for seat in seats):
        return
    for (topic, index), record in zip(seats, records, strict=True):
        back = elected(record, live, topic.min_in_sync, avoid=_others(record, home))
        yield Decision(topic, index, topics.partition_epoch(topic, index), back)
