"""Changes while etcd is away: every API says within seconds that etcd does not answer, and what that means for the change."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_topics_generated import DeleteTopicsRequest, DeleteTopicsRequestTopic
from penstock.wire.mq import mq_generated as mq
from tests.support.cluster_processes import ClusterProcesses, NodeProcess
from tests.support.etcd import Etcd
from tests.support.kafka_wire import RawClient

SECONDS = 10
"""As long as a client waits here for an answer that says why."""
SERVICE = "/mq.MessageQueueService"


def over_kafka(node: NodeProcess, *, create: bool) -> str:
    if not create:
        # The version of this client has no place for a text.
        request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic("t")], timeout_ms=SECONDS * 1000)
        with RawClient(node.bootstrap) as client:
            client.socket.settimeout(SECONDS)
            [answer] = client.ask(ApiKey.DELETE_TOPICS, request, 6).responses
        return str(answer.error_message)
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    asked = admin.create_topics([NewTopic("by-kafka", 1, -1)], request_timeout=SECONDS)["by-kafka"]
    with pytest.raises(KafkaException) as refused:
        asked.result(SECONDS)
    return str(refused.value)


def over_http(node: NodeProcess, *, create: bool) -> str:
    with httpx.Client(base_url=f"http://{node.addresses['http']}", timeout=SECONDS) as client:
        body = {"name": "by-http", "partitions": 1}
        answer = client.post("/v1/topics", json=body) if create else client.delete("/v1/topics/t")
        assert answer.status_code == 503
        return answer.text


def over_http_without_version(node: NodeProcess, *, create: bool) -> str:
    with httpx.Client(base_url=f"http://{node.addresses['http']}", timeout=SECONDS) as client:
        body = {"name": "by-plain-http", "partitions": 1}
        answer = client.post("/topics", json=body) if create else client.delete("/topics/t")
        assert answer.status_code == 503
        return answer.text


def over_tcp(node: NodeProcess, *, create: bool) -> str:
    host, _, port = node.addresses["tcp"].rpartition(":")
    asked = (
        {"type": "createTopic", "topic": "by-tcp", "partitions": 1} if create else {"type": "deleteTopic", "topic": "t"}
    )
    with socket.create_connection((host, int(port)), SECONDS) as line, line.makefile() as answers:
        line.sendall(json.dumps(asked).encode() + b"\n")
        answer = answers.readline()
    assert not json.loads(answer)["ok"]
    return answer


def over_grpc(node: NodeProcess, *, create: bool) -> str:
    request = mq.CreateTopicRequest(name="by-grpc") if create else mq.DeleteTopicRequest(name="t")
    with grpc.insecure_channel(node.addresses["grpc"]) as channel:
        call = channel.unary_unary(f"{SERVICE}/{'CreateTopic' if create else 'DeleteTopic'}")
        with pytest.raises(grpc.RpcError) as refused:
            call(request.SerializeToString(), timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    return refused.value.details() or ""


APIS: dict[str, Callable[..., str]] = {
    "kafka": over_kafka,
    "http v1": over_http,
    "http": over_http_without_version,
    "tcp": over_tcp,
    "grpc": over_grpc,
}


@pytest.mark.timeout(240)
def test_every_api_says_why_and_whether_anything_was_changed(tmp_path: Path, etcd: Etcd) -> None:
    with ClusterProcesses(tmp_path, etcd.urls, count=1, settings={"cluster.replication_factor": 1}) as cluster:
        node = cluster.nodes[1]
        cluster.wait_until_in_sync()
        with httpx.Client(base_url=f"http://{node.addresses['http']}", timeout=SECONDS) as client:
            assert client.post("/v1/topics", json={"name": "t", "partitions": 1}).status_code == 201
        etcd.members[0].pause()
        try:
            with ThreadPoolExecutor(2 * len(APIS)) as pool:
                made = {name: pool.submit(change, node, create=True) for name, change in APIS.items()}
                removed = {name: pool.submit(change, node, create=False) for name, change in APIS.items()}
                for name in APIS:
                    assert "etcd (" in made[name].result(), name
                    assert "Whether the change was made is not known" in made[name].result(), name
                    assert "etcd (" in removed[name].result(), name
                    assert "Nothing was changed" in removed[name].result(), name
        finally:
            etcd.members[0].resume()
