"""Accepts the connections of every listener except gRPC's, and lets them in: the only way to a gateway.

A :class:`Reception` is shared by the listeners of a node. It limits the rate of TLS handshakes (more connections wait in the kernel), and how
many strangers there are: connections in the handshake, and those whose client has not authenticated where it must. The oldest stranger
makes room for the next, so silent connections do not keep others out.

At a listener with TLS nothing is allocated before the first byte, which shows whether the client speaks TLS. If not, it gets an answer in its
own protocol that names the mistake.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.limits import ACCEPT_BACKLOG, ACCEPTS_PER_TURN, HANDSHAKE_MS_MAX, TLS_SHUTDOWN_MS_MAX
from penstock.meters import Counts
from penstock.settings import LimitSettings
from penstock.transport.alerts import HANDSHAKING
from penstock.transport.handshakes import CROWDED, DISCONNECTED, NOT_TLS, TIMEOUT, TLS_RECORD, TOO_MANY, Failure, why
from penstock.transport.listener import Accepting, Arrival, Door, Listener
from penstock.transport.listening import host_of
from penstock.transport.log_limit import LogLimit

logger = logging.getLogger("penstock.listeners")

_PEEKED_BYTES: Final = 64
_DISCARD_BYTES: Final = 64 * 1024
_DISCARDED_BYTES_MAX: Final = 1024 * 1024
_LINGER_SECONDS: Final = 1.0
"""How long a mistaken client has for reading its answer; closing at once could discard it."""
_NO_DESCRIPTORS_SECONDS: Final = 1.0


Admit = Callable[[Listener, str], tuple[float, str]]
"""For a new connection from an address: the seconds until the next one is accepted, and why this one is refused, if it is."""


def _everyone(_: Listener, __: str) -> tuple[float, str]:
    return 0.0, ""


class Reception:
    """Counts the connections that arrive at all listeners of a node."""

    def __init__(
        self, limits: LimitSettings, *, until_authenticated: bool = False, failures: Counts | None = None
    ) -> None:
        """``until_authenticated``: a connection is a stranger until its gateway calls :meth:`Arrival.known`; else until the handshake ends."""
        self.loop: Final = asyncio.get_running_loop()
        self.failures: Final = Counts("listener", "reason") if failures is None else failures
        self.until_authenticated: Final = until_authenticated
        self.admit: Admit = _everyone
        """Decides about each connection by its address. Set once the broker is there."""
        self._limits: Final = limits
        self._strangers: dict[Arrival, None] = {}
        """In the order of their arrival."""
        self._by_host: dict[str, dict[Arrival, None]] = {}
        self._tokens = float(limits.handshake_rate_max)
        self._refilled_at = self.loop.time()
        self._lines: dict[tuple[str, str], LogLimit] = {}
        """By listener and reason, so that one reason does not hide another."""

    def another(self) -> "Reception":
        """One with its own limits, that counts together with this one: until the handshake ends."""
        return Reception(self._limits, failures=self.failures)

    async def accept(self, listener: Listener, door: Door) -> Accepting:
        """Accept connections on a bound socket, which is closed in the end."""
        return Acceptor(self, listener, door)

    def arrive(self, listener: Listener, host: str, *, is_stranger: bool) -> Arrival:
        """A connection has arrived. If there are too many strangers, the oldest makes room."""
        if not is_stranger:
            return Arrival(listener, host, self)
        of_host = self._by_host.get(host, {})
        if len(of_host) >= self._limits.strangers_per_address_max:
            self._dismiss(next(iter(of_host)))
        elif len(self._strangers) >= self._limits.strangers_max:
            self._dismiss(next(iter(self._strangers)))
        arrival = Arrival(listener, host, self, is_stranger=True)
        self._strangers[arrival] = None
        self._by_host.setdefault(host, {})[arrival] = None
        return arrival

    def left(self, arrival: Arrival) -> None:
        """A connection is no stranger any more."""
        del self._strangers[arrival]
        of_host = self._by_host[arrival.host]
        del of_host[arrival]
        if not of_host:
            del self._by_host[arrival.host]

    def _dismiss(self, arrival: Arrival) -> None:
        arrival.known()
        arrival.failed(CROWDED)
        if arrival.on_crowded is not None:
            arrival.on_crowded()

    @property
    def stranger_count(self) -> int:
        """Connections that are not known yet."""
        return len(self._strangers)

    def wait_seconds(self) -> float:
        """Take the right to one TLS handshake; if there is none, the time until there is one."""
        rate = self._limits.handshake_rate_max
        if not rate:
            return 0
        now = self.loop.time()
        self._tokens = min(rate, self._tokens + (now - self._refilled_at) * rate)
        self._refilled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / rate
        self._tokens -= 1
        return 0

    def failed(self, arrival: Arrival, failure: Failure) -> None:
        """Count and log a connection that did not get in."""
        name = arrival.listener.name
        self.failures.add((name, failure.label))
        lines = self._lines.setdefault((name, failure.label), LogLimit(self.loop.time))
        if lines.may_log():
            logger.warning(
                "connection failed: listener=%s client=%s reason=%s%s",
                name,
                arrival.host,
                failure.words,
                lines.left_out(),
            )


class Acceptor:
    """One listener that is served."""

    def __init__(self, reception: Reception, listener: Listener, door: Door) -> None:
        assert listener.sock is not None
        self.reception: Final = reception
        self.listener: Final = listener
        self.door: Final = door
        self.loop: Final = reception.loop
        self._sock: Final = listener.sock
        self._resumes: asyncio.TimerHandle | None = None
        self._greetings: set[_Greeting] = set()
        self._tasks: dict[asyncio.Task[None], socket.socket | None] = {}
        """Each has a connection that is not in yet; its socket, until the event loop has taken it over."""
        self._sock.setblocking(False)
        self._sock.listen(ACCEPT_BACKLOG)
        self.loop.add_reader(self._sock, self._accept)

    def close(self) -> None:
        """Accept no more, and disconnect those that are not in yet. A second call does nothing."""
        if self._sock.fileno() < 0:
            return
        if self._resumes is not None:
            self._resumes.cancel()
        self.loop.remove_reader(self._sock)
        self._sock.close()
        for greeting in list(self._greetings):
            greeting.end()
        for task in list(self._tasks):
            self._drop(task)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self.listener.tls is not None and (wait := self.reception.wait_seconds()):
                self._pause(wait)
                return
            try:
                sock, where = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("cannot accept: listener=%s reason=%s", self.listener.name, error.strerror)
                self._pause(_NO_DESCRIPTORS_SECONDS)
                return
            host = host_of(where)
            wait, refusal = self.reception.admit(self.listener, host)
            if refusal:
                Arrival(self.listener, host, self.reception).failed(Failure(TOO_MANY, refusal))
                sock.close()
            else:
                self._let_in(sock, host)
            if wait:
                self._pause(wait)
                return

    def _pause(self, seconds: float) -> None:
        self.loop.remove_reader(self._sock)
        self._resumes = self.loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._resumes = None
        self.loop.add_reader(self._sock, self._accept)

    def _let_in(self, sock: socket.socket, host: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_stranger = self.listener.tls is not None or self.reception.until_authenticated
        arrival = self.reception.arrive(self.listener, host, is_stranger=is_stranger)
        if self.listener.tls is None:
            self._start(sock, arrival, None)
        else:
            greeting = _Greeting(self, sock, arrival)
            self._greetings.add(greeting)

    def greeted(self, greeting: "_Greeting") -> None:
        """A connection has sent its first bytes, or is gone."""
        self._greetings.discard(greeting)

    def start_tls(self, sock: socket.socket, arrival: Arrival) -> None:
        """A client speaks TLS."""
        assert self.listener.tls is not None
        self._start(sock, arrival, self.listener.tls.context)

    def start_plain(self, sock: socket.socket, arrival: Arrival) -> None:
        """A client does not speak TLS, and need not."""
        self._start(sock, arrival, None)

    def _start(self, sock: socket.socket, arrival: Arrival, context: ssl.SSLContext | None) -> None:
        task = self.loop.create_task(self._connect(sock, arrival, context))
        self._tasks[task] = sock
        task.add_done_callback(self._tasks.pop)
        arrival.on_crowded = partial(self._drop, task)

    def _drop(self, task: asyncio.Task[None]) -> None:
        sock = self._tasks.get(task)
        if sock is not None:
            # The task will not even begin.
            sock.close()
        task.cancel()

    async def _connect(self, sock: socket.socket, arrival: Arrival, context: ssl.SSLContext | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = None
        try:
            if context is None:
                await self.loop.connect_accepted_socket(lambda: self.door.connect(arrival), sock)
            else:
                HANDSHAKING.set(sock)
                await self.loop.connect_accepted_socket(
                    lambda: self.door.connect(arrival),
                    sock,
                    ssl=context,
                    ssl_handshake_timeout=HANDSHAKE_MS_MAX / 1000,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_MS_MAX / 1000,
                )
        except (OSError, asyncio.CancelledError) as error:
            arrival.known()
            if isinstance(error, asyncio.CancelledError):
                # It had to make room, or the listener is closed.
                return
            arrival.failed(why(error))
        else:
            if not self.reception.until_authenticated:
                arrival.known()


class _Greeting:
    """A connection to a listener with TLS, until its first byte shows what it speaks."""

    def __init__(self, acceptor: Acceptor, sock: socket.socket, arrival: Arrival) -> None:
        self._acceptor = acceptor
        self._loop = acceptor.loop
        self._sock = sock
        self._arrival = arrival
        self._discarded_bytes = 0
        arrival.on_crowded = self.end
        self._timer = self._loop.call_later(HANDSHAKE_MS_MAX / 1000, self._fail, TIMEOUT)
        self._loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        try:
            first = self._sock.recv(_PEEKED_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._fail(DISCONNECTED)
        elif first[0] == TLS_RECORD:
            self._release()
            self._acceptor.start_tls(self._sock, self._arrival)
        elif self._acceptor.listener.allows_plain:
            self._release()
            self._acceptor.start_plain(self._sock, self._arrival)
        else:
            self._say_mistake(first)

    def _say_mistake(self, first: bytes) -> None:
        """The client does not speak TLS. Say so, then wait for a moment until it has read that."""
        self._arrival.failed(NOT_TLS)
        answer = self._acceptor.door.plain_answer(first)
        self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.end)
        self._loop.remove_reader(self._sock)
        self._loop.add_reader(self._sock, self._discard)
        try:
            if answer:
                self._sock.send(answer)
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.end()

    def _discard(self) -> None:
        try:
            size = len(self._sock.recv(_DISCARD_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            size = 0
        self._discarded_bytes += size
        if not size or self._discarded_bytes > _DISCARDED_BYTES_MAX:
            self.end()

    def _fail(self, failure: Failure) -> None:
        self._arrival.failed(failure)
        self.end()

    def _release(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._sock)
        self._acceptor.greeted(self)

    def end(self) -> None:
        """Disconnect."""
        self._release()
        self._arrival.known()
        with contextlib.suppress(OSError):
            self._sock.close()
