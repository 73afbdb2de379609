"""Connections to the same listener of other nodes, over which the lines of one client are carried: one line at a time, one answer each.

A link begins with two lines of the node's own: ``{"type": "carry"}``, which is answered with a nonce, and the same with a ``mark`` that is good for
that nonce and says whose lines they are. The other node then answers for what it speaks for and carries nothing further, and with a refusal it gives
the ``reason``. A link that was lost before its line was sent is LEADER_NOT_AVAILABLE: nothing was done. One that was lost afterwards is
LINK_LOST, and nobody knows.

A client's links go when it goes, and with the life of the node at their other end.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.access import Caller
from penstock.core.cluster_image import ClusterImage
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import Carrying
from penstock.gateways.listening import send_at_once
from penstock.gateways.tcp.answers import Refusal
from penstock.types import Gateway, NodeId

if TYPE_CHECKING:
    from penstock.gateways.tcp.gateway import TcpGateway

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 30.0
"""The other node answers what it is asked, or its life ends and the link with it: this is for what nobody thought of."""
IDLE_MS_MAX: Final = 60_000
"""Shorter than any patience of the other side: a link must not be closed there just when it is used here."""
_ESCAPED_MAX: Final = 6
"""A byte of a record is at most so many in a line."""
_LINE_OVERHEAD_BYTES: Final = 4 * 1024 * 1024


class Refused(msgspec.Struct, frozen=True):
    """What the other node would not do, and its reason if nothing was done; else empty."""

    text: str
    reason: str = ""


class _Nonce(msgspec.Struct):
    nonce: str = ""


class _Greeting(msgspec.Struct):
    ok: bool
    data: _Nonce | None = None
    error: str = ""


_REFUSED: Final = b'{"ok":false'
_decode_refusal: Final = msgspec.json.Decoder(Refusal).decode
_decode_greeting: Final = msgspec.json.Decoder(_Greeting).decode
_encode: Final = msgspec.json.encode


def signed_part(nonce: str) -> bytes:
    """What a mark on a link is good for."""
    return f"tcp {nonce}".encode()


class Link:
    """One connection to one node, in one of its lives."""

    def __init__(self, node: NodeId, epoch: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.node: Final = node
        self.epoch: Final = epoch
        self.used_ms = 0
        self._reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """Whether nothing was heard to the contrary."""
        return not self._writer.is_closing() and not self._reader.at_eof()

    async def ask(self, line: bytes) -> bytes | Refused:
        """The answer, as it came; LINK_LOST when there is none. One at a time."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._writer.write(line + b"\n")
                await self._writer.drain()
                answer = await self._reader.readuntil(b"\n")
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError) as error:
            self.close()
            raise PenstockError(
                Reason.LINK_LOST,
                f"Node {self.node} was asked and did not answer: it may have done this, or not. Look, or send it again.",
            ) from error
        except BaseException:
            # The answer would be taken for that to the next line.
            self.close()
            raise
        if not answer.startswith(_REFUSED):
            return answer
        refusal = _decode_refusal(answer)
        return Refused(refusal.error, refusal.reason or "")

    def close(self) -> None:
        """Hang up. Whoever waits for an answer is told that the link is lost."""
        self._writer.transport.abort()


class Links:
    """Those of one client."""

    def __init__(self, gateway: "TcpGateway", nodes: ClusterImage) -> None:
        self._gateway = gateway
        self._nodes = nodes
        self._links: dict[NodeId, Link] = {}
        self._closed = False

    async def to(self, node: NodeId, caller: Caller) -> Link:
        """A link that is open, on behalf of this caller. LEADER_NOT_AVAILABLE when the node cannot be reached."""
        link = self._links.get(node)
        if link is None or not link.is_open:
            if self._closed:
                raise PenstockError(Reason.SHUTTING_DOWN, "The client is gone.")
            link = self._links[node] = await self._connect(node, caller)
        link.used_ms = self._gateway.swept_ms
        return link

    async def _connect(self, node: NodeId, caller: Caller) -> Link:
        carrying: Carrying = self._gateway.carrying
        address = carrying.address(node, Gateway.TCP)
        gateway = self._gateway
        limit = gateway.bounds.fetch_bytes_max * _ESCAPED_MAX + gateway.settings.line_bytes_max + _LINE_OVERHEAD_BYTES
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                epoch = self._nodes.nodes[node].epoch
                reader, writer = await asyncio.open_connection(address.host, address.port, limit=limit)
                send_at_once(writer)
                nonce = await _say(reader, writer, {"type": "carry"})
                mark = carrying.mark(node, caller, signed_part(nonce))
                await _say(reader, writer, {"type": "carry", "mark": mark})
        except (OSError, EOFError, TimeoutError, KeyError, msgspec.MsgspecError, asyncio.LimitOverrunError) as error:
            if writer is not None:
                writer.transport.abort()
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"Node {node} cannot be reached at {address}: {str(error) or 'it is silent'}. Try again in a moment.",
            ) from error
        except BaseException:
            if writer is not None:
                writer.transport.abort()
            raise
        return Link(node, epoch, reader, writer)

    def look_after(self, monotonic_ms: int) -> None:
        """Once a second: hang up where nothing was asked for long, or where another life of the node has begun."""
        for node, link in list(self._links.items()):
            found = self._nodes.nodes.get(node)
            ended = found is None or found.epoch != link.epoch
            if ended or monotonic_ms - link.used_ms > IDLE_MS_MAX or not link.is_open:
                link.close()
                del self._links[node]

    def close(self) -> None:
        """The client is gone."""
        self._closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()


async def _say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: dict[str, str]) -> str:
    """What is to be signed, if anything; OSError when the other side will have none of it."""
    writer.write(_encode(words) + b"\n")
    greeting = _decode_greeting(await reader.readuntil(b"\n"))
    if not greeting.ok:
        raise OSError(greeting.error)
    return "" if greeting.data is None else greeting.data.nonce
