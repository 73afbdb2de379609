"""Nodes with their TCP, gRPC and Kafka gateways on real sockets and files; the agreed state is in memory.

Every node is whole but for HTTP's listener. A node can be killed: it answers nobody from then on, and takes no leave. The nodes
run in the test's own event loop, or for clients that block in one of their own (:func:`cluster_in_a_thread`).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.node import ClusterNode, ClusterSettings
from penstock.core.broker import Broker, BrokerSettings
from penstock.core.cluster_image import drain_key, node_key
from penstock.core.groups.settings import GroupSettings
from penstock.core.topics import NewTopic, TopicDefaults
from penstock.errors import PenstockError
from penstock.gateways.grpc.gateway import GrpcGateway
from penstock.gateways.kafka.gateway import KafkaGateway, KafkaLimits
from penstock.gateways.listening import address_of, bind
from penstock.gateways.tcp.gateway import TcpBounds, TcpGateway
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Put
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.server import STOP_GRACE_SECONDS
from penstock.types import Flush, NodeId

SECONDS_MAX = 20.0
GROUPS_PARTITIONS = 6
"""Of the internal topics: each node leads some."""


async def _pause(seconds: float) -> None:
    """Let the nodes do something before they are looked at again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


class GatewayNode:
    """One node."""

    def __init__(self, node_id: int, store: MemoryStore, folder: Path, bounds: TcpBounds) -> None:
        self.node_id = NodeId(node_id)
        self.reports: list[str] = []
        self._store = store
        self._folder = folder
        self._bounds = bounds
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_up = False

    async def start(self) -> None:
        loop, stack = asyncio.get_running_loop(), self._stack
        clock, entropy = SystemClock(), SystemEntropy()
        agreed = await agree(self._store, clock, entropy, "tested")
        commit = GroupCommit(loop, Flush.OS, 1)
        stack.callback(commit.close)
        logs = LogManager(RealDisk(), str(self._folder), clock, self.reports.append)
        settings = BrokerSettings(
            self.node_id,
            flush=Flush.OS,
            topic_defaults=TopicDefaults(replication_factor=3, configs={"min.insync.replicas": "2"}),
            groups=GroupSettings(
                initial_rebalance_delay_ms=0, session_timeout_ms_min=100, offsets_topic_partitions=GROUPS_PARTITIONS
            ),
        )
        self.broker = broker = Broker(
            settings,
            clock=clock,
            entropy=entropy,
            store=self._store,
            logs=logs,
            flusher=commit,
            report=self.reports.append,
            shared=True,
        )
        broker.background = self._begin
        logs.open_all()
        stack.callback(logs.close)
        await broker.start()
        stack.push_async_callback(commit.drain)
        stack.callback(broker.close)
        housekeeping = Housekeeping(broker, commit, checkpoint_interval_ms=60_000, housekeeping_interval_ms=60_000)
        housekeeping.start()
        stack.push_async_callback(housekeeping.stop)
        peer, tcp, kafka = (bind(Address("127.0.0.1", 0)) for _ in range(3))
        self.grpc = GrpcGateway()
        self.grpc_address = self.grpc.bind(Address("127.0.0.1", 0))
        self.tcp_address = address_of(tcp)
        self.cluster_node = ClusterNode(
            broker,
            self._store,
            commit.turn,
            ClusterSettings(lease_ms=2_000),
            secret=agreed.secret,
            directory=entropy.uuid(),
            listeners={
                "peer": address_of(peer),
                "tcp": self.tcp_address,
                "grpc": self.grpc_address,
                "kafka": address_of(kafka),
            },
        )
        self.bootstrap = str(address_of(kafka))
        self.addresses = {"tcp": str(self.tcp_address), "grpc": str(self.grpc_address)}
        await self.cluster_node.start(peer)
        stack.push_async_callback(self.cluster_node.stop)
        kafka_gateway = KafkaGateway(broker, commit.turn, KafkaLimits())
        await kafka_gateway.start(kafka)
        stack.push_async_callback(kafka_gateway.stop, 1.0)
        self.tcp = TcpGateway(broker, commit.turn, self._bounds)
        await self.tcp.start(tcp)
        stack.push_async_callback(self.tcp.stop, 1.0)
        await self.grpc.start(broker)
        stack.push_async_callback(self._stop_grpc)
        self.is_up = True

    async def _stop_grpc(self) -> None:
        await self.grpc.stop(STOP_GRACE_SECONDS)

    def _begin(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        if self.is_up:
            self.is_up = False
            await self._stack.aclose()

    async def kill(self) -> None:
        """Its connections are cut without a word, and its registration ends as if its lease had."""
        membership = self.cluster_node.membership

        async def stay() -> None:
            """A killed node takes no leave."""
            if membership._task is not None:
                membership._task.cancel()

        membership.leave = stay  # type: ignore[method-assign]
        # First of all, so that nothing is agreed on or goes out that a killed process could not say.
        await self.cluster_node.peers.stop()
        for connection in list(self.tcp._connections):
            connection.abort()
        self.tcp._connections.clear()
        await self.grpc._server.stop(None)
        await self.stop()
        with contextlib.suppress(PenstockError):
            await self._store.txn([], [Delete(node_key(self.node_id))])


class GatewayCluster:
    """Use it as an async context manager; the nodes are 1, 2 and 3."""

    def __init__(self, folder: Path, count: int = 3, bounds: TcpBounds | None = None) -> None:
        self.store = MemoryStore(operations_max=128)
        self.nodes: dict[int, GatewayNode] = {}
        for n in range(1, count + 1):
            (folder / f"node{n}").mkdir(parents=True)
            self.nodes[n] = GatewayNode(n, self.store, folder / f"node{n}", bounds or TcpBounds())

    async def __aenter__(self) -> Self:
        clock = SystemClock()
        self.store.expire(clock.monotonic_ms())

        async def expire() -> None:
            while True:
                await _pause(0.1)
                self.store.expire(clock.monotonic_ms())

        self._expiring = asyncio.ensure_future(expire())
        for node in self.nodes.values():
            await node.start()
        await self.until(lambda: all(self._knows_all(node) for node in self.nodes.values()))
        return self

    def _knows_all(self, node: GatewayNode) -> bool:
        assert node.broker.cluster is not None
        coordinators = node.broker.cluster.coordinators
        try:
            return len({coordinators.node_of(f"g{n}") for n in range(8 * GROUPS_PARTITIONS)}) > 1
        except PenstockError:
            return False

    async def __aexit__(self, *_raised: object) -> None:
        for node in self.nodes.values():
            await node.stop()
        self._expiring.cancel()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                await _pause(0.005)

    @property
    def up(self) -> list[GatewayNode]:
        return [node for node in self.nodes.values() if node.is_up]

    async def topic(self, name: str, leaders: tuple[int, ...], replicas: int = 3) -> str:
        """A topic with a partition led by each of these nodes, which every node knows."""
        every = list(self.nodes)
        assignments = {
            index: [leader, *(n for n in every if n != leader)][:replicas] for index, leader in enumerate(leaders)
        }
        await self.up[0].broker.topics.create(NewTopic(name, assignments=assignments))
        await self.until(lambda: all(name in node.broker.topics for node in self.up))
        return name

    async def drain(self, node_id: int) -> GatewayNode:
        """Let a node lead nothing, for good."""
        await self.store.txn([], [Put(drain_key(node_id), b"{}")])
        node = self.nodes[node_id]
        assert node.broker.cluster is not None
        replicas = node.broker.cluster.replicas
        await self.until(lambda: not list(replicas.leading()))
        await self.until(lambda: self._knows_all(node))
        return node

    # Who is who.

    def leader(self, topic: str, partition: int = 0) -> GatewayNode:
        topics = self.up[0].broker.topics
        return self.nodes[topics.partition(topics.require(topic), partition).leader]

    def coordinator(self, group: str) -> GatewayNode:
        cluster = self.up[0].broker.cluster
        assert cluster is not None
        return self.nodes[cluster.coordinators.node_of(group)]

    def other(self, *than: GatewayNode) -> GatewayNode:
        """A node that is none of these."""
        return next(node for node in self.up if node not in than)

    def group_of(self, node: GatewayNode) -> str:
        """A group that this node speaks for."""
        return next(name for n in range(1000) if self.coordinator(name := f"group-{n}") is node)


@contextlib.contextmanager
def cluster_in_a_thread(folder: Path, bounds: TcpBounds | None = None) -> Iterator[GatewayNode]:
    """A cluster of three, seen through a fourth node that leads nothing."""
    found: list[GatewayNode] = []
    problems: list[BaseException] = []
    started, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        async with GatewayCluster(folder, 4, bounds) as cluster:
            found.append(await cluster.drain(4))
            started.set()
            await asyncio.to_thread(stopping.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as problem:  # noqa: BLE001 - it is raised where the test waits
            problems.append(problem)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="cluster")
    thread.start()
    try:
        assert started.wait(SECONDS_MAX)
        if not problems:
            yield found[0]
    finally:
        stopping.set()
        thread.join(SECONDS_MAX)
    if problems:
        raise problems[0]
