"""A node with its HTTP gateway on a free port, in the test's own event loop, and clients that show the bytes."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from penstock.gateways.http.server.gateway import HttpBounds, HttpGateway
from penstock.transport.listener import Listener
from tests.support.kafka_node import KafkaNode
from tests.support.listeners import plain

ANSWER_SECONDS_MAX = 20.0


class HttpNode(KafkaNode):
    """``bounds`` are the gateway's."""

    def __init__(self, data_dir: Path, bounds: HttpBounds | None = None, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self._bounds = bounds

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        listener = self.http_listener()
        self.port: int = listener.address.port
        self.before_http()
        self.http = HttpGateway(self.broker, self.flusher.turn, self.settings.http, lambda: True, bounds=self._bounds)
        await self.http.start(listener)
        self._stack.push_async_callback(self.http.stop)
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=ANSWER_SECONDS_MAX)
        self._stack.push_async_callback(self.client.aclose)
        return self

    def before_http(self) -> None:
        """What a test changes in the broker first."""

    def http_listener(self) -> Listener:
        """Where the gateway listens."""
        return plain("http")

    async def connect(self) -> "RawHttp":
        """A connection of which the test sees every byte."""
        raw = RawHttp(*await asyncio.open_connection("127.0.0.1", self.port))
        # A test that fails leaves nothing open.
        self._stack.callback(raw.abort)
        return raw

    @property
    def through_asgi(self) -> int:
        """Requests that uvicorn has answered, and not the fast lane."""
        return self.http._server.server_state.total_requests


async def becomes(condition: Callable[[], object]) -> None:
    """Let the event loop go on until it holds."""
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - what happens here happens in this loop
            await asyncio.sleep(0)


class RawHttp:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> bytes:
        """The next answer, head and body; its length must be told."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            return head + (await self.reader.readexactly(int(length[1])) if length else b"")

    async def ask(self, data: bytes) -> bytes:
        await self.send(data)
        return await self.answer()

    async def rest(self) -> bytes:
        """All until the other end closes; nothing when it cut the connection."""
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def request(method: str, path: str, body: bytes = b"", headers: Sequence[str] = (), *, length: bool = True) -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if length and method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A POST as bytes."""
    return request("POST", path, body, headers)


def masked(answer: bytes) -> bytes:
    """An answer without what differs from one moment to the next."""
    return re.sub(rb"date: [^\r]+", b"date: now", answer)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]
