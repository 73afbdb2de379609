"""GET /v1/consume: a stream of lines, one for each record that is leased to its reader, for as long as the reader stays.

The headers leave at once, and a line leaves in the same turn of the loop in which the queue hands the record over. Of what its
socket has not taken a reader has some :data:`WINDOW_BYTES` at the most: then nothing more is leased to it until it reads on,
and others of its group get the records. When it goes, its leases stay until they end, and its owner gets them again when it comes back; with
``release_on_disconnect`` they end with the stream. When the broker stops, or the topic is deleted, the stream ends as a whole answer does.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.core.operations.handling import Flow
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NDJSON, REQUEST_ID, Answer, encoder
from penstock.gateways.http.server.routing import Call, CallDoc, Content, Parameter, route
from penstock.gateways.http.v1.leases import TAG, lease_ms_of
from penstock.gateways.http.v1.models import ConsumedRecord, ConsumeRequest, Count
from penstock.gateways.http.v1.record import consumed
from penstock.gateways.http.v1.requests import names_of, read, require_topic
from penstock.limits import KIB
from penstock.operations.queues import Consume, Delivery
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

WINDOW_BYTES: Final = 256 * KIB
"""About what may be on its way to one reader's socket. More would not be faster: what the socket takes is granted again at once."""
WINDOW_FIRST: Final = 16
"""The same in records, while nothing is known about their size."""
WINDOW_MIN: Final = 4
WINDOW_MAX: Final = 256


class ConsumeStream(Response):
    """The answer. Invariant: at most one send is under way, and lines leave in the order in which they were delivered."""

    flow: Flow

    def __init__(self, gateway: "HttpGateway", topic: str, request_id: bytes) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", NDJSON), (REQUEST_ID, request_id)]
        self._gateway = gateway
        self._topic = topic
        self._lines: list[bytes] = []
        self._send: Send | None = None
        """Once the headers have left; None again while a send waits for the reader."""
        self._waiting: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] = gateway.loop.create_future()
        self._window = WINDOW_FIRST

    # What the queue says.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Records are leased to the reader."""
        self._lines.extend(encoder.encode(consumed(found)) + b"\n" for found in deliveries)
        if self._send is not None:
            self._push(self._send)

    def gone(self, _: PenstockError | None) -> None:
        """There is nothing to work on any more."""
        self.end()

    def end(self) -> None:
        """No more lines."""
        if not self._ended.done():
            self._ended.set_result(None)

    # What the server does.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Serve the stream to its end."""
        gateway = self._gateway
        watching = gateway.loop.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._send = send
            if self._lines:
                self._push(send)
            await self._ended
        finally:
            self._send = None
            self.flow.close()
            watching.cancel()
            if self._waiting is not None:
                self._waiting.cancel()
            gateway.end_stream(self.end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end()

    def _push(self, send: Send) -> None:
        """Hand the lines to the server now, and wait in a task only if it has to wait for the reader."""
        credit, sending = self._begin(send)
        try:
            waits_for = sending.send(None)
        except StopIteration:
            self.flow.grant(credit)
            return
        except Exception:  # noqa: BLE001 - whatever it is, the queue must not suffer from a reader
            # The connection is closed, and we are about to be told so.
            self._send = None
            self.end()
            return
        self._send = None
        self._waiting = self._gateway.loop.create_task(self._push_rest(send, credit, sending, waits_for))

    def _begin(self, send: Send) -> tuple[int, Coroutine[Any, None, None]]:
        """A send of all lines that there are, and what is granted once it is through."""
        lines, self._lines = self._lines, []
        body = b"".join(lines)
        sending = send({"type": "http.response.body", "body": body, "more_body": True})
        assert isinstance(sending, Coroutine)
        self._gateway.broker.meters.gave_out(self._topic, Gateway.HTTP, len(lines), len(body))
        return self._credit(len(lines), len(body)), sending

    def _credit(self, count: int, size_bytes: int) -> int:
        """As many as were taken, and more or fewer when the records are smaller or larger than the window was made for."""
        window = min(max(WINDOW_BYTES * count // size_bytes, WINDOW_MIN), WINDOW_MAX)
        credit = max(0, count + window - self._window)
        self._window += credit - count
        return credit

    async def _push_rest(self, send: Send, credit: int, sending: Coroutine[Any, None, None], waits_for: object) -> None:
        try:
            await _finished(sending, waits_for)
            self.flow.grant(credit)
            while self._lines:
                credit, sending = self._begin(send)
                await sending
                self.flow.grant(credit)
        except Exception:  # noqa: BLE001 - as above
            self.end()
            return
        self._waiting = None
        self._send = send


@types.coroutine
def _finished(begun: Coroutine[Any, None, None], waits_for: object) -> Generator[object, None, None]:
    """The rest of a coroutine whose first step was made outside a task, and which waits for something since."""
    try:
        while True:
            yield waits_for
            waits_for = begun.send(None)
    except StopIteration:
        return
    finally:
        begun.close()


async def _consume(call: Call) -> Answer | Response:
    gateway = call.gateway
    request = read(ConsumeRequest, call.query, call.body)
    names = names_of(request)
    require_topic(call, names.topic)
    lease_ms = lease_ms_of(call, request.lease_ms)
    if call.is_head:
        # Nobody reads what would be leased.
        return Answer(200, b"", NDJSON)
    stream = ConsumeStream(gateway, names.topic, call.request_id)
    gateway.begin_stream(stream.end)
    try:
        stream.flow = await gateway.broker.open(
            Consume(WINDOW_FIRST, *names, lease_ms, request.max_in_flight, request.release_on_disconnect),
            call.caller,
            stream.deliver,
            stream.gone,
        )
    except BaseException:
        gateway.end_stream(stream.end)
        raise
    return stream


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/consume."""
    return [
        route(
            gateway,
            "GET",
            "/v1/consume",
            _consume,
            CallDoc(
                TAG,
                "Consume a queue: get a line for each record that is leased to you",
                {200: Content("application/x-ndjson", ConsumedRecord)},
                errors=(400,),
                description="The response is a stream of JSON lines. Ack each record with POST /v1/ack within lease_ms, or report a failure with POST /v1/nack. Leases continue after the stream ends: if you reconnect with the same owner, you get your leased records first, with the same attempt number and the same expiry.",
                parameters=(
                    Parameter("topic", str, "the topic", required=True),
                    Parameter("group", str, "the consumer group", required=True),
                    Parameter("owner", str, "your name in the group", required=True),
                    Parameter("lease_ms", Count, "the duration of the lease; default 2000"),
                    Parameter(
                        "max_in_flight", Count, "the maximum number of records that you hold at a time; default 16"
                    ),
                    Parameter(
                        "release_on_disconnect",
                        bool,
                        "release the leases when the stream ends, without counting the attempt; default false",
                    ),
                ),
            ),
        )
    ]
