"""The login of a Kafka connection: before it, only ApiVersions, SaslHandshake and SaslAuthenticate are read, in this order.

Kafka's steps: ApiVersions once (or not at all), SaslHandshake with the mechanism, then SaslAuthenticate until the mechanism is done; after a
handshake of version 0, bare tokens instead. A session that ends may be renewed in the same way (KIP-368), by the same principal. Requests are
short and the time is bounded. A failure is answered late, and the connection is closed; any other request closes it without an answer.
"""

from struct import Struct
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.errors import (
    ILLEGAL_SASL_STATE,
    UNSUPPORTED_SASL_MECHANISM,
    counted_code,
)
from penstock.gateways.kafka.sasl import Exchange, Peer, begin
from penstock.limits import LOGIN_MS_MAX
from penstock.transport.receive import FrameReader
from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import decode_request_header
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from penstock.core.security.identity import Identity
    from penstock.gateways.kafka.connection import KafkaConnection

_HEAD: Final = Struct(">hhi")
_LENGTH: Final = Struct(">i")
_RENEWAL_MS_MIN: Final = 1_000
"""Between two logins on one connection."""


class Login:
    """The login of one connection, and its renewals."""

    def __init__(self, connection: "KafkaConnection") -> None:
        self._connection = connection
        self._authenticator: Final = connection.broker.authenticator
        self._clock: Final = connection.broker.clock
        self._exchange: Exchange | None = None
        self._is_raw = False
        """Whether bare tokens follow."""
        self._knows_versions = False
        self._is_renewal = False
        self._began_ms = self._clock.monotonic_ms()
        self.is_open = True
        """Whether the connection must log in before anything else."""

    @property
    def is_late(self) -> bool:
        """Whether the client takes too long. Waits that the broker imposes do not count."""
        return self.is_open and self._clock.monotonic_ms() - self._began_ms > LOGIN_MS_MAX

    def may_begin_again(self) -> bool:
        """Whether a handshake now renews the session: one that ends, or that of a client certificate."""
        identity = self._connection.identity
        if identity.expires_ms is None and self._connection.certificate is None:
            return False
        return self._clock.monotonic_ms() - self._began_ms >= _RENEWAL_MS_MIN or not self._is_renewal

    def begin_again(self) -> None:
        """The client sends a handshake on a connection that is logged in."""
        self._is_renewal = self._connection.identity.method != "certificate"
        self._knows_versions = True
        self._began_ms = self._clock.monotonic_ms()
        self.is_open = True

    def finish(self) -> None:
        """The client is known."""
        self.is_open = False
        self._exchange = None
        self._is_raw = False
        self._began_ms = self._clock.monotonic_ms()

    def take(self, frames: FrameReader, start: int, end: int) -> None:
        """The next frame of a client that is not logged in."""
        if self._is_raw:
            self._connection.wait_for(self._answer_raw(bytes(frames.view[start:end])))
            return
        api_key, version, _ = _HEAD.unpack_from(frames.buffer, start)
        if api_key == ApiKey.SASL_HANDSHAKE:
            self._handshake(*self._read(frames, start, end, ApiKey.SASL_HANDSHAKE))
        elif api_key == ApiKey.SASL_AUTHENTICATE:
            self._authenticate(*self._read(frames, start, end, ApiKey.SASL_AUTHENTICATE))
        elif api_key == ApiKey.API_VERSIONS and self._exchange is None and not self._knows_versions:
            # One of an unknown version is answered with those that are known, and repeated.
            self._knows_versions = version in self._connection.gateway.served[api_key].versions
            self._connection.serve(frames, start, end)
        else:
            raise ProtocolViolation(f"API key {api_key} before authentication: use SASL, as security.protocol says")

    def _read(self, frames: FrameReader, start: int, end: int, key: ApiKey) -> tuple[object, int, int]:
        view = frames.view[start:end]
        header, position = decode_request_header(view)
        served = self._connection.gateway.served[int(key)]
        if header.api_version not in served.versions:
            raise ProtocolViolation(f"{served.api.name} version {header.api_version} is not supported")
        request = API[key].decode_request(view, position, header.api_version)
        return request, header.api_version, header.correlation_id

    def _handshake(self, request: object, version: int, correlation_id: int) -> None:
        assert isinstance(request, SaslHandshakeRequest)
        connection = self._connection
        served = connection.gateway.served[int(ApiKey.SASL_HANDSHAKE)]
        mechanisms = self._authenticator.mechanisms(is_private=connection.is_private)
        code = 0
        if self._exchange is not None or (version == 0 and self._is_renewal):
            code = ILLEGAL_SASL_STATE
        elif request.mechanism not in mechanisms:
            code = UNSUPPORTED_SASL_MECHANISM
        response = SaslHandshakeResponse(code, list(mechanisms))
        connection.answer(served.frame(correlation_id, version, response), served.latency)
        if code:
            connection.gateway.count_error("sasl_handshake")
            connection.close()
            return
        self._exchange = begin(
            request.mechanism, Peer(self._authenticator, connection.caller.client, connection.is_private)
        )
        if version == 0:
            self._is_raw = True
            connection.expect_tokens()

    def _authenticate(self, request: object, version: int, correlation_id: int) -> None:
        assert isinstance(request, SaslAuthenticateRequest)
        connection = self._connection
        served = connection.gateway.served[int(ApiKey.SASL_AUTHENTICATE)]
        if self._exchange is None:
            response = SaslAuthenticateResponse(ILLEGAL_SASL_STATE, "Send SaslHandshake with the mechanism first")
            connection.answer(served.frame(correlation_id, version, response), served.latency)
            connection.close()
            return

        async def answer() -> list[Buffer]:
            response = await self._next(self._exchange, request.auth_bytes)
            return served.frame(correlation_id, version, response)

        connection.wait_for(answer())

    async def _answer_raw(self, data: bytes) -> list[Buffer]:
        response = await self._next(self._exchange, data)
        # There is no way to tell an error: the connection is closed.
        return [] if response.error_code else [_LENGTH.pack(len(response.auth_bytes)), response.auth_bytes]

    async def _next(self, exchange: Exchange | None, data: bytes) -> SaslAuthenticateResponse:
        assert exchange is not None
        connection, began_ms = self._connection, self._clock.monotonic_ms()
        try:
            step = await exchange.step(data)
        except PenstockError as error:
            return self._refuse(error)
        self._began_ms += self._clock.monotonic_ms() - began_ms
        if step.identity is None:
            return SaslAuthenticateResponse(0, None, step.answer)
        if self._is_renewal and step.identity.principal != connection.identity.principal:
            return self._refuse(
                PenstockError(
                    Reason.AUTHENTICATION_FAILED, "A session can be renewed only by the principal that began it"
                )
            )
        connection.log_in(step.identity)
        return SaslAuthenticateResponse(0, None, step.answer, self._lifetime_ms(step.identity))

    def _refuse(self, error: PenstockError) -> SaslAuthenticateResponse:
        self._connection.close()
        return SaslAuthenticateResponse(counted_code(self._connection.broker.meters, error.reason), error.text)

    def _lifetime_ms(self, identity: "Identity") -> int:
        """How long the session lasts; 0 for no end."""
        if identity.expires_ms is None:
            return 0
        return max(1, identity.expires_ms - self._clock.now_ms())
