"""Connections from this node to others: Kafka's protocol on the peer listener, after both sides have proved that they belong to the cluster.

With TLS, each side also checks that the certificate of the other one names the node that it should be. A connection that should use TLS
never falls back to plain text.

A link connects when it is first used, and again after the connection was lost. Responses are matched by correlation id. If the connection
is lost before a response, the request may have been carried out: it fails with LINK_LOST, and the caller decides whether to repeat it. A
request that could not be sent fails with LEADER_NOT_AVAILABLE.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec

from penstock.address import Address
from penstock.core.cluster.image import ClusterImage
from penstock.core.cluster.shared_secret import SharedSecret
from penstock.errors import PenstockError, Reason
from penstock.limits import REQUEST_BYTES_MAX
from penstock.ports import Entropy
from penstock.transport.listening import send_at_once
from penstock.transport.peer_tls import PeerTls, fingerprint_of_peer, tls_of
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
SHUTDOWN_SECONDS: Final = 2.0
"""How long the end of a TLS connection waits for the other node's."""
_RESPONSE_BYTES_MAX: Final = REQUEST_BYTES_MAX + 64 * 1024 * 1024
_NUMBER_BYTES: Final = 4
"""A response header with nothing but the correlation id."""

A = TypeVar("A", bound=msgspec.Struct)


class Identity(NamedTuple):
    """How this node identifies itself to others."""

    node_id: NodeId
    epoch: int
    secret: SharedSecret
    tls: PeerTls


class _PendingCall(NamedTuple):
    answered: Callable[[memoryview], None]
    """Receives the whole response with its header, in a buffer that is valid until this returns. ProtocolViolation if it cannot be decoded."""
    failed: Callable[[PenstockError], None]
    stays: bool
    """Whether more responses may follow, until :meth:`Link.release`."""


class _Wire(asyncio.BufferedProtocol):
    """One connection. Responses are passed on as they arrive, in the buffer into which they were read."""

    def __init__(self, link: "Link", buffers: BufferPool) -> None:
        self._link = link
        self._frames = FrameReader(buffers, _RESPONSE_BYTES_MAX)
        self.transport: asyncio.Transport | None = None
        self.gone: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The other node accepted the connection."""
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        send_at_once(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        if not self.gone.done():
            self.gone.set_result(None)
        self._frames.close()
        self._link.wire_lost(self, str(error or "") or "the other node closed it")

    def eof_received(self) -> bool:
        """The other node has closed its side: close this one too."""
        return False

    def get_buffer(self, _: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """The next bytes have arrived."""
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
    """One connection to one node. Several tasks may use it, if the order of their requests does not matter."""

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
        """How often it has connected."""

    @property
    def is_connected(self) -> bool:
        """Whether it is connected, as far as is known."""
        return self._wire is not None

    def is_ready(self, identity: Identity) -> bool:
        """Whether it is connected and authenticated with this identity."""
        return self._is_known and identity == self._identity

    async def call(
        self, identity: Identity, key: ApiKey, version: int, request: msgspec.Struct, answer: type[A], seconds: float
    ) -> A:
        """Send a request and wait for the response."""
        try:
            async with asyncio.timeout(seconds):
                await self.connect(identity)
                found = await self.post(key, version, request)
        except TimeoutError:
            # These requests are answered at once, or never.
            self.close()
            raise PenstockError(Reason.LINK_LOST, f"Node {self.node_id} did not answer within {seconds:g} s") from None
        assert isinstance(found, answer)
        return found

    def post(self, key: ApiKey, version: int, request: msgspec.Struct) -> "asyncio.Future[Any]":
        """Send a request on a connected link; the future gets the response."""
        api = API[key]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ask(
            int(key),
            version,
            api.encode_request(request, version),
            partial(_decode_into, future, api, version),
            partial(fail, future),
        )
        return future

    def post_peer(self, key: PeerApi, parts: list[Buffer]) -> "asyncio.Future[memoryview]":
        """The same for requests that only nodes use; the future gets the bytes of the response."""
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.ask(int(key), VERSION, parts, partial(_copy_into, future), partial(fail, future))
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
        """Send a request on a connected link; calls ``answered`` with the response and its header, or ``failed``.

        Returns the number of the request. With ``stays`` it may have any number of responses, until it is released.
        """
        wire = self._wire
        if wire is None or wire.transport is None:
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"Node {self.node_id} is not connected")
        number = self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        self._waiting[number] = _PendingCall(answered, failed, stays)
        self._send(wire.transport, key, version, number, parts)
        return number

    def tell(self, key: int, version: int, parts: list[Buffer]) -> None:
        """Send a message without a response; does nothing if the link is not connected."""
        if self._wire is not None and self._wire.transport is not None:
            self._send(self._wire.transport, key, version, 0, parts)

    def release(self, number: int) -> None:
        """The last response to a request has arrived."""
        self._waiting.pop(number, None)

    @staticmethod
    def _send(transport: asyncio.Transport, key: int, version: int, number: int, parts: list[Buffer]) -> None:
        framed = frame_request(RequestHeader(key, version, number, None), parts)
        if len(framed) == 1:
            transport.write(framed[0])
        else:
            transport.writelines(framed)

    async def connect(self, identity: Identity) -> None:
        """Connect with this identity, unless connected already; LEADER_NOT_AVAILABLE if the node cannot be reached."""
        if self._wire is not None and identity == self._identity:
            return
        async with self._connecting:
            if self._wire is not None and identity == self._identity:
                return
            self.close()
            address = self._nodes.address(self.node_id, "peer")
            wire = await self._open(identity.tls, address)
            self._identity = identity
            if not wire.gone.done():
                self._wire = wire
            self.connections += 1
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._authenticate(wire, identity)
                self._is_known = self._wire is wire
            except TimeoutError:
                self.close()
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"Node {self.node_id} accepts connections at {address}, but does not respond",
                ) from None
            except BaseException:
                self.close()
                raise

    async def _open(self, tls: PeerTls, address: Address) -> _Wire:
        """A new connection, with TLS if the other node offers it or this one requires it."""
        node = self._nodes.nodes.get(self.node_id)
        context = tls.outgoing(is_offered_there=node is not None and node.peer_tls)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, wire = await loop.create_connection(
                    lambda: _Wire(self, self._buffers), address.host, address.port, **tls_options(context)
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or "no response"
            if isinstance(error, ssl.SSLError) or (context is not None and isinstance(error, ConnectionResetError)):
                why = f"the TLS handshake failed ({why}); check cluster.peer_tls and the certificates of both nodes"
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE, f"Node {self.node_id} cannot be reached at {address}: {why}"
            ) from error
        return wire

    async def _authenticate(self, wire: _Wire, identity: Identity) -> None:
        binding = self._check_certificate(wire, identity.tls)
        known = identity.secret
        nonce = self._entropy.uuid().bytes[:NONCE_BYTES]
        hello = Hello(identity.node_id, identity.epoch, self.node_id, nonce, known.generation)
        challenge = decode_challenge(await self._sasl(msgspec.json.encode(hello)))
        secret = known.of(challenge.generation or known.generation)
        if secret is None or not is_proof(server_proof(secret, hello, challenge.nonce, binding), challenge.proof):
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED,
                f"The process at the address of node {self.node_id} does not belong to this cluster",
            )
        await self._sasl(msgspec.json.encode(Proof(client_proof(secret, hello, challenge.nonce, binding))))

    def _check_certificate(self, wire: _Wire, tls: PeerTls) -> bytes:
        """The SHA-256 of the other node's certificate; empty without TLS. CLUSTER_AUTHORIZATION_FAILED if it is another node's."""
        assert wire.transport is not None
        end = tls_of(wire.transport)
        if end is None:
            assert not tls.is_required
            return b""
        problem = tls.problem_of(end.connection, self.node_id)
        if problem:
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED,
                f"The process at the address of node {self.node_id} is another one: {problem}",
            )
        return fingerprint_of_peer(end.connection)

    async def _sasl(self, data: bytes) -> bytes:
        answer = await self.post(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=data))
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED,
                f"Node {self.node_id} refused the connection: {answer.error_message}",
            )
        return bytes(answer.auth_bytes)

    # Called by the connection.

    def uses(self, wire: _Wire) -> bool:
        """Whether this is still the link's connection."""
        return self._wire is wire

    def came(self, body: memoryview) -> None:
        """A response has arrived; ProtocolViolation if there is no request for it."""
        number, _ = decode_response_header(body, 0, 0)
        waiting = self._waiting.get(number)
        if waiting is None:
            raise ProtocolViolation(f"A response arrived without a request: {number}")
        if not waiting.stays:
            del self._waiting[number]
        waiting.answered(body)

    def wire_lost(self, wire: _Wire, why: str) -> None:
        """The connection was lost, or is unusable."""
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
        """Return once the link is not connected."""
        if self._wire is not None:
            await asyncio.wait([self._wire.gone])

    def close(self) -> None:
        """Close the connection; waiting requests fail. The next call connects again."""
        self._lose("this node closed it")

    async def aclose(self) -> None:
        """Close the connection, and wait until it is closed."""
        wire = self._wire
        self.close()
        if wire is not None:
            await asyncio.wait([wire.gone])


def tls_options(context: ssl.SSLContext | None) -> dict[str, Any]:
    """Arguments of a connection. The loop takes those for timeouts only together with a context."""
    if context is None:
        return {}
    return {
        "ssl": context,
        "ssl_handshake_timeout": CONNECT_SECONDS,
        "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
    }


def _decode_into(future: "asyncio.Future[Any]", api: Api, version: int, body: memoryview) -> None:
    # A copy, since it is read later.
    kept = memoryview(bytes(body))
    _, position = decode_response_header(kept, 0, api.response_header_version(version))
    message = api.decode_response(kept, position, version)
    if not future.done():
        future.set_result(message)


def _copy_into(future: "asyncio.Future[memoryview]", body: memoryview) -> None:
    if not future.done():
        future.set_result(memoryview(bytes(body[_NUMBER_BYTES:])))


def fail(future: "asyncio.Future[Any]", error: PenstockError) -> None:
    """Set the exception of a future, unless it is done."""
    if not future.done():
        future.set_exception(error)
        # Mark it as retrieved, since the caller may be gone.
        future.exception()
