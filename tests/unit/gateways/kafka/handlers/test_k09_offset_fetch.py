from typing import Any

import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_fetch_generated import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import commit

KEY = ApiKey.OFFSET_FETCH


def request(version: int, group: str, topics: dict[str, list[int]] | None, ids: dict[str, bytes]) -> OffsetFetchRequest:
    if version < 8:
        asked = None if topics is None else [OffsetFetchRequestTopic(name, list(at)) for name, at in topics.items()]
        return OffsetFetchRequest(group_id=group, topics=asked)
    wanted = None
    if topics is not None:
        wanted = [OffsetFetchRequestGroupTopic(ids.get(name, b"?" * 16), name, list(at)) for name, at in topics.items()]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])


def offsets(answer: Any, version: int, names: dict[bytes, str]) -> dict[tuple[str, int], tuple[int, str]]:
    topics = answer.topics if version < 8 else answer.groups[0].topics
    return {
        (names.get(topic.topic_id, "?") if version >= 10 else topic.name, each.partition_index): (
            each.committed_offset,
            each.metadata,
        )
        for topic in topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", versions(KEY))
async def test_what_was_committed_is_told_and_the_rest_is_minus_one(node: KafkaNode, version: int) -> None:
    topic = await node.create("t", 3)
    ids, names = {"t": topic.topic_id.bytes}, {topic.topic_id.bytes: "t"}
    await commit(node, 5)
    answer = await node.ask(KEY, request(version, "g", {"t": [0, 1]}, ids), version)
    assert offsets(answer, version, names) == {("t", 0): (5, "note"), ("t", 1): (-1, "")}
    if version >= 2:
        answer = await node.ask(KEY, request(version, "g", None, ids), version)
        assert offsets(answer, version, names) == {("t", 0): (5, "note")}


@pytest.mark.parametrize("version", versions(KEY))
async def test_an_unknown_group_has_committed_nothing_and_that_is_no_error(node: KafkaNode, version: int) -> None:
    topic = await node.create("t")
    ids, names = {"t": topic.topic_id.bytes}, {topic.topic_id.bytes: "t"}
    answer = await node.ask(KEY, request(version, "nobody", {"t": [0]}, ids), version)
    assert offsets(answer, version, names) == {("t", 0): (-1, "")}
    assert answer.error_code == 0
    if version >= 8:
        assert answer.groups[0].error_code == 0


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_node_that_does_not_have_the_group_says_so_where_the_version_has_a_place_for_it(
    node: KafkaNode, version: int
) -> None:
    for partition in list(node.broker.groups.family.shards):
        node.broker.groups.family.unload(partition)
    answer = await node.ask(KEY, request(version, "g", {"t": [0]}, {}), version)
    if version >= 10:
        assert answer.groups[0].error_code == 16
    elif version >= 8:
        assert (answer.groups[0].error_code, answer.groups[0].topics) == (16, [])
    elif version >= 2:
        assert (answer.error_code, answer.topics) == (16, [])
    else:
        (partition,) = answer.topics[0].partitions
        assert (partition.committed_offset, partition.error_code) == (-1, 16)


async def test_several_groups_are_told_in_one_answer(node: KafkaNode) -> None:
    await node.create("t")
    await commit(node, 5, group="a")
    await commit(node, 6, group="b")
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("a", "b", "c")]
    answer = await node.ask(KEY, OffsetFetchRequest(groups=groups, require_stable=True), 9)
    found = {
        group.group_id: [each.committed_offset for topic in group.topics for each in topic.partitions]
        for group in answer.groups
    }
    assert found == {"a": [5], "b": [6], "c": []}


async def test_a_group_that_is_named_more_than_once_is_told_once_with_all_that_is_asked_of_it(node: KafkaNode) -> None:
    for name in ("t", "u"):
        await node.create(name)
    await commit(node, 5)

    async def told(*asked: list[str] | None) -> list[list[str]]:
        groups = [
            OffsetFetchRequestGroup(
                group_id="g",
                topics=None
                if names is None
                else [OffsetFetchRequestGroupTopic(name=n, partition_indexes=[0]) for n in names],
            )
            for names in asked
        ]
        answer = await node.ask(KEY, OffsetFetchRequest(groups=groups), 8)
        return [[topic.name for topic in group.topics] for group in answer.groups]

    assert await told(["t"], ["u"]) == [["t", "u"]]
    assert await told(["u"], None) == [["t"]]
    assert await told(None, ["u"]) == [["t"]]


async def test_the_leader_epoch_comes_back_as_it_was_sent(node: KafkaNode) -> None:
    await node.create("t")
    await commit(node, 5)
    answer = await node.ask(KEY, request(5, "g", {"t": [0]}, {}), 5)
    assert answer.topics[0].partitions[0].committed_leader_epoch == 4


async def test_a_topic_id_that_nobody_has_is_said_to_be_unknown(node: KafkaNode) -> None:
    answer = await node.ask(KEY, request(10, "g", {"nowhere": [0]}, {}), 10)
    (partition,) = answer.groups[0].topics[0].partitions
    assert (partition.committed_offset, reason_of(partition.error_code)) == (-1, Reason.UNKNOWN_TOPIC_ID)
