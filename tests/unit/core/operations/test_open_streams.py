"""Whoever loses a right loses the streams that needed it, and no others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from penstock.core.operations.open_streams import KeptRight
from penstock.core.security.access import Caller, Principal
from penstock.errors import PenstockError, Reason
from penstock.operations.access import Permission, Rule, RuleFilter
from penstock.operations.groups import Membership
from penstock.operations.operation import Action, Resource, Stream
from penstock.operations.queues import Consume, Lease
from penstock.operations.records import FollowTopic
from penstock.types import Gateway
from tests.support.access import use_rules
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until

ANNA, BERT = (Caller(Principal(f"User:{name}"), Gateway.HTTP) for name in ("anna", "bert"))


class Reader:
    """One open stream."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.ended: list[PenstockError | None] = []
        self.news = asyncio.Event()

    async def open(self, node: KafkaNode, stream: Stream[Any], caller: Caller) -> "Reader":
        self.flow = await node.broker.open(stream, caller, self._came, self.ended.append)
        return self

    def _came(self, items: Any) -> None:
        self.items.extend(items)
        self.news.set()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        await started.create("t")
        rules = await use_rules(started)
        # The door was made with the access before it.
        started.broker.access.on_changed.append(started.broker.door.streams._check)
        await rules.create(
            Rule(caller.principal, Permission.ALLOW, Action.READ, resource, name)
            for caller in (ANNA, BERT)
            for resource, name in ((Resource.TOPIC, "t"), (Resource.GROUP, "g"))
        )
        yield started


async def test_a_stream_ends_with_the_right_to_it(node: KafkaNode) -> None:
    anna = await Reader().open(node, Consume(1, "t", "g", "anna", 60_000), ANNA)
    bert = await Reader().open(node, Consume(1, "t", "g", "bert", 60_000), BERT)
    member = await Reader().open(node, Membership(0, "g", "t", "c"), ANNA)
    rules = node.broker.access_rules
    await rules.create([Rule("User:carl", Permission.ALLOW, Action.READ, Resource.TOPIC, "t")])
    assert anna.ended == bert.ended == member.ended == []
    await rules.delete([RuleFilter(principal="User:anna", resource=Resource.TOPIC)])
    for ended in (anna.ended, member.ended):
        assert [error and error.reason for error in ended] == [Reason.TOPIC_AUTHORIZATION_FAILED]
    assert bert.ended == []
    # Nothing is leased to who is gone, and the member has left.
    await node.append("t", 0, 1)
    async with asyncio.timeout(60):
        await bert.news.wait()
    assert [item.offset for item in bert.items] == [0]
    assert anna.items == []
    assert node.broker.door.memberships == {}
    anna.flow.grant(1)
    anna.flow.close()
    assert len(anna.ended) == 1
    bert.flow.close()
    await rules.delete([RuleFilter()])
    assert bert.ended == []


async def test_a_stream_that_ended_is_not_refused_later(node: KafkaNode) -> None:
    bert = await Reader().open(node, Consume(1, "t", "g", "bert", 60_000), BERT)
    await node.broker.topics.delete("t")
    assert len(bert.ended) == 1
    await node.broker.access_rules.delete([RuleFilter()])
    assert len(bert.ended) == 1


async def test_an_operation_that_was_admitted_is_refused_with_the_next_version(node: KafkaNode) -> None:
    lease = Lease("t", "g", "w", 1, 60_000)
    for _ in range(2):
        assert await node.broker.do(lease, ANNA) == ()
    await node.broker.access_rules.delete([RuleFilter(resource=Resource.GROUP)])
    try:
        await node.broker.do(lease, ANNA)
    except PenstockError as error:
        assert error.reason is Reason.GROUP_AUTHORIZATION_FAILED
    else:
        raise AssertionError("it was admitted")


async def test_a_reader_that_goes_on_by_itself_is_checked_again(node: KafkaNode) -> None:
    kept = KeptRight(node.broker, FollowTopic("t"), ANNA)
    kept.check()
    await node.broker.access_rules.delete([RuleFilter(principal="User:bert")])
    kept.check()
    await node.broker.access_rules.delete([RuleFilter()])
    for _ in range(2):
        try:
            kept.check()
        except PenstockError as error:
            assert error.reason is Reason.TOPIC_AUTHORIZATION_FAILED
        else:
            raise AssertionError("it may still read")


async def test_a_call_that_waits_is_refused_when_its_caller_loses_the_right(node: KafkaNode) -> None:
    ended: dict[str, list[Any]] = {"anna": [], "bert": []}
    for name, caller in (("anna", ANNA), ("bert", BERT)):
        node.broker.begin(Lease("t", "g", name, 1, 60_000, 60_000), caller, ended[name].append)
    await node.broker.access_rules.delete([RuleFilter(principal=ANNA.principal, resource=Resource.TOPIC)])
    [refused] = ended["anna"]
    assert refused.reason is Reason.TOPIC_AUTHORIZATION_FAILED
    assert not ended["bert"]
    await node.append("t", 0, 1)
    await until(lambda: ended["bert"])
    assert len(ended["anna"]) == 1
    assert len(ended["bert"][0]) == 1
