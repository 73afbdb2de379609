import pytest

from penstock.errors import Reason
from penstock.types import GroupId, PartitionKey, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_commit_generated import OffsetCommitRequestTopic
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import commit_request, stable

KEY = ApiKey.OFFSET_COMMIT


def codes(answer) -> list[Reason | None]:
    return [reason_of(each.error_code) for topic in answer.topics for each in topic.partitions]


@pytest.mark.parametrize("version", versions(KEY))
async def test_an_offset_is_committed_in_every_version(node: KafkaNode, version: int) -> None:
    topic = await node.create("t")
    request = commit_request(5)
    request.topics[0].topic_id = topic.topic_id.bytes
    answer = await node.ask(KEY, request, version)
    assert codes(answer) == [None]
    if version >= 10:
        assert answer.topics[0].topic_id == topic.topic_id.bytes
    else:
        assert answer.topics[0].name == "t"
    key = PartitionKey(TopicName("t"), 0)
    committed = node.broker.groups.fetch_offsets(GroupId("g"), [key])[key]
    assert (committed.offset, committed.metadata) == (5, "note")
    assert committed.leader_epoch == (4 if version >= 6 else -1)


async def test_a_member_commits_with_its_generation(node: KafkaNode) -> None:
    await node.create("t")
    joined = await stable(node)
    request = commit_request(5, member_id=joined.member_id, generation_id_or_member_epoch=joined.generation_id)
    assert codes(await node.ask(KEY, request, 9)) == [None]
    request.generation_id_or_member_epoch += 1
    assert codes(await node.ask(KEY, request, 9)) == [Reason.ILLEGAL_GENERATION]
    assert codes(await node.ask(KEY, commit_request(6), 9)) == [Reason.UNKNOWN_MEMBER_ID]


async def test_null_metadata_is_empty_metadata(node: KafkaNode) -> None:
    await node.create("t")
    request = commit_request(5)
    request.topics[0].partitions[0].committed_metadata = None
    assert codes(await node.ask(KEY, request, 9)) == [None]
    assert [each.metadata for each in node.broker.groups.fetch_offsets(GroupId("g"), None).values()] == [""]


async def test_each_partition_and_each_unknown_topic_has_its_answer_in_the_order_asked(node: KafkaNode) -> None:
    topic = await node.create("t")
    request = commit_request(5)
    request.topics[0].topic_id = topic.topic_id.bytes
    partitions = request.topics[0].partitions
    request.topics.insert(0, OffsetCommitRequestTopic(bytes(15) + b"x", "nowhere", partitions))
    assert codes(await node.ask(KEY, request, 9)) == [Reason.UNKNOWN_TOPIC_OR_PARTITION, None]
    assert codes(await node.ask(KEY, request, 10)) == [Reason.UNKNOWN_TOPIC_ID, None]


async def test_a_client_that_says_how_long_to_keep_an_offset_is_heeded(node: KafkaNode) -> None:
    await node.create("t")
    await node.ask(KEY, commit_request(5, retention_time_ms=1_000), 4)
    (committed,) = node.broker.groups.fetch_offsets(GroupId("g"), None).values()
    assert committed.expire_ms == node.clock.now_ms() + 1_000
