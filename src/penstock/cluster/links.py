"""Connections from this node to others: Kafka's protocol on the peer listener, after both sides have proved that they belong to the cluster.

A link connects when it is first used and again after it was lost. Answers are known by their numbers. A request that was sent and not answered
when the connection broke may have been carried out: it fails with LINK_LOST, and the caller decides. One that could not be sent fails with
LEADER_NOT_AVAILABLE: it certainly was not.
"""

import asyncio
import contextlib
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from penstock.core.cluster_image import ClusterImage
from penstock.errors import PenstockError, Reason
from penstock.gateways.listening import send_at_once
from penstock.limits import REQUEST_BYTES_MAX
from penstock.ports import Entropy
from penstock.types import Buffer, NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_frame_size, decode_response_header, frame_request
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
_HANDSHAKE_BYTES_MAX: Final = 64 * 1024

A = TypeVar("A", bound=msgspec.Struct)


class Identity(NamedTuple):
    """Who this node is, in its present life."""

    node_id: NodeId
    epoch: int
    secret: bytes


class _Waiting(NamedTuple):
    api: Api | None
    """None: one that only nodes speak; its answer is left as it is."""
    version: int
    future: "asyncio.Future[Any]"


class Link:
    """One connection to one node. Not for use by several tasks in an order that matters, but by several tasks."""

    def __init__(self, node_id: NodeId, nodes: ClusterImage, entropy: Entropy) -> None:
        self.node_id: Final = node_id
        self._nodes = nodes
        self._entropy = entropy
        self._identity: Identity | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_known = False
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._correlation_id = 0
        self.connections = 0
        """How often it has connected: whoever keeps state with the other side begins anew when it changes."""

    @property
    def is_connected(self) -> bool:
        """Whether it was, when something was last heard."""
        return self._writer is not None

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
        return self._send(api, int(key), version, api.encode_request(request, version))

    def post_peer(self, key: PeerApi, parts: list[Buffer]) -> "asyncio.Future[memoryview]":
        """The same for what only nodes say to each other; the future has the bytes of the answer."""
        return self._send(None, int(key), VERSION, parts)

    def _send(self, api: Api | None, key: int, version: int, parts: list[Buffer]) -> "asyncio.Future[Any]":
        writer = self._writer
        if writer is None:
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"node {self.node_id} is not connected")
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = _Waiting(api, version, future)
        writer.writelines(frame_request(RequestHeader(key, version, self._correlation_id, None), parts))
        return future

    async def connect(self, identity: Identity) -> None:
        """Be connected as this one; LEADER_NOT_AVAILABLE when the node cannot be reached."""
        if self._writer is not None and identity == self._identity:
            return
        async with self._connecting:
            if self._writer is not None and identity == self._identity:
                return
            self.close()
            address = self._nodes.address(self.node_id, "peer")
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(address.host, address.port)
            except (OSError, TimeoutError) as error:
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE,
                    f"node {self.node_id} cannot be reached at {address}: {str(error) or 'it is silent'}",
                ) from error
            send_at_once(writer)
            self._identity = identity
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader, writer))
            self.connections += 1
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._authenticate(identity)
                self._is_known = self._writer is writer
            except TimeoutError:
                self.close()
                raise PenstockError(
                    Reason.LEADER_NOT_AVAILABLE, f"node {self.node_id} takes connections at {address}, and is silent"
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
                f"whoever listens at node {self.node_id}'s address does not belong to this cluster",
            )
        await self._sasl(msgspec.json.encode(Proof(client_proof(identity.secret, hello, challenge.nonce))))

    async def _sasl(self, data: bytes) -> bytes:
        answer = await self.post(ApiKey.SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=data))
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            raise PenstockError(
                Reason.CLUSTER_AUTHORIZATION_FAILED, f"node {self.node_id} refuses this one: {answer.error_message}"
            )
        return bytes(answer.auth_bytes)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        why = "it closed the connection"
        try:
            while True:
                size = decode_frame_size(await reader.readexactly(4), 0, _RESPONSE_BYTES_MAX)
                self._answered(memoryview(await reader.readexactly(size)))
        except (OSError, EOFError) as error:
            why = str(error) or why
        except ProtocolViolation as error:
            why = f"it sent what cannot be read: {error}"
        if self._writer is writer:
            self._lose(why)

    def _answered(self, body: memoryview) -> None:
        number, position = decode_response_header(body, 0, 0)
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            raise ProtocolViolation(f"an answer came that nobody asked for: {number}")
        api, version, future = waiting
        message: Any = body[position:]
        if api is not None:
            _, position = decode_response_header(body, 0, api.response_header_version(version))
            message = api.decode_response(body, position, version)
        if not future.done():
            future.set_result(message)

    def _lose(self, why: str) -> None:
        writer, self._writer = self._writer, None
        self._is_known = False
        if writer is not None:
            writer.transport.abort()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.future.done():
                each.future.set_exception(
                    PenstockError(Reason.LINK_LOST, f"the connection to node {self.node_id} was lost: {why}")
                )
                # Whoever asked may be gone; that is no mistake.
                each.future.exception()

    async def lost(self) -> None:
        """Return when it is not connected, or not any more."""
        reading = self._reading
        if reading is not None:
            await asyncio.wait([reading])

    def close(self) -> None:
        """Let go; whoever waits is told. The next call connects again."""
        reading, self._reading = self._reading, None
        self._lose("it was closed here")
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()

    async def aclose(self) -> None:
        """The same, and wait until all is let go."""
        reading = self._reading
        self.close()
        if reading is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await reading
