"""Real nodes over HTTP, with a real etcd: the owner of a stream is killed, and etcd goes away and comes back."""

import json

import httpx
import pytest

from penstock.core.coordinators.topic import partition_of
from tests.conformance.driftq.client import Driftq
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.waiting import Deadline, eventually

SECONDS = 60.0


def coordinator(cluster: ClusterProcesses, group: str) -> int:
    """The node that speaks for a group."""
    partitions = cluster.describe().topics["__consumer_offsets"].partitions
    return partitions[partition_of(group, len(partitions))].leader


@pytest.mark.timeout(180)
def test_a_worker_loses_nothing_when_the_node_behind_its_own_is_killed(tmp_path, etcd: Etcd) -> None:
    with ClusterProcesses(tmp_path, etcd.urls, gateways=False) as cluster:
        owner = cluster.nodes[coordinator(cluster, "g")]
        stranger = next(node for node in cluster.nodes.values() if node is not owner)
        driftq = Driftq(stranger.addresses["http"])
        driftq.create("jobs", 3)
        sent = {f"job {n}" for n in range(30)}
        for value in sorted(sent):
            driftq.produce("jobs", value)
        finished: set[str] = set()
        with driftq.http.stream("GET", "/v1/consume", params=worker("a", 1_500)) as response:
            lines = response.iter_lines()
            for _ in range(10):
                line = next_line(lines)
                if driftq.settle("ack", "jobs", "a", line).status_code == 204:
                    finished.add(line["value"])
            owner.kill()
            # What had been on its way is given, and then the stream ends as a whole answer does.
            rest = [line for line in lines if line]
        assert all(line.endswith("}") for line in rest)
        deadline = Deadline(SECONDS, "the other records are worked")
        while finished != sent:
            assert deadline.left
            finished |= work_on(driftq, len(sent - finished))
        driftq.close()


def worker(owner: str, lease_ms: int) -> dict[str, str]:
    return {"topic": "jobs", "group": "g", "owner": owner, "lease_ms": str(lease_ms)}


def next_line(lines) -> dict:
    return json.loads(next(lines))


def work_on(driftq: Driftq, count: int) -> set[str]:
    """What is finished of the next records; a node that is taking over asks to come again."""
    leased = driftq.http.post(
        "/v1/lease",
        json={"topic": "jobs", "group": "g", "owner": "b", "lease_ms": 30_000, "max_records": count, "wait_ms": 2_000},
    )
    if leased.status_code in (503, 504):
        return set()
    assert leased.status_code == 200, leased.text
    finished = set()
    for record in leased.json()["records"]:
        answer = driftq.settle("ack", "jobs", "b", record)
        assert answer.status_code == 204, answer.text
        finished.add(record["value"])
    return finished


@pytest.mark.timeout(180)
def test_a_node_lives_and_says_so_while_etcd_is_away(tmp_path, etcd: Etcd) -> None:
    # A node looks whether etcd answers three times in a lease.
    settings = {"cluster.lease_ms": 6_000}
    with ClusterProcesses(tmp_path, etcd.urls, settings=settings, gateways=False) as cluster:
        node = cluster.nodes[1]
        with httpx.Client(base_url=f"http://{node.addresses['http']}", timeout=SECONDS) as client:
            assert client.post("/topics", json={"name": "t", "partitions": 3}).status_code == 201
            eventually(lambda: client.get("/readyz").json() == {"status": "ready"}, SECONDS, "it is ready")
            # Every replica has heard of the topic and copies it: the others would not hear of it while etcd is away.
            for index in range(3):
                body = {"value": "before", "partition": index, "acks": "all"}
                assert client.post("/topics/t/messages", json=body).status_code == 200
            etcd.members[0].pause()
            eventually(lambda: client.get("/readyz").status_code == 503, SECONDS, "it is not ready")
            health = client.get("/health")
            assert (health.status_code, health.json()["status"]) == (200, "degraded")
            assert health.json()["problem"]
            assert client.get("/livez").status_code == 200
            for index in range(3):
                body = {"value": "v", "partition": index, "acks": "all"}
                published = client.post("/topics/t/messages", json=body)
                assert published.status_code == 200, published.text
            etcd.members[0].resume()
            eventually(lambda: client.get("/readyz").status_code == 200, SECONDS, "it is ready again")
            assert client.get("/health").json() == {"status": "healthy"}
