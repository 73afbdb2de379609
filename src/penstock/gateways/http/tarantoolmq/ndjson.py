"""Publishing over one connection, one message per line: the answer has a line for each message, in order, and is sent meanwhile.

Lines that arrive together are published together, so messages are cheaper the more a client sends without waiting. Memory is
bounded: one incomplete line, the lines of one read, and the answers of a few reads. A client that does not read its answers is not
read from.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NDJSON, REQUEST_ID, encoder
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.routing import HttpCall
from penstock.gateways.http.server.streams import piece, start_of
from penstock.gateways.http.tarantoolmq.models import (
    ACKS,
    MessageRequest,
    NotPublished,
    decode_message,
)
from penstock.types import Acks
from penstock.wire.jsonlines import Line, LineSplitter

_READS_UNDER_WAY_MAX: Final = 8
"""Reads that are published before the first of them is answered: they share a sync."""

_Results = list[Any]
Publish = Callable[[HttpCall, str, list[Any], Acks, Callable[[_Results], None]], None]


def publish_lines(call: HttpCall, publish: Publish) -> Response:
    """The answer to a body of lines. ``acks`` in the query string is the default for lines without it."""
    text = call.query_fields().get("acks")
    if text is not None and text not in ACKS:
        raise Refusal(400, "The value of acks must be all, leader or none")
    acks = call.gateway.settings.acks if text is None else ACKS[text]
    return _Lines(call, acks, publish)


class _Lines(Response):
    def __init__(self, call: HttpCall, acks: Acks, publish: Publish) -> None:
        super().__init__()
        self._call = call
        self._acks = acks
        self._publish = publish
        self._line_bytes_max = call.gateway.bounds.line_bytes_max
        self._splitter = LineSplitter(self._line_bytes_max)
        self._held_bytes = 0
        self._answers: asyncio.Queue[asyncio.Future[_Results] | None] = asyncio.Queue(_READS_UNDER_WAY_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - required by ASGI
        """Read and answer at the same time."""
        assert self._call.request is not None
        parts = self._call.request.stream()
        first = b""
        if self._call.header(b"expect") is not None:
            # The client waits for 100 Continue, which must be sent before the headers of the answer.
            first = await anext(parts, b"")
        headers = [(b"content-type", NDJSON), (REQUEST_ID, self._call.request_id)]
        await send(start_of(headers))
        # An empty piece, so that the client receives the headers before its first answer.
        await send(piece())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(first, parts))
                while (answered := await self._answers.get()) is not None:
                    lines = encoder.encode_lines(await answered)
                    await send(piece(lines))
                await send(piece(more=False))
        except* ClientDisconnect:
            pass

    async def _read(self, first: bytes, parts: AsyncGenerator[bytes, None]) -> None:
        try:
            await self._take(self._lines(first))
            async for part in parts:
                await self._take(self._lines(part))
        finally:
            self._release()
        await self._take(self._splitter.end())
        await self._answers.put(None)

    def _lines(self, part: bytes) -> list[Line]:
        """The complete lines; None for a line that was too long."""
        splitter, gateway = self._splitter, self._call.gateway
        lines = splitter.feed(part)
        held_bytes, self._held_bytes = self._held_bytes, splitter.kept_bytes
        if not gateway.hold(held_bytes, splitter.kept_bytes):
            splitter.skip()
            self._release()
            lines.append(None)
        return lines

    def _release(self) -> None:
        self._call.gateway.hold(self._held_bytes, 0)
        self._held_bytes = 0

    async def _take(self, lines: list[Line]) -> None:
        messages = [self._message(line) for line in lines]
        if not messages:
            return
        answered: asyncio.Future[_Results] = asyncio.get_running_loop().create_future()

        def done(results: _Results) -> None:
            if not answered.done():
                answered.set_result(results)

        try:
            self._call.require_current()
            self._publish(self._call, self._call.params["topic"], messages, self._acks, done)
        except (PenstockError, Refusal) as error:
            done([NotPublished(error.text)] * len(messages))
        await self._answers.put(answered)

    def _message(self, line: Line) -> MessageRequest | NotPublished:
        if line is None:
            return NotPublished(f"A line has at most {self._line_bytes_max} bytes. Send a smaller message.")
        return decode_message(line)
