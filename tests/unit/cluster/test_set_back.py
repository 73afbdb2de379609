"""Agreed state that has gone back, as a restored backup of etcd has: nobody leads or copies by it what is ahead of it."""

import pytest
from msgspec.structs import replace

from penstock.core.topics.records import encode, partition_key
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Put
from tests.unit.cluster.world import CoreWorld


@pytest.mark.parametrize("leader", [1, 2])
async def test_a_log_with_later_epochs_than_the_agreed_record_is_neither_led_nor_followed(leader: int) -> None:
    world = CoreWorld()
    await world.start(1, 2)
    topic = await world.topic(isr=(1, 2))
    node = world[1]
    partition = node.broker.partition("t", 0)
    node.append(partition, 10)
    record = node.broker.topics.partition(topic, 0)
    assert record.leader_epoch == partition.log.epochs.latest

    back = replace(record, leader=leader, leader_node_epoch=world[leader].epoch, leader_epoch=record.leader_epoch - 1)
    await node.store.txn([], [Put(partition_key(topic.topic_id, 0), encode(back))])

    with pytest.raises(PenstockError, match="etcd was set back") as refused:
        node.broker.replica("t", 0)
    assert refused.value.reason is Reason.STORAGE_ERROR
    assert any("set back" in report for report in node.reports)
    assert partition.log.next_offset == 10
