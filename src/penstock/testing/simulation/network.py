"""The network between simulated processes: connections as TCP has them, over links that are slow, cut, or go.

Bytes of one connection arrive in order or not at all. A cut link holds them back, as retransmission does, and lets them through when it is mended;
a connection that waits too long is reset. When a process is killed, the other side is reset and new connections are refused. A paused one is still
connected to: its machine takes bytes for it.
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
    """Stands for a bound socket."""

    def __init__(self, address: Address) -> None:
        self.address: Final = address

    def getsockname(self) -> tuple[str, int]:
        """Where it is bound."""
        return self.address

    def close(self) -> None:
        """There is nothing to give back."""


class SimulatedServer:
    """What a loop gives whoever listens."""

    def __init__(self, network: "Network", address: Address, factory: Callable[[], Any], process: Process) -> None:
        self._network = network
        self.address: Final = address
        self.factory: Final = factory
        self.process: Final = process
        self.sockets: Final = [SimulatedListener(address)]

    def close(self) -> None:
        """Listen no more; connections stay."""
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        """It is closed at once."""

    async def start_serving(self) -> None:
        """It serves from the beginning."""

    def is_serving(self) -> bool:
        """Whether it listens."""
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
        """What is on its way, with when it arrives if nothing holds it up."""
        self.is_near = False
        """Whether its process is the one that connected."""
        self.is_abandoned = False
        """Its process is gone from it: the other end is reset behind what is on its way."""
        self._eof_sent = False

    # The process's side.

    def write(self, data: Any) -> None:
        """Send."""
        payload = bytes(data)
        if self._closing or self._lost or not payload:
            return
        self._in_flight_bytes += len(payload)
        self._network.carry(self, payload)
        if self._in_flight_bytes > self._high and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send all."""
        self.write(b"".join(bytes(each) for each in list_of_data))

    def write_eof(self) -> None:
        """Say that nothing more comes."""
        if not self._eof_sent:
            self._eof_sent = True
            self._network.carry(self, None)

    def can_write_eof(self) -> bool:
        """As TCP can."""
        return True

    def close(self) -> None:
        """Send what is on its way, then go."""
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._loop.call_soon(self.lose, None, context=self.process.context())

    def abort(self) -> None:
        """Go now."""
        if not self._lost:
            self._closing = True
            self._network.reset(self)
            self._loop.call_soon(self.lose, None, context=self.process.context())

    def is_closing(self) -> bool:
        """Whether it goes."""
        return self._closing

    def pause_reading(self) -> None:
        """Take nothing more for a while."""
        self._reading = False

    def resume_reading(self) -> None:
        """Take what came."""
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read, context=self.process.context())

    def is_reading(self) -> bool:
        """Whether it takes anything."""
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:  # noqa: ARG002
        """How much may be on its way before the process is asked to wait."""
        self._high = HIGH_WATER_BYTES if high is None else high

    def get_write_buffer_size(self) -> int:
        """What is on its way."""
        return self._in_flight_bytes

    def get_protocol(self) -> Any:
        """Whom it belongs to."""
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        """Belong to another."""
        self._protocol = protocol

    # The network's side.

    def arrived(self, data: bytes | None) -> None:
        """Bytes are there, or the end of them; the process reads them when it can."""
        self._received.append(data)
        self._loop.call_soon(self._read, context=self.process.context())

    def acknowledged(self, count: int) -> None:
        """The other side has taken bytes."""
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
        """The simulation is over, and nobody is to close anything."""
        self._closing = self._lost = True

    def lose(self, error: Exception | None) -> None:
        """The connection is no more."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.forget(self)
        self._protocol.connection_lost(error)


class Network:
    """All links."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop: Final = loop
        loop.network = self
        self._listeners: dict[Address, SimulatedServer] = {}
        self._connections: dict[SimulatedTransport, None] = {}
        self._made: list[SimulatedTransport] = []
        self._all: list[SimulatedTransport] = []
        """Those that are gone too, as long as something of them may be on its way."""
        self._cut: dict[tuple[str, str], float] = {}
        """From one host to another, with when."""
        self._ports = 40_000
        self.slow = 1.0
        """How many times slower than usual every link is."""

    # Listening and connecting.

    def listen(self, factory: Callable[[], Any], sock: Any, host: str | None, port: int | None) -> SimulatedServer:
        """A process takes connections."""
        process = PROCESS.get()
        assert process is not None, "only a process listens"
        address = sock.address if isinstance(sock, SimulatedListener) else Address(host or process.host, port or 0)
        server = SimulatedServer(self, address, factory, process)
        self._listeners[address] = server
        process.on_killed[server] = server.close
        return server

    def listener(self, address: Address) -> SimulatedServer | None:
        """Who listens there."""
        return self._listeners.get(address)

    def unlisten(self, server: SimulatedServer) -> None:
        """Nobody does any more."""
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[SimulatedTransport, Any]:
        """A process connects; it waits while the link is cut, as with TCP."""
        process = PROCESS.get()
        assert process is not None, "only a process connects"
        waited = 0.0
        while self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(0.1)
            waited += 0.1
            if waited > RESET_SECONDS:
                raise TimeoutError("the host does not answer")
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
        """How long something takes over a link."""
        spread = LATENCY_SECONDS_MAX - LATENCY_SECONDS_MIN
        return (LATENCY_SECONDS_MIN + self.loop.random.random() ** 4 * spread) * self.slow

    def carry(self, source: SimulatedTransport, data: bytes | None) -> None:
        """Bring bytes to the other end, behind those before them."""
        arrives_at = self.loop.time() + self.latency()
        if source.outgoing:
            arrives_at = max(arrives_at, source.outgoing[-1][0])
        source.outgoing.append((arrives_at, data))
        self.loop.call_at(arrives_at, self._pump, source, context=_NOBODY)

    def _pump(self, source: SimulatedTransport) -> None:
        """Let arrive what is due, unless the link is cut."""
        target, outgoing = source.other, source.outgoing
        if target is None or self.is_cut(source.process.host, target.process.host):
            return
        now = self.loop.time() + ROUNDING_SECONDS
        while outgoing and outgoing[0][0] <= now:
            _, data = outgoing.popleft()
            if target in self._connections:
                target.arrived(data)
            elif data is not None:
                # Nobody is there any more who could take it.
                self.loop.call_later(self.latency(), self._reset, source, context=_NOBODY)
        if source.is_abandoned and not outgoing:
            self._reset(target)

    def reset(self, source: SimulatedTransport) -> None:
        """One end goes without a word: the other learns of it behind what was on its way, once the link is there."""
        source.is_abandoned = True
        arrives_at = self.loop.time() + self.latency()
        if source.outgoing:
            arrives_at = max(arrives_at, source.outgoing[-1][0])
        self.loop.call_at(arrives_at, self._pump, source, context=_NOBODY)

    def _reset(self, target: SimulatedTransport) -> None:
        if target in self._connections:
            error = ConnectionResetError(104, "Connection reset by peer")
            self.loop.call_soon(target.lose, error, context=target.process.context())

    def forget(self, transport: SimulatedTransport) -> None:
        """A connection is gone."""
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

    # Trouble.

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing gets from one host to another."""
        return (source, target) in self._cut

    def cut(self, source: str, target: str) -> None:
        """Nothing gets through from here on, in this direction."""
        self._cut.setdefault((source, target), self.loop.time())
        self.loop.call_later(RESET_SECONDS, self._give_up, source, target, context=_NOBODY)

    def break_connections(self, share: float) -> None:
        """Some connections are lost to those who made them, while what they sent is still on its way: they will send it again."""
        self._all = [each for each in self._all if each in self._connections or each.outgoing]
        for transport in list(self._connections):
            if transport.is_near and self.loop.random.random() < share:
                self.reset(transport)
                self._reset(transport)

    def mend(self, source: str, target: str) -> None:
        """What was held back goes on its way."""
        if self._cut.pop((source, target), None) is None:
            return
        for transport in list(self._all):
            other = transport.other
            if other is not None and (transport.process.host, other.process.host) == (source, target):
                self._pump(transport)

    def mend_all(self) -> None:
        """Every link is whole."""
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


_NOBODY: Final = Context()
"""The world's own context: what it does belongs to no process."""
