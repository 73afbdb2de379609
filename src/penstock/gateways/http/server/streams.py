"""Answers that are sent piece by piece, until they end, their client disconnects or the gateway stops."""

import asyncio
from abc import abstractmethod
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from penstock.core.operations.handling import OnEnd, OnItems, OpenStream
from penstock.gateways.http.server.answers import REQUEST_ID, RawHeaders
from penstock.gateways.http.server.routing import HttpCall
from penstock.operations.operation import Stream

R = TypeVar("R")


def start_of(headers: RawHeaders) -> Message:
    """What ASGI expects first."""
    return {"type": "http.response.start", "status": 200, "headers": headers}


def piece(body: bytes = b"", *, more: bool = True) -> Message:
    """A piece of the body, or its end."""
    return {"type": "http.response.body", "body": body, "more_body": more}


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamedAnswer(Response):
    """One answer; the gateway counts it from :meth:`begin` until it has ended."""

    def __init__(self, call: HttpCall, content_type: bytes, *headers: tuple[bytes, bytes]) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", content_type), *headers, (REQUEST_ID, call.request_id)]
        self.call = call

    def begin(self) -> None:
        """The gateway calls :meth:`end` when it stops, or the caller's credential is no longer valid. 503 if there are too many streams."""
        self.call.gateway.begin_stream(self.end, self.call.identity)

    @abstractmethod
    def end(self) -> None:
        """Send nothing more."""

    @abstractmethod
    async def send_pieces(self, send: Send) -> None:
        """Send everything between the headers and the end."""

    @abstractmethod
    def close(self) -> None:
        """Stop whatever produces the pieces."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - required by ASGI
        """Serve the stream to its end."""
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            await send(start_of(self.raw_headers))
            await self.send_pieces(send)
        finally:
            watching.cancel()
            self.close()
            self.call.gateway.end_stream(self.end)
        await send(piece(more=False))

    async def _watch(self, receive: Receive) -> None:
        await disconnected(receive)
        self.end()


class OperationStream(StreamedAnswer):
    """The items of a stream of the core."""

    flow: OpenStream

    async def open(self, stream: Stream[R], on_items: OnItems[R], on_end: OnEnd) -> None:
        """Open it, before anything is sent."""
        self.begin()
        try:
            self.flow = await self.call.gateway.broker.open(stream, self.call.caller, on_items, on_end)
        except BaseException:
            self.call.gateway.end_stream(self.end)
            raise

    def close(self) -> None:
        """No more items are wanted."""
        self.flow.close()
