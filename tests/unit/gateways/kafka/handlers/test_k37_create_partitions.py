import pytest

from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_partitions_generated import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponseResult,
)
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.CREATE_PARTITIONS


def wanted(name: str, count: int, *brokers: int) -> CreatePartitionsRequestTopic:
    assignments = [CreatePartitionsRequestAssignment([broker]) for broker in brokers] or None
    return CreatePartitionsRequestTopic(name, count, assignments)


async def ask(
    node: KafkaNode, *topics: CreatePartitionsRequestTopic, version: int = 3, validate_only: bool = False
) -> list[CreatePartitionsResponseResult]:
    request = CreatePartitionsRequest(list(topics), 1000, validate_only)
    answers: list[CreatePartitionsResponseResult] = (await node.ask(KEY, request, version)).results
    return answers


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_topic_grows_and_its_new_partitions_work_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t", 2)
    [answer] = await ask(node, wanted("t", 4), version=version)
    assert (answer.name, answer.error_code, answer.error_message) == ("t", 0, None)
    assert (await node.append("t", 3, 1)).high_watermark == 1


async def test_each_topic_grows_or_is_refused_by_itself(node: KafkaNode) -> None:
    for name in ("good", "same", "less", "twice", "by-hand", "elsewhere", "too-few"):
        await node.create(name, 2)
    answers = await ask(
        node,
        wanted("good", 3),
        wanted("same", 2),
        wanted("less", 1),
        wanted("twice", 3),
        wanted("twice", 4),
        wanted("by-hand", 4, NODE, NODE),
        wanted("elsewhere", 3, 99),
        wanted("too-few", 4, NODE),
        wanted("nobody", 3),
        wanted(OFFSETS_TOPIC, 50),
    )
    assert {answer.name: reason_of(answer.error_code) for answer in answers} == {
        "good": None,
        "same": Reason.INVALID_PARTITIONS,
        "less": Reason.INVALID_PARTITIONS,
        "twice": Reason.INVALID_REQUEST,
        "by-hand": None,
        "elsewhere": Reason.INVALID_REPLICA_ASSIGNMENT,
        "too-few": Reason.INVALID_REPLICA_ASSIGNMENT,
        "nobody": Reason.UNKNOWN_TOPIC_OR_PARTITION,
        OFFSETS_TOPIC: Reason.INVALID_REQUEST,
    }
    assert all(answer.error_message for answer in answers if answer.error_code)


async def test_validate_only_changes_nothing(node: KafkaNode) -> None:
    await node.create("t", 2)
    [answer] = await ask(node, wanted("t", 4), validate_only=True)
    assert answer.error_code == 0
    assert node.broker.topics.require("t").partition_count == 2
