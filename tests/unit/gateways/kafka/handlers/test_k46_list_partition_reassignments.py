from pathlib import Path

from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_partition_reassignments_generated import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode

KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS


async def test_what_moves_is_told_and_nothing_else(tmp_path: Path) -> None:
    async with ClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER), (NODE, OTHER), (NODE, OTHER))
        for index in (0, 2):
            await node.cluster.reassignments.alter("t", index, (THIRD, NODE))
        [topic] = (await node.ask(KEY, ListPartitionReassignmentsRequest(topics=None), 0)).topics
        told = [
            (each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
            for each in topic.partitions
        ]
        assert told == [(index, [THIRD, NODE, OTHER], [THIRD], [OTHER]) for index in (0, 2)]
        some = [
            ListPartitionReassignmentsRequestTopic("t", [1, 2, 9]),
            ListPartitionReassignmentsRequestTopic("u", [0]),
        ]
        [topic] = (await node.ask(KEY, ListPartitionReassignmentsRequest(topics=some), 0)).topics
        assert [each.partition_index for each in topic.partitions] == [2]


async def test_nothing_moves_on_a_broker_that_is_alone(node: KafkaNode) -> None:
    await node.create("t")
    answer = await node.ask(KEY, ListPartitionReassignmentsRequest(topics=None), 0)
    assert (answer.error_code, answer.topics) == (0, [])
