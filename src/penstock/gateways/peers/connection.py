"""The connection of one node: first the proofs, then requests. All requests are handled as they arrive, without a task, because every
record reaches the other nodes this way. A fetch waits for news (``fetch.py``); appends and operations are begun as they arrive, and
answered when they are done (``appends.py``, ``operations.py``).

Nothing is read while the other side does not read its answers, or too many of its requests are under way.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn, cast

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.peers.appends import PeerAppends
from penstock.gateways.peers.fetch import FETCH_VERSION, ReplicaFetches
from penstock.gateways.peers.operations import PeerOperations
from penstock.limits import REQUEST_BYTES_MAX
from penstock.transport.listener import Arrival
from penstock.transport.listening import send_at_once
from penstock.transport.peer_tls import PeerEnd, tls_of
from penstock.transport.receive import FrameReader
from penstock.types import Buffer, NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_request_header, frame
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.peers import (
    HEADS,
    NONCE_BYTES,
    OPERATION_HEADS,
    Challenge,
    Hello,
    client_proof,
    decode_hello,
    decode_proof,
    is_proof,
    server_proof,
)
from penstock.wire.peers import VERSION as PEER_VERSION

if TYPE_CHECKING:
    from penstock.gateways.peers.gateway import PeerGateway

logger = logging.getLogger("penstock.peers")

HANDSHAKE_BYTES_MAX: Final = 4 * 1024
"""The largest frame before the proof; a greeting has about 200 bytes."""
HANDSHAKE_SECONDS: Final = 5.0
"""A node needs some milliseconds, and gives up after three seconds."""
IDLE_SECONDS: Final = 600.0
OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unread answers: more than one large answer."""


@dataclass(frozen=True, slots=True, repr=False)
class _Greeting:
    """What a node's proof must cover."""

    hello: Hello
    nonce: bytes
    """The one that was sent to it."""
    secret: bytes
    binding: bytes
    """The SHA-256 of this node's certificate; empty without TLS."""


_LENGTH_BYTES: Final = 4
"""Before each frame."""
NOT_TLS: Final = (
    "Nodes must connect with TLS here; set cluster.peer_tls to accept on the node that connects, and restart it"
)


class PeerConnection(asyncio.BufferedProtocol):
    """One connection, of a node once it has proved itself."""

    def __init__(self, gateway: "PeerGateway", arrival: Arrival) -> None:
        self.gateway: Final = gateway
        self.arrival: Final = arrival
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader(gateway.buffers, HANDSHAKE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._tls: PeerEnd | None = None
        self._greeted: _Greeting | None = None
        self._secret = b""
        """The secret with which it has proved itself."""
        self._node = -1
        """The id of the node, once it has proved itself."""
        self._fetches: ReplicaFetches | None = None
        self._appends = PeerAppends(gateway, self._answer_soon, self._run)
        self._operations = PeerOperations(gateway, self._answer_soon)
        self._answers: list[Buffer] = []
        """Sent at the end of the turn."""
        self._choked = False
        self._paused = False
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        # uvloop's transports are not subclasses of asyncio's.
        opened = self._transport = cast(asyncio.Transport, transport)
        # This gateway has its own places for strangers.
        self.arrival.known()
        self._tls = tls_of(opened)
        self.gateway.admit(self)
        send_at_once(opened)
        opened.set_write_buffer_limits(high=OUTPUT_BYTES_MAX)
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self._look_after)

    def connection_lost(self, _: Exception | None) -> None:
        """The connection is closed; its requests end by themselves."""
        self.gateway.forget(self)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._frames.close()
        self._appends.close()
        self._operations.close()
        if self._fetches is not None:
            self._fetches.close()

    def eof_received(self) -> bool:
        """A node that sends no more wants no answers, either."""
        return False

    def get_buffer(self, _: int) -> memoryview:
        """The buffer for the next bytes."""
        return self._frames.writable()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        self._frames.received(nbytes)
        self._run()

    def pause_writing(self) -> None:
        """The node does not read its answers: take no more requests."""
        self._choked = True
        self._update_reading()

    def resume_writing(self) -> None:
        """The node has read its answers."""
        self._choked = False
        self._loop.call_soon(self._run)

    def abort(self) -> None:
        """Disconnect at once."""
        if self._transport is not None:
            self._transport.abort()

    def check_secret(self) -> None:
        """Disconnect if the secret with which it proved itself is not valid any more: the node connects again with another one."""
        if self._node >= 0 and not self.gateway.cluster.secret.is_valid(self._secret):
            logger.info(
                "closing %s: the cluster's secret was rotated, and node %d used an old one", self._peer(), self._node
            )
            self.abort()

    def make_room(self) -> None:
        """Disconnect, because it has not proved itself and others need the place."""
        logger.info("closing %s: it has not authenticated as a node, and other connections need the slot", self._peer())
        self.abort()

    def _look_after(self) -> None:
        """Close the connection if it is idle, or check again when it may be."""
        since = self._loop.time() - self._heard_at
        if self._node >= 0 and since < IDLE_SECONDS:
            self._timer = self._loop.call_later(IDLE_SECONDS - since, self._look_after)
            return
        logger.info("closing %s: it was idle for too long", self._peer())
        self.abort()

    def _peer(self) -> object:
        return None if self._transport is None else self._transport.get_extra_info("peername")

    # Requests.

    def _run(self) -> None:
        frames = self._frames
        try:
            while self._transport is not None and not self._is_held_up:
                found = frames.next_frame()
                if found is None:
                    break
                self._request(frames.view[found[0] : found[1]])
        except (ProtocolViolation, PenstockError) as error:
            self._close(f"{error}")
        except Exception:
            logger.exception("a request from node %d failed", self._node)
            self._close("internal error")
        frames.settle()
        self._update_reading()

    @property
    def _is_held_up(self) -> bool:
        return self._choked or self._appends.is_full or (self._fetches is not None and self._fetches.is_busy)

    def _close(self, why: str) -> None:
        """Close the connection, since nothing valid can follow. Answers are sent before."""
        transport = self._transport
        logger.warning("closing %s: %s", self._peer(), why)
        self._frames.close()
        if transport is not None:
            transport.close()

    def _update_reading(self) -> None:
        pause = self._is_held_up
        transport = self._transport
        if pause is self._paused or transport is None or transport.is_closing():
            return
        self._paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _request(self, body: memoryview) -> None:
        header, position = decode_request_header(body)
        self._heard_at = self._loop.time()
        if self._fetches is None:
            self._authenticate(header, body, position)
        elif header.api_key == ApiKey.FETCH and header.api_version == FETCH_VERSION:
            self.gateway.heard_ms[self._node] = self.gateway.broker.clock.monotonic_ms()
            self._fetches.fetch(header.correlation_id, body, position)
        elif header.api_key in HEADS and header.api_version == PEER_VERSION:
            self._appends.begin(header.api_key, header.correlation_id, body[position:])
        elif header.api_key in OPERATION_HEADS and header.api_version == PEER_VERSION:
            self._operations.begin(header.api_key, header.correlation_id, body[position:])
        else:
            raise ProtocolViolation(
                f"API {header.api_key} version {header.api_version} is not supported on the peer listener"
            )

    def _write(self, parts: list[Buffer]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)

    def _answer_soon(self, parts: list[Buffer]) -> None:
        if not self._answers:
            self.gateway.turn.send(self._send)
        self._answers += parts

    def _send(self) -> None:
        answers, self._answers = self._answers, []
        self._write(answers)

    # Authentication.

    def _authenticate(self, header: RequestHeader, body: memoryview, position: int) -> None:
        """Check the greeting, then the proof; ProtocolViolation if one is wrong."""
        api = API[ApiKey.SASL_AUTHENTICATE]
        if header.api_key != ApiKey.SASL_AUTHENTICATE or not api.covers(header.api_version):
            raise ProtocolViolation("The client did not identify itself: clients must connect to the kafka listener")
        # A copy, since the greeting is kept until the proof arrives.
        request: SaslAuthenticateRequest = api.decode_request(bytes(body), position, header.api_version)
        if self._greeted is None:
            self._challenge(header, decode_hello(bytes(request.auth_bytes)))
        else:
            self._check(header, decode_proof(bytes(request.auth_bytes)).proof, self._greeted)

    def _challenge(self, header: RequestHeader, hello: Hello) -> None:
        gateway = self.gateway
        if hello.to_node != gateway.broker.node_id:
            self._refuse(header, f"This is node {gateway.broker.node_id}, not {hello.to_node}")
        problem = self._problem_of_tls(hello)
        if problem:
            self._refuse(header, problem)
        known = gateway.cluster.secret
        # This node may learn about a new secret later than the other one.
        generation = hello.generation if known.of(hello.generation) is not None else known.generation
        secret = known.of(generation)
        if secret is None:
            self._refuse(header, "This node does not know the cluster's secret")
        nonce = gateway.broker.entropy.uuid().bytes[:NONCE_BYTES]
        binding = b"" if self._tls is None else self._tls.own_fingerprint
        greeted = self._greeted = _Greeting(hello, nonce, secret, binding)
        proof = server_proof(greeted.secret, hello, nonce, greeted.binding)
        challenge = msgspec.json.encode(Challenge(nonce, proof, generation))
        self._answer(header, SaslAuthenticateResponse(auth_bytes=challenge))

    def _problem_of_tls(self, hello: Hello) -> str:
        """Why the connection cannot be that of this node; empty if it can."""
        tls = self.gateway.tls
        if self._tls is not None:
            return tls.problem_of(self._tls.connection, hello.node)
        return NOT_TLS if tls.is_required else ""

    def _check(self, header: RequestHeader, proof: bytes, greeted: "_Greeting") -> None:
        gateway, hello = self.gateway, greeted.hello
        expected = client_proof(greeted.secret, hello, greeted.nonce, greeted.binding)
        is_right = is_proof(expected, proof) and gateway.cluster.secret.is_valid(greeted.secret)
        if gateway.cluster.rules.authenticated_replicas and not is_right:
            self._refuse(header, "The node does not know the cluster's secret")
        if not gateway.proved(self):
            raise ProtocolViolation("Too many connections from other nodes are open")
        self._node = hello.node
        self._secret = greeted.secret
        self._frames.frame_bytes_max = REQUEST_BYTES_MAX
        self._fetches = ReplicaFetches(gateway, NodeId(hello.node), hello.epoch, self._write, self._run, self.abort)
        self._answer(header, SaslAuthenticateResponse())

    def _refuse(self, header: RequestHeader, why: str) -> NoReturn:
        self._answer(header, _refusal(why))
        raise ProtocolViolation(why)

    def _answer(self, header: RequestHeader, answer: SaslAuthenticateResponse) -> None:
        self._write(_framed(header, answer))


def _refusal(why: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=CODES[Reason.CLUSTER_AUTHORIZATION_FAILED], error_message=why)


def _framed(header: RequestHeader, answer: SaslAuthenticateResponse) -> list[Buffer]:
    api = API[ApiKey.SASL_AUTHENTICATE]
    parts = api.encode_response(answer, header.api_version)
    return frame(header.correlation_id, api.response_header_version(header.api_version), parts)


def refusal_without_tls(first: bytes) -> bytes:
    """The answer to the first bytes of a node that connects without TLS where it is required; nothing to anybody else."""
    try:
        header, _ = decode_request_header(first, _LENGTH_BYTES)
    except ProtocolViolation:
        return b""
    if header.api_key != ApiKey.SASL_AUTHENTICATE or not API[ApiKey.SASL_AUTHENTICATE].covers(header.api_version):
        return b""
    return b"".join(_framed(header, _refusal(NOT_TLS)))
