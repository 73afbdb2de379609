"""Which partitions should be elsewhere: those of drained nodes, and internal ones with too few replicas."""

from collections import Counter

from penstock.core.cluster.moves import MOVES_MAX, MovePlan, factor_of
from penstock.core.cluster.records import reassigning, target_of
from penstock.core.topics.names import IDEMPOTENCY_TOPIC, OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC, STAGING_PREFIX
from penstock.core.topics.records import PartitionRecord
from tests.support.agreed import Agreed


async def begin(agreed: Agreed, factor: int = 3, moves_max: int = MOVES_MAX) -> int:
    decisions = list(MovePlan(agreed.topics, agreed.nodes, factor).decisions(moves_max))
    await agreed.write(decisions)
    return len(decisions)


def targets(agreed: Agreed, topic: str) -> list[tuple[int, ...]]:
    return [target_of(record) for record in agreed.topics.partitions(agreed.topics.require(topic))]


async def test_nothing_moves_while_nobody_is_drained() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (1, 2, 3), (1, 2, 4))
    await agreed.topic("small", (1,))
    assert await begin(agreed) == 0, "topics of users are left as they are"


async def test_a_drained_nodes_places_go_evenly_to_others_and_keep_their_order() -> None:
    agreed = await Agreed.make(1, 2, 3, 4, 5)
    await agreed.topic("t", *[(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)] * 3)
    await agreed.drain(1)
    assert await begin(agreed) == 12
    after = targets(agreed, "t")
    assert all(1 not in nodes and len(set(nodes)) == 3 for nodes in after)
    assert after[1][:2] == (2, 3), "the others stay where they are"
    holds = Counter(node for nodes in after for node in nodes)
    assert holds[4] == holds[5] == 6
    leads = Counter(nodes[0] for nodes in after)
    assert leads[4] == leads[5] == 3, "also what it led is shared"
    assert await begin(agreed) == 0, "once is enough"


async def test_replicas_stay_in_different_racks() -> None:
    agreed = await Agreed.make(1, 2, 3, 4, 5, racks=["a", "b", "c", "b", "a"])
    await agreed.topic("t", *[(1, 2, 3)] * 4)
    await agreed.drain(1)
    await begin(agreed)
    assert targets(agreed, "t") == [(5, 2, 3)] * 4, "the only other one in its rack"


async def test_a_dead_node_that_is_drained_loses_its_places() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("t", (2, 1, 3))
    await agreed.down(1)
    await agreed.drain(1)
    assert await begin(agreed) == 1
    record = agreed.record("t")
    assert (target_of(record), record.adding, record.removing) == ((2, 4, 3), (4,), (1,))


async def test_without_another_node_the_drained_one_keeps_what_it_has() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3))
    await agreed.topic("u", (1, 2))
    await agreed.drain(1)
    assert await begin(agreed) == 1
    assert targets(agreed, "t") == [(1, 2, 3)]
    assert targets(agreed, "u") == [(3, 2)]


async def test_nothing_moves_to_a_node_that_is_drained_or_about_to_stop() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.up(5, shutting_down=True)
    await agreed.topic("t", (1, 2))
    await agreed.drain(1, 3)
    await begin(agreed)
    assert targets(agreed, "t") == [(4, 2)]


async def test_only_so_many_partitions_move_at_the_same_time() -> None:
    agreed = await Agreed.make(1, 2, 3)
    topic = await agreed.topic("t", *[(1, 2)] * 5)
    await agreed.drain(1)
    assert await begin(agreed, moves_max=2) == 2
    assert await begin(agreed, moves_max=2) == 0
    await agreed.change(topic, 0, replicas=(3, 2), adding=(), removing=(), isr=agreed.in_sync(3, 2), leader=2)
    assert await begin(agreed, moves_max=2) == 1


async def test_a_move_that_waits_for_a_dead_node_holds_up_nobody() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    topic = await agreed.topic("t", *[(1, 2)] * 2)
    stuck = reassigning(agreed.record(topic), (4, 2))
    await agreed.change(topic, 0, replicas=stuck.replicas, adding=stuck.adding, removing=stuck.removing)
    await agreed.down(4)
    await agreed.drain(1)
    assert await begin(agreed, moves_max=1) == 1
    await agreed.drain(4)
    await begin(agreed)
    assert targets(agreed, "t") == [(3, 2), (3, 2)], "drained, the dead one is replaced"


async def test_internal_topics_grow_when_there_are_nodes_enough() -> None:
    agreed = await Agreed.make(1, 2)
    for name in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC):
        await agreed.topic(name, *[(1,)] * 6, internal=True)
    await agreed.topic("t", (1,))
    assert await begin(agreed) == 0
    await agreed.up(3)
    assert await begin(agreed) == 18
    for name in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC):
        assert all(set(nodes) == {1, 2, 3} for nodes in targets(agreed, name))
    assert targets(agreed, OFFSETS_TOPIC) == targets(agreed, QUEUE_STATE_TOPIC), "these have one leader"
    leads = Counter(
        nodes[0] for name in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC, IDEMPOTENCY_TOPIC) for nodes in targets(agreed, name)
    )
    assert max(leads.values()) - min(leads[node] for node in (1, 2, 3)) <= 2, "all three lead some of it"
    assert targets(agreed, "t") == [(1,)]
    assert agreed.record(OFFSETS_TOPIC).leader == 1, "nobody else is in sync yet"


async def test_what_is_staged_moves_with_the_sinks() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    sinks = await agreed.topic(SINKS_TOPIC, (1, 2, 3), internal=True)
    await agreed.topic(f"{STAGING_PREFIX}x", (1, 2, 3))
    await agreed.drain(1)
    assert await begin(agreed) == 2
    assert targets(agreed, SINKS_TOPIC) == targets(agreed, f"{STAGING_PREFIX}x") == [(4, 2, 3)]
    # And when somebody has moved the sinks by hand.
    moved = reassigning(agreed.record(sinks), (2, 3, 1))
    await agreed.change(sinks, 0, replicas=moved.replicas, adding=moved.adding, removing=moved.removing)
    assert targets(agreed, SINKS_TOPIC) == [(2, 3, 1)]


def test_a_topic_has_as_many_replicas_as_its_partitions_once_they_rest() -> None:
    record = PartitionRecord(1, 0, (1, 2), ((1, 10), (2, 20)))
    assert factor_of([record]) == 2
    assert factor_of([record, PartitionRecord(1, 0, (1, 2, 3), ((1, 10),))]) == 3
    assert factor_of([record, reassigning(record, (1, 2, 3))]) is None
    assert factor_of([PartitionRecord(-1, -1, (), ())]) is None


async def test_the_first_place_goes_to_who_leads_least_and_another_to_who_has_least() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    await agreed.topic("leads", *[(3,)] * 6)
    await agreed.topic("holds", *[(2, 4)] * 8)
    await agreed.topic("first", (1, 2))
    await agreed.topic("second", (2, 1))
    await agreed.drain(1)
    await begin(agreed)
    assert targets(agreed, "first") == [(4, 2)]
    assert targets(agreed, "second") == [(2, 3)]
