"""Common to the gateways that implement their protocols themselves: a listener with its connections, and their limits.

The number of open connections is limited, each is checked once a second, and a stop answers what is under way before it closes
anything. A connection sends once at the end of the event loop's turn, and reads only while its client reads the answers.
"""

import asyncio
import ipaddress
import logging
import traceback
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar, cast

from penstock.core.broker import Broker
from penstock.core.broker_config import CONNECTIONS
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.core.security.identity import NOBODY, Identity
from penstock.limits import CONNECTION_ENDED_MS_MAX
from penstock.ports import EndOfTurn
from penstock.settings import LimitSettings
from penstock.transport.handshakes import NO_NAME, Failure
from penstock.transport.listener import Accepting, Arrival, Door, Listener
from penstock.transport.listening import host_of
from penstock.transport.log_limit import LogLimit
from penstock.types import Gateway

END_SESSIONS_MS: Final = 50
"""After a change of users or keys, connections whose identity does not hold any more are closed."""
SWEEP_MS: Final = 1000
"""The interval between two checks of all connections."""


class ClientConnection(ABC):
    """One client, and whether it is idle or slow."""

    def __init__(self, kind: Gateway, turn: EndOfTurn, monotonic_ms: int, arrival: Arrival) -> None:
        self.arrival: Final = arrival
        self.listener: Final = arrival.listener
        self.certificate: str | None = None
        """The name that the rules make of the client's certificate, if it presented one."""
        self.nameless: str | None = None
        """Why there is no name for the certificate that the client presented."""
        self.caller = Caller(ANONYMOUS, kind, listener=arrival.listener.name)
        self.identity = NOBODY
        self.is_private = False
        """Whether nobody can read the bytes on the way: they are encrypted, or do not leave this machine."""
        self._turn = turn
        self._transport: asyncio.Transport | None = None
        self._last_active_ms = monotonic_ms
        self._active = False
        """Whether bytes have arrived since the last check."""
        self._sending = False
        self._choked = False
        """Whether the client does not read its answers."""
        self._ended = False
        """Whether the client has closed its side: it sends no more, but may still read."""
        self._owed_since_ms: int | None = None
        """Since when a client that has closed its side has been waiting for an answer, as of the last check."""
        self._paused = False
        """Whether reading is paused."""
        self._muted: asyncio.TimerHandle | None = None
        """Until when no request is taken, because the client is over a quota."""

    def _open(self, transport: asyncio.BaseTransport, output_bytes_max: int) -> asyncio.Transport:
        """A client has connected. ``output_bytes_max`` is the limit of unread answers."""
        # uvloop's transports are not subclasses of asyncio's.
        opened = self._transport = cast(asyncio.Transport, transport)
        peer = opened.get_extra_info("peername")
        self.caller = self.caller._replace(client=host_of(peer) if peer else "")
        self.is_private = is_private(opened)
        opened.set_write_buffer_limits(high=output_bytes_max)
        self.arrival.on_crowded = self.abort
        if self.listener.tls is not None:
            try:
                self.certificate = self.listener.tls.certificate_name(opened)
            except ValueError as error:
                self.nameless = str(error)
        return opened

    def identify(self, identity: Identity) -> None:
        """The client has proved who it is. All of its former identity is replaced."""
        self.identity = identity
        self.caller = identity.on(self.caller)
        self.arrival.known()

    def end_session(self) -> None:
        """The identity does not hold any more, since its user, its password or its key is gone."""
        self.abort()

    def ready(self) -> None:
        """An answer is complete: send it at the end of the turn."""
        self._owed_since_ms = None
        if not self._sending:
            self._sending = True
            self._turn.send(self._send)

    @abstractmethod
    def _send(self) -> None:
        """Send what is ready, and reset ``_sending``."""

    def mute(self, delay_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        """Take no request for this time. What is under way is answered."""
        until = loop.time() + delay_ms / 1000
        if self._muted is not None:
            until = max(until, self._muted.when())
            self._muted.cancel()
        self._muted = loop.call_at(until, self.unmute)

    def unmute(self) -> None:
        """The time is over: take requests again."""
        self._muted = None
        self._go_on()

    def _forget_mute(self) -> None:
        """The connection is closed."""
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None

    @abstractmethod
    def _go_on(self) -> None:
        """Take requests again."""

    def _pause_reading(self, pause: bool) -> None:
        """Pause or resume reading."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    @abstractmethod
    def look_after(self, monotonic_ms: int) -> None:
        """Check the connection; called once a second."""

    def _close_if_idle(self, monotonic_ms: int, idle_ms_max: int, *, is_busy: bool) -> None:
        """Close the connection if it is idle. One that waits for the broker is not idle, unless its client may be gone."""
        if self._ended and is_busy and not self._choked:
            if self._owed_since_ms is None:
                self._owed_since_ms = monotonic_ms
            elif monotonic_ms - self._owed_since_ms > CONNECTION_ENDED_MS_MAX:
                self.abort()
                return
        if self._active or is_busy:
            self._active = False
            self._last_active_ms = monotonic_ms
        elif monotonic_ms - self._last_active_ms > idle_ms_max:
            if self._choked:
                # Closing would wait for a client that does not read.
                self.abort()
            else:
                self.close()

    @abstractmethod
    def close(self) -> None:
        """Take no more requests, and disconnect once everything begun is answered."""

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()


def is_private(transport: asyncio.BaseTransport) -> bool:
    """Whether nobody can read the bytes of a connection on their way."""
    if transport.get_extra_info("ssl_object") is not None:
        return True
    own = transport.get_extra_info("sockname")
    if not isinstance(own, tuple):
        # A socket of the file system.
        return True
    try:
        return ipaddress.ip_address(host_of(own)).is_loopback
    except ValueError:
        return False


Connection = TypeVar("Connection", bound=ClientConnection)


class ConnectionGateway(Generic[Connection]):
    """All connections of one protocol."""

    def __init__(self, kind: Gateway, broker: Broker, turn: EndOfTurn, limits: LimitSettings) -> None:
        self.broker: Final = broker
        self.turn: Final = turn
        self.limits: Final = limits
        self.loop: Final = asyncio.get_running_loop()
        self.swept_ms = broker.clock.monotonic_ms()
        """When the connections were last checked, at most ``SWEEP_MS`` ago: a cheap clock for deadlines."""
        self._kind: Final = kind
        self._logger: Final = logging.getLogger(f"penstock.{kind.value}")
        # In the order of arrival, so that checks always have the same order.
        self._connections: dict[Connection, None] = {}
        self._stopping = False
        self._doors: list[Accepting] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._drained: Final = asyncio.Event()
        self._ending = False
        self._lines_of_strangers: Final = LogLimit(self.loop.time)
        broker.authenticator.on_changed.append(self._users_changed)
        broker.meters.connections[kind.value] = lambda: len(self._connections)

    async def _listen(self, listener: Listener, door: Door) -> None:
        """Accept the connections of a listener. A gateway can have several."""
        self._doors.append(await listener.serve(door))
        if self._sweep is None:
            self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._look_after)

    def _close(self) -> None:
        """Stop accepting, and close each connection once everything begun is answered."""
        self._stopping = True
        for door in self._doors:
            door.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.close()

    async def _drain(self, seconds: float) -> bool:
        """Whether all connections are closed in time."""
        if self._connections:
            try:
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
            except TimeoutError:
                return False
        return True

    def _abort(self) -> None:
        """Close the remaining connections at once."""
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: Connection) -> str | None:
        """Admit a new connection, or return why it is refused."""
        if self._stopping:
            return "The broker is stopping; connect again in a moment"
        if connection.nameless is not None:
            connection.arrival.failed(Failure(NO_NAME, connection.nameless))
            return connection.nameless
        count = len(self._connections)
        set_max = self.broker.configs.number(CONNECTIONS)
        if count >= (self.limits.connections_max if set_max is None else set_max):
            self.broker.meters.connections_refused.add((self._kind.value,))
            setting = "limits.connections_max" if set_max is None else CONNECTIONS
            self._logger.warning("refusing %s: %d connections are open (%s)", connection.caller.client, count, setting)
            return f"Too many connections: {count} are open; close some, then connect again"
        self._connections[connection] = None
        self.broker.quotas.connections.opened(connection.arrival.host)
        self._drained.clear()
        return None

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        connection.arrival.known()
        if connection in self._connections:
            del self._connections[connection]
            self.broker.quotas.connections.closed(connection.arrival.host)
        if not self._connections:
            self._drained.set()

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def _look_after(self) -> None:
        now_ms = self.swept_ms = self.broker.clock.monotonic_ms()
        for connection in list(self._connections):
            connection.look_after(now_ms)
        self._sweep = self.loop.call_later(SWEEP_MS / 1000, self._look_after)

    def _users_changed(self) -> None:
        """Soon, so that the client that made the change gets its answer; once for many changes."""
        if not self._ending:
            self._ending = True
            self.loop.call_later(END_SESSIONS_MS / 1000, self._end_sessions)

    def _end_sessions(self) -> None:
        self._ending = False
        is_current = self.broker.authenticator.is_current
        for connection in list(self._connections):
            if connection.identity is not NOBODY and not is_current(connection.identity):
                self.say_closing(connection, "its user or key was deleted, or the password changed")
                connection.end_session()

    def count_error(self, reason: str) -> None:
        """Count a refused request."""
        self.broker.meters.request_errors.add((self._kind.value, reason.lower()))

    def say_closing(self, connection: Connection, why: str) -> None:
        """Log why the broker closes a connection; for those of strangers a few lines a minute, so that they cannot fill the disk."""
        left_out = ""
        if connection.identity is NOBODY and self.broker.authenticator.is_required:
            if not self._lines_of_strangers.may_log():
                return
            left_out = self._lines_of_strangers.left_out()
        self._logger.warning("closing %s: %s%s", connection.caller.client, why, left_out)

    def report_bug(self, connection: Connection, error: BaseException) -> None:
        """Log the trace of a bug."""
        trace = "".join(traceback.format_exception(error))
        self._logger.error("request of %s failed: %s", connection.caller.client, trace)
