"""GET /v1/cluster and the drains of nodes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.cluster.agreement import agree
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Entry
from tests.support.http_node import HttpNode
from tests.support.kafka_cluster import OTHER, THIRD, ClusterNode
from tests.support.kafka_node import NODE


class HttpClusterNode(ClusterNode, HttpNode):
    """A node of three that listens for HTTP."""


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[HttpClusterNode]:
    async with HttpClusterNode(tmp_path / "cluster") as started:
        yield started


async def test_the_cluster_is_told_with_its_nodes_and_its_controller(cluster: HttpClusterNode) -> None:
    await cluster.place("t", (NODE, OTHER))
    answer = (await cluster.client.get("/v1/cluster")).json()
    assert (answer["cluster_id"], answer["node"], answer["is_alone"]) == ("penstock-test", NODE, False)
    assert answer["metadata"] == {"is_reachable": True, "error": None}
    assert answer["controller"]["node"] == OTHER
    first = answer["nodes"][0]
    assert (first["node"], first["is_up"], first["rack"], first["leads"], first["replicas"]) == (NODE, True, "a", 1, 1)
    assert first["listeners"] == {"kafka": "127.0.0.1:9007", "http": "127.0.0.1:8007"}


async def test_what_is_wrong_is_told_with_why(cluster: HttpClusterNode) -> None:
    await cluster.place("t", (OTHER,))
    await cluster.place("u", (NODE, OTHER))
    await cluster.cluster.reassignments.alter("u", 0, (NODE, THIRD))
    await cluster.leave(OTHER)
    answer = (await cluster.client.get("/v1/cluster")).json()
    [offline] = answer["offline"]
    assert (offline["topic"], offline["partition"], answer["offline_count"]) == ("t", 0, 1)
    assert offline["why"].endswith("acknowledged records: start it")
    [move] = answer["moves"]
    assert (move["adding"], move["removing"], move["copied"]) == ([THIRD], [OTHER], {"9": 0})
    assert [node["is_up"] for node in answer["nodes"]] == [True, False, True]


async def test_a_store_that_is_away_is_told_and_the_rest_too(
    cluster: HttpClusterNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: MemoryStore, key: str) -> Entry | None:
        raise PenstockError(Reason.METADATA_UNAVAILABLE, f"etcd does not answer for {key}")

    monkeypatch.setattr(MemoryStore, "get", away)
    answer = (await cluster.client.get("/v1/cluster")).json()
    assert answer["metadata"] == {"is_reachable": False, "error": "etcd does not answer for controller"}
    assert len(answer["nodes"]) == 3


async def test_a_node_is_emptied_and_used_again(cluster: HttpClusterNode) -> None:
    await cluster.place("t", (OTHER, NODE))
    answer = await cluster.client.post("/v1/cluster/drain/8")
    assert (answer.status_code, answer.json()) == (
        200,
        {"node": OTHER, "leads": 1, "replicas": 1, "stuck": 0, "is_done": False, "only_there": 0},
    )
    assert cluster.cluster.nodes.draining == {OTHER}
    told = (await cluster.client.get("/v1/cluster")).json()
    assert [drain["node"] for drain in told["drains"]] == [OTHER]
    assert (await cluster.client.delete("/v1/cluster/drain/8")).status_code == 200
    assert cluster.cluster.nodes.draining == set()


@pytest.mark.parametrize(("node", "status"), [("5", 404), ("eight", 400), ("-1", 400)])
async def test_a_node_that_is_none_cannot_be_emptied(cluster: HttpClusterNode, node: str, status: int) -> None:
    answer = await cluster.client.post(f"/v1/cluster/drain/{node}")
    assert answer.status_code == status
    assert cluster.cluster.nodes.draining == set()


async def test_a_broker_that_is_alone_answers_for_itself_and_is_not_emptied(tmp_path: Path) -> None:
    async with HttpNode(tmp_path) as alone:
        answer = (await alone.client.get("/v1/cluster")).json()
        assert (answer["is_alone"], [node["is_up"] for node in answer["nodes"]]) == (True, [True])
        refused = await alone.client.post(f"/v1/cluster/drain/{NODE}")
        assert refused.status_code == 400
        assert "single broker" in refused.json()["message"]


async def test_the_secret_of_the_nodes_is_rotated_and_not_shown(cluster: HttpClusterNode) -> None:
    record = await agree(cluster.store, cluster.broker.clock, cluster.broker.entropy, "c")
    assert cluster.cluster.secret.of(1) == record.secret
    answer = await cluster.client.post("/v1/cluster/secret/rotate")
    assert (answer.status_code, answer.json()) == (200, {"generation": 2})
    assert cluster.cluster.secret.of(2) not in (None, record.secret)
    assert (await cluster.client.post("/v1/cluster/secret/rotate?again=1")).status_code == 400
    assert cluster.cluster.secret.generation == 2
