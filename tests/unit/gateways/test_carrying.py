"""Who a request belongs to, and marks: believed of the cluster's own nodes alone."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.core.access import Caller, Principal
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import Carrying, can_be_elsewhere
from penstock.types import Gateway, NodeId
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode

ALICE = Caller(Principal("User:alice"), Gateway.HTTP, "10.0.0.1")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path) as node:
        node.cluster.secret = b"s" * 32
        yield node


async def test_a_broker_that_is_alone_is_the_owner_of_everything(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        carrying = Carrying(node.broker)
        await node.create("t")
        assert carrying.group("g") is carrying.sinks() is carrying.keys("t") is carrying.partition("t", 0) is None
        assert carrying.believed("mark", b"request") is None


async def test_a_partition_belongs_to_its_leader(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    await node.place("t", (NODE, OTHER), (OTHER, NODE), (THIRD, OTHER))
    assert [carrying.partition("t", index) for index in range(3)] == [None, OTHER, THIRD]
    assert carrying.address(NodeId(OTHER), Gateway.HTTP).port == 8000 + OTHER


async def test_what_does_not_exist_is_refused_by_whoever_is_asked(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    await node.place("t", (OTHER,))
    assert carrying.partition("t", 1) is carrying.partition("none", 0) is carrying.keys("none") is None


async def test_a_partition_that_nobody_leads_and_a_node_that_is_not_up_are_refused_for_now(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    topic = await node.place("t", (OTHER,))
    await node.set_record(topic, 0, leader=-1)
    with pytest.raises(PenstockError) as nobody:
        carrying.partition("t", 0)
    await node.leave(OTHER)
    with pytest.raises(PenstockError) as not_up:
        carrying.address(NodeId(OTHER), Gateway.HTTP)
    with pytest.raises(PenstockError) as no_listener:
        carrying.address(NodeId(THIRD), Gateway.GRPC)
    assert all(can_be_elsewhere(error.value.reason) for error in (nobody, not_up, no_listener))
    assert not can_be_elsewhere(Reason.LINK_LOST)


async def test_what_nobody_speaks_for_is_asked_again_until_somebody_does(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    topic = await node.place("t", (OTHER,))
    record = await node.set_record(topic, 0, leader=-1)
    asked: list[int] = []

    def find() -> NodeId | None:
        asked.append(1)
        if len(asked) == 2:
            node.broker.background(node.set_record(topic, 0, leader=THIRD, leader_epoch=record.leader_epoch + 1))
        return carrying.partition("t", 0)

    assert await carrying.found(find) == THIRD
    assert len(asked) >= 2


async def test_a_mark_says_whose_request_it_is(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    found = carrying.believed(carrying.mark(NODE, ALICE, b"GET /x"), b"GET /x")
    assert found is not None
    assert (found.by_node, found.to_node, found.caller(Gateway.HTTP)) == (NODE, NODE, ALICE)


async def test_a_mark_is_good_for_one_request_and_one_node_alone(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    mine = carrying.mark(NODE, ALICE, b"GET /x")
    assert carrying.believed(mine, b"GET /x") is not None
    assert carrying.believed(mine, b"GET /y") is None
    assert carrying.believed(carrying.mark(NodeId(OTHER), ALICE, b"GET /x"), b"GET /x") is None


@pytest.mark.parametrize("mark", ["", "x", "e30=", "W10=", "WzcsNywiYSIsImIiLCJBQUFBIl0=", "=" * 10_000, "\u00e9"])
async def test_what_an_outsider_makes_up_is_no_mark(node: ClusterNode, mark: str) -> None:
    assert Carrying(node.broker).believed(mark, b"GET /x") is None


async def test_a_mark_made_with_another_secret_is_not_believed(node: ClusterNode) -> None:
    carrying = Carrying(node.broker)
    node.cluster.secret = b"t" * 32
    forged = carrying.mark(NODE, ALICE, b"GET /x")
    node.cluster.secret = b"s" * 32
    assert carrying.believed(forged, b"GET /x") is None


async def test_nothing_is_believed_before_the_secret_is_known(node: ClusterNode) -> None:
    node.cluster.secret = b""
    carrying = Carrying(node.broker)
    assert carrying.believed(carrying.mark(NODE, ALICE, b"GET /x"), b"GET /x") is None
