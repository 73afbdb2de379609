from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.core.cluster.reassignment import ElectionKind, Reassignments
from penstock.errors import PenstockError, Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.elect_leaders_generated import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ElectLeadersResponse,
)
from tests.support.access import Guard
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE, KafkaNode, reason_of, versions

KEY = ApiKey.ELECT_LEADERS
PREFERRED, UNCLEAN = 0, 1


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNode]:
    async with ClusterNode(tmp_path / "cluster") as started:
        yield started


def asked(*partitions: int, kind: int = PREFERRED) -> ElectLeadersRequest:
    return ElectLeadersRequest(kind, [ElectLeadersRequestTopicPartitions("t", list(partitions))])


def reasons(answer: ElectLeadersResponse) -> dict[tuple[str, int], Reason | None]:
    return {
        (topic.topic, each.partition_id): reason_of(each.error_code)
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


@pytest.mark.parametrize("version", versions(KEY))
async def test_the_preferred_leader_leads_if_it_is_in_sync(cluster: ClusterNode, version: int) -> None:
    topic = await cluster.place("t", (OTHER, NODE), (NODE, OTHER), (THIRD, NODE))
    live = cluster.cluster.nodes.live()
    for index in (0, 2):
        await cluster.set_record(topic, index, leader=NODE, leader_node_epoch=live[NODE], leader_epoch=1)
    await cluster.set_record(topic, 2, isr=((NODE, live[NODE]),))
    answer = await cluster.ask(KEY, asked(0, 1, 2, 3), version)
    assert reasons(answer) == {
        ("t", 0): None,
        ("t", 1): Reason.ELECTION_NOT_NEEDED,
        ("t", 2): Reason.PREFERRED_LEADER_NOT_AVAILABLE,
        ("t", 3): Reason.UNKNOWN_TOPIC_OR_PARTITION,
    }
    record = cluster.broker.topics.partition(topic, 0)
    assert (record.leader, record.leader_epoch) == (OTHER, 2)


@pytest.mark.parametrize("version", [1, 2])
async def test_all_partitions_are_meant_without_a_list_and_those_that_need_nothing_are_left_out(
    cluster: ClusterNode, version: int
) -> None:
    topic = await cluster.place("t", (OTHER, NODE), (NODE, OTHER))
    live = cluster.cluster.nodes.live()
    await cluster.set_record(topic, 0, leader=NODE, leader_node_epoch=live[NODE], leader_epoch=1)
    answer = await cluster.ask(KEY, ElectLeadersRequest(PREFERRED, None), version)
    assert reasons(answer) == {("t", 0): None}


async def test_only_what_needs_an_election_is_asked_for_and_who_was_slower_than_others_is_told_nothing(
    cluster: ClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await cluster.place("t", (OTHER, NODE), (NODE, OTHER))
    live = cluster.cluster.nodes.live()
    await cluster.set_record(topic, 0, leader=NODE, leader_node_epoch=live[NODE], leader_epoch=1)
    wished: list[tuple[str, int]] = []

    async def elect(_: Reassignments, name: str, partition: int, _kind: ElectionKind) -> None:
        wished.append((name, partition))
        raise PenstockError(Reason.ELECTION_NOT_NEEDED)

    monkeypatch.setattr(Reassignments, "elect", elect)
    assert reasons(await cluster.ask(KEY, ElectLeadersRequest(PREFERRED, None), 2)) == {}
    assert wished == [("t", 0)]


@pytest.mark.parametrize("version", [1, 2])
async def test_an_unclean_election_takes_who_is_up_when_nobody_in_sync_is(cluster: ClusterNode, version: int) -> None:
    topic = await cluster.place("t", (OTHER, NODE), (NODE, OTHER))
    live = cluster.cluster.nodes.live()
    await cluster.set_record(topic, 0, leader=-1, leader_epoch=1, isr=((OTHER, live[OTHER]),))
    await cluster.leave(OTHER)
    answer = await cluster.ask(KEY, asked(0, 1, kind=UNCLEAN), version)
    assert reasons(answer) == {("t", 0): None, ("t", 1): Reason.ELECTION_NOT_NEEDED}
    assert cluster.broker.topics.partition(topic, 0).leader == NODE


async def test_another_kind_of_election_is_refused(cluster: ClusterNode) -> None:
    answer = await cluster.ask(KEY, asked(0, kind=2), 2)
    assert reason_of(answer.error_code) is Reason.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(KEY))
async def test_a_broker_that_is_alone_leads_already(node: KafkaNode, version: int) -> None:
    await node.create("t")
    answer = await node.ask(KEY, asked(0, 1), version)
    assert reasons(answer) == {("t", 0): Reason.ELECTION_NOT_NEEDED, ("t", 1): Reason.UNKNOWN_TOPIC_OR_PARTITION}
    assert reasons(await node.ask(KEY, ElectLeadersRequest(PREFERRED, None), version)) == {}


@pytest.mark.parametrize("version", versions(KEY))
async def test_who_may_not_is_told_so_in_every_version(node: KafkaNode, version: int) -> None:
    node.broker.access = Guard()
    answer = await node.ask(KEY, asked(0), version)
    if version == 0:
        assert reasons(answer) == {("t", 0): Reason.CLUSTER_AUTHORIZATION_FAILED}
    else:
        assert reason_of(answer.error_code) is Reason.CLUSTER_AUTHORIZATION_FAILED
