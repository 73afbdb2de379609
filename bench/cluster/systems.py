"""Several nodes as one system of the comparison: Penstock with its etcd, and Apache Kafka. One node of Penstock is one too.

Invariant: every process is a peer of its own, so that one can be killed and started again alone; all are stopped in the end.
"""

from __future__ import annotations

import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from bench.peers.base import Flush, KafkaProtocolPeer, Peer, free_port
from bench.peers.kafka import Kafka
from bench.peers.penstock import Penstock
from penstock.address import Address
from penstock.bench.context import Case, Options
from penstock.bench.process_stats import usage_of
from penstock.bench.rows import Row

NODES = 3
REPLICAS_IN_SYNC_MIN = 2


class System(ABC):
    """Nodes by their numbers, and what they need beside."""

    name: str
    title: str

    def __init__(self, home: Path, flush: Flush) -> None:
        self.home = home
        self.flush = flush
        self.nodes: Mapping[int, KafkaProtocolPeer] = self.make_nodes()

    @classmethod
    @abstractmethod
    def why_missing(cls) -> str | None:
        """A sentence when this system cannot be run on this machine."""

    @abstractmethod
    def make_nodes(self) -> Mapping[int, KafkaProtocolPeer]:
        """The nodes, not started."""

    def others(self) -> list[Peer]:
        """Processes that are no nodes; they start first and stop last."""
        return []

    def start(self) -> None:
        """Return once every node is up and knows the others."""
        for peer in self.others():
            peer.start()
        for node in self.nodes.values():
            node.start_without_waiting()
        for node in self.nodes.values():
            node.wait_until_ready()

    def stop(self) -> None:
        """End all of it."""
        for node in self.nodes.values():
            node.stop()
        for peer in self.others():
            peer.stop()

    def kill(self, number: int) -> None:
        """SIGKILL for one node."""
        self.nodes[number].kill()

    def bootstrap(self) -> str:
        """All nodes, for a client."""
        return ",".join(str(node.bootstrap()) for node in self.nodes.values())

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of every process up to now."""
        peers = {f"node {number}": node for number, node in self.nodes.items()} | {
            each.name: each for each in self.others()
        }
        used = {name: usage_of(peer.pid) for name, peer in peers.items()}
        return {name: usage.cpu_s for name, usage in used.items() if usage is not None}


class Etcd(Peer):
    """One member, as a development cluster has it."""

    name = "etcd"
    title = "etcd"

    def __init__(self, home: Path, flush: Flush) -> None:
        super().__init__(home, flush)
        self.client = Address("127.0.0.1", free_port())
        self._peer = Address("127.0.0.1", free_port())

    @classmethod
    def why_missing(cls) -> str | None:
        """It has to be on the PATH."""
        return (
            None if shutil.which("etcd") else "no etcd on the PATH: install Debian's etcd-server, or a release of etcd"
        )

    def command(self) -> tuple[list[str], dict[str, str]]:
        """On ports of its own."""
        client, peer = f"http://{self.client}", f"http://{self._peer}"
        words = ["etcd", "--name", "a", "--data-dir", str(self.home / "data" / "etcd"), "--logger", "zap"]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"a={peer}"]
        return words, {}

    def is_ready(self) -> bool:
        """Whether it listens."""
        with socket.create_connection((self.client.host, self.client.port), timeout=1):
            return True

    def run(self, case: Case, options: Options) -> Row | None:
        """It is measured with the nodes."""
        del case, options
        return None


class _PenstockNode(Penstock):
    nodes_expected = NODES

    def __init__(self, home: Path, flush: Flush, number: int, etcd: Address) -> None:
        super().__init__(home, flush)
        self._cluster = ["--cluster", "bench", "--node-id", str(number), "--etcd", str(etcd), "--peer", "127.0.0.1:0"]
        self._port = free_port()

    def command(self) -> tuple[list[str], dict[str, str]]:
        words, environment = super().command()
        # A node keeps its port over a restart, as real ones do.
        words[words.index("--kafka") + 1] = f"127.0.0.1:{self._port}"
        return [*words, *self._cluster], environment


class PenstockCluster(System):
    """Three nodes and one member of etcd, on their defaults."""

    name = "penstock-3"
    title = "Penstock, 3 nodes"

    @classmethod
    def why_missing(cls) -> str | None:
        """It needs etcd too."""
        return Etcd.why_missing() or Penstock.why_missing()

    def make_nodes(self) -> Mapping[int, KafkaProtocolPeer]:
        """The nodes, and their etcd."""
        self.etcd = Etcd(self.home / "etcd", self.flush)
        return {n: _PenstockNode(self.home / f"node{n}", self.flush, n, self.etcd.client) for n in range(1, NODES + 1)}

    def others(self) -> list[Peer]:
        """Its etcd."""
        return [self.etcd]


class PenstockAlone(System):
    """One broker on its defaults."""

    name = "penstock-1"
    title = "Penstock, 1 node"

    @classmethod
    def why_missing(cls) -> str | None:
        """As the peer says."""
        return Penstock.why_missing()

    def make_nodes(self) -> Mapping[int, KafkaProtocolPeer]:
        """The one."""
        return {1: Penstock(self.home / "node1", self.flush)}


class _KafkaNode(Kafka):
    nodes_expected = NODES

    def __init__(self, home: Path, flush: Flush, number: int, cluster_id: str) -> None:
        super().__init__(home, flush)
        self.number = number
        self.cluster_id = cluster_id
        self.voters = ""

    def settings(self) -> dict[str, str]:
        return super().settings() | {
            "node.id": str(self.number),
            "controller.quorum.voters": self.voters,
            "default.replication.factor": str(NODES),
            "min.insync.replicas": str(REPLICAS_IN_SYNC_MIN),
            "offsets.topic.replication.factor": str(NODES),
        }


class KafkaCluster(System):
    """Three nodes that are brokers and controllers; three replicas, two in sync; all else on its defaults."""

    name = "kafka-3"
    title = f"{Kafka.title}, 3 nodes"

    @classmethod
    def why_missing(cls) -> str | None:
        """As the peer says."""
        return Kafka.why_missing()

    def make_nodes(self) -> Mapping[int, KafkaProtocolPeer]:
        """The nodes, which know each other."""
        cluster_id = os.urandom(16).hex()[:22]
        nodes = {n: _KafkaNode(self.home / f"node{n}", self.flush, n, cluster_id) for n in range(1, NODES + 1)}
        voters = ",".join(f"{number}@{node.controller}" for number, node in nodes.items())
        for node in nodes.values():
            node.voters = voters
        return nodes

    def stop(self) -> None:
        """End all of it. Asked to, the last ones would wait for minutes for a controller, and nothing of it is needed any more."""
        for node in self.nodes.values():
            node.kill()


SYSTEMS: tuple[type[System], ...] = (PenstockAlone, PenstockCluster, KafkaCluster)
