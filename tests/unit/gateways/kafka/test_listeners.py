"""Clients of a further listener: they get the addresses of the listeners of its name, and no others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from penstock.address import Address
from penstock.core.topics.names import GROUP_STATE_TOPICS
from penstock.core.topics.topics import NewTopic
from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_cluster_generated import DescribeClusterRequest
from penstock.wire.kafka.find_coordinator_generated import FindCoordinatorRequest
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataRequestTopic
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE, reason_of
from tests.support.kafka_wire import METADATA, PRODUCE, batch, produce, produced
from tests.support.listeners import plain

OUTSIDE = Address("outside.example", 19007)


class OutsideNode(WireClusterNode):
    """Nodes 7 and 8 have a listener ``outside``; node 9 has none."""

    async def __aenter__(self) -> "OutsideNode":
        await super().__aenter__()
        listener = plain("outside", advertised=OUTSIDE)
        await self.gateway.start(listener)
        # What ``connect`` connects to from now on.
        self.inside, self.address = self.address, listener.address
        await self.join(NODE, outside=str(OUTSIDE))
        await self.join(OTHER, outside="outside.example:19008")
        self.cluster.replicas.registered(self.cluster.nodes.live()[NODE])
        return self


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[OutsideNode]:
    async with OutsideNode(tmp_path) as started:
        yield started


async def test_nodes_are_listed_with_the_addresses_of_that_listener(node: OutsideNode) -> None:
    client = await node.connect()
    expected = [(NODE, "outside.example", 19007), (OTHER, "outside.example", 19008)]
    metadata = await client.ask(METADATA, MetadataRequest(), 12)
    assert [(each.node_id, each.host, each.port) for each in metadata.brokers] == expected
    cluster = await client.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), 0)
    assert [(each.broker_id, each.host, each.port) for each in cluster.brokers] == expected
    node.address = node.inside
    inside = await (await node.connect()).ask(METADATA, MetadataRequest(), 12)
    assert [(each.node_id, each.port) for each in inside.brokers] == [(NODE, 9007), (OTHER, 9008), (THIRD, 9009)]


async def test_a_leader_without_that_listener_cannot_be_reached(node: OutsideNode) -> None:
    await node.place("t", (OTHER, NODE, THIRD), (THIRD, NODE, OTHER))
    client = await node.connect()
    asked = MetadataRequest([MetadataRequestTopic(name="t")])
    found = (await client.ask(METADATA, asked, 12)).topics[0].partitions
    assert [each.leader_id for each in sorted(found, key=lambda each: each.partition_index)] == [OTHER, -1]


async def test_the_leader_in_a_refusal_has_the_address_of_that_listener(node: OutsideNode) -> None:
    await node.place("t", (OTHER, NODE, THIRD), (THIRD, NODE, OTHER))
    client = await node.connect()
    response = await client.ask(PRODUCE, produce("t", batch(b"a")), 12)
    assert produced(response).current_leader.leader_id == OTHER
    assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [
        (OTHER, "outside.example", 19008)
    ]


async def test_the_coordinator_has_the_address_of_that_listener_or_cannot_be_reached(node: OutsideNode) -> None:
    client = await node.connect()
    for name in GROUP_STATE_TOPICS:
        await node.broker.topics.create(NewTopic(name, assignments={0: [OTHER, NODE], 1: [THIRD, NODE]}), internal=True)
    asked = FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in range(8)])
    found = (await client.ask(ApiKey.FIND_COORDINATOR, asked, 4)).coordinators
    assert {(reason_of(each.error_code), each.node_id, each.host, each.port) for each in found} == {
        (None, OTHER, "outside.example", 19008),
        (Reason.COORDINATOR_NOT_AVAILABLE, -1, "", -1),
    }


async def test_callers_have_the_name_of_their_listener(node: OutsideNode) -> None:
    client = await node.connect()
    await client.ask(METADATA, MetadataRequest(), 12)
    assert [connection.caller.listener for connection in node.connections()] == ["outside"]
