"""The network between simulated processes: TCP connections over links that are slow, cut, or lost.

Bytes of one connection arrive in order or not at all. A cut link delays them, as retransmission does, until it is repaired;
a connection that waits too long is reset. When a process is killed, its connections are reset and new ones are refused. A paused
process can still be connected to: its machine receives bytes for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from typing import Any, Final

from penstock.address import Address
from penstock.testing.simulation.loop import PROCESS, Process, SimulatedLoop

LATENCY_SECONDS_MIN: Final = 0.000_05
LATENCY_SECONDS_MAX: Final = 0.002
RESET_SECONDS: Final = 20.0
"""A connection over a cut link is given up after this."""
HIGH_WATER_BYTES: Final = 64 * 1024
ROUNDING_SECONDS: Final = 1e-6
"""The loop may be early by less than that."""


class SimulatedListener:
    """Replaces a bound socket."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        """Does nothing."""


class SimulatedServer:
    """Replaces :class:`asyncio.Server`."""

    def __init__(self, network: "Network", address: Address, factory: Callable[[], Any], process: Process) -> None:
        self._network = network
        self.address: Final = address
        self.factory: Final = factory
        self.process: Final = process
        self.sockets: Final = [SimulatedListener(address)]

    def close(self) -> None:
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        """It is closed at once."""

    async def start_serving(self) -> None:
        """It serves already."""

    def is_serving(self) -> bool:
        return self._network.listener(self.address) is self


class SimulatedTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", process: Process, protocol: Any, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self._loop = network.loop
        self.process: Final = process
        self._protocol = protocol
        self.other: SimulatedTransport | None = None
        self._closing = False
        self._lost = False
        self._reading = True
        self._received: deque[bytes | None] = deque()
        """Bytes that the process has not read; None is the end."""
        self._in_flight_bytes = 0
        self._high = HIGH_WATER_BYTES
        self._writing_paused = False
        self.outgoing: Final[deque[tuple[float, bytes | None]]] = deque()
        """Bytes in flight, with their earliest arrival."""
        self.is_near = False
        """Whether its process is the one that connected."""
        self.is_abandoned = False
        """Its process has left it: the other end is reset after the bytes in flight."""
        self._eof_sent = False

    # Called by the process.

    def write(self, data: Any) -> None:
        payload = bytes(data)
        if self._closing or self._lost or not payload:
            return
        self._in_flight_bytes += len(payload)
        self._network.carry(self, payload)
        if self._in_flight_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(bytes(each) for each in list_of_data))

    def write_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._network.carry(self, None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._loop.call_soon(self.lose, None, context=self.process.context())

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._network.reset(self)
            self._loop.call_soon(self.lose, None, context=self.process.context())

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read, context=self.process.context())

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        self._high = HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._in_flight_bytes

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    # Called by the network.

    def arrived(self, data: bytes | None) -> None:
        """Bytes, or their end, have arrived; the process reads them when it can."""
        self._received.append(data)
        self._loop.call_soon(self._read, context=self.process.context())

    def acknowledged(self, count: int) -> None:
        """The other side has received bytes."""
        self._in_flight_bytes -= count
        if self._writing_paused and self._in_flight_bytes <= self._high // 4:
            self._writing_paused = False
            self._loop.call_soon(self._protocol.resume_writing, context=self.process.context())

    def _read(self) -> None:
        while self._received and self._reading and not self._lost:
            data = self._received.popleft()
            if data is None:
                if not self._protocol.eof_received():
                    self.close()
                continue
            if self.other is not None:
                self.other.acknowledged(len(data))
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._feed(data)
            else:
                self._protocol.data_received(data)

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._lost:
            buffer = self._protocol.get_buffer(len(view))
            count = min(len(buffer), len(view))
            memoryview(buffer)[:count] = view[:count]
            self._protocol.buffer_updated(count)
            view = view[count:]

    def vanish(self) -> None:
        """The simulation is over: ignore all further calls."""
        self._closing = self._lost = True

    def lose(self, error: Exception | None) -> None:
        """The connection is lost or closed."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.forget(self)
        self._protocol.connection_lost(error)


class Network:
    """All links between hosts."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop: Final = loop
        loop.network = self
        self._listeners: dict[Address, SimulatedServer] = {}
        self._connections: dict[SimulatedTransport, None] = {}
        self._made: list[SimulatedTransport] = []
        self._all: list[SimulatedTransport] = []
        """Including closed ones with bytes in flight."""
        self._cut: dict[tuple[str, str], float] = {}
        """Cut links, from one host to another, with the time of the cut."""
        self._ports = 40_000
        self.slow = 1.0
        """Factor of all latencies."""

    # Listening and connecting.

    def listen(self, factory: Callable[[], Any], sock: Any, host: str | None, port: int | None) -> SimulatedServer:
        """Accept connections for the current process."""
        process = PROCESS.get()
        assert process is not None, "only a process listens"
        address = sock.address if isinstance(sock, SimulatedListener) else Address(host or process.host, port or 0)
        server = SimulatedServer(self, address, factory, process)
        self._listeners[address] = server
        process.on_killed[server] = server.close
        return server

    def listener(self, address: Address) -> SimulatedServer | None:
        """The server that listens there."""
        return self._listeners.get(address)

    def unlisten(self, server: SimulatedServer) -> None:
        """Accept no more connections; existing ones stay."""
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[SimulatedTransport, Any]:
        """Connect the current process; waits while the link is cut, as TCP does."""
        process = PROCESS.get()
        assert process is not None, "only a process connects"
        waited = 0.0
        while self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(0.1)
            waited += 0.1
            if waited > RESET_SECONDS:
                raise TimeoutError("The host does not answer")
        await asyncio.sleep(self.latency() * 2)
        server = self._listeners.get(Address(host, port))
        if server is None or not server.process.is_alive:
            raise ConnectionRefusedError(111, "Connection refused")
        self._ports += 1
        here, there = Address(process.host, self._ports), Address(host, port)
        near_protocol = factory()
        near = SimulatedTransport(self, process, near_protocol, here, there)
        far_protocol = server.process.context().run(server.factory)
        far = SimulatedTransport(self, server.process, far_protocol, there, here)
        near.other, far.other = far, near
        near.is_near = True
        for transport in (near, far):
            self._connections[transport] = None
            self._all.append(transport)
            self._made.append(transport)
            transport.process.on_killed[transport] = partial(self._killed, transport)
        self.loop.call_soon(far_protocol.connection_made, far, context=server.process.context())
        near_protocol.connection_made(near)
        return near, near_protocol

    # Bytes.

    def latency(self) -> float:
        """A random latency of a link."""
        spread = LATENCY_SECONDS_MAX - LATENCY_SECONDS_MIN
        return (LATENCY_SECONDS_MIN + self.loop.random.random() ** 4 * spread) * self.slow

    def carry(self, source: SimulatedTransport, data: bytes | None) -> None:
        """Send bytes to the other end, after those already in flight."""
        source.outgoing.append((self._deliver_later(source), data))

    def _deliver_later(self, source: SimulatedTransport) -> float:
        """Schedule a delivery after everything in flight; returns its time."""
        arrives_at = self.loop.time() + self.latency()
        if source.outgoing:
            arrives_at = max(arrives_at, source.outgoing[-1][0])
        self.loop.call_at(arrives_at, self._pump, source, context=NO_PROCESS)
        return arrives_at

    def _pump(self, source: SimulatedTransport) -> None:
        """Deliver what is due, unless the link is cut."""
        target, outgoing = source.other, source.outgoing
        if target is None or self.is_cut(source.process.host, target.process.host):
            return
        now = self.loop.time() + ROUNDING_SECONDS
        while outgoing and outgoing[0][0] <= now:
            _, data = outgoing.popleft()
            if target in self._connections:
                target.arrived(data)
            elif data is not None:
                # The other end is closed.
                self.loop.call_later(self.latency(), self._reset, source, context=NO_PROCESS)
        if source.is_abandoned and not outgoing:
            self._reset(target)

    def reset(self, source: SimulatedTransport) -> None:
        """One end disappears: the other is reset after the bytes in flight, unless the link is cut."""
        source.is_abandoned = True
        self._deliver_later(source)

    def _reset(self, target: SimulatedTransport) -> None:
        if target in self._connections:
            error = ConnectionResetError(104, "Connection reset by peer")
            self.loop.call_soon(target.lose, error, context=target.process.context())

    def forget(self, transport: SimulatedTransport) -> None:
        """A connection is closed."""
        self._connections.pop(transport, None)
        transport.process.on_killed.pop(transport, None)

    def _killed(self, transport: SimulatedTransport) -> None:
        if transport in self._connections:
            del self._connections[transport]
            self.reset(transport)

    def bury(self) -> None:
        """The simulation is over."""
        for transport in self._made:
            transport.vanish()

    # Faults.

    def is_cut(self, source: str, target: str) -> bool:
        """Whether the link from one host to another is cut."""
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Cut the link in this direction."""
        self._cut.setdefault((source, target), self.loop.time())
        self.loop.call_later(RESET_SECONDS, self._give_up, source, target, context=NO_PROCESS)

    def break_connections(self, share: float) -> None:
        """Some connections are lost for the clients, while their bytes are still in flight: they will send them again."""
        self._all = [each for each in self._all if each in self._connections or each.outgoing]
        for transport in list(self._connections):
            if transport.is_near and self.loop.random.random() < share:
                self.reset(transport)
                self._reset(transport)

    def mend(self, source: str, target: str) -> None:
        """Repair a link; delayed bytes continue."""
        if self._cut.pop((source, target), None) is None:
            return
        for transport in list(self._all):
            other = transport.other
            if other is not None and (transport.process.host, other.process.host) == (source, target):
                self._pump(transport)

    def mend_all(self) -> None:
        """Repair all links."""
        for source, target in list(self._cut):
            self.mend(source, target)

    def _give_up(self, source: str, target: str) -> None:
        """Connections over a link that is still cut are reset on both sides."""
        since = self._cut.get((source, target))
        if since is None or self.loop.time() - since < RESET_SECONDS - 0.001:
            return
        for transport in list(self._connections):
            other = transport.other
            ends = (transport.process.host, other.process.host if other is not None else "")
            if ends in ((source, target), (target, source)):
                self._reset(transport)


NO_PROCESS: Final = Context()
"""The context of callbacks that belong to no process."""
