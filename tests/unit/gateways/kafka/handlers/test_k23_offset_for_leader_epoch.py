"""OffsetForLeaderEpoch: where the records of each epoch end."""

import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_for_leader_epoch_generated import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions

KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH


async def ask(
    node: KafkaNode, epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0, version: int = 4
) -> tuple[Reason | None, int, int]:
    asked = OffsetForLeaderEpochRequestPartition(partition, current, epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderEpochRequestTopic(topic, [asked])])
    [answer] = (await node.ask(KEY, request, version)).topics[0].partitions
    assert answer.partition == partition
    return reason_of(answer.error_code), answer.leader_epoch, answer.end_offset


async def three_leaders(node: KafkaNode) -> None:
    """Epoch 2 wrote offsets 0 to 3, epoch 5 wrote 4 and 5, and epoch 9 leads and has written nothing."""
    await node.create("t")
    partition = node.broker.partition("t", 0)
    for epoch, count in ((2, 4), (5, 2)):
        partition.leader_epoch = epoch
        await node.append("t", 0, count)
    partition.leader_epoch = 9


@pytest.mark.parametrize("version", versions(KEY))
async def test_each_epoch_ends_where_the_next_begins(node: KafkaNode, version: int) -> None:
    await three_leaders(node)
    for epoch, found in (
        (0, (0, 0)),
        (2, (2, 4)),
        (4, (2, 4)),
        (5, (5, 6)),
        (8, (5, 6)),
        (9, (9, 6)),
        (10, (-1, -1)),
        (-1, (-1, -1)),
        (-2, (-1, -1)),
    ):
        assert await ask(node, epoch, version=version) == (None, *found), epoch


async def test_a_log_without_records_ends_where_it_begins(node: KafkaNode) -> None:
    await node.create("t")
    node.broker.partition("t", 0).leader_epoch = 3
    assert await ask(node, 3) == (None, 3, 0)
    assert await ask(node, 1) == (None, 1, 0)
    for unknown in (4, -1, -2, -(2**31)):
        assert await ask(node, unknown) == (None, -1, -1)


async def test_followers_of_another_leader_and_unknown_places_are_refused(node: KafkaNode) -> None:
    await three_leaders(node)
    assert await ask(node, 2, current=8) == (Reason.FENCED_LEADER_EPOCH, -1, -1)
    assert await ask(node, 2, current=10) == (Reason.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert await ask(node, 2, current=9) == (None, 2, 4)
    assert await ask(node, 2, partition=1) == (Reason.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert await ask(node, 2, topic="nobody") == (Reason.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
