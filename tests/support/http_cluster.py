"""Three nodes with their HTTP gateways in the test's own event loop, on real sockets and files; the agreed state is in memory.

Every node is whole but for Kafka's, TCP's and gRPC's listeners. A node can be killed: it answers nobody from then on, and does not take its
leave. For clients that block the nodes run in a loop of their own (:func:`http_cluster_in_a_thread`).
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.node import ClusterNode, ClusterSettings
from penstock.core.broker import Broker, BrokerSettings
from penstock.core.cluster_image import drain_key, node_key
from penstock.core.groups.settings import GroupSettings
from penstock.core.topics import TopicDefaults
from penstock.errors import PenstockError
from penstock.gateways.http.gateway import HttpBounds, HttpDefaults, HttpGateway
from penstock.gateways.listening import address_of, bind
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Put
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.types import Flush, NodeId

ANSWER_SECONDS_MAX = 20.0
GROUPS_PARTITIONS = 6
"""Of the internal topics: each node leads some."""


async def _pause(seconds: float) -> None:
    """Let the nodes do something before they are looked at again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


class HttpClusterNode:
    """One node; ``client`` asks it."""

    def __init__(self, node_id: int, store: MemoryStore, folder: Path, defaults: HttpDefaults) -> None:
        self.node_id = NodeId(node_id)
        self.problem: str | None = None
        self._store = store
        self._folder = folder
        self._defaults = defaults
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        loop, stack = asyncio.get_running_loop(), self._stack
        clock, entropy = SystemClock(), SystemEntropy()
        agreed = await agree(self._store, clock, entropy, "tested")
        commit = GroupCommit(loop, Flush.OS, 1)
        stack.callback(commit.close)
        logs = LogManager(RealDisk(), str(self._folder), clock, lambda _text: None)
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
            report=lambda _text: None,
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
        peer, http = bind(Address("127.0.0.1", 0)), bind(Address("127.0.0.1", 0))
        self.address = address_of(http)
        self.cluster_node = ClusterNode(
            broker,
            self._store,
            commit.turn,
            # Nobody waits for it to run out; a machine that is busy must not let it.
            ClusterSettings(lease_ms=30_000),
            secret=agreed.secret,
            directory=entropy.uuid(),
            listeners={"peer": address_of(peer), "http": self.address},
        )
        await self.cluster_node.start(peer)
        stack.push_async_callback(self.cluster_node.stop)
        self.addresses = {"http": str(self.address)}
        self.http = HttpGateway(broker, commit.turn, HttpBounds(), lambda: True, self._defaults, lambda: self.problem)
        self.http.start(http)
        stack.push_async_callback(self.http.stop)
        self.client = httpx.AsyncClient(base_url=f"http://{self.address}", timeout=ANSWER_SECONDS_MAX)
        stack.push_async_callback(self.client.aclose)

    def _begin(self, work: Coroutine[object, None, object]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def kill(self) -> None:
        """Nobody hears of it any more: its connections are cut, and its registration ends as if its lease had."""
        node = self.cluster_node
        for connection in list(self.http._server.server_state.connections):
            connection.transport.abort()
        await self.stop_quietly()
        with contextlib.suppress(PenstockError):
            await self._store.txn([], [Delete(node_key(self.node_id))])
        assert node.membership is not None

    async def stop_quietly(self) -> None:
        membership = self.cluster_node.membership

        async def stay() -> None:
            """A killed node takes no leave."""
            if membership._task is not None:
                membership._task.cancel()

        membership.leave = stay  # type: ignore[method-assign]
        await self.stop()


class HttpCluster:
    """Use it as an async context manager; the nodes are 1, 2 and 3."""

    def __init__(self, folder: Path, count: int = 3, defaults: HttpDefaults | None = None) -> None:
        self._folder = folder
        self._defaults = defaults or HttpDefaults(partitions=3)
        self.store = MemoryStore(operations_max=128)
        self.nodes = {n: self._new(n) for n in range(1, count + 1)}

    def _new(self, node_id: int) -> HttpClusterNode:
        folder = self._folder / f"node{node_id}"
        folder.mkdir(exist_ok=True, parents=True)
        return HttpClusterNode(node_id, self.store, folder, self._defaults)

    async def __aenter__(self) -> Self:
        clock = SystemClock()
        self.store.expire(clock.monotonic_ms())

        async def expire() -> None:
            while True:
                await _pause(0.1)
                self.store.expire(clock.monotonic_ms())

        self._clock = asyncio.ensure_future(expire())
        for node in self.nodes.values():
            await node.start()
        await self.until(lambda: all(self._knows_all(node) for node in self.nodes.values()))
        return self

    def _knows_all(self, node: HttpClusterNode) -> bool:
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
        self._clock.cancel()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            while not condition():
                await _pause(0.005)

    async def topic(self, name: str, partitions: int = 1) -> str:
        """A topic that every node knows, and that is led."""
        made = await self.nodes[1].client.post("/v1/topics", json={"name": name, "partitions": partitions})
        assert made.status_code == 201, made.text
        brokers = [node.broker for node in self.nodes.values()]

        def known() -> bool:
            found = [broker.topics.get(name) for broker in brokers]
            return all(
                topic is not None and all(record.leader >= 0 for record in broker.topics.partitions(topic))
                for broker, topic in zip(brokers, found, strict=True)
            )

        await self.until(known)
        return name

    async def drain(self, node_id: int) -> HttpClusterNode:
        """Let a node lead nothing, for good."""
        await self.store.txn([], [Put(drain_key(node_id), b"{}")])
        node = self.nodes[node_id]
        assert node.broker.cluster is not None
        replicas = node.broker.cluster.replicas
        await self.until(lambda: not list(replicas.leading()) and self._knows_all(node))
        return node

    # Who is who.

    def leader(self, topic: str, partition: int = 0) -> HttpClusterNode:
        broker = self.nodes[1].broker
        return self.nodes[broker.topics.partition(broker.topics.require(topic), partition).leader]

    def coordinator(self, group: str) -> HttpClusterNode:
        cluster = next(iter(self.nodes.values())).broker.cluster
        assert cluster is not None
        return self.nodes[cluster.coordinators.node_of(group)]

    def other(self, *than: HttpClusterNode) -> HttpClusterNode:
        """A node that is none of these."""
        return next(node for node in self.nodes.values() if node not in than)

    def group_of(self, node: HttpClusterNode) -> str:
        """A group that this node speaks for."""
        return next(name for n in range(1000) if self.coordinator(name := f"group-{n}") is node)


@contextlib.contextmanager
def http_cluster_in_a_thread(folder: Path, defaults: HttpDefaults) -> Iterator[HttpClusterNode]:
    """A cluster of three, seen through a fourth node that leads nothing."""
    found: list[HttpClusterNode] = []
    problems: list[BaseException] = []
    started, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        async with HttpCluster(folder, 4, defaults) as cluster:
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
        assert started.wait(ANSWER_SECONDS_MAX)
        if not problems:
            yield found[0]
    finally:
        stopping.set()
        thread.join(ANSWER_SECONDS_MAX)
    if problems:
        raise problems[0]
