import asyncio
from pathlib import Path

import pytest

from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.records.builder import BatchBuilder
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from tests.support.kafka_cluster import OTHER, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.DELETE_RECORDS


async def delete(
    node: KafkaNode, topic: str, offset: int, partition: int = 0, version: int = 2
) -> tuple[int, Reason | None]:
    partitions = [DeleteRecordsRequestPartition(partition, offset)]
    request = DeleteRecordsRequest([DeleteRecordsRequestTopic(topic, partitions)], 1000)
    [answer] = (await node.ask(KEY, request, version)).topics[0].partitions
    assert answer.partition_index == partition
    return answer.low_watermark, reason_of(answer.error_code)


@pytest.mark.parametrize("version", versions(KEY))
async def test_records_below_the_offset_are_gone_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 10)
    assert await delete(node, "t", 4, version=version) == (4, None)
    assert (partition.log.start_offset, partition.high_watermark) == (4, 10)


async def test_minus_one_is_everything_and_the_offsets_go_on(node: KafkaNode) -> None:
    await node.create("t")
    partition = await node.append("t", 0, 10)
    assert await delete(node, "t", -1) == (10, None)
    await node.append("t", 0, 1)
    assert (partition.log.start_offset, partition.high_watermark) == (10, 11)


async def test_what_is_gone_already_is_no_error(node: KafkaNode) -> None:
    await node.create("t")
    await node.append("t", 0, 10)
    await delete(node, "t", 6)
    assert await delete(node, "t", 3) == (6, None)


async def test_what_cannot_be_deleted_is_refused(node: KafkaNode) -> None:
    await node.create("t")
    await node.create("compacted", cleanup_policy="compact")
    await node.append("t", 0, 10)
    await node.append("compacted", 0, 3)
    assert await delete(node, "t", 11) == (-1, Reason.OFFSET_OUT_OF_RANGE)
    assert await delete(node, "t", -2) == (-1, Reason.OFFSET_OUT_OF_RANGE)
    assert await delete(node, "t", 0, partition=1) == (-1, Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete(node, "nobody", 0) == (-1, Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert await delete(node, "compacted", 1) == (-1, Reason.POLICY_VIOLATION)
    assert await delete(node, OFFSETS_TOPIC, -1) == (-1, Reason.INVALID_TOPIC)
    assert node.broker.partition("t", 0).log.start_offset == 0


async def test_what_the_leader_acknowledged_a_moment_ago_can_be_deleted(node: KafkaNode) -> None:
    await node.create("t")
    partition = node.broker.partition("t", 0)
    builder = BatchBuilder()
    builder.add(node.clock.now_ms(), b"k", b"v")
    partition.append(builder.build(), node.clock.now_ms())
    assert partition.high_watermark == 0
    assert await delete(node, "t", 1) == (1, None)


async def ask(node: ClusterNode, offset: int, timeout_ms: int) -> tuple[int, Reason | None]:
    asked = DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, offset)])
    [answer] = (await node.ask(KEY, DeleteRecordsRequest([asked], timeout_ms), 2)).topics[0].partitions
    return answer.low_watermark, reason_of(answer.error_code)


async def test_in_a_cluster_it_is_answered_when_followers_have_done_it_or_its_time_is_over(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        topic = await node.place("t", (NODE, OTHER))
        partition = await node.append_written("t", 0, 5)

        def says(log_start: int) -> None:
            assert partition.in_sync is not None
            epoch = node.cluster.nodes.live()[OTHER]
            partition.in_sync.fetched(OTHER, epoch, 5, 5, node.clock.monotonic_ms(), log_start=log_start)
            partition.recount()

        says(1)
        assert await ask(node, 3, timeout_ms=1) == (1, Reason.REQUEST_TIMED_OUT)
        assert partition.log.start_offset == 3, "the leader has done it all the same"
        waiting = asyncio.ensure_future(ask(node, 3, timeout_ms=60_000))
        await asyncio.sleep(0)
        says(3)
        assert await waiting == (3, None)
        waiting = asyncio.ensure_future(ask(node, -1, timeout_ms=60_000))
        begun = asyncio.Event()
        partition.watch_writes(begun.set)
        await begun.wait()
        await node.set_record(topic, 0, leader=OTHER, leader_epoch=1)
        assert await waiting == (-1, Reason.NOT_LEADER_OR_FOLLOWER)
