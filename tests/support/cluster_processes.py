"""A cluster of ``penstock serve`` processes on a real etcd, for tests that kill, stop, pause and cut off.

Nodes keep their ports over restarts. A node may live in a network namespace of its own: then ``prefix`` is what its command begins with.
"""

import contextlib
import http.client
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from penstock.testing.process import BrokerProcess
from tests.support.waiting import eventually

SECONDS_MAX = 60.0
SETTINGS: Mapping[str, object] = {
    "groups.offsets_topic_partitions": 4,
    # Longer than a busy machine lets a process wait. One that is killed is missed at once all the same: its machine says so.
    "cluster.lease_ms": 20_000,
}
QUICK: Mapping[str, object] = {
    # The least that etcd grants: for tests in which a node is silent, and that hold whoever loses its lease besides.
    "cluster.lease_ms": 2_000,
    "cluster.lag_ms_max": 2_000,
}


class NodeProcess(BrokerProcess):
    """One node."""

    def __init__(
        self,
        data_dir: Path,
        node_id: int,
        etcd: str,
        settings: Mapping[str, object] | None = None,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        gateways: bool = True,
    ) -> None:
        here = f"{host}:0"
        other = here if gateways else "off"
        # The other hosts of a test are network namespaces, which only this machine can reach.
        wanted = {**SETTINGS, "security.insecure": host != "127.0.0.1", **(settings or {})}
        super().__init__(data_dir, wanted, http=here, tcp=other, grpc=other)
        self.node_id = node_id
        self._prefix = list(prefix)
        self._etcd = etcd
        self._listen["kafka"] = here
        self._listen["peer"] = here

    def command(self) -> list[str]:
        """What is run."""
        cluster = ["--cluster", "tested", "--node-id", str(self.node_id), "--etcd", self._etcd]
        return [*self._prefix, *super().command(), *cluster]


class ClusterProcesses:
    """Nodes 1 to N on an etcd that is there already; as a context manager it begins when each of them knows all."""

    def __init__(
        self, folder: Path, etcd: str, count: int = 3, settings: Mapping[str, object] | None = None, **more: Any
    ) -> None:
        self.nodes = {n: NodeProcess(folder / f"node{n}", n, etcd, settings, **more) for n in range(1, count + 1)}

    def __enter__(self) -> Self:
        try:
            first, *others = self.nodes.values()
            # The first one becomes the controller.
            first.start()
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(NodeProcess.start, others))
            self.wait_until_in_sync()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.kill()
        # pytest shows it with a failure, and only then.
        for node in self.nodes.values():
            print(f"---- node {node.node_id}\n{node.log_text()[-6000:]}")

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    @property
    def bootstrap(self) -> str:
        """All nodes, for a Kafka client."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def create(self, *topics: NewTopic) -> None:
        """Make topics, asking again while a node is missed that they need."""
        admin = self.admin()
        for topic in topics:
            eventually(partial(created, admin, topic), SECONDS_MAX, f"{topic.topic} is made")

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def describe(self) -> ClusterMetadata:
        """What the nodes say of themselves and of all topics."""
        return self.admin().list_topics(timeout=SECONDS_MAX)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, once there is one."""

        def found() -> int:
            return self.describe().topics[topic].partitions[partition].leader + 1

        return eventually(lambda: max(0, found()), SECONDS_MAX, f"{topic}/{partition} has a leader") - 1

    def controller(self) -> int:
        """The node that is the controller, once there is one."""

        def found() -> int:
            for node in self.nodes.values():
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if node.running and (told := self._said(node)["controller"]) is not None:
                        return int(told["node"])
            return 0

        return eventually(found, SECONDS_MAX, "there is a controller")

    def wait_until_in_sync(self, seconds: float = 90.0) -> None:
        """Return once every node knows of every other one, and of no partition that lacks a leader or a replica."""
        trouble: list[str] = []

        def all_well() -> bool:
            trouble[:] = [said for node in self.nodes.values() if (said := self._trouble(node))]
            return not trouble

        try:
            eventually(all_well, seconds, "every replica is in sync")
        except AssertionError as error:
            raise AssertionError(f"{error}: {trouble}") from None

    def _said(self, node: NodeProcess) -> dict[str, Any]:
        """How the cluster stands as this node knows it. Kafka's clients are told of no controller: any node is one to them."""
        host, _, port = node.addresses["http"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        try:
            connection.request("GET", "/v1/cluster")
            said: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return said

    def _trouble(self, node: NodeProcess) -> str:
        try:
            said = self._said(node)
        except (OSError, http.client.HTTPException) as error:
            return f"node {node.node_id}: {error}"
        up = sum(each["is_up"] for each in said["nodes"])
        lacking = said["under_replicated"][:2] + said["offline"][:2]
        if said["metadata"]["is_reachable"] and up == len(self.nodes) and not lacking and not said["moving_count"]:
            return ""
        return f"node {node.node_id}: {up} nodes, {said['metadata']}, {said['moving_count']} move, {lacking}"


def created(admin: AdminClient, topic: NewTopic) -> bool:
    """Whether the topic is there after one more try to make it."""
    try:
        admin.create_topics([topic], request_timeout=SECONDS_MAX)[topic.topic].result(SECONDS_MAX)
    except KafkaException as error:
        # An attempt that was told to be unknown may have been the one.
        return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


class AnyNode:
    """Stands for the cluster where one client expects one broker: each new connection goes to the next node that runs.

    Each client needs its own. If clients shared one, the turns of the others could lead a client back to the node that it has just given up.
    """

    def __init__(self, cluster: ClusterProcesses, first: int = 0) -> None:
        self._cluster = cluster
        self._turn = first

    @property
    def addresses(self) -> dict[str, str]:
        nodes = list(self._cluster.nodes.values())
        running = [node for node in nodes if node.running] or nodes
        found = running[self._turn % len(running)].addresses
        self._turn += 1
        return found
