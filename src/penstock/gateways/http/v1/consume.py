"""GET /v1/consume: a stream of lines, one for each record that is leased to its reader.

The headers are sent at once, and a line in the same turn of the event loop in which the queue delivers the record. When a reader
has not read about :data:`WINDOW_BYTES`, nothing more is leased to it until it reads, and other workers of the group get the
records. When it disconnects, its leases continue until they expire, and its owner gets them again when it reconnects; with
``release_on_disconnect`` they end with the stream. When the broker stops or the topic is deleted, the response ends normally.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Send

from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NDJSON, Answer, encoder
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Content, HttpCall
from penstock.gateways.http.server.streams import OperationStream, piece
from penstock.gateways.http.v1.leases import lease_ms_of
from penstock.gateways.http.v1.models import ConsumedRecord, ConsumeRequest
from penstock.gateways.http.v1.records import consumed
from penstock.gateways.http.v1.requests import names_of, parameters_of, read, require_topic
from penstock.limits import KIB
from penstock.operations.operation import Action
from penstock.operations.queues import Consume, Delivery
from penstock.types import Gateway

CALLS: Final = ApiCalls("v1: queues")
WINDOW_BYTES: Final = 256 * KIB
"""Bytes on their way to one reader, approximately. More would not be faster: what the socket accepts is granted again at once."""
WINDOW_FIRST: Final = 16
"""The same in records, before their size is known."""
WINDOW_MIN: Final = 4
WINDOW_MAX: Final = 256


class ConsumeStream(OperationStream):
    """The answer. Invariant: at most one send is under way, and lines are sent in the order in which they were delivered."""

    def __init__(self, call: HttpCall, topic: str) -> None:
        super().__init__(call, NDJSON)
        self._gateway = call.gateway
        self._topic = topic
        self._lines: list[bytes] = []
        self._send: Send | None = None
        """Set once the headers have been sent, except while a send waits for the reader."""
        self._waiting: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] = self._gateway.loop.create_future()
        self._window = WINDOW_FIRST
        self._quotas = call.gateway.broker.quotas
        self._caller = call.caller
        self._held_credit = 0
        """Credit that is granted later, because the reader is over a quota."""
        self._holding: asyncio.TimerHandle | None = None

    # Called by the queue.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Records are leased to the reader."""
        self._lines.extend(encoder.encode(consumed(found)) + b"\n" for found in deliveries)
        if self._send is not None:
            self._push(self._send)

    def gone(self, _: PenstockError | None) -> None:
        """The queue has ended, for instance because its topic was deleted."""
        self.end()

    def end(self) -> None:
        """Send no more lines."""
        if not self._ended.done():
            self._ended.set_result(None)

    # Called by the server.

    async def send_pieces(self, send: Send) -> None:
        """Send lines until the end."""
        self._send = send
        if self._lines:
            self._push(send)
        await self._ended

    def close(self) -> None:
        """Lease nothing more to the reader."""
        self._send = None
        super().close()
        if self._holding is not None:
            self._holding.cancel()
        if self._waiting is not None:
            self._waiting.cancel()

    def _push(self, send: Send) -> None:
        """Pass the lines to the server now, and wait in a task only if the server has to wait for the reader."""
        credit, sending = self._begin(send)
        try:
            waits_for = sending.send(None)
        except StopIteration:
            self._grant(credit)
            return
        except Exception:  # noqa: BLE001 - an error of a reader must not reach the queue
            # The connection is closed, which is about to be reported.
            self._send = None
            self.end()
            return
        self._send = None
        self._waiting = self._gateway.loop.create_task(self._push_rest(send, credit, sending, waits_for))

    def _begin(self, send: Send) -> tuple[int, Coroutine[Any, None, None]]:
        """A send of all lines, and the credit to grant once it is done."""
        lines, self._lines = self._lines, []
        body = b"".join(lines)
        sending = send(piece(body))
        assert isinstance(sending, Coroutine)
        self._gateway.broker.meters.gave_out(self._topic, Gateway.HTTP, len(lines), len(body))
        if self._quotas.is_on:
            self._quotas.consumed(self._caller, len(body))
        return self._credit(len(lines), len(body)), sending

    def _credit(self, count: int, size_bytes: int) -> int:
        """As many records as were sent, and more or fewer if the size of the records calls for another window."""
        window = min(max(WINDOW_BYTES * count // size_bytes, WINDOW_MIN), WINDOW_MAX)
        credit = max(0, count + window - self._window)
        self._window += credit - count
        return credit

    def _grant(self, credit: int) -> None:
        """Allow so many more records, but only once the reader is within its quotas."""
        delay_ms = self._quotas.delay_ms(self._caller) if self._quotas.is_on else 0
        if not delay_ms and self._holding is None:
            self.flow.grant(credit)
            return
        self._held_credit += credit
        if self._holding is None:
            self._holding = self._gateway.loop.call_later(delay_ms / 1000, self._grant_held)

    def _grant_held(self) -> None:
        self._holding = None
        credit, self._held_credit = self._held_credit, 0
        self._grant(credit)

    async def _push_rest(self, send: Send, credit: int, sending: Coroutine[Any, None, None], waits_for: object) -> None:
        try:
            await _finished(sending, waits_for)
            self._grant(credit)
            while self._lines:
                credit, sending = self._begin(send)
                await sending
                self._grant(credit)
        except Exception:  # noqa: BLE001 - as above
            self.end()
            return
        self._waiting = None
        self._send = send


@types.coroutine
def _finished(begun: Coroutine[Any, None, None], waits_for: object) -> Generator[object, None, None]:
    """The rest of a coroutine that was started outside a task, and waits for something now."""
    try:
        while True:
            yield waits_for
            waits_for = begun.send(None)
    except StopIteration:
        return
    finally:
        begun.close()


@CALLS.get(
    "/v1/consume",
    CallDoc(
        "Consume a queue: get a line for each record that is leased to you",
        {200: Content("application/x-ndjson", ConsumedRecord)},
        errors=(400,),
        description="The response is a stream of JSON lines. Ack each record with POST /v1/ack within lease_ms, or report a failure with POST /v1/nack. Leases continue after the stream ends: if you reconnect with the same owner, you get your leased records first, with the same attempt number and the same expiry.",
        parameters=parameters_of(ConsumeRequest, required=("topic", "group", "owner")),
    ),
)
async def _consume(call: HttpCall) -> Answer | Response:
    request = read(ConsumeRequest, call.query, call.body)
    names = names_of(request)
    require_topic(call, names.topic, Action.READ)
    lease_ms = lease_ms_of(call, request.lease_ms)
    if call.is_head:
        return Answer(200, b"", NDJSON)
    stream = ConsumeStream(call, names.topic)
    asked = Consume(WINDOW_FIRST, *names, lease_ms, request.max_in_flight, request.release_on_disconnect)
    await stream.open(asked, stream.deliver, stream.gone)
    return stream
