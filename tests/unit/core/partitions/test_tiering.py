"""What retention may drop of a topic with a tier, asked of a whole core."""

from functools import partial
from pathlib import Path

from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until

TIER = {"penstock.tier.location": "/lake", "penstock.tier.group": "archive"}
DAY_MS = 24 * 3600 * 1000


async def tiered(node: KafkaNode, name: str = "orders") -> None:
    configs = {**TIER, "segment.bytes": "200", "local.retention.ms": "1000"}
    await node.create(name, **{key.replace(".", "_"): value for key, value in configs.items()})


async def test_without_a_tier_nothing_is_said_of_an_archive(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("orders")
        partition = await node.append("orders", 0, 3)
        await node.commit("archive", "orders", 0, 2)
        assert node.broker.tiering.archived_offset(partition) is None


async def test_what_the_group_of_the_tier_committed_is_archived_and_nothing_without_a_commit(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await tiered(node)
        partition = await node.append("orders", 0, 3)
        await node.commit("another", "orders", 0, 3)
        assert node.broker.tiering.archived_offset(partition) == 0
        await node.commit("archive", "orders", 0, 2)
        assert node.broker.tiering.archived_offset(partition) == 2


async def test_segments_wait_for_the_archive_and_then_go(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await tiered(node)
        for _ in range(4):
            partition = await node.append("orders", 0, 3)
        node.clock.advance(10_000)

        def retire() -> int:
            archived_offset = node.broker.tiering.archived_offset(partition)
            for task in partition.log.retire(
                node.clock.now_ms(), partition.high_watermark, archived_offset=archived_offset
            ):
                task.run()
            return partition.log.start_offset

        assert retire() == 0
        await node.commit("archive", "orders", 0, 7)
        assert retire() == 6, "the segment that ends at 9 is not archived yet"
        await node.commit("archive", "orders", 0, 12)
        assert retire() == 12


async def test_the_offsets_of_a_tier_do_not_expire(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await tiered(node)
        await node.create("plain")
        for name in ("orders", "plain"):
            await node.append(name, 0, 3)
            await node.commit("archive", name, 0, 3)
        node.clock.advance(30 * DAY_MS)
        node.broker.groups.tick(node.clock.monotonic_ms())
        left = partial(node.broker.groups.fetch_offsets, GroupId("archive"), None)
        await until(lambda: PartitionKey(TopicName("plain"), 0) not in left())
        assert list(left()) == [PartitionKey(TopicName("orders"), 0)]
