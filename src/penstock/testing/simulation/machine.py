"""A simulated machine: a permanent disk, clock and host, and at most one process of a node.

The node is composed as in ``server.py``, of the same parts. A kill keeps everything written to the disk; a power failure keeps
what was synced, and a random part of the rest.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Final, cast
from uuid import UUID

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.node import NodeRunner
from penstock.core.broker import Broker
from penstock.core.cluster.rules import ALL, Rules
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.log.manager import LogManager
from penstock.runtime.clock import within_ms
from penstock.runtime.group_commit import GroupCommit
from penstock.runtime.housekeeping import Housekeeping
from penstock.settings import (
    ClusterSettings,
    GroupSettings,
    LogSettings,
    QueueSettings,
    ServerSettings,
    Settings,
    TopicSettings,
)
from penstock.testing.disk import SimulatedDisk
from penstock.testing.simulation.history import History
from penstock.testing.simulation.loop import Process, SimulatedExecutor, SimulatedLoop
from penstock.testing.simulation.network import SimulatedListener
from penstock.testing.simulation.store import SimulatedEtcd, StoreClient
from penstock.transport.listener import Accepting, Arrival, Door, Listener
from penstock.transport.peer_tls import PLAIN
from penstock.types import Flush

DATA_DIR: Final = "/data"
KAFKA_PORT: Final = 9092
PEER_PORT: Final = 9192
_EPOCH_MS: Final = 1_750_000_000_000
_START_AGAIN_SECONDS: Final = 1.0
_STOP_GRACE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The settings of the nodes of a simulation."""

    nodes: int = 3
    replication_factor: int = 3
    min_in_sync: int = 2
    internal_partitions: int = 2
    lease_ms: int = 2_000
    lag_ms_max: int = 3_000
    sync_seconds_max: float = 0.01
    max_attempts: int = 3
    """Attempts of a queue's record before it becomes a dead letter."""
    rules: Rules = ALL


class MachineClock:
    """A :class:`penstock.ports.Clock` whose wall time may jump. Monotonic time starts at an arbitrary value."""

    def __init__(self, loop: SimulatedLoop, started_ms: int) -> None:
        self._loop = loop
        self._started_ms = started_ms
        self.ahead_ms = 0
        """The error of the wall clock."""

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self._loop.time() * 1000) + self.ahead_ms

    def monotonic_ms(self) -> int:
        return self._started_ms + int(self._loop.time() * 1000)


class SeededEntropy:
    """Ids from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def secret(self, count: int) -> bytes:
        return self._random.randbytes(count)


async def _accept(listener: Listener, door: Door) -> Accepting:
    """Replaces :meth:`penstock.transport.acceptor.Reception.accept`."""
    server: Accepting = await asyncio.get_running_loop().create_server(
        lambda: door.connect(Arrival(listener)),
        sock=cast(socket.socket, SimulatedListener(listener.address)),
    )
    return server


@dataclass(slots=True)
class Running:
    """The parts of a running node."""

    process: Process
    store: StoreClient
    broker: Broker
    logs: LogManager
    commit: GroupCommit
    housekeeping: Housekeeping
    node: NodeRunner
    kafka: KafkaGateway


class Machine:
    """One machine of the cluster."""

    def __init__(
        self,
        number: int,
        shape: ClusterShape,
        loop: SimulatedLoop,
        etcd: SimulatedEtcd,
        history: History,
        random: Random,
    ) -> None:
        self.number: Final = number
        self.host: Final = f"10.0.0.{number}"
        self.rack: Final = f"rack{number}"
        self.kafka: Final = Address(self.host, KAFKA_PORT)
        self.peer: Final = Address(self.host, PEER_PORT)
        self._shape = shape
        self._loop = loop
        self._etcd = etcd
        self._history = history
        self._random = random
        self.clock: Final = MachineClock(loop, random.randrange(10_000_000))
        self._entropy = SeededEntropy(random)
        self._directory = self._entropy.uuid()
        self.disk: Final = SimulatedDisk(random.randrange(2**32))
        self.disk.make_dirs(DATA_DIR)
        self._executor = SimulatedExecutor(loop, shape.sync_seconds_max)
        self.processes: Final[list[Process]] = []
        self.process: Process | None = None
        self.running: Running | None = None
        """None while it is down or starting."""

    # Starting and stopping.

    def start(self) -> None:
        """Start a new process, unless there is one."""
        if self.process is not None:
            return
        process = self.process = Process(f"node{self.number}.{len(self.processes) + 1}", self.host)
        self.processes.append(process)
        self._history.note("start", process)
        self._loop.spawn(process, self._live(process))

    def kill(self) -> None:
        """Kill the process."""
        if self._end("kill"):
            self.disk.end_process()

    def lose_power(self) -> None:
        """A power failure: the process ends, and what was not synced may be lost."""
        if self._end("power loss"):
            self.disk.lose_power()

    def _end(self, how: str) -> bool:
        process, self.process, self.running = self.process, None, None
        if process is None:
            return False
        self._history.note(how, process)
        process.kill()
        return True

    def pause(self) -> None:
        """Suspend the process."""
        if self.process is not None:
            self._history.note("pause", self.process)
            self.process.pause()

    def resume(self) -> None:
        """Continue a suspended process."""
        if self.process is not None and self.process.is_paused:
            self._history.note("resume", self.process)
            self._loop.call_soon(self.process.resume, self._loop, context=Context())

    def set_clock(self, ahead_ms: int) -> None:
        """Let the wall clock jump to this error."""
        self._history.note("clock", self.number, ahead_ms)
        self.clock.ahead_ms = ahead_ms

    def set_disk_speed(self, seconds_max: float) -> None:
        """Set the maximum duration of a sync."""
        self._executor.seconds_max = seconds_max

    def stop(self) -> None:
        """Let the process stop in order."""
        running = self.running
        if running is not None and not running.process.is_paused:
            self._history.note("stop", running.process)
            self._loop.spawn(running.process, self._stop(running))

    # In the process.

    async def _live(self, process: Process) -> None:
        try:
            self.running = await self._serve(process)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                self._history.violate(f"{process} cannot start: {error.reason.name} {error.text}")
                return
            # As a supervisor would, start it again.
            self._history.note("start failed", process, error.text)
            self._gone(process)
            self._loop.call_later(_START_AGAIN_SECONDS, self.start, context=Context())

    def _gone(self, process: Process) -> None:
        if self.process is process:
            self.process = self.running = None
            process.kill()
            self.disk.end_process()

    async def _serve(self, process: Process) -> Running:
        shape, loop = self._shape, self._loop
        store = self._etcd.connect(process)
        report: Callable[[str], None] = lambda text: self._history.note("report", process, text)  # noqa: E731
        await agree(store, self.clock, self._entropy, "simulated")
        commit = GroupCommit(loop, Flush.SYNC, 2, self._executor)
        logs = LogManager(self.disk, DATA_DIR, self.clock, report)
        broker = Broker(
            self._settings(),
            cluster_id="simulated",
            clock=self.clock,
            entropy=self._entropy,
            store=store,
            logs=logs,
            flusher=commit,
            report=report,
            rules=shape.rules,
        )
        broker.background = _start_task
        broker.within = within_ms
        logs.open_all()
        await broker.start()
        housekeeping = Housekeeping(broker, commit, self._executor)
        housekeeping.start()
        node = NodeRunner(
            broker,
            store,
            commit.turn,
            directory=self._directory,
            listeners={"peer": self.peer, "kafka": self.kafka},
            tls=PLAIN,
        )
        await node.start(Listener("peer", self.peer, _accept))
        kafka = KafkaGateway(broker, commit.turn, broker.settings.limits)
        await kafka.start(Listener("kafka", self.kafka, _accept))
        self._history.note("serves", process)
        return Running(process, store, broker, logs, commit, housekeeping, node, kafka)

    def _settings(self) -> Settings:
        shape = self._shape
        return Settings(
            server=ServerSettings(node_id=self.number),
            cluster=ClusterSettings(
                name="simulated",
                rack=self.rack,
                lease_ms=shape.lease_ms,
                lag_ms_max=shape.lag_ms_max,
                balance_ms=20_000,
                handover_ms=5_000,
                replication_factor=shape.replication_factor,
                min_in_sync=shape.min_in_sync,
            ),
            log=LogSettings(checkpoint_interval_ms=5_000, housekeeping_interval_ms=10_000),
            topics=TopicSettings(auto_create=False),
            groups=GroupSettings(offsets_topic_partitions=shape.internal_partitions),
            queues=QueueSettings(max_attempts=shape.max_attempts, backoff_ms=0, max_backoff_ms=0),
        )

    async def _stop(self, running: Running) -> None:
        """Stop as a server does: leaders move, responses are sent, the log is closed."""
        await running.node.hand_over()
        await running.kafka.stop(_STOP_GRACE_SECONDS)
        await running.node.stop()
        await running.housekeeping.stop()
        running.broker.close()
        await running.commit.drain()
        running.logs.close()
        running.commit.close()
        await running.store.close()
        self._history.note("stopped", running.process)
        self._gone(running.process)


def _start_task(coroutine: Coroutine[object, None, object]) -> None:
    # The process keeps references to its tasks.
    asyncio.get_running_loop().create_task(coroutine)
