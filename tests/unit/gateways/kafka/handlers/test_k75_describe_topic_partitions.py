import pytest

from penstock.core.topics.names import INTERNAL_TOPICS
from penstock.core.topics.topics import NewTopic
from penstock.errors import Reason
from penstock.gateways.kafka.portions import Turns
from penstock.limits import DESCRIBED_PARTITIONS_MAX
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_topic_partitions_generated import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopic,
    DescribeTopicPartitionsResponse,
)
from tests.support.kafka_node import NODE, KafkaNode, reason_of

KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
Cursor = tuple[str, int]


async def ask(
    node: KafkaNode, names: list[str], limit: int = 2000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    topics = [DescribeTopicPartitionsRequestTopic(name) for name in names]
    at = None if cursor is None else DescribeTopicPartitionsRequestCursor(*cursor)
    answer: DescribeTopicPartitionsResponse = await node.ask(KEY, DescribeTopicPartitionsRequest(topics, limit, at), 0)
    return answer


def told(answer: DescribeTopicPartitionsResponse) -> list[Cursor]:
    return [(topic.name or "", partition.partition_index) for topic in answer.topics for partition in topic.partitions]


def next_of(answer: DescribeTopicPartitionsResponse) -> Cursor | None:
    cursor = answer.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def test_topics_are_told_by_name_whatever_the_order_asked_in(node: KafkaNode) -> None:
    topic = await node.create("b", 2)
    await node.create("a")
    answer = await ask(node, ["b", "nobody", "a", "b", "a/b"])
    assert [(one.name, reason_of(one.error_code)) for one in answer.topics] == [
        ("a", None),
        ("a/b", Reason.INVALID_TOPIC),
        ("b", None),
        ("nobody", Reason.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert told(answer) == [("a", 0), ("b", 0), ("b", 1)]
    assert answer.next_cursor is None
    one = answer.topics[2]
    assert (one.topic_id, one.is_internal, one.topic_authorized_operations) == (topic.topic_id.bytes, False, 3576)
    partition = one.partitions[1]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, NODE, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([NODE], [NODE], [])


async def test_no_names_ask_for_all_but_what_is_staged(node: KafkaNode) -> None:
    await node.create("t")
    await node.broker.topics.create(NewTopic("__staging.q", 1), internal=True)
    assert [topic.error_code for topic in (await ask(node, ["__staging.q"])).topics] == [0]
    assert [topic.name for topic in (await ask(node, [])).topics] == [*sorted(INTERNAL_TOPICS), "t"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("by_name", [True, False])
async def test_following_the_cursor_tells_every_partition_once(node: KafkaNode, limit: int, by_name: bool) -> None:
    for name, count in (("a", 3), ("b", 1), ("c", 4)):
        await node.create(name, count)
    names = ["c", "a", "b"] if by_name else []
    found: list[Cursor] = []
    cursor: Cursor | None = None if by_name else ("a", 0)
    for _ in range(20):
        answer = await ask(node, names, limit, cursor)
        assert len(told(answer)) <= limit
        found += told(answer)
        cursor = next_of(answer)
        if cursor is None:
            break
    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]


async def test_a_cursor_at_a_topic_that_is_gone_goes_on_behind_it(node: KafkaNode) -> None:
    await node.create("a")
    await node.create("c", 2)
    assert told(await ask(node, [], cursor=("b", 5))) == [("c", 0), ("c", 1)]


async def test_limits_that_make_no_sense_still_get_on(node: KafkaNode) -> None:
    await node.create("t", 3)
    for limit in (0, -5):
        answer = await ask(node, ["t"], limit, ("t", -7))
        assert (told(answer), next_of(answer)) == ([("t", 0)], ("t", 1))


async def test_an_answer_is_bounded_whatever_the_client_asks(node: KafkaNode) -> None:
    await node.create("t", DESCRIBED_PARTITIONS_MAX + 5)
    answer = await ask(node, ["t"], 2**31 - 1)
    assert len(told(answer)) == DESCRIBED_PARTITIONS_MAX
    assert next_of(answer) == ("t", DESCRIBED_PARTITIONS_MAX)


@pytest.mark.parametrize("is_created", [False, True])
async def test_topics_that_come_and_go_between_its_turns_change_nothing_for_the_others(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch, is_created: bool
) -> None:
    names = [f"t{number}" for number in range(9)]
    for name in names:
        await node.create(name)
    turns, middle = 0, len(node.broker.topics) - 4

    async def pause(_: Turns) -> None:
        nonlocal turns
        turns += 1
        if turns == middle:
            await (node.create("a") if is_created else node.broker.topics.delete("t0"))
            await node.broker.topics.delete("t8")

    monkeypatch.setattr(Turns, "pause_if_long", pause)
    answer = await ask(node, [])
    assert [topic.name for topic in answer.topics if topic.name not in INTERNAL_TOPICS] == names[:-1]


async def test_a_topic_that_goes_in_its_very_turn_is_not_told_of(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create("t")

    async def pause(_: Turns) -> None:
        if "t" in node.broker.topics:
            await node.broker.topics.delete("t")

    monkeypatch.setattr(Turns, "pause_if_long", pause)
    assert [topic.name for topic in (await ask(node, [])).topics if topic.name == "t"] == []
