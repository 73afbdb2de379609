import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_groups_generated import DeleteGroupsRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import commit, stable

KEY = ApiKey.DELETE_GROUPS


@pytest.mark.parametrize("version", versions(KEY))
async def test_each_group_has_its_answer_in_every_version(node: KafkaNode, version: int) -> None:
    await node.create("t")
    await stable(node)
    await commit(node, 1, group="simple")
    answer = await node.ask(KEY, DeleteGroupsRequest(["nobody", "simple", "g", "simple"]), version)
    assert [(each.group_id, reason_of(each.error_code)) for each in answer.results] == [
        ("nobody", Reason.GROUP_ID_NOT_FOUND),
        ("simple", None),
        ("g", Reason.NON_EMPTY_GROUP),
    ]
    assert [group.group_id for group in node.broker.groups.list_groups()] == ["g"]
