"""Publishing over one connection, a message a line: lines in, an answer line for each out, in their order, both at once.

What arrives together is published together, so the more a client sends without waiting the cheaper each message. Memory is
bounded: one line, the lines of one read, and the answers of a few reads; a client that takes no answers is not read from.
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
from penstock.gateways.http.server.routing import Call
from penstock.gateways.http.server.streams import piece, start_of
from penstock.gateways.http.tarantoolmq.message_models import (
    ACKS,
    NOT_JSON,
    MessageRequest,
    NotPublished,
    message_decoder,
    wrong_message,
)
from penstock.types import Acks
from penstock.wire.jsonlines import Line, LineSplitter

_READS_UNDER_WAY_MAX: Final = 8
"""So many reads are published before the first of them is answered: a sync then serves all of them."""

_Results = list[Any]
Publish = Callable[[Call, str, list[Any], Acks, Callable[[_Results], None]], None]


def publish_lines(call: Call, publish: Publish) -> Response:
    """The answer to a body of lines. ``acks`` in the query string is for lines that do not say."""
    text = call.query_fields().get("acks")
    if text is not None and text not in ACKS:
        raise Refusal(400, "acks must be all, leader or none.")
    acks = call.gateway.settings.acks if text is None else ACKS[text]
    return _Lines(call, acks, publish)


class _Lines(Response):
    def __init__(self, call: Call, acks: Acks, publish: Publish) -> None:
        super().__init__()
        self._call = call
        self._acks = acks
        self._publish = publish
        self._line_bytes_max = call.gateway.bounds.line_bytes_max
        self._splitter = LineSplitter(self._line_bytes_max)
        self._held_bytes = 0
        self._answers: asyncio.Queue[asyncio.Future[_Results] | None] = asyncio.Queue(_READS_UNDER_WAY_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Read and answer side by side."""
        assert self._call.request is not None
        parts = self._call.request.stream()
        first = b""
        if self._call.header(b"expect") is not None:
            # The client holds its lines back until it is told to go on, which must come before the headers of the answer.
            first = await anext(parts, b"")
        headers = [(b"content-type", NDJSON), (REQUEST_ID, self._call.request_id)]
        await send(start_of(headers))
        # A first piece at once, so that the client sees the headers before its first answer.
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
            self._let_go()
        await self._take(self._splitter.end())
        await self._answers.put(None)

    def _lines(self, part: bytes) -> list[Line]:
        """The whole lines that are there; None stands for one that was too long."""
        splitter, gateway = self._splitter, self._call.gateway
        lines = splitter.feed(part)
        held_bytes, self._held_bytes = self._held_bytes, splitter.kept_bytes
        if not gateway.hold(held_bytes, splitter.kept_bytes):
            splitter.skip()
            self._let_go()
            lines.append(None)
        return lines

    def _let_go(self) -> None:
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
            self._publish(self._call, self._call.params["topic"], messages, self._acks, done)
        except (PenstockError, Refusal) as error:
            done([NotPublished(error.text)] * len(messages))
        await self._answers.put(answered)

    def _message(self, line: Line) -> MessageRequest | NotPublished:
        if line is None:
            return NotPublished(f"A line has at most {self._line_bytes_max} bytes. Send a smaller message.")
        try:
            return message_decoder.decode(line)
        except NOT_JSON:
            return NotPublished(wrong_message(line))
