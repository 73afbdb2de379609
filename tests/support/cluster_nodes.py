"""Several whole nodes of a cluster in one process: real logs, real sockets on the loopback, and one store in memory that they share."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import Any, Self
from uuid import UUID

import msgspec

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.node import NodeRunner
from penstock.core.broker import Broker
from penstock.core.cluster.shared_secret import SharedSecret
from penstock.core.cluster.side import ClusterSide
from penstock.core.partitions.replica import Replica
from penstock.core.topics.records import PartitionRecord
from penstock.core.topics.topics import NewTopic, Topic
from penstock.errors import PenstockError
from penstock.log.manager import LogManager
from penstock.metadata.memory import MemoryStore
from penstock.records.builder import BatchBuilder
from penstock.runtime.clock import SystemClock, SystemEntropy
from penstock.runtime.disk import RealDisk
from penstock.runtime.group_commit import GroupCommit
from penstock.settings import ClusterSettings, GroupSettings, LogSettings, ServerSettings, Settings
from penstock.transport.peer_tls import PLAIN, PeerTls
from penstock.types import Flush
from tests.support.listeners import of_nodes
from tests.support.settings import AT_ONCE

SECONDS_MAX = 60.0
"""How long anything may take on a machine that does much else; most of it takes a moment."""
PAUSE_SECONDS = 0.01
LEASE_MS = 60_000
"""Longer than any test: what happens sooner did not wait for it."""


async def until(holds: Callable[[], object], what: str = "", seconds: float = SECONDS_MAX) -> None:
    """Return when it holds."""
    deadline = monotonic() + seconds
    while not holds():
        if monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what or 'the condition'}")
        await _pause()


async def _pause() -> None:
    """Let the nodes do something before it is asked again."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE_SECONDS):
            await asyncio.Event().wait()


async def another_secret() -> SharedSecret:
    """Of another cluster."""
    store = MemoryStore()
    await agree(store, SystemClock(), SystemEntropy(), "another")
    secret = SharedSecret(store)
    await secret.load()
    return secret


class Running:
    """One node."""

    def __init__(self, broker: Broker, node: NodeRunner, commit: GroupCommit, logs: LogManager) -> None:
        self.broker = broker
        self.node = node
        self.commit = commit
        self._logs = logs
        self.ended = False

    @property
    def cluster(self) -> ClusterSide:
        assert self.broker.cluster is not None
        return self.broker.cluster

    @property
    def epoch(self) -> int:
        return self.node.registration.epoch

    async def stop(self) -> None:
        """In order."""
        await self.node.hand_over()
        await self.node.stop()
        await self._end()

    async def crash(self) -> None:
        """As a process that is killed: its sockets are closed, its lease runs on, its entries stay."""
        self.node.registration._task.cancel()  # type: ignore[union-attr]
        await self.node.watching.stop()
        await self.node.controller.stop()
        await self.node.changes.stop()
        await self.node.fetching.stop()
        await self.node.remote.stop()
        await self.node.peers.stop()
        await self._end()

    async def _end(self) -> None:
        self.broker.close()
        await self.commit.drain()
        self.commit.close()
        self._logs.close()
        self.ended = True


class Cluster:
    """``async with Cluster(tmp_path) as cluster``; nodes are started by their numbers."""

    def __init__(
        self,
        directory: Path,
        *nodes: int,
        replication_factor: int = 3,
        min_in_sync: int = 2,
        settings: ClusterSettings | None = None,
        racks: dict[int, str] | None = None,
        internal_partitions: int = 2,
        tls: Callable[[int], PeerTls] = lambda _node_id: PLAIN,
        **sections: Any,
    ) -> None:
        self._directory = directory
        self._first = nodes
        self._settings = msgspec.structs.replace(
            settings or ClusterSettings(lease_ms=LEASE_MS),
            name="c",
            replication_factor=replication_factor,
            min_in_sync=min_in_sync,
        )
        self._racks = racks or {}
        self.tls = tls
        self._sections = {
            "groups": GroupSettings(offsets_topic_partitions=internal_partitions),
            "queues": AT_ONCE,
            "log": LogSettings(housekeeping_interval_ms=60_000),
            **sections,
        }
        self.store = MemoryStore(operations_max=128)
        self.nodes: dict[int, Running] = {}
        self.reports: list[str] = []

    async def __aenter__(self) -> Self:
        for node_id in self._first:
            await self.start(node_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self.nodes.values():
            if not running.ended:
                await running.crash()

    async def start(self, node_id: int, before: Callable[[Broker], None] = lambda _: None) -> Running:
        """Start a node, or start it again on its directory. ``before`` may change the broker before it reads anything."""
        loop = asyncio.get_running_loop()
        clock, entropy, disk = SystemClock(), SystemEntropy(), RealDisk()
        await agree(self.store, clock, entropy, "c")
        commit = GroupCommit(loop, Flush.SYNC, 2)
        path = self._directory / str(node_id)
        logs = LogManager(disk, str(path), clock, self.reports.append)
        logs.open_all()
        broker = Broker(
            Settings(
                server=ServerSettings(node_id=node_id),
                cluster=msgspec.structs.replace(self._settings, rack=self._racks.get(node_id, "")),
                **self._sections,
            ),
            clock=clock,
            entropy=entropy,
            store=self.store,
            logs=logs,
            flusher=commit,
            report=self.reports.append,
        )
        tasks: set[asyncio.Task[object]] = set()

        def background(coroutine: Any) -> None:
            task = loop.create_task(coroutine)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        broker.background = background
        before(broker)
        await broker.start()
        tls = self.tls(node_id)
        listener = of_nodes(tls)
        node = NodeRunner(
            broker,
            self.store,
            commit.turn,
            directory=UUID(int=node_id),
            listeners={"peer": listener.address, **await self.listen(node_id, broker, commit)},
            tls=tls,
        )
        await node.start(listener)
        running = self.nodes[node_id] = Running(broker, node, commit, logs)
        return running

    async def listen(self, node_id: int, broker: Broker, commit: GroupCommit) -> dict[str, Address]:
        """Where a node listens besides, before it says so; nowhere, here."""
        return {}

    # Asking.

    @property
    def up(self) -> list[Running]:
        return [running for running in self.nodes.values() if not running.ended]

    @property
    def any(self) -> Running:
        return self.up[0]

    @property
    def controller(self) -> Running | None:
        return next((running for running in self.up if running.node.controller.is_elected), None)

    def record(self, topic: str, index: int = 0) -> PartitionRecord:
        topics = self.any.broker.topics
        return topics.partition(topics.require(topic), index)

    def replica(self, node_id: int, topic: str, index: int = 0) -> Replica | None:
        try:
            return self.nodes[node_id].broker.replica(topic, index)
        except PenstockError:
            return None

    # Doing.

    async def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> Topic:
        """A topic with its partitions on these nodes, each led by the first, once all of it is led."""
        by_name = {key.replace("_", "."): value for key, value in configs.items()}
        assignments = {index: list(nodes) for index, nodes in enumerate(replicas)}
        new = NewTopic(name, configs=by_name, assignments=assignments)
        return await self.any.broker.topics.create(new)

    async def produce(self, topic: str, value: bytes, index: int = 0) -> int:
        """Append as acks=all does, wherever the partition is led, until it is committed; gives back its offset."""
        deadline = monotonic() + SECONDS_MAX
        while True:
            assert monotonic() < deadline, f"nothing can be produced to {topic}/{index}: {self.record(topic, index)}"
            for running in self.up:
                try:
                    partition = running.broker.partition(topic, index)
                    partition.check_in_sync()
                except PenstockError:
                    continue
                batch = BatchBuilder()
                batch.add(int(time() * 1000), b"key", value)
                done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                offset = partition.append(batch.build(), int(time() * 1000))
                partition.when_committed(offset + 1, lambda reason, done=done: done.done() or done.set_result(reason))  # type: ignore[misc]
                async with asyncio.timeout(SECONDS_MAX):
                    if await done is None:
                        return offset
            await _pause()
