import pytest

from penstock.core.topic_names import OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.records.builder import BatchBuilder
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions

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
