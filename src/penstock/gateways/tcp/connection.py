"""One client's connection: lines are handled and answered in the order in which they arrive.

All lines that arrive together are handled at once, and all answers that are ready are sent in one write at the end of the event
loop's turn. A client may send lines without waiting for answers, and gets the same answers as if it had waited for each: produce lines
and commits do not wait until the ones before them are durable, but all requests that could read their results do.

Nothing grows without bound: reading pauses while too many lines are unanswered, or the client does not read its answers.

A connection that begins like HTTP or TLS is closed before any of its lines is handled: a web page can make a browser send a request
whose body has lines of JSON.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.security.identity import Identity
from penstock.errors import PenstockError
from penstock.gateways.connections import ClientConnection
from penstock.gateways.publishing import publish_by_topic
from penstock.gateways.tcp.answers import FailureLine, SuccessLine, encode_lines, failure, produced
from penstock.gateways.tcp.errors import INTERNAL_ERROR, INVALID_FIELD, LINE_TOO_LONG, Refused, text_for
from penstock.gateways.tcp.handlers import HANDLERS, Command, line_of, metrics
from penstock.gateways.tcp.login import AUTH, ENDED, LineLogin
from penstock.gateways.tcp.opening import OPENING_BYTES, TLS, wrong_protocol
from penstock.gateways.tcp.requests import Request, new_record, parse
from penstock.limits import LOGIN_LINE_BYTES_MAX
from penstock.transport.handshakes import TLS_ON_PLAIN
from penstock.transport.listener import Arrival
from penstock.types import Gateway
from penstock.wire.jsonlines import Line, LineSplitter

if TYPE_CHECKING:
    from penstock.gateways.tcp.gateway import TcpGateway

_AUTH_REQUEST: Final = Request(type=AUTH)
_PRODUCE: Final = "produce"
_COMMIT: Final = "commit"
_METRICS: Final = "metrics"
_KEPT_BYTES_FREE: Final = 16 * 1024
"""An incomplete line of this size is always allowed, however many clients there are."""


class Slot:
    """A place in the order of answers, for one or more lines. ``data`` is None until the answers are ready."""

    __slots__ = ("_connection", "api", "arrived", "data", "lines")

    def __init__(self, connection: "TcpConnection", api: str, lines: int) -> None:
        self._connection = connection
        self.api = api
        self.lines = lines
        self.arrived = connection.arrived
        self.data: bytes | None = None

    def complete(self, data: bytes) -> None:
        """Set the answers; they are sent after those before them."""
        assert self.data is None
        self.data = data
        self._connection.completed(self)


class TcpConnection(ClientConnection, asyncio.Protocol):
    """One client."""

    def __init__(self, gateway: "TcpGateway", arrival: Arrival) -> None:
        super().__init__(Gateway.TCP, gateway.turn, gateway.broker.clock.monotonic_ms(), arrival)
        self.gateway: Final = gateway
        self.broker: Final = gateway.broker
        self.arrived = 0.0
        """When bytes last arrived; lines that arrived together share it."""
        self._bounds: Final = gateway.bounds
        self._splitter = LineSplitter(gateway.settings.line_bytes_max)
        self._opening: bytes | None = b""
        """The first bytes, until they show whether this is JSON."""
        self._kept_bytes = 0
        self._backlog: deque[Line] = deque()
        self._out: deque[bytes | Slot] = deque()
        self._held_bytes = 0
        """Of answers that are ready, but not sent."""
        self._pending_lines = 0
        """Lines whose answers are not ready."""
        self._under_way = {_PRODUCE: 0, _COMMIT: 0}
        self._working = False
        """A request is under way that those after it wait for."""
        self._closing = False
        self._login: LineLogin | None = None
        self._is_stranger = False
        """Whether the client must log in before anything else."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        opened = self._open(transport, self._bounds.pending_output_bytes_max)
        refused = self.gateway.admit(self)
        if refused is not None:
            self._closing = True
            opened.write(failure(refused))
            opened.close()
        elif self.broker.authenticator.is_required:
            self._require_login()

    # Who the client is.

    def _require_login(self) -> None:
        self._login = LineLogin(self)
        if self.certificate is None:
            self._is_stranger = True
            self._splitter.line_bytes_max = min(LOGIN_LINE_BYTES_MAX, self.gateway.settings.line_bytes_max)
            return
        try:
            self.log_in(self.broker.authenticator.certified(self.certificate))
        except PenstockError as error:
            self._answer(failure(error.text))
            self.close()

    def log_in(self, identity: Identity) -> None:
        """The client is known from now on."""
        self.identify(identity)
        self._is_stranger = False
        self._splitter.line_bytes_max = self.gateway.settings.line_bytes_max

    def end_session(self) -> None:
        """Say that the login has ended, and disconnect."""
        self._closing = True
        self._backlog.clear()
        self._out.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(failure(ENDED))
            self._transport.close()

    def _has_expired(self) -> bool:
        expires_ms = self.identity.expires_ms
        return expires_ms is not None and self.broker.clock.now_ms() >= expires_ms and not self._closing

    def _run_login(self) -> None:
        """Take the next line of a client that is not logged in."""
        if self._backlog and not self._working and not self._closing:
            assert self._login is not None
            self._working = True
            line = self._backlog.popleft()
            self._task = asyncio.ensure_future(self._work(_AUTH_REQUEST, self._login.take(line)))
        self._update_reading()
        if self._ended or self._closing:
            self._close_if_done()

    def connection_lost(self, _: Exception | None) -> None:
        """The client has disconnected: its answers are dropped, and requests that were begun are completed."""
        self._closing = True
        self._forget_mute()
        self.gateway.forget(self)
        self._keep(0)
        self._backlog.clear()
        self._out.clear()
        # It refers to this connection: without TLS's buffers, the rest can wait for the garbage collector.
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._closing:
            return
        self._active = True
        self.arrived = perf_counter()
        if self._opening is not None and not self._opens_right(data):
            return
        splitter = self._splitter
        self._backlog += splitter.feed(data)
        if splitter.kept_bytes != self._kept_bytes and not self._keep(splitter.kept_bytes):
            splitter.skip()
            self._keep(0)
            self._backlog.append(None)
        if self._backlog:
            self._run()

    def _opens_right(self, data: bytes) -> bool:
        """Whether the first bytes can begin a line of JSON. If not, refuse the connection, and close it."""
        opening = (self._opening or b"") + data[:OPENING_BYTES]
        self._opening = opening if len(opening) < OPENING_BYTES and b"\n" not in opening else None
        refused = wrong_protocol(opening)
        if refused is None:
            return True
        if opening.startswith(TLS):
            self.arrival.failed(TLS_ON_PLAIN)
        self._opening = None
        self.gateway.count_error(refused.kind)
        self._answer(failure(refused.text))
        self.close()
        return False

    def _keep(self, kept_bytes: int) -> bool:
        """Whether this much of an incomplete line may be kept, besides those of other clients."""
        gateway = self.gateway
        gateway.kept_bytes += kept_bytes - self._kept_bytes
        self._kept_bytes = kept_bytes
        return kept_bytes <= _KEPT_BYTES_FREE or gateway.kept_bytes <= self._bounds.kept_bytes_max

    def eof_received(self) -> bool:
        """The client sends no more: it gets its answers, then the connection is closed."""
        self._ended = True
        if not self._closing:
            self._backlog += self._splitter.end()
            self._run()
        if self.listener.tls is None:
            return True
        # A TLS connection cannot be closed on one side only: the client gets what is ready now.
        self._send()
        return False

    def pause_writing(self) -> None:
        """The client reads its answers too slowly."""
        self._choked = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The client has read its answers."""
        self._choked = False
        self._run()

    @property
    def is_busy(self) -> bool:
        """Whether an answer is not ready yet."""
        return self._pending_lines > 0 or self._working

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has not read."""
        return self._held_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    # Requests.

    def _run(self) -> None:
        """Handle the lines that need not wait."""
        if self._is_stranger:
            self._run_login()
            return
        if self._has_expired():
            self.end_session()
            return
        backlog, bounds = self._backlog, self._bounds
        while (
            backlog
            and not self._working
            and not self._choked
            and self._pending_lines < bounds.pending_lines_max
            and self._held_bytes < bounds.pending_output_bytes_max
            and self._muted is None
        ):
            request = self._take_produces()
            if request is None:
                continue
            if self._must_wait(request):
                break
            line = backlog.popleft()
            if request.type == AUTH:
                self._renew(request, line)
            else:
                self._apply(request)
        if self._paused or backlog:
            self._update_reading()
        if self._ended or self._closing:
            self._close_if_done()

    def _take_produces(self) -> Request | None:
        """Publish the next produce lines together. Returns the request after them, if there is one."""
        backlog = self._backlog
        room = self._bounds.pending_lines_max - self._pending_lines
        lines: list[Request] = []
        records: list[NewRecord] = []
        following: Request | None = None
        refused: Refused | None = None
        while backlog and room > len(lines):
            line = backlog[0]
            try:
                if line is None:
                    raise self._too_long()
                request = parse(line)
                if request.type != _PRODUCE:
                    following = request
                    break
                records.append(new_record(request))
            except Refused as error:
                refused = error
                backlog.popleft()
                break
            lines.append(request)
            backlog.popleft()
        if lines:
            topics = [request.topic or "" for request in lines]
            done = partial(self._produced, self._reserve(_PRODUCE, len(lines)), lines)
            publish_by_topic(self.broker.publisher, self.caller, topics, records, done)
            if self.broker.quotas.is_on:
                self._throttle()
        if refused is not None:
            self.gateway.count_error(refused.kind)
            self._answer(failure(refused.text))
        return following

    def _produced(self, slot: Slot, lines: list[Request], results: Results) -> None:
        answers: list[SuccessLine | FailureLine] = []
        for request, result in zip(lines, results, strict=True):
            if isinstance(result, Placed):
                answers.append(produced(request, result))
            else:
                self.gateway.count_error(result.reason.name)
                answers.append(
                    FailureLine(False, text_for(result, self.broker, request.topic, request.partition, None))
                )
        slot.complete(encode_lines(answers))

    def _too_long(self) -> Refused:
        most = self.gateway.settings.line_bytes_max
        return Refused(
            LINE_TOO_LONG,
            f"Line too long: at most {most} bytes, less while many clients send long ones; the rest was skipped",
        )

    def _must_wait(self, request: Request) -> bool:
        """Whether a request before this one must be durable first, because this one may read its result."""
        under_way = self._under_way
        return under_way[_PRODUCE] > 0 or (under_way[_COMMIT] > 0 and request.type != _COMMIT)

    def _apply(self, request: Request) -> None:
        api = request.type or ""
        try:
            if api == _METRICS:
                self._working = True
                self._task = asyncio.ensure_future(self._work(request, metrics(self, request)))
            elif api == _COMMIT:
                self._commit(request, HANDLERS[api](self, request))
            else:
                self._begin(request, HANDLERS[api](self, request))
        except Exception as error:  # noqa: BLE001 - bugs are logged, and the connection stays open
            self._answer(self._failure(request, error))

    def _renew(self, request: Request, line: Line) -> None:
        if self._login is None:
            self.gateway.count_error(INVALID_FIELD)
            self._answer(failure("Authentication is off on this broker; leave out the auth request"))
            return
        self._working = True
        self._task = asyncio.ensure_future(self._work(request, self._login.renew(line)))

    def _begin(self, request: Request, command: Command) -> None:
        """Carry out a request; those after it wait until it is answered."""
        self._working = True
        try:
            self.broker.begin(command.operation, self.caller, partial(self._done, request, command))
        except BaseException as error:
            self._working = False
            if isinstance(error, PenstockError) and error.reason in command.forgiven:
                self._answer(command.line(None))
                return
            raise

    def _done(self, request: Request, command: Command, found: object) -> None:
        data = self._line(request, command, found)
        self._working = False
        if self.broker.quotas.is_on:
            self._throttle()
        self.gateway.observe(request.type or "", perf_counter() - self.arrived, 1)
        self._answer(data)

    def _line(self, request: Request, command: Command, found: object) -> bytes:
        try:
            return line_of(command, found)
        except Exception as error:  # noqa: BLE001 - bugs are logged, and the connection stays open
            return self._failure(request, error)

    def _commit(self, request: Request, command: Command) -> None:
        slot = self._reserve(_COMMIT, 1)

        def done(found: object) -> None:
            slot.complete(self._line(request, command, found))

        try:
            self.broker.begin(command.operation, self.caller, done)
        except PenstockError:
            self._withdraw(slot)
            raise

    async def _work(self, request: Request, work: Coroutine[object, object, bytes]) -> None:
        """Wait for the answer to a request; those after it wait, too."""
        try:
            data = await work
        except Exception as error:  # noqa: BLE001 - bugs are logged, and the connection stays open
            data = self._failure(request, error)
        self._working = False
        self.gateway.observe(request.type or "", perf_counter() - self.arrived, 1)
        self._answer(data)

    def _failure(self, request: Request, error: Exception) -> bytes:
        """The line for a request that failed, which is counted."""
        if isinstance(error, PenstockError):
            self.gateway.count_error(error.reason.name)
            return failure(text_for(error, self.broker, request.topic, request.partition, request.offset))
        if isinstance(error, Refused):
            self.gateway.count_error(error.kind)
            return failure(error.text)
        self.gateway.count_error(INTERNAL_ERROR)
        self.gateway.report_bug(self, error)
        return failure(f"Internal error: {type(error).__name__}; see the broker's log")

    # Answers.

    def _reserve(self, api: str, lines: int) -> Slot:
        slot = Slot(self, api, lines)
        self._out.append(slot)
        self._pending_lines += lines
        self._under_way[api] += 1
        return slot

    def _withdraw(self, slot: Slot) -> None:
        """Remove the last place, because nothing was begun."""
        assert self._out[-1] is slot
        self._out.pop()
        self._pending_lines -= slot.lines
        self._under_way[slot.api] -= 1

    def _answer(self, data: bytes) -> None:
        self._out.append(data)
        self._held_bytes += len(data)
        self.ready()

    def completed(self, slot: Slot) -> None:
        """The answers of a slot are ready."""
        self._under_way[slot.api] -= 1
        self._pending_lines -= slot.lines
        self._held_bytes += len(slot.data or b"")
        self.gateway.observe(slot.api, perf_counter() - slot.arrived, slot.lines)
        self.ready()

    def _send(self) -> None:
        self._sending = False
        out = self._out
        ready: list[bytes] = []
        while out:
            first = out[0]
            data = first if isinstance(first, bytes) else first.data
            if data is None:
                break
            ready.append(data)
            out.popleft()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if ready:
            data = b"".join(ready)
            self._held_bytes -= len(data)
            transport.write(data)
        if self._backlog or self._paused or self._ended or self._closing:
            self._run()

    # Bounds.

    def _throttle(self) -> None:
        """Take no more lines for a while if the client is over a quota."""
        delay_ms = self.broker.quotas.delay_ms(self.caller)
        if delay_ms and not self._closing:
            self.mute(delay_ms, self.gateway.loop)
            self._update_reading()

    def _go_on(self) -> None:
        self._run()

    def _update_reading(self) -> None:
        # The lines that have arrived are handled before more are read.
        pause = self._choked or bool(self._backlog) or self._closing or self._muted is not None
        if pause is not self._paused and not self._ended:
            self._pause_reading(pause)

    def look_after(self, monotonic_ms: int) -> None:
        """Once a second: close the connection if it is idle, does not log in, or its login has ended."""
        if self._is_stranger and self._login is not None and self._login.is_late and not self._working:
            self.gateway.say_closing(self, "it did not authenticate in time")
            self.abort()
            return
        if self._has_expired():
            self.end_session()
            return
        self._close_if_idle(
            monotonic_ms, self.gateway.limits.connection_idle_ms_max, is_busy=self.is_busy or self._muted is not None
        )

    def close(self) -> None:
        """Take no more lines, and disconnect once everything begun is answered."""
        self._closing = True
        self._backlog.clear()
        self._update_reading()
        self._close_if_done()

    def _close_if_done(self) -> None:
        done = not self._backlog and not self._out and not self._working
        if done and (self._ended or self._closing) and self._transport is not None:
            self._transport.close()
