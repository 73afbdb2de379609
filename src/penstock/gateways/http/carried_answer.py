"""The answer of another node, given back to the client as it comes and at the client's pace.

Its status, headers and body are the other node's; what concerns one connection alone stays behind. When the client leaves, the other node
hears of it at once. When the other node is lost, a stream that ends behind a whole line ends well, since its reader comes again;
anything else is cut, so that nobody takes it for whole.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.gateways.http.answers import RawHeaders, Refusal
from penstock.gateways.http.peer_connection import Exchange, Head, NodeLost
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

ELSEWHERE: Final = b"x-penstock-elsewhere"
"""In the answer to a marked request: the reason for which nothing was done. No client ever sees it."""
_NOT_GIVEN_BACK: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"trailer", b"upgrade", b"date", ELSEWHERE}
)


class AnswerCut(Exception):
    """The other node was lost in the middle of an answer that cannot be ended as if it were whole."""


class CarriedAnswer(Response):
    """The answer of another node, given back as it comes and at the client's pace."""

    def __init__(
        self, gateway: "HttpGateway", node: NodeId, exchange: Exchange, head: Head, gone: asyncio.Future[None]
    ) -> None:
        super().__init__(status_code=head.status)
        self.raw_headers = given_back(head.headers)
        self._gateway = gateway
        self._node = node
        self._exchange = exchange
        self._gone = gone
        self._is_stream = head.header(b"content-length") is None and head.status != 204
        self._gone.add_done_callback(self._close)

    @classmethod
    def begun(
        cls, gateway: "HttpGateway", node: NodeId, exchange: Exchange, head: Head, gone: asyncio.Future[None]
    ) -> "CarriedAnswer":
        """The answer; 503 when it is one stream too many."""
        answer = cls(gateway, node, exchange, head, gone)
        if answer._is_stream:
            try:
                gateway.begin_stream(answer._close)
            except Refusal:
                gone.cancel()
                exchange.close()
                raise
        return answer

    def _close(self, _: object = None) -> None:
        self._exchange.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Give it back to its end."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._is_stream:
                # At once, so that the client sees the headers before the first line.
                await send({"type": "http.response.body", "body": b"", "more_body": True})
            await self._give(send)
        finally:
            self._exchange.close()
            self._gone.cancel()
            self._gateway.end_stream(self._close)

    async def _give(self, send: Send) -> None:
        last = b"\n"
        try:
            async for piece in self._exchange.pieces():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                last = piece[-1:]
        except NodeLost:
            # Streams are lines: one that ends behind a whole line ends well, and its reader comes again.
            if not self._gone.done() and not (self._is_stream and last == b"\n"):
                raise AnswerCut(f"node {self._node} was lost in the middle of an answer") from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def given_back(headers: RawHeaders) -> RawHeaders:
    """The headers of another node's answer that are the client's too."""
    return [header for header in headers if header[0] not in _NOT_GIVEN_BACK]
