"""The door: who may ask is checked before anything else, what is asked is counted, and a failure says whether anything was begun."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.operations.handling import HANDLERS, Handler, HandlerKind
from penstock.core.security.access import Caller, Principal
from penstock.errors import PenstockError, Reason
from penstock.operations.catalogue import CATALOGUE
from penstock.operations.groups import (
    CommitOffset,
    CommitOffsets,
    DeleteOffsets,
    FetchOffsetsOf,
    GroupOffset,
    Heartbeat,
    ListGroups,
    OffsetToCommit,
)
from penstock.operations.operation import Action, AnyOperation, Operation, Resource, Stream
from penstock.operations.queues import Ack, Consume, Lease, ListQueues
from penstock.operations.topics import CreateTopic, DescribePartition, ListTopics
from penstock.types import Gateway, GroupId, PartitionKey, TopicName
from tests.support.access import Guard, only
from tests.support.kafka_node import KafkaNode
from tests.support.operations import every_operation

ALICE = Caller(Principal("User:alice"), Gateway.HTTP, "10.0.0.1")
LISTS = (ListTopics, ListGroups, ListQueues)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        await started.create("t")
        yield started


async def ask(node: KafkaNode, asked: AnyOperation[Any], run: Any) -> None:
    if isinstance(asked, Stream):
        await node.broker.open(asked, ALICE, run, run)
    else:
        assert isinstance(asked, Operation)
        await node.broker.do(asked, ALICE)


def ask_here(node: KafkaNode, asked: AnyOperation[Any], run: Any) -> None:
    if isinstance(asked, Stream):
        node.broker.door.open_here(asked, ALICE, run, run)
    else:
        assert isinstance(asked, Operation)
        node.broker.begin(asked, ALICE, run)


def is_list(asked: AnyOperation[Any]) -> bool:
    """Whether its handler leaves out what the caller may not see."""
    return all(
        not right.field and not right.any_name and right.resource is not Resource.CLUSTER for right in asked.rights
    )


@pytest.mark.parametrize("asked", every_operation(), ids=list(CATALOGUE))
async def test_nothing_is_done_for_a_caller_without_the_right(
    node: KafkaNode, asked: AnyOperation[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    access = node.broker.access = Guard()
    if is_list(asked):
        assert isinstance(asked, Operation)
        assert await node.broker.do(asked, ALICE) == ()
        return
    if all(right.each for right in asked.rights):
        assert isinstance(asked, Operation)
        assert all(reason.name.endswith("AUTHORIZATION_FAILED") for reason in await node.broker.do(asked, ALICE))
        return

    def run(*_: object) -> None:
        raise AssertionError("it was carried out")

    monkeypatch.setitem(HANDLERS, type(asked), Handler(HANDLERS[type(asked)].kind, run))
    with pytest.raises(PenstockError) as refused:
        await ask(node, asked, run)
    assert refused.value.reason.name.endswith("AUTHORIZATION_FAILED")
    with pytest.raises(PenstockError):
        ask_here(node, asked, run)
    assert access.asked
    assert access.callers == {ALICE}


async def test_a_list_has_what_the_caller_may_describe(node: KafkaNode) -> None:
    await node.create("u")
    node.broker.access = only((Action.DESCRIBE, "topic u"))
    assert [topic.name for topic in await node.broker.do(ListTopics(), ALICE)] == ["u"]


OFFSETS = tuple(OffsetToCommit(PartitionKey(TopicName(name), 0), 5) for name in ("t", "no", "missing", "t", "no"))
COMMITTED = (
    None,
    Reason.TOPIC_AUTHORIZATION_FAILED,
    Reason.UNKNOWN_TOPIC_OR_PARTITION,
    None,
    Reason.TOPIC_AUTHORIZATION_FAILED,
)


async def test_of_many_items_those_that_are_allowed_are_carried_out(node: KafkaNode) -> None:
    allowed = [(Action.READ, name) for name in ("group g", "topic t", "topic missing")]
    access = node.broker.access = only(*allowed)
    assert await node.broker.do(CommitOffsets(GroupId("g"), OFFSETS), ALICE) == COMMITTED
    assert access.asked == [(Action.READ, name) for name in ("group g", "topic t", "topic no", "topic missing")]
    assert await node.broker.door.do_here(CommitOffsets(GroupId("g"), OFFSETS), ALICE) == COMMITTED
    for begin in (node.broker.begin, node.broker.door.begin_here):
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begin(CommitOffsets(GroupId("g"), OFFSETS), ALICE, done.set_result)
        assert await done == COMMITTED
    node.broker.access = only((Action.DESCRIBE, "group g"), (Action.DESCRIBE, "topic t"))
    fetch = FetchOffsetsOf("g", tuple(item.key for item in OFFSETS[:2]))
    mine, refused = node.broker.door.answer_here(fetch, ALICE)
    assert isinstance(mine, GroupOffset)
    assert (mine.offset, refused) == (5, Reason.TOPIC_AUTHORIZATION_FAILED)


async def test_a_right_that_is_not_on_single_items_refuses_all_of_them(node: KafkaNode) -> None:
    node.broker.access = only((Action.READ, "topic t"))
    with pytest.raises(PenstockError) as refused:
        await node.broker.do(CommitOffsets(GroupId("g"), OFFSETS), ALICE)
    assert refused.value.reason is Reason.GROUP_AUTHORIZATION_FAILED
    assert node.broker.groups.list_groups() == []


async def test_a_failure_of_the_whole_is_not_mixed_with_refusals_of_items(node: KafkaNode) -> None:
    node.broker.access = only((Action.DELETE, "group g"), (Action.READ, "topic t"))
    with pytest.raises(PenstockError) as failed:
        await node.broker.do(DeleteOffsets(GroupId("g"), tuple(item.key for item in OFFSETS)), ALICE)
    assert failed.value.reason is Reason.GROUP_ID_NOT_FOUND
    assert not failed.value.begun


async def test_the_rights_to_an_operation_can_be_checked_without_carrying_it_out(node: KafkaNode) -> None:
    node.broker.access = only((Action.CREATE, "topic new"))
    node.broker.door.check(CreateTopic("new"), ALICE)
    assert "new" not in node.broker.topics
    assert node.broker.meters.operations.get(("CreateTopic", "http")) == 0
    with pytest.raises(PenstockError) as refused:
        node.broker.door.check(CreateTopic("other"), ALICE)
    assert refused.value.reason is Reason.TOPIC_AUTHORIZATION_FAILED


async def test_operations_are_counted_by_name_and_gateway(node: KafkaNode) -> None:
    for _ in range(2):
        await node.broker.do(ListTopics(), ALICE)
    assert node.broker.meters.operations.get(("ListTopics", "http")) == 2


async def test_an_answer_that_is_there_at_once_comes_before_begin_returns(node: KafkaNode) -> None:
    found: list[Any] = []
    assert node.broker.begin(ListTopics(), ALICE, found.append) is None
    assert [topic.name for topic in found[0]] == ["t"]


async def test_work_that_takes_time_is_answered_later(node: KafkaNode) -> None:
    made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.broker.begin(CreateTopic("made"), ALICE, made.set_result)
    assert not made.done()
    assert (await made).name == "made"
    refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.broker.begin(CreateTopic("../t"), ALICE, refused.set_result)
    assert (await refused).reason is Reason.INVALID_TOPIC


async def test_a_mistake_in_a_handler_is_reported_and_answered(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setitem(HANDLERS, CreateTopic, Handler(HandlerKind.WORKS, broken))
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.broker.begin(CreateTopic("x"), ALICE, answered.set_result)
    assert (await answered).reason is Reason.UNKNOWN
    assert any("surprise" in report for report in node.reports)


async def test_a_refusal_before_anything_was_begun_is_not_marked(node: KafkaNode) -> None:
    for operation in (
        CommitOffset("g", "none", 0, 1),
        Ack("t", "g", "w", 0, [0]),
        DescribePartition("t", 1),
        Heartbeat("g", "w"),
    ):
        with pytest.raises(PenstockError) as refused:
            await node.broker.do(operation, ALICE)
        assert not refused.value.begun, operation


async def test_a_failure_after_something_was_begun_is_marked(node: KafkaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.broker.groups, "commit_offset", lambda _group, _item, done: done(Reason.STORAGE_ERROR))
    with pytest.raises(PenstockError) as failed:
        await node.broker.do(CommitOffset("g", "t", 0, 1), ALICE)
    assert failed.value.begun


async def test_a_caller_that_is_cancelled_is_leased_nothing(node: KafkaNode) -> None:
    waiting = asyncio.ensure_future(node.broker.do(Lease("t", "g", "gone", 1, 60_000, 60_000), ALICE))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await node.append("t", 0, 1)
    (delivery,) = await node.broker.do(Lease("t", "g", "next", 1, 60_000), ALICE)
    assert (delivery.offset, delivery.attempts) == (0, 1)


async def test_a_stream_gives_what_it_is_granted_until_it_is_closed(node: KafkaNode) -> None:
    await node.append("t", 0, 5)
    offsets: list[int] = []
    news = asyncio.Event()

    def deliver(items: Any) -> None:
        offsets.extend(item.offset for item in items)
        news.set()

    def end(error: object) -> None:
        raise AssertionError(error)

    async def more() -> list[int]:
        async with asyncio.timeout(10):
            await news.wait()
        news.clear()
        return offsets

    flow = await node.broker.open(Consume(2, "t", "g", "w", 60_000), ALICE, deliver, end)
    assert await more() == [0, 1]
    flow.grant(1)
    assert await more() == [0, 1, 2]
    flow.close()
    flow.grant(10)
    assert offsets == [0, 1, 2]
