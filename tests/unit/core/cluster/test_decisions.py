"""What a controller decides, given who is up."""

from penstock.core.cluster.decisions import Decision, affected, balance, co_led, decide, decide_all
from penstock.core.cluster.records import reassigning
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC, SINKS_TOPIC, STAGING_PREFIX
from penstock.core.topics.records import NO_LEADER, PartitionRecord
from penstock.core.topics.topics import Topic
from tests.support.agreed import Agreed

UNCLEAN = {"unclean.leader.election.enable": "true"}


def decided(agreed: Agreed, topic: Topic, index: int = 0) -> PartitionRecord:
    """The record as the controller would have it."""
    found = decide(agreed.topics, topic, index, agreed.nodes.live(), agreed.nodes.avoided())
    return agreed.record(topic, index) if found is None else found.record


def as_decision(agreed: Agreed, topic: Topic, record: PartitionRecord) -> Decision:
    return Decision(topic, 0, agreed.topics.partition_epoch(topic, 0), record)


def all_seats(agreed: Agreed) -> list[tuple[Topic, int]]:
    return [(topic, index) for topic in agreed.topics for index in range(topic.partition_count)]


async def settle(agreed: Agreed) -> int:
    """Decide until nothing is left to decide; gives back how many rounds that took."""
    rounds = 0
    while decisions := decide_all(agreed.topics, all_seats(agreed), agreed.nodes.live(), agreed.nodes.avoided()):
        await agreed.write(decisions)
        rounds += 1
        assert rounds < 10, "it goes round and round"
    return rounds


async def test_nothing_is_decided_while_all_is_well() -> None:
    agreed = await Agreed.make(1, 2, 3)
    await agreed.topic("t", (1, 2, 3), (2, 3, 1))
    assert await settle(agreed) == 0


async def test_a_dead_leader_is_replaced_and_a_dead_follower_leaves_the_set() -> None:
    agreed = await Agreed.make(1, 2, 3)
    topic = await agreed.topic("t", (1, 2, 3), (2, 1, 3))
    await agreed.down(1)
    assert (decided(agreed, topic, 0).leader, decided(agreed, topic, 0).in_sync) == (2, (2, 3))
    assert (decided(agreed, topic, 1).leader, decided(agreed, topic, 1).in_sync) == (2, (2, 3))


async def test_nobody_who_is_not_in_sync_leads_unless_the_topic_allows_it() -> None:
    agreed = await Agreed.make(1, 2, 3)
    isr = agreed.in_sync(1)
    careful = await agreed.topic("careful", (1, 2, 3), isr=isr)
    careless = await agreed.topic("careless", (1, 2, 3), isr=isr, config=UNCLEAN)
    await agreed.down(1)
    assert decided(agreed, careful).leader == NO_LEADER
    assert decided(agreed, careless).leader == 2
    assert decided(agreed, careless).in_sync == (2,)


async def test_a_move_is_completed_when_everyone_new_is_in_sync_in_the_present_life() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    topic = await agreed.topic("t", (1, 2, 3))
    moving = reassigning(agreed.record(topic), (4, 2, 3))
    await agreed.write([as_decision(agreed, topic, moving)])
    assert decided(agreed, topic) == moving, "the new one has not caught up"
    await agreed.change(topic, 0, isr=agreed.in_sync(4, 2, 3, 1))
    done = decided(agreed, topic)
    assert (done.replicas, done.adding, done.removing, done.leader) == ((4, 2, 3), (), (), 4)
    assert done.leader_epoch == 1, "the old leader is not among them"
    await agreed.up(4)
    assert decided(agreed, topic).replicas == (4, 2, 3, 1), "it came back, and has to catch up again"


async def test_a_leader_that_stays_is_not_elected_again_by_a_move() -> None:
    agreed = await Agreed.make(1, 2, 3, 4)
    topic = await agreed.topic("t", (1, 2, 3))
    moving = reassigning(agreed.record(topic), (1, 2, 4))
    await agreed.write([as_decision(agreed, topic, moving)])
    await agreed.change(topic, 0, isr=agreed.in_sync(1, 2, 4, 3))
    done = decided(agreed, topic)
    assert (done.leader, done.leader_epoch, done.replicas, done.in_sync) == (1, 0, (1, 2, 4), (1, 2, 4))


async def test_a_node_that_is_drained_or_about_to_stop_leads_nothing() -> None:
    agreed = await Agreed.make(1, 2, 3)
    topic = await agreed.topic("t", (1, 2, 3))
    await agreed.drain(1)
    assert decided(agreed, topic).leader == 2
    assert 1 in decided(agreed, topic).in_sync, "it follows on"


async def test_what_belongs_together_is_elected_together() -> None:
    agreed = await Agreed.make(1, 2, 3)
    offsets = await agreed.topic(OFFSETS_TOPIC, (1, 2, 3), internal=True)
    states = await agreed.topic(QUEUE_STATE_TOPIC, (1, 2, 3), internal=True, isr=agreed.in_sync(1, 3))
    await agreed.down(1)
    assert decided(agreed, offsets).leader == 3, "the second is in sync for only one of them"
    assert decided(agreed, states).leader == 3
    assert await settle(agreed) == 1


async def test_what_belongs_together_and_is_led_by_two_is_brought_together() -> None:
    agreed = await Agreed.make(1, 2, 3)
    offsets = await agreed.topic(OFFSETS_TOPIC, (1, 2, 3), internal=True)
    states = await agreed.topic(QUEUE_STATE_TOPIC, (1, 2, 3), internal=True)
    await agreed.change(states, 0, leader=2, leader_node_epoch=agreed.nodes.live()[2])
    assert decided(agreed, offsets).leader == 1, "it is spared"
    assert decided(agreed, states).leader == 1
    await settle(agreed)
    assert {agreed.record(topic).leader for topic in (offsets, states)} == {1}


async def test_what_is_staged_goes_where_the_sinks_are() -> None:
    agreed = await Agreed.make(1, 2, 3)
    sinks = await agreed.topic(SINKS_TOPIC, (1, 2, 3), internal=True)
    staging = await agreed.topic(f"{STAGING_PREFIX}x", (3, 2, 1))
    assert decided(agreed, sinks).leader == 1
    assert decided(agreed, staging).leader == 1
    assert [seat[0].name for seat in co_led(agreed.topics, staging, 0)] == [sinks.name, staging.name]
    assert [seat[0].name for seat in affected(agreed.topics, sinks, 0)] == [sinks.name, staging.name]
    await settle(agreed)
    await agreed.down(1)
    assert await settle(agreed) == 1, "both go to the same node at once"
    assert agreed.record(sinks).leader == agreed.record(staging).leader == 2


async def test_leadership_goes_back_a_few_at_a_time_and_together() -> None:
    agreed = await Agreed.make(1, 2)
    live = agreed.nodes.live()
    led = {"leader": 2, "leader_node_epoch": live[2]}
    await agreed.topic(OFFSETS_TOPIC, *[(1, 2)] * 2, internal=True, **led)
    await agreed.topic(QUEUE_STATE_TOPIC, *[(1, 2)] * 2, internal=True, **led)
    await agreed.topic("t", *[(1, 2)] * 5, **led)
    some = list(balance(agreed.topics, all_seats(agreed), live, (), count_max=2))
    assert [(each.topic.name, each.index, each.record.leader) for each in some] == [
        (OFFSETS_TOPIC, 0, 1),
        (QUEUE_STATE_TOPIC, 0, 1),
    ]
    await agreed.write(some)
    rest = list(balance(agreed.topics, all_seats(agreed), live, (), count_max=100))
    assert len(rest) == 2 + 5
    await agreed.write(rest)
    assert await settle(agreed) == 0
    assert not list(balance(agreed.topics, all_seats(agreed), live, (), count_max=100))


async def test_leadership_does_not_go_back_to_a_node_that_is_not_in_sync_or_is_drained() -> None:
    agreed = await Agreed.make(1, 2)
    live = agreed.nodes.live()
    led = {"leader": 2, "leader_node_epoch": live[2]}
    await agreed.topic("behind", (1, 2), **{**led, "isr": agreed.in_sync(2)})
    await agreed.topic("fine", (1, 2), **led)
    assert [each.topic.name for each in balance(agreed.topics, all_seats(agreed), live, (), 9)] == ["fine"]
    assert not list(balance(agreed.topics, all_seats(agreed), live, {1}, 9))
