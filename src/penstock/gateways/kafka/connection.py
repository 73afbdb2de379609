"""A client's connection: requests are processed in the order in which they arrive, and answered in that order.

A request whose handler has to wait delays the later ones of its connection, as Kafka's clients expect. A produce request does
not: it is processed at once, and only its answer waits (for the write, or for the sync). Answers are sent once at the end of
the loop's turn. Everything here is bounded: reading pauses while too much is unanswered or unsent.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Mapping
from struct import Struct
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.gateways.connections import ClientConnection
from penstock.gateways.kafka.answers import Deferred, DeferredAnswer, PendingAnswer
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.fetch_lane import FetchLane
from penstock.gateways.kafka.produce_lane import ProduceLane
from penstock.limits import RECEIVE_BACKLOG_BYTES_MAX
from penstock.meters import Histogram
from penstock.transport.handshakes import TLS_ON_PLAIN, TLS_RECORD
from penstock.transport.listener import Arrival
from penstock.transport.receive import FrameReader
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

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports send many buffers with one call; those of asyncio do not report when the peer
        # stops reading if there are many (before 3.12.9 and 3.13.2).
        self._gathers = not isinstance(transport, asyncio.Transport)
        opened = self._open(transport, self.gateway.limits.connection_pending_output_bytes_max)
        self._local = Address(*(opened.get_extra_info("sockname") or ("127.0.0.1", 0))[:2])
        if self.gateway.admit(self) is not None:
            opened.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """The client is gone: its pending answers are dropped, and the records that it produced stay."""
        self._closing = True
        self.gateway.forget(self)
        self._frames.close()
        for answer in self._answers:
            if answer.parts is None:
                answer.drop()
        self._answers.clear()
        if self._waiting is not None:
            self._waiting.cancel()

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
            ):
                found = frames.next_frame()
                if found is None:
                    break
                self._request(frames, found[0], found[1])
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

    def _request(self, frames: FrameReader, start: int, end: int) -> None:
        api_key, version, correlation_id = _HEAD.unpack_from(frames.buffer, start)
        lane = self._lanes.get(api_key)
        if lane is not None and lane.take(frames, start, end, version, correlation_id):
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
        if end - start > LARGE_REQUEST_BYTES and lane is None:
            # The buffer is reused for the next frame after this turn.
            answer = self._serve_in_turn(api_key, served, version, context, bytes(view), position)
            self._wait(answer, served, version, correlation_id, is_encoded=True)
            return
        request = served.api.decode_request_table[version](view, position)
        result = served.handle(request, context)
        if isinstance(result, Deferred):
            self._start(result, served, context, correlation_id)
        elif isinstance(result, msgspec.Struct):
            self.answer(served.frame(correlation_id, version, result), served.latency)
        else:
            self._wait(result, served, version, correlation_id)
        if lane is not None:
            lane.learn(request, context, view, position)

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
        result = served.handle(request, context)
        response = result if isinstance(result, msgspec.Struct) else await result
        return await loop.run_in_executor(thread, served.api.encode_response_table[version], response)

    def _start(self, deferred: Deferred, served: "Served", context: RequestContext, correlation_id: int) -> None:
        """Start a request that does not delay later requests, or delays them for less time than its answer takes."""

        def done(outcome: msgspec.Struct | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                self.refuse_unanswered(outcome)
            else:
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

    def _wait(
        self, result: Awaitable[Any], served: "Served", version: int, correlation_id: int, *, is_encoded: bool = False
    ) -> None:
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

    def _update_reading(self) -> None:
        held_up = self._waiting is not None and self._frames.unread > RECEIVE_BACKLOG_BYTES_MAX
        pause = (
            self._choked
            or held_up
            or len(self._answers) >= self._pending_max
            or self._held_bytes >= self._held_bytes_max
        )
        if pause is not self._paused:
            self._pause_reading(pause)

    def look_after(self, monotonic_ms: int) -> None:
        """Called once a second: time out answers after their client's timeout, and close the connection if it was idle for too long."""
        for answer in self._answers:
            if answer.parts is None and answer.due_ms is not None and answer.due_ms <= monotonic_ms:
                answer.time_out()
        is_busy = bool(self._answers) or self._waiting is not None
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
