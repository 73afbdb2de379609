from penstock.errors import Reason
from penstock.types import GroupId
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_delete_generated import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of
from tests.unit.gateways.kafka.handlers.groups import commit, stable

KEY = ApiKey.OFFSET_DELETE


def request(group: str, *partitions: tuple[str, int]) -> OffsetDeleteRequest:
    topics = [OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(index)]) for name, index in partitions]
    return OffsetDeleteRequest(group, topics)


async def test_each_partition_has_its_answer(node: KafkaNode) -> None:
    await node.create("t", 2)
    await commit(node, 1)
    await commit(node, 2, partition=1)
    answer = await node.ask(KEY, request("g", ("t", 0), ("nowhere", 0)), 0)
    assert answer.error_code == 0
    assert [
        (topic.name, each.partition_index, reason_of(each.error_code))
        for topic in answer.topics
        for each in topic.partitions
    ] == [
        ("t", 0, None),
        ("nowhere", 0, Reason.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [key.partition for key in node.broker.groups.fetch_offsets(GroupId("g"), None)] == [1]


async def test_offsets_that_members_read_by_are_kept(node: KafkaNode) -> None:
    await node.create("t")
    await stable(node)
    answer = await node.ask(KEY, request("g", ("t", 0)), 0)
    assert reason_of(answer.topics[0].partitions[0].error_code) is Reason.GROUP_SUBSCRIBED_TO_TOPIC


async def test_an_unknown_group_is_refused_as_a_whole(node: KafkaNode) -> None:
    answer = await node.ask(KEY, request("nobody", ("t", 0)), 0)
    assert (reason_of(answer.error_code), answer.topics) == (Reason.GROUP_ID_NOT_FOUND, [])
