"""A node whose disk has lost records that were committed: it leaves the in-sync sets of those partitions before it registers, where others have everything."""

import pytest

from penstock.cluster.directories import settle_lacking
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.topics.records import partition_key
from penstock.types import NodeId
from tests.unit.cluster.world import CoreNode, CoreWorld


async def away(world: CoreWorld, node: CoreNode) -> None:
    """Its process has ended."""
    await world.store.revoke(node.lease)


async def test_it_leaves_the_in_sync_set_of_what_it_lacks_if_somebody_else_is_in_it() -> None:
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1, 2))
    await away(world, world[1])
    await settle_lacking(world.store, NodeId(1), [partition_key(topic.topic_id, 0)])
    assert world[2].record(topic).in_sync == (2,)


async def test_what_is_left_of_the_only_copy_is_not_given_up() -> None:
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1,))
    await away(world, world[1])
    await settle_lacking(world.store, NodeId(1), [partition_key(topic.topic_id, 0)])
    assert world[2].record(topic).in_sync == (1,)


@pytest.mark.parametrize(("committed", "lacks"), [(10, False), (11, True)])
async def test_a_log_that_ends_before_what_was_committed_lacks_something(committed: int, lacks: bool) -> None:
    world = CoreWorld()
    await world.start(1, 2, 3)
    topic = await world.topic(isr=(1, 2))
    node = world[1]
    node.append(node.broker.partition("t", 0), 10)
    place = TopicIdPartition(topic.topic_id, 0)
    cluster = node.cluster
    assert cluster._lacks(place, committed) is lacks
    assert any("were committed and are missing here" in report for report in node.reports) is lacks
