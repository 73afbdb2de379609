"""Whole nodes with all their gateways on real sockets and files; the agreed state is in memory.

A node can be killed: it answers nobody from then on, and takes no leave. No lease runs out by the clock, so a machine that is busy ends no
node's life. The nodes run in the test's own event loop, or for clients that block in one of their own (:func:`cluster_in_a_thread`).
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.node import NodeRunner
from penstock.core.broker import Broker
from penstock.core.cluster.image import drain_key
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError
from penstock.gateways.grpc.gateway import GrpcGateway
from penstock.gateways.http.server.gateway import HttpGateway
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.gateways.tcp.gateway import TcpGateway
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.server import STOP_GRACE_SECONDS
from penstock.settings import ClusterSettings, GroupSettings, LogSettings, ServerSettings, Settings
from penstock.transport.peer_tls import PLAIN
from penstock.types import Flush, NodeId
from tests.support.listeners import plain
from tests.support.settings import AT_ONCE

SECONDS_MAX = 60.0
"""How long anything may take on a machine that does much else; most of it takes a moment."""
LEASE_MS = 60_000
GROUPS_PARTITIONS = 6
"""Of the internal topics: each node leads some."""
LOOPBACK = Address("127.0.0.1", 0)


async def _pause() -> None:
    """Let the nodes do something before they are looked at again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.005):
            await asyncio.Event().wait()


class GatewayNode:
    """One node; ``client`` asks it over HTTP."""

    def __init__(self, node_id: int, store: MemoryStore, folder: Path, sections: dict[str, Any]) -> None:
        self.node_id = NodeId(node_id)
        self.settings = Settings(
            server=ServerSettings(node_id=node_id),
            cluster=ClusterSettings(name="tested", lease_ms=LEASE_MS),
            log=LogSettings(flush=Flush.OS, housekeeping_interval_ms=60_000),
            groups=GroupSettings(
                initial_rebalance_delay_ms=0, session_timeout_ms_min=100, offsets_topic_partitions=GROUPS_PARTITIONS
            ),
            queues=AT_ONCE,
            **sections,
        )
        self.reports: list[str] = []
        self.problem: str | None = None
        """What its HTTP gateway says of the metadata store."""
        self.is_up = False
        self._store = store
        self._folder = folder
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        commit = GroupCommit(asyncio.get_running_loop(), Flush.OS, 1)
        self._stack.callback(commit.close)
        await self._start_broker(commit)
        await self._start_gateways(commit)
        self.is_up = True

    async def _start_broker(self, commit: GroupCommit) -> None:
        stack, clock = self._stack, SystemClock()
        logs = LogManager(RealDisk(), str(self._folder), clock, self.reports.append)
        self.broker = Broker(
            self.settings,
            clock=clock,
            entropy=SystemEntropy(),
            store=self._store,
            logs=logs,
            flusher=commit,
            report=self.reports.append,
        )
        self.broker.background = self._begin
        await agree(self._store, self.broker.clock, self.broker.entropy, "tested")
        logs.open_all()
        stack.callback(logs.close)
        await self.broker.start()
        stack.push_async_callback(commit.drain)
        stack.callback(self.broker.close)
        housekeeping = Housekeeping(self.broker, commit)
        housekeeping.start()
        stack.push_async_callback(housekeeping.stop)

    async def _start_gateways(self, commit: GroupCommit) -> None:
        stack, broker, settings = self._stack, self.broker, self.settings
        names = ("peer", "kafka", "http", "tcp")
        opened = {name: plain(name) for name in names}
        listeners = {name: listener.address for name, listener in opened.items()}
        self.grpc = GrpcGateway(settings.grpc, settings.limits)
        listeners["grpc"] = self.grpc.bind(LOOPBACK)
        self.addresses = {name: str(address) for name, address in listeners.items()}
        self.cluster_node = NodeRunner(
            broker,
            self._store,
            commit.turn,
            directory=broker.entropy.uuid(),
            listeners=listeners,
            tls=PLAIN,
        )
        await self.cluster_node.start(opened["peer"])
        stack.push_async_callback(self.cluster_node.stop)
        self.kafka = KafkaGateway(broker, commit.turn, settings.limits)
        await self.kafka.start(opened["kafka"])
        stack.push_async_callback(self.kafka.stop, STOP_GRACE_SECONDS)
        problem = lambda: self.problem  # noqa: E731
        self.http = HttpGateway(broker, commit.turn, settings.http, lambda: True, problem)
        await self.http.start(opened["http"])
        stack.push_async_callback(self.http.stop)
        self.tcp = TcpGateway(broker, commit.turn, settings.tcp, settings.limits)
        await self.tcp.start(opened["tcp"])
        stack.push_async_callback(self.tcp.stop, STOP_GRACE_SECONDS)
        await self.grpc.start(broker)
        stack.push_async_callback(self.grpc.stop, STOP_GRACE_SECONDS)

    def _begin(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def bootstrap(self) -> str:
        return self.addresses["kafka"]

    @functools.cached_property
    def client(self) -> httpx.AsyncClient:
        client = httpx.AsyncClient(base_url=f"http://{self.addresses['http']}", timeout=SECONDS_MAX)
        self._stack.push_async_callback(client.aclose)
        return client

    async def stop(self) -> None:
        if self.is_up:
            self.is_up = False
            await self._stack.aclose()

    async def kill(self) -> None:
        """Its connections are cut without a word, and its lease ends."""
        registration = self.cluster_node.registration

        async def stay() -> None:
            """A killed node takes no leave."""
            if registration._task is not None:
                registration._task.cancel()

        registration.leave = stay  # type: ignore[method-assign]
        # First of all, so that nothing is agreed on or goes out that a killed process could not say.
        await self.cluster_node.peers.stop()
        self.kafka._abort()
        for connection in list(self.http._server.server_state.connections):
            connection.transport.abort()
        for line in list(self.tcp._connections):
            line.abort()
        self.tcp._connections.clear()
        await self.grpc._server.stop(None)
        await self.stop()
        await self._store.revoke(registration.lease)


class GatewayCluster:
    """Use it as an async context manager; the nodes are 1, 2 and 3. ``sections`` are of their settings."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        **sections: Any,
    ) -> None:
        self.store = MemoryStore(operations_max=128)
        self.nodes: dict[int, GatewayNode] = {}
        for n in range(1, count + 1):
            (folder / f"node{n}").mkdir(parents=True)
            self.nodes[n] = GatewayNode(n, self.store, folder / f"node{n}", sections)

    async def __aenter__(self) -> Self:
        for node in self.nodes.values():
            await node.start()
        await self.until(lambda: all(self._knows_all(node) for node in self.nodes.values()))
        return self

    def _knows_all(self, node: GatewayNode) -> bool:
        assert node.broker.cluster is not None
        coordinators = node.broker.cluster.coordinators
        try:
            led = {coordinators.node_of(f"g{n}") for n in range(8 * GROUPS_PARTITIONS)}
            return len(led) > 1 and coordinators.sinks_node() in self.nodes
        except PenstockError:
            return False

    async def __aexit__(self, *_raised: object) -> None:
        for node in self.nodes.values():
            await node.stop()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                await _pause()

    @property
    def up(self) -> list[GatewayNode]:
        return [node for node in self.nodes.values() if node.is_up]

    async def topic(self, name: str, leaders: tuple[int, ...], replicas: int = 3) -> str:
        """A topic with a partition led by each of these nodes, which every node knows."""
        assignments = {
            index: [leader, *(n for n in self.nodes if n != leader)][:replicas] for index, leader in enumerate(leaders)
        }
        return await self._create(NewTopic(name, assignments=assignments))

    async def placed(self, name: str, partitions: int = 1) -> str:
        """A topic whose partitions are led by whom the cluster chose, which every node knows."""
        return await self._create(NewTopic(name, partitions))

    async def _create(self, new: NewTopic) -> str:
        await self.up[0].broker.topics.create(new)
        await self.known(new.name)
        return new.name

    async def known(self, name: str) -> None:
        """Return once every node knows the topic, and who leads it."""

        def is_known(broker: Broker) -> bool:
            topic = broker.topics.get(name)
            return topic is not None and all(record.leader >= 0 for record in broker.topics.partitions(topic))

        await self.until(lambda: all(is_known(node.broker) for node in self.up))

    async def drain(self, node_id: int) -> GatewayNode:
        """Let a node lead nothing, for good."""
        await self.store.txn([], [Put(drain_key(node_id), b"{}")])
        node = self.nodes[node_id]
        assert node.broker.cluster is not None
        replicas = node.broker.cluster.replicas
        await self.until(lambda: not list(replicas.leading()) and self._knows_all(node))
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
def cluster_in_a_thread(folder: Path, **sections: Any) -> Iterator[GatewayNode]:
    """A cluster of three, seen through a fourth node that leads nothing. ``sections`` are those of :class:`GatewayCluster`."""
    found: list[GatewayNode] = []
    problems: list[BaseException] = []
    started, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        async with GatewayCluster(folder, 4, **sections) as cluster:
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
