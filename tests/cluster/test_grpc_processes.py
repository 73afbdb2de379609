"""gRPC and JSON lines over ``kill -9`` of the node that they are carried to: real processes, real etcd."""

import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.wire.mq import mq_generated as mq
from tests.conformance.tinymq.client import Tinymq
from tests.support.cluster_processes import ClusterProcesses
from tests.support.etcd import Etcd
from tests.support.waiting import eventually

SECONDS_MAX = 60.0
LEASE_MS = 60_000
SERVICE = "/mq.MessageQueueService"


class Client:
    """A client of one node."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    def ask(self, name: str, /, **fields: Any) -> Any:
        answer = getattr(mq, f"{name}Response").FromString
        method = self.channel.unary_unary(f"{SERVICE}/{name}", response_deserializer=answer)
        return method(getattr(mq, f"{name}Request")(**fields).SerializeToString(), timeout=SECONDS_MAX)

    def subscribe(self, **fields: Any) -> Any:
        method = self.channel.unary_stream(f"{SERVICE}/Subscribe", response_deserializer=mq.Message.FromString)
        stream = method(mq.SubscribeRequest(**fields).SerializeToString(), timeout=SECONDS_MAX)
        stream.initial_metadata()
        return stream

    def publish(self, topic: str, first: int, end: int) -> None:
        """Numbers, each until it is there: one whose answer was lost may be there twice, and a reader sees both."""
        for number in range(first, end):
            eventually(lambda number=number: self._published(topic, number), SECONDS_MAX, f"{number} is published")

    def _published(self, topic: str, number: int) -> bool:
        try:
            self.ask("Publish", topic=topic, payload=b"%d" % number)
        except grpc.RpcError:
            return False
        return True


def test_readers_workers_and_lines_outlive_a_kill_of_the_node_that_they_are_carried_to(
    tmp_path: Path, etcd: Etcd
) -> None:
    with ClusterProcesses(tmp_path, etcd.urls) as cluster:
        admin = cluster.admin()
        clients = {n: Client(node.addresses["grpc"]) for n, node in cluster.nodes.items()}
        clients[1].ask("CreateTopic", name="t")
        cluster.wait_until_in_sync()
        clients[1].publish("t", 0, 10)
        clients[1].ask("CommitOffset", topic="t", consumer_group="g", offset=2)
        owner = admin.describe_consumer_groups(["g"])["g"].result(timeout=SECONDS_MAX).coordinator.id
        asked, other = (n for n in cluster.nodes if n != owner)
        reading = clients[asked].subscribe(topic="t", consumer_group="g", consumer_id="r")
        working = clients[asked].subscribe(topic="t", consumer_group="g", consumer_id="w", lease_ms=LEASE_MS)
        with Tinymq(cluster.nodes[asked].addresses["tcp"]) as lines:
            assert [int(next(reading).payload) for _ in range(8)] == list(range(2, 10))
            taken = [next(working) for _ in range(3)]
            clients[other].ask("Ack", topic="t", consumer_group="g", consumer_id="w", offsets=[taken[0].offset])
            assert lines.data("metrics", groupId="g", topic="t", partition=0)["endOffset"] == 10
            cluster.nodes[owner].kill()
            clients[other].publish("t", 10, 20)
            seen = [next(reading) for _ in range(10)]
            offsets = [message.offset for message in seen]
            assert offsets == sorted(set(offsets)), "nothing comes twice, nothing out of order"
            assert offsets[0] == 10
            with pytest.raises(grpc.RpcError) as caught:
                for _ in working:
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            for offset in range(3, 10):
                # Leases outlive the node that gave them, unless nobody else had heard of them yet: these need not be waited for.
                with contextlib.suppress(grpc.RpcError):
                    clients[asked].ask(
                        "Extend", topic="t", consumer_group="g", consumer_id="w", offset=offset, lease_ms=1
                    )
            again = clients[asked].subscribe(topic="t", consumer_group="g", consumer_id="w", lease_ms=LEASE_MS)
            end = lines.data("metrics", groupId="g", topic="t", partition=0)["endOffset"]
            assert end >= 20
            worked: set[int] = set()
            while len(worked) < end - 3:
                offset = next(again).offset
                assert offset not in worked
                worked.add(offset)
                clients[asked].ask("Ack", topic="t", consumer_group="g", consumer_id="w", offsets=[offset])
            assert worked == set(range(3, end)), "all but what was acked before"
            found = lines.data("fetch", topic="t", partition=0, offset=0, max=3)
            assert [record["value"] for record in found["records"]] == ["0", "1", "2"]
        for client in clients.values():
            client.channel.close()
