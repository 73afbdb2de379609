"""A client's connection: uvicorn's HTTP protocol with a fast lane, and bounds on everything.

Requests in the fast lane are handled as they arrive; their answers are sent in order, in one write at the end of the event loop's
turn. All other requests go to uvicorn, once every answer of the lane has been sent, so answers never overtake each other. While
uvicorn is serving a request, all that follow go there, too, until its last answer has been sent.

Nothing grows without bound: reading pauses while a client has too many unanswered requests or does not read its answers, the size of
a request's head is limited, and a connection that stalls in the middle of a request or an answer is closed.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.core.security.access import Caller
from penstock.errors import PenstockError
from penstock.gateways.connections import is_private
from penstock.gateways.http.server.answers import Answer, rendered
from penstock.gateways.http.server.browsers import authority_of
from penstock.gateways.http.server.errors import Refusal, error_answer, failure_answer
from penstock.gateways.http.server.lane import HEAD_BYTES_MAX, LaneCall
from penstock.gateways.http.server.logins import Login
from penstock.gateways.http.server.routing import CONNECTION, HttpCall, bounded, refused, throttle, too_late
from penstock.transport.handshakes import NO_NAME, TLS_ON_PLAIN, TLS_RECORD, Failure
from penstock.transport.listener import Arrival
from penstock.transport.listening import host_of

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

logger = logging.getLogger("penstock.http")

_POST: Final = b"POST "
_HEAD_END: Final = b"\r\n\r\n"
_ANSWER_BYTES_MIN: Final = 300
_ANSWER_RATIO: Final = 8
"""An answer is at most this many times as large as the request body: the result of a message compared to the shortest message."""
_UPGRADE: Final = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_IGNORED: Final = b"\r\nx-ignored-upgrade:"
_AFTER_STREAM_MAX: Final = 1000
"""Requests that a client may send after one whose streamed answer has not ended."""
_UNKNOWN: Final[Any] = object()


class _Slot:
    """The place of an answer in the order of its connection; called once, with the answer."""

    __slots__ = ("_connection", "_latency", "_request_id", "_started", "cancel", "closes", "data", "path")

    def __init__(self, connection: "HttpConnection", request_id: bytes, call: LaneCall, started: float) -> None:
        self._connection = connection
        self._request_id = request_id
        self._latency = call.latency
        self.path = call.path
        self._started = started
        self.data: bytes | None = None
        self.closes = False
        self.cancel: Callable[[], None] | None = None
        """Called if the client disconnects before the answer."""

    def is_late(self, now: float, seconds_max: float) -> bool:
        """Whether the answer is overdue. A call that can be cancelled has its own timeout."""
        return self.data is None and self.cancel is None and now - self._started > seconds_max

    def __call__(self, answer: Answer) -> None:
        if self.data is not None:
            return
        connection = self._connection
        answer = bounded(connection.gateway, self.path, answer)
        self.data = rendered(answer, self._request_id, connection.gateway.default_headers())
        self.closes = bool(answer.headers) and (b"connection", b"close") in answer.headers
        self._latency.observe(connection.loop.time() - self._started)
        connection.ready()


class HttpConnection(HttpToolsProtocol):
    """One client."""

    def __init__(
        self,
        gateway: "HttpGateway",
        arrival: Arrival,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.gateway: Final = gateway
        self.arrival: Final = arrival
        self.listener: Final = arrival.listener
        self.caller: Caller = gateway.caller("", arrival.listener.name)
        """Anonymous: the identity is that of each request."""
        self.certificate: str | None = None
        """The name that the rules make of the client's certificate, if it presented one."""
        self.is_private = False
        """Whether nobody can read the bytes on the way."""
        self._by_certificate: Login | None = None
        """Once a request was authenticated by it."""
        self._head = b""
        """The last head in the lane: clients send the same one again and again."""
        self._call: LaneCall | None = None
        self._login: Login | None = None
        self._identified: Caller = self.caller
        """How that head is handled, and who sent it."""
        self._authenticated = not gateway.logins.is_required
        """Whether a request was authenticated, or none need be."""
        self._stranger_ms = gateway.broker.clock.monotonic_ms()
        """Since when it has neither authenticated nor been answered."""
        self._digest = gateway.logins.digest if gateway.logins.is_required else None
        self._known = gateway.lane.known
        self._answers: deque[_Slot] = deque()
        self._sending = False
        self._promised_bytes = 0
        """The size of the answers to the requests under way, estimated."""
        self._pieces: list[bytes] = []
        """Bytes of a request of the lane that is incomplete, or has to wait."""
        self._held_bytes = 0
        self._needed_bytes = 0
        self._waits = False
        self._in_asgi = False
        self._serving: RequestResponseCycle | None = None
        """The request that uvicorn is serving; the next ones wait in its pipeline."""
        self._between_requests = True
        self._head_bytes = 0
        self._pending_head_bytes = 0
        self._head_is_older = False
        self._has_ended = False
        self._in_head = True
        self._refused = False
        self._nameless: str | None = None
        """Why there is no name for the certificate that the client presented."""
        self._muted: asyncio.TimerHandle | None = None
        """Until when no request is taken, because the client is over a quota."""
        self._closing = False
        self._active = True
        self._active_ms = gateway.broker.clock.monotonic_ms()
        self._unsent_bytes = 0

    # The event loop's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.arrival.on_crowded = transport.abort
        self.is_private = is_private(transport)
        self.caller = self.gateway.caller(host_of(self.client) if self.client else "", self.listener.name)
        transport.set_write_buffer_limits(high=self.gateway.bounds.output_bytes_max)
        if self.listener.tls is not None:
            try:
                self.certificate = self.listener.tls.certificate_name(transport)
            except ValueError as error:
                self._nameless = str(error)
                self.arrival.failed(Failure(NO_NAME, str(error)))
        self.gateway.broker.quotas.connections.opened(self.arrival.host)
        room = self.gateway.has_room()
        if room is None:
            transport.abort()
        self._refused = room is False or self._nameless is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected; what it published stays."""
        self._closing = True
        self.arrival.known()
        self.gateway.broker.quotas.connections.closed(self.arrival.host)
        if self._muted is not None:
            self._muted.cancel()
        for slot in self._answers:
            if slot.cancel is not None and slot.data is None:
                slot.cancel()
        self._answers.clear()
        self._pieces.clear()
        if self._serving is not None:
            # uvicorn notifies only the last request, which may be waiting for an endless stream before it.
            self._serving.disconnected = True
            self._serving.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._active = True
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._in_asgi and not self._asgi_is_done():
            self._feed(data)
            return
        if self._pieces:
            self._pieces.append(data)
            self._held_bytes += len(data)
            if self._waits or self._held_bytes < self._needed_bytes:
                return
            data = self._take_pieces()
        elif self._refused:
            self._refuse(data)
            return
        elif data[0] == TLS_RECORD:
            self.arrival.failed(TLS_ON_PLAIN)
            self.transport.abort()
            return
        self._run(data)

    def mute(self, delay_ms: int) -> None:
        """Take no request for this time. What is under way is answered."""
        if self._closing:
            return
        until = self.loop.time() + delay_ms / 1000
        if self._muted is not None:
            until = max(until, self._muted.when())
            self._muted.cancel()
        self._muted = self.loop.call_at(until, self.unmute)

    def unmute(self) -> None:
        """The time is over: take requests again."""
        self._muted = None
        self._resume()

    def pause_writing(self) -> None:
        """The client does not read its answers: take no more requests."""
        super().pause_writing()
        if self._answers or not self._in_asgi:
            self.flow.pause_reading()

    def resume_writing(self) -> None:
        """The client has read its answers."""
        super().resume_writing()
        if not self._closing:
            self.loop.call_soon(self._resume)

    def shutdown(self) -> None:
        """The gateway stops: answer what is under way, and take no more requests."""
        if self._answers:
            self._closing = True
        else:
            super().shutdown()

    @property
    def host(self) -> str:
        """The address of the client."""
        return self.caller.client

    # The fast lane.

    def _run(self, data: bytes) -> None:
        """Handle the complete requests, in order."""
        position, end = 0, len(data)
        if self._login is not None and not self.gateway.logins.holds(self._login):
            self._head = b""
        pipelined_max = self.gateway.bounds.pipelined_max
        while position < end and not self._closing:
            if (
                self.flow.write_paused
                or self._muted is not None
                or len(self._answers) >= pipelined_max
                or self._promised_bytes > self.gateway.bounds.output_bytes_max
            ):
                self._wait(data[position:])
                return
            head_end = data.find(_HEAD_END, position)
            if head_end < 0:
                # An incomplete head, perhaps of a request for the lane.
                is_for_lane = data.startswith(_POST, position) or _POST.startswith(
                    data[position : position + len(_POST)]
                )
                if is_for_lane and end - position <= self.gateway.bounds.head_bytes_max:
                    self._hold(data[position:], 0)
                else:
                    self._to_asgi(data[position:])
                return
            body_start = head_end + 4
            head = data[position:body_start]
            if head != self._head:
                self._recognise(head)
            call = self._call
            if call is None:
                self._to_asgi(data[position:])
                return
            if call.is_large and self._answers:
                # It may depend on the requests before it, and its answer needs the room.
                self._wait(data[position:])
                return
            body_end = body_start + call.length
            if body_end > end:
                self._hold(data[position:], body_end - position)
                return
            position = body_end
            self._serve(call, data[body_start:body_end])

    def _recognise(self, head: bytes) -> None:
        """Find out how requests with this head are handled, and who sends them."""
        key = head if self._digest is None else self._digest(head)
        call = self._known.get(key, _UNKNOWN)
        if call is _UNKNOWN:
            call = self.gateway.lane.look_up(head, key, is_stranger=self._by_certificate is None)
        self._login, self._identified = None, self.caller
        if call is not None and self._digest is not None:
            self._login = self._login_of(call)
            if self._login is None:
                # ASGI authenticates it, and the next one is looked up again.
                self._known.pop(key, None)
                call = None
            else:
                self._identified = self.authenticated(self._login)
        self._call = call
        self._head = head if call is not None and len(head) <= HEAD_BYTES_MAX else b""

    def _login_of(self, call: LaneCall) -> Login | None:
        """The login of a head, if it still holds, and does on this connection."""
        login = call.login
        if login is None:
            login = self._by_certificate
        elif not self.is_private:
            return None
        return login if login is not None and self.gateway.logins.holds(login) else None

    def authenticated(self, login: Login, *, by_certificate: bool = False) -> Caller:
        """The caller of a request of this connection with this login."""
        self._authenticated = True
        self.arrival.known()
        if by_certificate:
            self._by_certificate = login
        return login.identity.on(self.caller)

    def _serve(self, found: LaneCall, body: bytes) -> None:
        gateway = self.gateway
        request_id = found.request_id or gateway.new_request_id()
        slot = _Slot(self, request_id, found, self.loop.time())
        self._answers.append(slot)
        self._promised_bytes += _ANSWER_BYTES_MIN + _ANSWER_RATIO * len(body)
        if found.is_large:
            self._promised_bytes += gateway.bounds.output_bytes_max
        call = HttpCall(
            gateway, self._identified, found.path, found.params, found.query, found.headers, body, request_id
        )
        try:
            found.hot(call, slot)
            slot.cancel = call.cancel
        except (PenstockError, Refusal) as error:
            slot(refused(gateway, found.path, error))
        except Exception:
            identity = request_id.decode("ascii")
            logger.exception("request %s failed: POST %a", identity, found.path, extra={"request_id": identity})
            slot(failure_answer(found.path, request_id))
        if gateway.broker.quotas.is_on:
            throttle(call.caller, gateway, self)

    def ready(self) -> None:
        """An answer is complete; it is sent at the end of the turn, if all before it are complete."""
        if not self._sending:
            self._sending = True
            self.gateway.turn.send(self._send)

    def _send(self) -> None:
        self._sending = False
        answers = self._answers
        parts: list[bytes] = []
        closes = False
        while answers and not closes:
            data = answers[0].data
            if data is None:
                break
            parts.append(data)
            closes = answers.popleft().closes
        if not parts or self.transport.is_closing():
            return
        if not answers:
            self._promised_bytes = 0
        self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if closes or (self._closing and not answers):
            self._closing = True
            self.transport.close()
        elif self._waits:
            self.loop.call_soon(self._resume)

    # Between the lane and uvicorn.

    def _hold(self, rest: bytes, needed_bytes: int) -> None:
        self._pieces.append(rest)
        self._held_bytes = len(rest)
        self._needed_bytes = needed_bytes

    def _wait(self, rest: bytes) -> None:
        """Hold these bytes until answers have been sent."""
        self._hold(rest, 0)
        self._waits = True
        self.flow.pause_reading()

    def _take_pieces(self) -> bytes:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._held_bytes = 0
        return data

    def _to_asgi(self, rest: bytes) -> None:
        if self._answers:
            self._wait(rest)
        else:
            self._in_asgi = True
            # From now on uvicorn decides when to read, since these bytes may be less than a request.
            self.flow.resume_reading()
            head, end, body = rest.partition(_HEAD_END)
            if end and _UPGRADE.search(head):
                # Upgrades are not supported. The parser would take the body for the first bytes of the other protocol.
                rest = _UPGRADE.sub(_IGNORED, head) + end + body
            self._feed(rest)

    def _resume(self) -> None:
        """Handle the requests that had to wait, if possible."""
        if self._closing or self.flow.write_paused or self._muted is not None:
            return
        if self._waits:
            self._waits = False
            self._run(self._take_pieces())
        if not self._waits and not self._in_asgi:
            self.flow.resume_reading()

    def _asgi_is_done(self) -> bool:
        """Whether uvicorn has read and answered all requests that it was given."""
        cycle = self._cycle()
        done = self._between_requests and not self.pipeline and (cycle is None or cycle.response_complete)
        if done:
            self._in_asgi = False
        return done

    def _cycle(self) -> RequestResponseCycle | None:
        """The last request that uvicorn began to answer, with a precise type."""
        return self.cycle

    # uvicorn's side, with bounds.

    def _feed(self, data: bytes) -> None:
        self._head_is_older = self._in_head and not self._between_requests
        self._has_ended = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("The request is not valid HTTP/1.1. Check the client.")
            return
        except httptools.HttpParserUpgrade:
            # Upgrades are not supported: the request is answered as it is.
            return
        if self._in_head and not self._between_requests and (self._head_is_older or not self._has_ended):
            # All of these bytes belong to one head, perhaps to one header, which is only counted at its end.
            self._pending_head_bytes += len(data)
        if self._pending_head_bytes > self.gateway.bounds.head_bytes_max:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        self._between_requests = False
        self._in_head = True
        self._head_is_older = False
        self._head_bytes = self._pending_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + 4)

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.gateway.bounds.head_bytes_max:
            raise ValueError("The head is too large")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._pending_head_bytes = 0
        host = authority_of(self.url)
        if host is not None:
            self.headers.append((b"host", host))
        super().on_headers_complete()
        if not self.pipeline:
            self._serving = self._cycle()

    def on_response_complete(self) -> None:
        """Uvicorn has sent an answer, and begins the next request."""
        self._serving = self.pipeline[-1][0] if self.pipeline else None
        self._stranger_ms = self.gateway.broker.clock.monotonic_ms()
        super().on_response_complete()

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._between_requests = self._has_ended = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, or one with too large a head, and close the connection."""
        most = self.gateway.bounds.head_bytes_max
        if max(self._head_bytes, self._pending_head_bytes) > most:
            refusal = Refusal(431, f"The headers of a request can have at most {most} bytes. Send fewer headers.")
        else:
            refusal = Refusal(400, msg)
        cycle = self._cycle()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self._refuse_with(refusal, getattr(self, "url", b""))
        else:
            self.transport.close()

    def _refuse(self, data: bytes) -> None:
        """Refuse a request because there are too many connections, or the client's certificate is of no use."""
        if self._nameless is not None:
            self._refuse_with(Refusal(403, self._nameless), data.partition(b" ")[2][:4])
            return
        refusal = Refusal(
            503,
            f"There are {self.gateway.settings.connections_max} open connections. Close some, or try again later.",
        )
        self._refuse_with(refusal, data.partition(b" ")[2][:4])

    def _refuse_with(self, refusal: Refusal, target: bytes) -> None:
        refusal.headers = ((b"connection", b"close"),)
        answer = error_answer(target[:4].decode("latin-1"), refusal)
        self.transport.write(rendered(answer, self.gateway.new_request_id(), self.gateway.default_headers()))
        self._closing = True
        self.transport.close()

    # Once a second.

    def look_after(self, now_ms: int) -> None:
        """Close a connection that is idle, or stalls in the middle of a request or an answer."""
        if self.transport.is_closing():
            return
        unsent_bytes = self.transport.get_write_buffer_size()
        if self._active or self._muted is not None or unsent_bytes < self._unsent_bytes:
            self._active = False
            self._active_ms = now_ms
        self._unsent_bytes = unsent_bytes
        if now_ms - self._active_ms > self._idle_ms_max(unsent_bytes) or self._is_late_stranger(now_ms):
            self.transport.abort()
        elif self._answers:
            self._answer_late_ones()
        elif self.pipeline and self.flow.read_paused:
            self._read_on_after_a_stream()

    def _is_late_stranger(self, now_ms: int) -> bool:
        """Whether the client must authenticate, and sends no complete head in time."""
        if self._authenticated or now_ms - self._stranger_ms <= self.gateway.bounds.stranger_ms_max:
            return False
        cycle = self._cycle()
        return cycle is None or cycle.response_complete

    def _read_on_after_a_stream(self) -> None:
        """Keep reading while a stream is sent, because a disconnect is only noticed by reading.

        uvicorn stops reading when requests follow one that is not answered. An endless stream would be leased records all the time.
        """
        serving, last = self._serving, self._cycle()
        if serving is None or last is None or not serving.chunked_encoding:
            return
        if len(self.pipeline) > _AFTER_STREAM_MAX or len(last.body) > self.gateway.bounds.output_bytes_max:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _answer_late_ones(self) -> None:
        gateway, now = self.gateway, self.loop.time()
        for slot in self._answers:
            if slot.is_late(now, gateway.settings.request_timeout_ms / 1000):
                slot(refused(gateway, slot.path, too_late(gateway)))

    def _idle_ms_max(self, unsent_bytes: int) -> float:
        bounds = self.gateway.bounds
        if unsent_bytes or self._refused:
            return bounds.request_idle_ms_max
        if self._answers:
            return float("inf")
        if self._in_asgi and not self._asgi_is_done():
            cycle = self._cycle()
            if cycle is not None and cycle.response_started:
                return bounds.stream_idle_ms_max if cycle.more_body else float("inf")
            return float("inf") if self._between_requests else bounds.request_idle_ms_max
        return bounds.request_idle_ms_max if self._pieces else bounds.keep_alive_ms
