"""A client's connection: requests are processed in the order in which they arrive, and answered in that order.

A request whose handler has to wait delays the later ones of its connection, as Kafka's clients expect. A produce request does
not: it is processed at once, and only its answer waits (for the write, or for the sync). Answers are sent once at the end of
the loop's turn. Everything here is bounded: reading pauses while too much is unanswered or unsent.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.address import Address
from penstock.core.security.identity import Identity
from penstock.errors import PenstockError, Reason
from penstock.gateways.connections import ClientConnection
from penstock.gateways.kafka.answers import Deferred, DeferredAnswer, PendingAnswer
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.fetch_lane import FetchLane
from penstock.gateways.kafka.login import Login
from penstock.gateways.kafka.produce_lane import ProduceLane
from penstock.gateways.kafka.throttle import Throttle, Timed
from penstock.limits import CLIENT_ID_CHARS_MAX, LOGIN_FRAME_BYTES_MAX, RECEIVE_BACKLOG_BYTES_MAX
from penstock.meters import Histogram
from penstock.transport.handshakes import TLS_ON_PLAIN, TLS_RECORD
from penstock.transport.listener import Arrival
from penstock.transport.listening import host_of
from penstock.transport.receive import FRAME_BYTES_MIN, FrameReader
from penstock.types import Buffer, Gateway
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.api_versions_generated import ApiVersionsResponse
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.headers import decode_request_header, frame

if TYPE_CHECKING:
    from penstock.gateways.kafka.gateway import KafkaGateway, Served

_HEAD: Final = Struct(">hhi")
_JOINED_BYTES_MAX: Final = 128 * 1024
"""Answers up to this size are joined before they are sent: one copy is cheaper than many small buffers."""
LARGE_REQUEST_BYTES: Final = 128 * 1024
"""From this size on, requests are decoded and their answers encoded outside the event loop. Records are never decoded."""
_WAIT_FOR_OTHERS: Final = frozenset({int(ApiKey.JOIN_GROUP), int(ApiKey.SYNC_GROUP)})
"""Answered only when other members have sent theirs, so they must not wait for each other. Their large parts are opaque bytes."""
PROTOCOL_VIOLATION: Final = "protocol_violation"
INTERNAL_ERROR: Final = "internal_error"
"""The labels of these two in the metric of errors, beside the reasons for refusals."""


class KafkaConnection(ClientConnection, asyncio.BufferedProtocol):
    """One connection of a client."""

    def __init__(self, gateway: "KafkaGateway", arrival: Arrival) -> None:
        super().__init__(Gateway.KAFKA, gateway.turn, gateway.broker.clock.monotonic_ms(), arrival)
        self.gateway: Final = gateway
        self.broker: Final = gateway.broker
        self.arrived = 0.0
        """When bytes were last received; requests that are received together share it."""
        self._local = Address("127.0.0.1", 0)
        self._frames = FrameReader(gateway.buffers, gateway.limits.request_bytes_max)
        self._backlog_bytes_max = RECEIVE_BACKLOG_BYTES_MAX
        self._pending_max = gateway.limits.connection_pending_requests_max
        self._held_bytes_max = gateway.limits.connection_pending_output_bytes_max
        self._lanes: Final[Mapping[int, ProduceLane | FetchLane]] = {
            int(ApiKey.PRODUCE): ProduceLane(self),
            int(ApiKey.FETCH): FetchLane(self),
        }
        self._answers: deque[PendingAnswer] = deque()
        # Bytes of complete answers that are not sent yet. It is never too low, and exact again once all are sent.
        self._held_bytes = 0
        self._waiting: asyncio.Future[Any] | None = None
        self._gathers = False
        self._closing = False
        self._handle: Callable[[FrameReader, int, int], None] = self.serve
        """Takes the next frame."""
        self._login: Login | None = None
        self._quotas: Final = gateway.broker.quotas
        self.throttle: Final = Throttle(self)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports send many buffers with one call; those of asyncio do not report when the peer
        # stops reading if there are many (before 3.12.9 and 3.13.2).
        self._gathers = not isinstance(transport, asyncio.Transport)
        opened = self._open(transport, self.gateway.limits.connection_pending_output_bytes_max)
        local = opened.get_extra_info("sockname") or ("127.0.0.1", 0)
        self._local = Address(host_of(local), local[1])
        if self.gateway.admit(self) is not None:
            opened.abort()
        elif self.broker.authenticator.is_required:
            self._require_login()

    # Who the client is.

    def _require_login(self) -> None:
        login = self._login = Login(self)
        if self.certificate is not None:
            try:
                self.log_in(self.broker.authenticator.certified(self.certificate))
            except PenstockError as error:
                self._abandon(error.text)
            return
        self._frames.frame_bytes_max = min(LOGIN_FRAME_BYTES_MAX, self.gateway.limits.request_bytes_max)
        # Nothing is read from a stranger while a login is checked.
        self._backlog_bytes_max = -1
        self._handle = login.take

    def expect_tokens(self) -> None:
        """The next frames are tokens without a header, as short as they like."""
        self._frames.frame_bytes_min = 0

    def log_in(self, identity: Identity) -> None:
        """The client is known from now on."""
        assert self._login is not None
        self._login.finish()
        self.identify(identity)
        self._backlog_bytes_max = RECEIVE_BACKLOG_BYTES_MAX
        self._frames.frame_bytes_min = FRAME_BYTES_MIN
        self._frames.frame_bytes_max = self.gateway.limits.request_bytes_max
        # A handshake can come again, or the session can end.
        ends = identity.expires_ms is not None or self.certificate is not None
        self._handle = self._serve_session if ends else self.serve

    def identify(self, identity: Identity) -> None:
        """What the lanes know holds for the last caller."""
        super().identify(identity)
        for lane in self._lanes.values():
            lane.forget()

    def _serve_session(self, frames: FrameReader, start: int, end: int) -> None:
        """A request of a session that ends, or may be replaced."""
        login, expires_ms = self._login, self.identity.expires_ms
        assert login is not None
        if _HEAD.unpack_from(frames.buffer, start)[0] == ApiKey.SASL_HANDSHAKE and login.may_begin_again():
            login.begin_again()
            self._handle = login.take
            login.take(frames, start, end)
        elif expires_ms is not None and self.broker.clock.now_ms() >= expires_ms:
            self._abandon("its session has expired, and it did not authenticate again")
        else:
            self.serve(frames, start, end)

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone: its pending answers are dropped, and the records that it produced stay."""
        self._closing = True
        self._forget_mute()
        self.gateway.forget(self)
        self._frames.close()
        for answer in self._answers:
            if answer.parts is None:
                answer.drop()
        self._answers.clear()
        if self._waiting is not None:
            self._waiting.cancel()
        # It refers to this connection: without TLS's buffers, the rest can wait for the garbage collector.
        self._transport = None

    def get_buffer(self, _: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """The next bytes are in the buffer."""
        self._active = True
        self.arrived = perf_counter()
        self._frames.received(nbytes)
        self._run()

    def eof_received(self) -> bool:
        """The client sends no more requests; its earlier requests are still answered."""
        self._closing = self._ended = True
        if not self._answers and self._waiting is None:
            return False
        self.ready()
        # A TLS connection cannot be closed on one side only.
        return self.listener.tls is None

    def pause_writing(self) -> None:
        """The client does not read its answers: process no more requests."""
        self._choked = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The client reads its answers again."""
        self._choked = False
        self.gateway.loop.call_soon(self._run)

    # Requests.

    def _run(self) -> None:
        frames = self._frames
        try:
            while (
                self._waiting is None
                and not self._choked
                and len(self._answers) < self._pending_max
                and self._held_bytes < self._held_bytes_max
                and self._muted is None
            ):
                found = frames.next_frame()
                if found is None:
                    break
                self._handle(frames, found[0], found[1])
        except ProtocolViolation as violation:
            if frames.unread and frames.view[frames.start] == TLS_RECORD:
                self.arrival.failed(TLS_ON_PLAIN)
                self.abort()
            else:
                self.gateway.count_error(PROTOCOL_VIOLATION)
                self._abandon(str(violation))
        except Exception as error:  # noqa: BLE001 - it is reported, and the broker outlives it
            self._fail(error)
        frames.settle()
        if self._closing:
            self._leave()
        else:
            self._update_reading()

    def serve(self, frames: FrameReader, start: int, end: int) -> None:
        """Process a request of a client that may send it."""
        api_key, version, correlation_id = _HEAD.unpack_from(frames.buffer, start)
        lane = self._lanes.get(api_key)
        delay_ms = 0
        if self._quotas.is_on:
            # Without quotas, this check is nearly all that they cost.
            delay_ms = self.throttle.begin(api_key, frames.buffer, start, end)
            if (
                lane is not None
                and delay_ms == 0
                and self.throttle.lane(lane, frames, start, end, version, correlation_id)
            ):
                return
        elif lane is not None and lane.take(frames, start, end, version, correlation_id):
            return
        view = frames.view[start:end]
        served = self.gateway.served.get(api_key)
        if served is None:
            raise ProtocolViolation(f"API key {api_key} is not supported")
        if version not in served.versions:
            if api_key != ApiKey.API_VERSIONS:
                raise ProtocolViolation(f"{served.api.name} version {version} is not supported")
            refusal = ApiVersionsResponse(
                error_code=CODES[Reason.UNSUPPORTED_VERSION], api_keys=self.gateway.advertised
            )
            self.gateway.count_error(Reason.UNSUPPORTED_VERSION.name)
            self.answer(frame(correlation_id, 0, served.api.encode_response(refusal, 0)), served.latency)
            return
        header, position = decode_request_header(view)
        client_id = (header.client_id or "")[:CLIENT_ID_CHARS_MAX]
        self.client_is(client_id)
        clock = self.broker.clock
        context = RequestContext(
            broker=self.broker,
            gateway=self.gateway,
            version=version,
            client_id=header.client_id,
            client_host=self.caller.client,
            caller=self.caller,
            now_ms=clock.now_ms(),
            monotonic_ms=clock.monotonic_ms(),
            listener=self.listener,
            local=self._local,
        )
        context.throttle_ms = delay_ms
        if end - start > LARGE_REQUEST_BYTES and lane is None:
            # The buffer is reused for the next frame after this turn.
            answer = self._serve_in_turn(api_key, served, version, context, bytes(view), position)
            self._wait(answer, served, context, correlation_id, is_encoded=True)
            return
        request = served.api.decode_request_table[version](view, position)
        result = self._handled(served, request, context)
        if isinstance(result, Deferred):
            self._start(result, served, context, correlation_id)
        elif isinstance(result, msgspec.Struct):
            if self._quotas.is_on:
                self.throttle.finish(context, result)
            self.answer(served.frame(correlation_id, version, result), served.latency)
        else:
            self._wait(result, served, context, correlation_id)
        if lane is not None:
            lane.learn(request, context, view, position)

    def client_is(self, client_id: str) -> None:
        """The client calls itself so from now on."""
        if client_id != self.caller.client_id:
            self.caller = self.caller._replace(client_id=client_id)

    def _handled(self, served: "Served", request: Any, context: RequestContext) -> Any:
        """What the handler returns. The time that it takes is only measured while there are quotas."""
        if not self._quotas.is_on:
            return served.handle(request, context)
        began = perf_counter()
        result = served.handle(request, context)
        context.seconds += perf_counter() - began
        return result if isinstance(result, Deferred | msgspec.Struct) else Timed(result, context)

    async def _serve_in_turn(
        self, api_key: int, served: "Served", version: int, context: RequestContext, body: bytes, position: int
    ) -> list[Buffer]:
        """The body of the answer to a large request, which first waits until few enough of all connections are in progress."""
        if api_key in _WAIT_FOR_OTHERS:
            return await self._serve_large(served, version, context, body, position)
        async with self.gateway.large_requests:
            return await self._serve_large(served, version, context, body, position)

    async def _serve_large(
        self, served: "Served", version: int, context: RequestContext, body: bytes, position: int
    ) -> list[Buffer]:
        """The body of the answer to a request that may take a tenth of a second to decode."""
        loop, thread = self.gateway.loop, self.gateway.codec_thread
        request = await loop.run_in_executor(thread, served.api.decode_request_table[version], body, position)
        result = self._handled(served, request, context)
        response = result if isinstance(result, msgspec.Struct) else await result
        if self._quotas.is_on:
            self.throttle.finish(context, response)
        return await loop.run_in_executor(thread, served.api.encode_response_table[version], response)

    def _start(self, deferred: Deferred, served: "Served", context: RequestContext, correlation_id: int) -> None:
        """Start a request that does not delay later requests, or delays them for less time than its answer takes."""

        def done(outcome: msgspec.Struct | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                self.refuse_unanswered(outcome)
            else:
                if self._quotas.is_on:
                    self.throttle.finish(context, outcome)
                answer.complete(served.frame(correlation_id, context.version, outcome))

        if deferred.is_answered:
            due_ms = context.monotonic_ms + deferred.timeout_ms
            answer = DeferredAnswer(self, served.latency, due_ms, deferred, done)
            self.queue(answer)
        work = deferred.start(done)
        if work is not None:
            self._waiting = waiting = asyncio.ensure_future(work)
            waiting.add_done_callback(self._work_done)

    def _work_done(self, future: "asyncio.Future[None]") -> None:
        self._waiting = None
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        self._run()

    def _fail(self, error: BaseException) -> None:
        """A bug in the processing of a request: only its connection is closed."""
        self.gateway.count_error(INTERNAL_ERROR)
        self.gateway.report_bug(self, error)
        self._abandon(f"internal error: {type(error).__name__}")

    def wait_for(self, parts: Awaitable[list[Buffer]]) -> None:
        """Answer with these bytes, of a login, once they are there; later requests wait."""
        answer = PendingAnswer(self, self.gateway.login_latency)
        self.queue(answer)
        waiting = self._waiting = asyncio.ensure_future(parts)

        def done(future: "asyncio.Future[list[Buffer]]") -> None:
            self._waiting = None
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._fail(error)
                return
            answer.complete(future.result())
            self._run()

        waiting.add_done_callback(done)

    def _wait(
        self,
        result: Awaitable[Any],
        served: "Served",
        context: RequestContext,
        correlation_id: int,
        *,
        is_encoded: bool = False,
    ) -> None:
        version = context.version
        answer = PendingAnswer(self, served.latency)
        self.queue(answer)
        waiting = asyncio.ensure_future(result)
        self._waiting = waiting

        def done(future: "asyncio.Future[Any]") -> None:
            self._waiting = None
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, ProtocolViolation):
                self.gateway.count_error(PROTOCOL_VIOLATION)
                self._abandon(str(error))
                return
            if error is not None:
                self._fail(error)
                return
            try:
                if self._quotas.is_on and not is_encoded:
                    self.throttle.finish(context, future.result())
                parts = future.result() if is_encoded else served.api.encode_response_table[version](future.result())
            except Exception as bug:  # noqa: BLE001 - without an answer, the client would wait forever
                self._fail(bug)
                return
            self._held_bytes += sum(map(len, parts))
            answer.complete(frame(correlation_id, served.api.response_header_version(version), parts))
            self._run()

        waiting.add_done_callback(done)

    # Answers.

    def queue(self, answer: PendingAnswer) -> None:
        """Append an answer to the queue."""
        self._answers.append(answer)

    def answer(self, parts: list[Buffer], latency: Histogram) -> None:
        """Append a complete answer to the queue."""
        self._held_bytes += sum(map(len, parts))
        answer = PendingAnswer(self, latency)
        self._answers.append(answer)
        answer.complete(parts)

    def _send(self) -> None:
        self._sending = False
        answers = self._answers
        out: list[Buffer] = []
        arrived, latency, count = 0.0, self.gateway.produce_latency, 0
        while answers:
            answer = answers[0]
            parts = answer.parts
            if parts is None:
                break
            out += parts
            answers.popleft()
            # Requests of one kind that were received together took the same time: observe them in one step.
            if answer.arrived is not arrived or answer.latency is not latency:
                if count:
                    latency.observe(perf_counter() - arrived, count)
                    count = 0
                arrived, latency = answer.arrived, answer.latency
            count += 1
        if count:
            # Histogram.observe without the call, because every send passes here.
            seconds = perf_counter() - arrived
            latency.counts[bisect_left(latency.bounds, seconds)] += count
            latency.sum += seconds * count
        if not answers:
            self._held_bytes = 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(out) == 1:
            transport.write(out[0])
        elif out:
            if sum(map(len, out)) <= _JOINED_BYTES_MAX:
                transport.write(b"".join(out))
            else:
                self._write_parts(transport, out)
        if self._frames.unread or self._paused:
            self._run()
        elif self._closing:
            self._leave()

    def _write_parts(self, transport: asyncio.Transport, parts: list[Buffer]) -> None:
        if self._gathers:
            transport.writelines(parts)
        else:
            for part in parts:
                transport.write(part)

    # Bounds.

    def _go_on(self) -> None:
        if self._closing:
            self._leave()
        else:
            self._run()

    def _update_reading(self) -> None:
        held_up = self._waiting is not None and self._frames.unread > self._backlog_bytes_max
        pause = (
            self._choked
            or held_up
            or len(self._answers) >= self._pending_max
            or self._held_bytes >= self._held_bytes_max
            or self._muted is not None
        )
        if pause is not self._paused:
            self._pause_reading(pause)

    def look_after(self, monotonic_ms: int) -> None:
        """Called once a second: time out answers after their client's timeout, and close the connection if it was idle for too long."""
        for answer in self._answers:
            if answer.parts is None and answer.due_ms is not None and answer.due_ms <= monotonic_ms:
                answer.time_out()
        if self._login is not None and self._login.is_late and self._waiting is None:
            self._abandon("it did not authenticate in time")
            return
        is_busy = bool(self._answers) or self._waiting is not None or self._muted is not None
        self._close_if_idle(monotonic_ms, self.gateway.limits.connection_idle_ms_max, is_busy=is_busy)

    def close(self) -> None:
        """Stop reading, and close the connection once every request in progress is answered."""
        self._closing = True
        self._frames.close()
        if self._transport is not None:
            if self._answers or self._waiting is not None:
                self._transport.pause_reading()
                self.ready()
            else:
                self._transport.close()

    def _leave(self) -> None:
        """Close the connection, unless an answer is pending, or a request that waits until the client has read the answers before it."""
        due = self._answers or self._waiting is not None or (self._choked and self._frames.unread)
        if not due and self._transport is not None:
            self._transport.close()

    def _abandon(self, why: str) -> None:
        """Log why the connection cannot continue, send what is ready, and close it."""
        self.gateway.say_closing(self, why)
        self._closing = True
        self._frames.close()
        if self._transport is not None:
            self._send()
            self._transport.close()

    def refuse_unanswered(self, error: PenstockError) -> None:
        """Close the connection to report an error to a producer that gets no answers."""
        self._abandon(f"produce without acknowledgement refused: {error.text}")
