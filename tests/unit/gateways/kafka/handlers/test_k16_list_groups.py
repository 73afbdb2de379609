import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_groups_generated import ListGroupsRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import commit, stable

KEY = ApiKey.LIST_GROUPS


@pytest.mark.parametrize("version", versions(KEY))
async def test_groups_are_listed_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t")
    await stable(node)
    await commit(node, 1, group="simple")
    answer = await node.ask(KEY, ListGroupsRequest(), version)
    assert answer.error_code == 0
    assert {(each.group_id, each.protocol_type) for each in answer.groups} == {("g", "consumer"), ("simple", "")}
    if version >= 4:
        assert {each.group_id: each.group_state for each in answer.groups} == {"g": "Stable", "simple": "Empty"}
    if version >= 5:
        assert {each.group_type for each in answer.groups} == {"classic"}


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        (["Stable"], [], {"g"}),
        (["EMPTY", "Dead"], ["Classic"], {"simple"}),
        (["Stable", "Empty"], ["consumer", "classic"], {"g", "simple"}),
        (["Wonderful"], [], set()),
        ([], ["consumer"], set()),
    ],
)
async def test_the_list_is_filtered_by_state_and_type(node: KafkaNode, states, types, found) -> None:
    await node.create("t")
    await stable(node)
    await commit(node, 1, group="simple")
    answer = await node.ask(KEY, ListGroupsRequest(states, types), 5)
    assert {each.group_id for each in answer.groups} == found


async def test_a_list_that_would_have_holes_is_refused(node: KafkaNode) -> None:
    groups = node.broker.groups
    groups.family.unload(0)
    groups.family.begin_load(0)
    answer = await node.ask(KEY, ListGroupsRequest(), 5)
    assert reason_of(answer.error_code) is Reason.COORDINATOR_LOAD_IN_PROGRESS
