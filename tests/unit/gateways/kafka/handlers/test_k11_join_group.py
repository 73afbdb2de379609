import asyncio

import pytest

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.unit.gateways.kafka.handlers.groups import SUBSCRIPTION, join, join_request

KEY = ApiKey.JOIN_GROUP


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_member_joins_in_every_version(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, join_request(), version)
    if version >= 4:
        assert reason_of(answer.error_code) is Reason.MEMBER_ID_REQUIRED
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = await node.ask(KEY, join_request(member_id=answer.member_id), version)
    assert answer.error_code == 0
    assert answer.member_id.startswith("test-")
    assert answer.leader == answer.member_id
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [(each.member_id, each.metadata) for each in answer.members] == [(answer.member_id, SUBSCRIPTION)]
    (member,) = node.broker.groups.describe("g").members
    assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_refusal_can_be_read_in_every_version(node: KafkaNode, version: int) -> None:
    answer = await node.ask(KEY, join_request(member_id="nobody"), version)
    assert reason_of(answer.error_code) is Reason.UNKNOWN_MEMBER_ID
    assert (answer.generation_id, answer.leader, answer.member_id, answer.members) == (-1, "", "nobody", [])


async def test_the_first_version_has_one_timeout_for_both(node: KafkaNode) -> None:
    await node.ask(KEY, join_request(session_timeout_ms=7_000), 0)
    (member,) = node.broker.groups._directory.groups["g"].members.values()
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (7_000, 7_000)


async def test_a_join_waits_for_the_others_and_a_client_that_went_away_does_not_matter(node: KafkaNode) -> None:
    first = await join(node)
    gone = asyncio.ensure_future(node.ask(KEY, join_request(), 3))
    waiting = asyncio.ensure_future(node.ask(KEY, join_request(), 3))
    await asyncio.sleep(0)
    gone.cancel()
    assert not waiting.done()
    again = await node.ask(KEY, join_request(member_id=first.member_id), 3)
    answer = await waiting
    assert answer.generation_id == again.generation_id == 2
    assert answer.leader == first.member_id
    assert len(again.members) == 3


async def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment_where_it_understands(
    node: KafkaNode,
) -> None:
    first = await node.ask(KEY, join_request(group_instance_id="i"), 9)
    assert first.error_code == 0
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=first.member_id,
        group_instance_id="i",
        protocol_type="consumer",
        protocol_name="range",
    )
    assert (await node.ask(ApiKey.SYNC_GROUP, sync, 5)).error_code == 0
    back = await node.ask(KEY, join_request(group_instance_id="i"), 9)
    assert (back.generation_id, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert [each.group_instance_id for each in back.members] == ["i"]
    older = await node.ask(KEY, join_request(group_instance_id="i"), 8)
    assert (older.generation_id, older.leader, older.members) == (1, back.member_id, [])
