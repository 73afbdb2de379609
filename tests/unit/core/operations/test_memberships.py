"""A member of a group for as long as its stream is open; the group is real, and its coordinator's failures are this test's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.security.access import INTERNAL
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import MemberAssignment, Membership
from penstock.types import GroupId
from tests.support.kafka_node import KafkaNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        await started.create("t", 2)
        await started.append("t", 0, 5)
        yield started


class Member:
    """One stream."""

    def __init__(self, node: KafkaNode, consumer_id: str) -> None:
        self.items: list[MemberAssignment] = []
        self.ended: list[PenstockError | None] = []
        membership = Membership(credit=0, group="g", topic="t", consumer_id=consumer_id)
        self.flow = node.broker.door.open_here(membership, INTERNAL, self.items.extend, self.ended.append)


def members(node: KafkaNode) -> list[str]:
    return [str(member.member_id) for member in node.broker.groups.describe(GroupId("g")).members]


async def turn_over(node: KafkaNode) -> None:
    """What was gathered for the end of a turn has run: appending waits for one."""
    await node.append("t", 1, 1)


def refuse_offsets(node: KafkaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PenstockError(Reason.COORDINATOR_LOAD_IN_PROGRESS)

    monkeypatch.setattr(node.broker.groups, "fetch_offsets", refuse)


async def test_members_are_sent_their_partitions_with_what_the_group_committed(node: KafkaNode) -> None:
    await node.commit("g", "t", 1, 3)
    first = Member(node, "a")
    assert first.items == [MemberAssignment((0, 1), {1: 3})]
    second = Member(node, "b")
    assert second.items == [MemberAssignment((1,), {1: 3})]
    assert first.items[1:] == [MemberAssignment((0,), {})]
    second.flow.close()
    assert first.items[2:] == [MemberAssignment((0, 1), {1: 3})]
    assert not first.ended
    assert members(node) == ["a"]


async def test_a_member_without_partitions_has_an_empty_assignment_and_stays(node: KafkaNode) -> None:
    last = Member(node, "c")
    others = [Member(node, "a"), Member(node, "b")]
    await turn_over(node)
    assert last.items[-1] == MemberAssignment((), {})
    others[0].flow.close()
    assert last.items[-1] == MemberAssignment((1,), {})


async def test_a_newer_stream_of_a_member_takes_the_place_of_the_older_one(node: KafkaNode) -> None:
    older, newer = Member(node, "a"), Member(node, "a")
    assert [error.reason for error in older.ended if error] == [Reason.FENCED_INSTANCE_ID]
    older.flow.close()
    await turn_over(node)
    assert members(node) == ["a"]
    assert not newer.ended
    newer.flow.close()
    assert members(node) == []
    assert not node.broker.door.memberships


async def test_a_member_that_cannot_be_sent_its_assignment_has_not_joined(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_offsets(node, monkeypatch)
    with pytest.raises(PenstockError) as caught:
        Member(node, "a")
    assert caught.value.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
    assert members(node) == []
    assert not node.broker.door.memberships


async def test_a_member_whose_stream_fails_leaves_its_partitions_to_the_others(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Member(node, "a"), Member(node, "b")
    refuse_offsets(node, monkeypatch)
    second.flow.close()
    await turn_over(node)
    assert [error.reason for error in first.ended if error] == [Reason.NOT_COORDINATOR]
    assert members(node) == []


async def test_a_group_that_is_not_coordinated_here_any_more_ends_its_streams(node: KafkaNode) -> None:
    member = Member(node, "a")
    group = node.broker.groups._directory.find(GroupId("g"))
    assert group is not None
    node.broker.groups.shared.abandon(group)
    assert not member.ended
    await turn_over(node)
    assert [error.reason for error in member.ended if error] == [Reason.NOT_COORDINATOR]
    assert member.items == [MemberAssignment((0, 1), {})]
