"""Connections from this node to others: Kafka's protocol on the peer listener, after both sides have proved that they belong to the cluster.

A link connects when it is first used and again after it was lost. Answers are known by their numbers. A request that was sent and not answered
when the connection broke may have been carried out: it fails with LINK_LOST, and the caller decides. One that could not be sent fails with
LEADER_NOT_AVAILABLE: it certainly was not.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from penstock.core.cluster.image import ClusterImage
from penstock.errors import PenstockError, Reason
from penstock.limits import REQUEST_BYTES_MAX
from penstock.ports import Entropy
from penstock.transport.listening import send_at_once
from penstock.transport.receive import BufferPool, FrameReader
from penstock.types import Buffer, NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_response_header, frame_request
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.peers import (
    NONCE_BYTES,
    VERSION,
    Hello,
    PeerApi,
    Proof,
    client_proof,
    decode_challenge,
    is_proof,
    server_proof,
)

CONNECT_SECONDS: Final = 3.0
_RESPONSE_BYTES_MAX: Final = REQUEST_BYTES_MAX + 64 * 1024 * 1024
_NUMBER_BYTES: Final = 4
"""An answer's header, where it has no more than its number."""

A = TypeVar("A", bound=msgspec.Struct)


class Identity(NamedTuple):
    """Who this node is, in its present incarnation."""

    node_id: NodeId
    epoch: int
    secret: bytes


class _PendingCall(NamedTuple):
    answered: Callable[[memoryview], None]
    """Told the whole answer with its header, which is good until this returns; ProtocolViolation when it cannot be read."""
    failed: Callable[[PenstockError], None]
    stays: bool
    """Whether more answers may follow, until :meth:`Link.release`."""


class _Wire(asyncio.BufferedProtocol):
    """The bytes of one connection: answers are handed on as they come, from the buffer into which they were read."""

    def __init__(self, link: "Link", buffers: BufferPool) -> None:
        self._link = link
        self._frames = FrameReader(buffers, _RESPONSE_BYTES_MAX)
        self.transport: asyncio.Transport | None = None
        self.gone: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other node took the connection."""
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        send_at_once(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        """It is no more."""
        if not self.gone.done():
            self.gone.set_result(None)
        self._frames.close()
        self._link.wire_lost(self, str(error or "") or "the other node closed it")

    def eof_received(self) -> bool:
        """The other side says nothing more, so nothing more is asked."""
        return False

    def get_buffer(self, _: int) -> memoryview:
        """Where the next bytes go."""
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """The next bytes are there."""
        frames, link = self._frames, self._link
        frames.received(nbytes)
        try:
            while link.uses(self):
                found = frames.next_frame()
                if found is None:
                    break
                link.came(frames.view[found[0] : found[1]])
        except ProtocolViolation as error:
            link.wire_lost(self, f"it sent an invalid response: {error}")
        frames.settle()


class Link:
    """One connection to one node. Not for use by several tasks in an order that matters, but by several tasks."""

    def __init__(
        self, node_id: NodeId, nodes: ClusterImage, entropy: Entropy, buffers: BufferPool | None = None
    ) -> None:
        """``buffers`` may be shared by all links of a node."""
        self.node_id: Final = node_id
        self._buffers = BufferPool() if buffers is None else buffers
        self._nodes = nodes
        self._entropy = entropy
        self._identity: Identity | None = None
        self._wire: _Wire | None = None
        self._is_known = False
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, _PendingCall] = {}
        self._correlation_id = 0
        self.connections = 0
        """How often it has connected: whoever keeps state with the other side begins anew when it changes."""

    @property
    def is_connected(self) -> bool:
        """Whether it was, when something was last heard."""
        return self._wire is not None

    def is_ready(self, identity: Identity) -> bool:
        """Whether it is connected as this one, and both sides know each other."""
        return self._is_known and identity == self._identity

    async def call(
        self, identity: Identity, key: ApiKey, version: int, request: msgspec.Struct, answer: type[A], seconds: float
    ) -> A:
        """Send and wait for the answer, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.connect(identity)
                found = await self.post(key, version, request)
        except TimeoutError:
            # What is asked here is answered at once, or never.
            self.close()
            raise PenstockError(Reason.LINK_LOST, f"node {self.node_id} did not answer within {seconds:g} s") from None
        assert isinstance(found, answer)
        return found

    def post(self, key: ApiKey, version: int, request: msgspec.Struct) -> "asyncio.Future[Any]":
        """Send, on a link that is connected; the future has the answer."""
        api = API[key]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ask(
            int(key),
            version,
            api.encode_request(request, version),
            partial(_decode_into, future, api, version),
            partial(_fail, future),
        )
        return future

    def post_peer(self, key: PeerApi, parts: list[Buffer]) -> "asyncio.Future[memoryview]":
        """The same for what only nodes say to each other; the future has the bytes of the answer."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.ask(int(key), VERSION, parts, partial(_copy_into, future), partial(_fail, future))
        return future

    def ask(
        self,
        key: int,
        version: int,
        parts: list[Buffer],
        answered: Callable[[memoryview], None],
        failed: Callable[[PenstockError], None],
        *,
        stays: bool = False,
    ) -> int:
        """Send, on a link that is connected; ``answered`` is called with the answer and its header as soon as it came, or ``failed``.

        The number of the request is returned. With ``stays`` it may have any number of answers, until it is released.
        """
        wire = self._wire
        if wire is None or wire.transport is None:
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"node {self.node_id} is not connected")
        number = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._waiting[number] = _PendingCall(answered, failed, stays)
        self._send(wire.transport, key, version, number, parts)
        return number

    def tell(self, key: int, version: int, parts: list[Buffer]) -> None:
        """Send what has no answer; nothing happens on a link that is not connected."""
        if self._wire is not None and self._wire.transport is not None:
            self._send(self._wire.transport, key, version, 0, parts)

    def release(self, number: int) -> None:
        """The last answer to a request with several came."""
        self._waiting.pop(number, None)

    @staticmethod
    def _send(transport: asyncio.Transport, key: int, version: int, number: int, parts: list[Buffer]) -> None:
        framed = frame_request(RequestHeader(key, version, number, None), parts)
        if len(framed) == 1:
            transport.write(framed[0])
        else:
            transport.writelines(framed)

    async def connect(self, identity: Identity) -> None:
        """Be connected as this one; LEADER_NOT_AVAILABLE when the node cannot be reached."""
        if self._wire is not None and identity == self._identity:
            return
        async with self._connecting:
            if self._wire is not None and identity == self._identity:
                return
            self.close()
            address = self._nodes.address(self.node_id, "peer")
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    loop = asyncio.get_running_loop()
                    _, wire = await loop.create_connection(
                        lambda: _Wire(self, self._buffers), address.host, address.port
                    )
            except (OSError, TimeoutError) as error:
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"node {self.node_id} cannot be reached at {address}: {str(error) or 'no response'}",
                ) from error
            self._identity = identity
            if not wire.gone.done():
                self._wire = wire
            self.connections += 1
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._authenticate(identity)
                self._is_known = self._wire is wire
            except TimeoutError:
                self.close()
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"node {self.node_id} accepts connections at {address}, but does not respond",
                ) from None
            except BaseException:
                self.close()
                raise

    async def _authenticate(self, identity: Identity) -> None:
        hello = Hello(identity.node_id, identity.epoch, self.node_id, self._entropy.uuid().bytes[:NONCE_BYTES])
        challenge = decode_challenge(await self._sasl(msgspec.json.encode(hello)))
        if not is_proof(server_proof(identity.secret, hello, challenge.nonce), challenge.proof):
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED,
                f"the process at the address of node {self.node_id} does not belong to this cluster",
            )
        await self._sasl(msgspec.json.encode(Proof(client_proof(identity.secret, hello, challenge.nonce))))

    async def _sasl(self, data: bytes) -> bytes:
        answer = await self.post(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=data))
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED,
                f"node {self.node_id} refused the connection: {answer.error_message}",
            )
        return bytes(answer.auth_bytes)

    # What the wire tells.

    def uses(self, wire: _Wire) -> bool:
        """Whether this is the connection by now."""
        return self._wire is wire

    def came(self, body: memoryview) -> None:
        """An answer; ProtocolViolation when it is none."""
        number, _ = decode_response_header(body, 0, 0)
        waiting = self._waiting.get(number)
        if waiting is None:
            raise ProtocolViolation(f"a response arrived without a request: {number}")
        if not waiting.stays:
            del self._waiting[number]
        waiting.answered(body)

    def wire_lost(self, wire: _Wire, why: str) -> None:
        """A connection is no more, or good for nothing."""
        if self._wire is wire:
            self._lose(why)

    def _lose(self, why: str) -> None:
        wire, self._wire = self._wire, None
        self._is_known = False
        if wire is not None and wire.transport is not None:
            wire.transport.abort()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.failed(PenstockError(Reason.LINK_LOST, f"the connection to node {self.node_id} was lost: {why}"))

    async def lost(self) -> None:
        """Return when it is not connected, or not any more."""
        if self._wire is not None:
            await asyncio.wait([self._wire.gone])

    def close(self) -> None:
        """Let go; whoever waits is told. The next call connects again."""
        self._lose("this node closed it")

    async def aclose(self) -> None:
        """The same, and wait until all is let go."""
        wire = self._wire
        self.close()
        if wire is not None:
            await asyncio.wait([wire.gone])


def _decode_into(future: "asyncio.Future[Any]", api: Api, version: int, body: memoryview) -> None:
    # A copy: it is looked at later.
    kept = memoryview(bytes(body))
    _, position = decode_response_header(kept, 0, api.response_header_version(version))
    message = api.decode_response(kept, position, version)
    if not future.done():
        future.set_result(message)


def _copy_into(future: "asyncio.Future[memoryview]", body: memoryview) -> None:
    if not future.done():
        future.set_result(memoryview(bytes(body[_NUMBER_BYTES:])))


def _fail(future: "asyncio.Future[Any]", error: PenstockError) -> None:
    if not future.done():
        future.set_exception(error)
        # Whoever asked may be gone; that is no mistake.
        future.exception()
