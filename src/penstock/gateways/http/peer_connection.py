"""A connection to another node's HTTP listener, and the exchanges on it: requests out, answers back in the same order.

Several requests may be on their way at once on one connection. An answer comes piece by piece and is read at the pace of who wants
it: above :data:`BUFFER_BYTES_MAX` nothing more is read from the socket.

Invariant: an exchange ends exactly once: whole, or lost with its connection.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple, cast

import httptools

from penstock.gateways.http.answers import RawHeaders
from penstock.limits import KIB

BUFFER_BYTES_MAX: Final = 256 * KIB
HEAD_BYTES_MAX: Final = 64 * KIB
"""All headers of an answer."""


class NodeLost(Exception):
    """The other node was gone before its answer was whole."""


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: RawHeaders

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in small letters."""
        return next((value for key, value in self.headers if key == name), None)


class Exchange:
    """One request and its answer. ``head`` fails with :class:`NodeLost` when the node is gone before it."""

    def __init__(self, connection: "PeerConnection", *, is_head: bool) -> None:
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._lost = False
        self.head: Final[asyncio.Future[Head]] = connection.loop.create_future()
        self.is_head: Final = is_head
        self.is_whole = False
        self.buffered_bytes = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes; NodeLost when the rest of it never will."""
        while True:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                self.buffered_bytes = 0
                self._connection.read_on()
                yield piece
            elif self.is_whole:
                return
            elif self._lost:
                raise NodeLost
            else:
                self._more.clear()
                await self._more.wait()

    async def body(self, bytes_max: int) -> bytes:
        """All of the body; ValueError when it is larger than that."""
        if self.is_whole and self.buffered_bytes <= bytes_max:
            # As nearly always when somebody wants it whole.
            self.buffered_bytes = 0
            return b"".join(self._pieces)
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > bytes_max:
                raise ValueError(f"more than {bytes_max} bytes")
            parts.append(piece)
        return b"".join(parts)

    def close(self) -> None:
        """Nobody wants the rest: the other node hears of it at once. Fine after the end."""
        if not self.is_whole:
            self._connection.abort()

    # What the connection tells.

    def take(self, piece: bytes) -> None:
        """A part of the body is there."""
        self._pieces.append(piece)
        self.buffered_bytes += len(piece)
        self._more.set()

    def end(self, *, lost: bool) -> None:
        """The answer is whole, or will never be."""
        if lost:
            self._lost = True
            if not self.head.done():
                self.head.set_exception(NodeLost())
                # Nobody may be there to ask for it.
                self.head.exception()
        else:
            self.is_whole = True
        self._more.set()


class PeerConnection(asyncio.Protocol):
    """``on_free`` is told when all its exchanges have ended and it can be used again, ``on_lost`` when it is gone."""

    def __init__(
        self, on_free: Callable[["PeerConnection"], None], on_lost: Callable[["PeerConnection"], None]
    ) -> None:
        self.loop: Final = asyncio.get_running_loop()
        self._on_free = on_free
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._exchanges: deque[Exchange] = deque()
        self._headers: RawHeaders = []
        self._head_bytes = 0
        self._is_paused = False
        self.is_lost = False
        self.free_since = self.loop.time()

    # For who asks.

    @property
    def count(self) -> int:
        """Exchanges that have not ended."""
        return len(self._exchanges)

    @property
    def unsent_bytes(self) -> int:
        """Of requests that the other node has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def begin(self, request: bytes, *, is_head: bool = False) -> Exchange:
        """Send a request. The connection must not be lost."""
        assert self._transport is not None
        exchange = Exchange(self, is_head=is_head)
        self._exchanges.append(exchange)
        self._transport.write(request)
        return exchange

    def read_on(self) -> None:
        """Room was made for more."""
        if self._is_paused and not self.is_lost and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Go now."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other node is there."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The next bytes of answers."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort()
            return
        first = self._exchanges[0] if self._exchanges else None
        if first is not None and first.buffered_bytes > BUFFER_BYTES_MAX and not self._is_paused:
            assert self._transport is not None
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it is gone, whatever the reason
        """The other node is gone."""
        self._lose()

    def _lose(self) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.end(lost=True)
        self._on_lost(self)

    # The parser's side.

    def on_message_begin(self) -> None:
        """An answer begins."""
        if not self._exchanges:
            raise ValueError("an answer that nobody asked for")
        self._headers = []
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of it."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError("the head of an answer is too large")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        exchange = self._exchanges[0]
        if not exchange.head.done():
            exchange.head.set_result(Head(self._parser.get_status_code(), self._headers))
        if exchange.is_head:
            # The parser would wait for a body that never comes: the connection ends with this answer.
            self._exchanges.popleft()
            exchange.end(lost=False)
            self.loop.call_soon(self.abort)

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._exchanges[0].take(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        if not self._exchanges:
            return
        self._exchanges.popleft().end(lost=False)
        if not self._parser.should_keep_alive():
            self.abort()
        elif not self._exchanges:
            self.free_since = self.loop.time()
            self._on_free(self)
