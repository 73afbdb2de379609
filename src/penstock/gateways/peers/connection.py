"""One node's connection: first the proofs, then requests. A fetch waits for news, as every follower's does, and what comes behind it waits too;
what only nodes ask is begun as it comes and answered when it is done.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.listening import send_at_once
from penstock.gateways.peers.appends import PeerAppends
from penstock.gateways.peers.fetch import ReplicaFetches
from penstock.limits import REQUEST_BYTES_MAX
from penstock.types import NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import decode_frame_size, decode_request_header, frame
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.peers import (
    HEADS,
    NONCE_BYTES,
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
"""Of one frame of a stranger: a greeting has some two hundred."""
HANDSHAKE_SECONDS: Final = 5.0
"""A node that is up needs some milliseconds, and gives up itself after three seconds."""
IDLE_SECONDS: Final = 600.0
_NOT_SAID: Final = "it does not say who it is: clients connect to the kafka listener"


class _Asked(NamedTuple):
    """A request of Kafka's."""

    api: Api
    version: int
    correlation_id: int
    request: msgspec.Struct


class _PeerAsked(NamedTuple):
    """One that only nodes have."""

    api_key: int
    correlation_id: int
    body: memoryview


class PeerConnection:
    """Of one node, once it has proved itself."""

    def __init__(self, gateway: "PeerGateway", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.gateway: Final = gateway
        self._reader = reader
        self._writer = writer
        self._task = asyncio.current_task()
        send_at_once(writer)
        self._fetches: ReplicaFetches | None = None
        self._appends = PeerAppends(gateway, writer.writelines)

    async def run(self) -> None:
        """Until it goes."""
        peer = self._writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                hello = await self._authenticate()
            if not self.gateway.proved(self):
                logger.warning("closing %s: nodes have too many connections to this one", peer)
                return
            self._fetches = ReplicaFetches(self.gateway, NodeId(hello.node), hello.epoch)
            await self._serve_all(hello.node)
        except TimeoutError:
            logger.info("closing %s: it was silent for too long", peer)
        except (OSError, EOFError):
            pass
        except (ProtocolViolation, PenstockError) as error:
            logger.warning("closing %s: %s", peer, error)
        finally:
            self._appends.close()
            if self._fetches is not None:
                self._fetches.close()
            self._writer.transport.abort()

    async def _serve_all(self, node: int) -> None:
        """Read ahead by one request: a fetch that waits for news is answered as soon as there is another question."""
        coming = asyncio.ensure_future(self._next(REQUEST_BYTES_MAX, ApiKey.FETCH))
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    asked = await coming
                coming = asyncio.ensure_future(self._next(REQUEST_BYTES_MAX, ApiKey.FETCH))
                if isinstance(asked, _PeerAsked):
                    await self._appends.room()
                    self._appends.begin(*asked)
                    continue
                api, version, correlation_id, request = asked
                self.gateway.heard_ms[node] = self.gateway.broker.clock.monotonic_ms()
                await self._answer(api, version, correlation_id, self._fetch(request, coming))
        finally:
            coming.cancel()
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await coming

    def cut_off(self) -> None:
        """It has not proved itself, and others want its place."""
        logger.info(
            "closing %s: it has not proved that it is a node, and others come", self._writer.get_extra_info("peername")
        )
        self._writer.transport.abort()

    async def close(self) -> None:
        """Hang up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _next(self, bytes_max: int, served: ApiKey) -> "_Asked | _PeerAsked":
        """The next request, which is of this API or one that only nodes have. What is of another is not even read."""
        size = decode_frame_size(await self._reader.readexactly(4), 0, bytes_max)
        body = memoryview(await self._reader.readexactly(size))
        header, position = decode_request_header(body)
        if header.api_key in HEADS and header.api_version == PEER_VERSION:
            return _PeerAsked(header.api_key, header.correlation_id, body[position:])
        api = API[served]
        if header.api_key != served or not api.min_version <= header.api_version <= api.max_version:
            if served is ApiKey.SASL_AUTHENTICATE:
                raise ProtocolViolation(_NOT_SAID)
            raise ProtocolViolation(f"API {header.api_key} version {header.api_version} is not served to nodes")
        request = api.decode_request(body, position, header.api_version)
        return _Asked(api, header.api_version, header.correlation_id, request)

    async def _answer(self, api: Api, version: int, correlation_id: int, answer: Awaitable[Any]) -> None:
        parts = api.encode_response(await answer, version)
        if self._writer.is_closing():
            raise ConnectionResetError("the node hung up")
        self._writer.writelines(frame(correlation_id, api.response_header_version(version), parts))
        await self._writer.drain()

    async def _fetch(self, request: msgspec.Struct, coming: "asyncio.Future[Any]") -> msgspec.Struct:
        assert self._fetches is not None
        return await self._fetches.fetch(request, coming)  # type: ignore[arg-type]  # by its key

    # Who is it?

    async def _authenticate(self) -> Hello:
        """Two questions, two answers; ProtocolViolation when it does not belong here."""
        gateway = self.gateway
        request, place = await self._sasl()
        hello = decode_hello(bytes(request.auth_bytes))
        nonce = gateway.broker.entropy.uuid().bytes[:NONCE_BYTES]
        if hello.to_node != gateway.broker.node_id:
            await self._refuse(place, f"this is node {gateway.broker.node_id}, not {hello.to_node}")
        challenge = Challenge(nonce, server_proof(gateway.secret, hello, nonce))
        await self._answer(*place, _done(SaslAuthenticateResponse(auth_bytes=msgspec.json.encode(challenge))))
        request, place = await self._sasl()
        proof = decode_proof(bytes(request.auth_bytes))
        if gateway.cluster.rules.authenticated_replicas and not is_proof(
            client_proof(gateway.secret, hello, nonce), proof.proof
        ):
            await self._refuse(place, "it does not know the cluster's secret")
        await self._answer(*place, _done(SaslAuthenticateResponse()))
        return hello

    async def _sasl(self) -> tuple[SaslAuthenticateRequest, tuple[Api, int, int]]:
        asked = await self._next(HANDSHAKE_BYTES_MAX, ApiKey.SASL_AUTHENTICATE)
        if not isinstance(asked, _Asked):
            raise ProtocolViolation(_NOT_SAID)
        assert isinstance(asked.request, SaslAuthenticateRequest), "by its key"
        return asked.request, (asked.api, asked.version, asked.correlation_id)

    async def _refuse(self, place: tuple[Api, int, int], why: str) -> None:
        code = CODES[Reason.CLUSTER_AUTHORIZATION_FAILED]
        await self._answer(*place, _done(SaslAuthenticateResponse(error_code=code, error_message=why)))
        raise ProtocolViolation(why)


async def _done(answer: msgspec.Struct) -> msgspec.Struct:
    return answer
