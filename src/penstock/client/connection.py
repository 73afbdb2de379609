"""One blocking connection to one broker: frames, correlation ids, and the versions that both sides support.

The class of a request determines its API, so a call is ``connection.call(MetadataRequest(...), MetadataResponse)`` and is
typed. ``send`` and ``receive`` are the two halves, for pipelining: responses arrive in the order of the requests. With credentials, the
constructor also logs in, and a login whose time ends is renewed before the next request.
Invariant: after any error of the socket or the protocol, the connection is closed and never used again.
"""

import math
import struct
from collections import deque
from time import monotonic
from typing import Final, NamedTuple, TypeVar

import msgspec

from penstock import __version__
from penstock.address import Address
from penstock.client.buffers import KeptBuffers, space_for
from penstock.client.errors import (
    UNSUPPORTED_VERSION,
    AuthenticationRequired,
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimeout,
    TlsFailed,
    UnsupportedByBroker,
    cannot_connect,
    check,
)
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.client.sockets import connect, is_tls, pieces
from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.api_table_generated import API_TABLE
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_response_header, frame_request

RESPONSE_BYTES_MAX: Final = 2**31 - 1
VERSIONS_BYTES_MAX: Final = 1 << 20
"""The first response is small; the "HTTP" of a web server, read as a size, is not."""
SEND_BUFFERS_MAX: Final = 512
"""Below the kernel's limit on the buffers of one sendmsg (IOV_MAX is 1024)."""
RECEIVE_BYTES: Final = 1 << 20

TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 5_000
HANDSHAKE_TIMEOUT_MS: Final = 10_000
"""For the first response. The kernel accepts connections even for a stopped process; another node may respond then."""

_TLS: Final = "TLS"
_OTHER_PROTOCOLS: Final = ((b"HTTP", "HTTP"), (b"\x15\x03", _TLS), (b"{", "JSON lines"))
"""How responses of other protocols begin. Read as the size of a response, these are gigabytes."""
_USE_TLS: Final = "{} uses TLS: connect with --tls, or with --tls-ca and the certificate of its CA"
_APIS_BY_MODULE: Final = {f"penstock.wire.kafka.{row[2]}_generated": API[row[0]] for row in API_TABLE}
_SIZE: Final = struct.Struct(">i")
_CODE: Final = struct.Struct(">h")

A = TypeVar("A", bound=msgspec.Struct)


class Ticket(NamedTuple):
    """A request in flight: the API and version of its response."""

    api: Api
    version: int
    correlation_id: int


class Connection:
    """A socket to ``address``; the constructor connects and asks for the broker's versions."""

    def __init__(
        self,
        address: Address,
        *,
        client_id: str = "penstock",
        timeout_ms: int = TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        security: ClientSecurity = UNSECURED,
    ) -> None:
        self.address: Final = address
        self.timeout_ms: Final = timeout_ms
        self._client_id: Final = client_id
        self._connect_timeout_ms: Final = connect_timeout_ms
        self._security: Final = security
        self._log_in_at = math.inf
        self._is_accepted = False
        """Whether the broker has answered a request other than the first: it may close the connection of a stranger instead."""
        self._correlation_id = 0
        self._waiting: deque[Ticket] = deque()
        self._early: dict[int, memoryview] = {}
        """Responses that arrived before the one that was waited for: metadata is requested while batches are in flight."""
        self._versions: dict[int, tuple[int, int]] = {}
        self._buffers: Final = KeptBuffers()
        try:
            self._socket = connect(address, security, timeout_ms=connect_timeout_ms)
        except OSError as error:
            raise cannot_connect(address, error, "--bootstrap") from error
        self._is_tls: Final = is_tls(self._socket)
        self._open = True
        try:
            self._negotiate()
            if security.sasl_mechanism is not None:
                self._log_in()
        except ClientError:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether it can be used; False after the first error and after :meth:`close`."""
        return self._open

    def close(self) -> None:
        """Close the socket; closing twice is harmless."""
        self._open = False
        self._socket.close()

    def version_for(self, api: Api, version_max: int | None = None) -> int:
        """The newest version that both sides and the caller support; :class:`UnsupportedByBroker` if there is none."""
        span = self._versions.get(api.key)
        if span is None:
            raise UnsupportedByBroker(f"The broker at {self.address} does not support {api.name}")
        ours_max = api.max_version if version_max is None else min(api.max_version, version_max)
        version = min(ours_max, span[1])
        if version < max(api.min_version, span[0]):
            raise UnsupportedByBroker(
                f"The broker at {self.address} supports {api.name} versions {span[0]} to {span[1]}, this client {api.min_version} to {ours_max}"
            )
        return version

    def call(
        self, request: msgspec.Struct, answer: type[A], *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> A:
        """Send and wait for the answer."""
        ticket = self.send(request, version_max=version_max)
        return self.receive(ticket, answer, timeout_ms=timeout_ms)

    def send(self, request: msgspec.Struct, *, version_max: int | None = None, answered: bool = True) -> Ticket:
        """Send without waiting. ``answered=False`` is for the one request without an answer: Produce with acks=0."""
        if self._log_in_at <= monotonic():
            self._log_in_again()
        api = _APIS_BY_MODULE[type(request).__module__]
        version = self.version_for(api, version_max) if self._versions else 0
        return self._send(request, api, version, answered=answered)

    def receive(self, ticket: Ticket, answer: type[A], *, timeout_ms: int | None = None) -> A:
        """The response to a request in flight; responses that arrive before it are kept until they are requested."""
        body = self._early.pop(ticket.correlation_id, None)
        if body is None:
            body = self._receive_own(ticket, self.timeout_ms if timeout_ms is None else timeout_ms)
        try:
            header_version = ticket.api.response_header_version(ticket.version)
            correlation_id, position = decode_response_header(body, 0, header_version)
            if correlation_id != ticket.correlation_id:
                raise ProtocolViolation(f"Got response {correlation_id} instead of {ticket.correlation_id}")
            message = ticket.api.decode_response(body, position, ticket.version)
        except ProtocolViolation as error:
            raise self._violated(error) from error
        assert isinstance(message, answer)
        return message

    def _receive_own(self, ticket: Ticket, timeout_ms: int) -> memoryview:
        if not self._open:
            raise ConnectionLost(f"The connection to {self.address} is closed")
        assert ticket in self._waiting, "an answer is received once"
        while (first := self._waiting.popleft()) is not ticket:
            self._early[first.correlation_id] = self._receive_frame(first, timeout_ms)
        return self._receive_frame(ticket, timeout_ms)

    def _send(self, request: msgspec.Struct, api: Api, version: int, *, answered: bool) -> Ticket:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(int(api.key), version, self._correlation_id, self._client_id)
        ticket = Ticket(api, version, self._correlation_id)
        self._send_all(frame_request(header, api.encode_request(request, version)))
        if answered:
            self._waiting.append(ticket)
        return ticket

    def _send_all(self, buffers: list[Buffer]) -> None:
        if not self._open:
            raise ConnectionLost(f"The connection to {self.address} is closed")
        try:
            self._socket.settimeout(self.timeout_ms / 1000)
            if self._is_tls:
                for piece in pieces(buffers):
                    self._socket.sendall(piece)
                return
            for start in range(0, len(buffers), SEND_BUFFERS_MAX):
                some = buffers[start : start + SEND_BUFFERS_MAX]
                sent = self._socket.sendmsg(some)
                if sent < sum(map(len, some)):
                    self._socket.sendall(memoryview(b"".join(some))[sent:])
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(f"{self.address} accepted no data for {self.timeout_ms} ms") from error
        except OSError as error:
            self.close()
            raise self._lost(error) from error

    def _receive_frame(self, ticket: Ticket, timeout_ms: int, size_max: int = RESPONSE_BYTES_MAX) -> memoryview:
        deadline = monotonic() + timeout_ms / 1000
        head = b""
        try:
            head = bytes(self._receive_exactly(4, deadline))
            (size,) = _SIZE.unpack(head)
            if not 4 <= size <= size_max:
                raise ProtocolViolation(f"A response of {size} bytes is not possible")
            body = self._receive_exactly(size, deadline)
            self._is_accepted = bool(self._versions)
            return body
        except TimeoutError as error:
            self.close()
            raise RequestTimeout(
                f"{self.address} did not answer {ticket.api.name} within {timeout_ms} ms; check that it is a Kafka broker, and not overloaded"
            ) from error
        except OSError as error:
            self.close()
            raise self._lost(error) from error
        except ProtocolViolation as error:
            raise self._violated(error, head) from error

    def _lost(self, error: OSError) -> ClientError:
        """The error for a connection that broke before a response. If nothing was ever answered, it is most likely a mistake of this client."""
        if self._is_tls:
            from penstock.client.tls import explained

            failure = explained(self.address, error, self._security, is_first=not self._versions)
            if failure is not None:
                return failure
        elif not self._versions and self._answers_tls():
            return TlsFailed(_USE_TLS.format(self.address))
        if self._versions and not self._is_accepted and self._is_login_required():
            return AuthenticationRequired(self.address)
        return ConnectionLost(f"Lost the connection to {self.address}: {error}")

    def _answers_tls(self) -> bool:
        """Whether the server closed the connection because this client does not use TLS."""
        from penstock.client.tls import answers_tls

        return answers_tls(self.address, self._connect_timeout_ms)

    def _is_login_required(self) -> bool:
        """Whether the broker closed the connection because this client did not log in. Brokers do not say so; only their answer to a login does."""
        if self._security.sasl_mechanism is not None:
            return False
        from penstock.client.login import requires_login

        try:
            again = _Stranger(
                self.address,
                client_id=self._client_id,
                timeout_ms=self.timeout_ms,
                connect_timeout_ms=self._connect_timeout_ms,
                security=self._security,
            )
        except ClientError:
            return False
        try:
            return requires_login(again, timeout_ms=min(self.timeout_ms, HANDSHAKE_TIMEOUT_MS))
        finally:
            again.close()

    def _violated(self, error: ProtocolViolation, head: bytes = b"") -> ClientError:
        """Close the connection; the error to raise. If the first response is invalid, the address is wrong; a later one was damaged."""
        self.close()
        if self._versions:
            return ConnectionLost(f"{self.address} does not speak the Kafka protocol: {error}")
        kind = next((kind for start, kind in _OTHER_PROTOCOLS if head.startswith(start)), "")
        if kind == _TLS:
            return TlsFailed(_USE_TLS.format(self.address))
        seen = f" (it looks like {kind})" if kind else f": {error}"
        return NotKafka(
            f"{self.address} does not speak the Kafka protocol{seen}; use the kafka= address of the broker's ready line"
        )

    def _receive_exactly(self, size: int, deadline: float) -> memoryview:
        received = self._buffers.take(size)
        is_new, space = received is None, space_for(size)
        if received is None:
            # The buffer grows as data arrives: a size sent by another kind of server must not make us allocate gigabytes.
            received = bytearray(min(space, RECEIVE_BYTES))
        filled = 0
        while filled < size:
            if filled == len(received):
                received.extend(bytes(min(space - filled, len(received))))
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            with memoryview(received) as view:
                count = self._socket.recv_into(view[filled:size])
            if not count:
                raise ConnectionResetError("The broker closed the connection")
            filled += count
        if is_new:
            self._buffers.keep(received)
        return memoryview(received)[:size]

    def _negotiate(self) -> None:
        """Request the supported versions, with the newest version first; a broker that does not know it answers with version 0 and error 35."""
        api = API[ApiKey.API_VERSIONS]
        request = ApiVersionsRequest(client_software_name="penstock-client", client_software_version=__version__)
        for version in (3, 0):
            ticket = self._send(request, api, version, answered=True)
            self._waiting.popleft()
            timeout_ms = min(self.timeout_ms, HANDSHAKE_TIMEOUT_MS)
            try:
                body = self._receive_frame(ticket, timeout_ms, VERSIONS_BYTES_MAX)
            except RequestTimeout as error:
                raise CannotConnect(str(error)) from error
            try:
                _, position = decode_response_header(body, 0, 0)
                answer = self._decode_versions(api, body, position, version)
            except ProtocolViolation as error:
                raise self._violated(error) from error
            if answer is not None:
                self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
                return
        raise UnsupportedByBroker(
            f"The broker at {self.address} supports no version of ApiVersions that this client supports"
        )

    def _log_in(self) -> None:
        from penstock.client.login import log_in

        renew_s = log_in(self, self._security, timeout_ms=min(self.timeout_ms, HANDSHAKE_TIMEOUT_MS))
        self._log_in_at = math.inf if renew_s is None else monotonic() + renew_s

    def _log_in_again(self) -> None:
        """Renew the login. Requests in flight are answered first: a broker refuses other requests in the middle of a login."""
        self._log_in_at = math.inf
        while self._waiting:
            first = self._waiting.popleft()
            self._early[first.correlation_id] = self._receive_frame(first, self.timeout_ms)
        try:
            self._log_in()
        except ClientError:
            self.close()
            raise

    def _decode_versions(self, api: Api, body: memoryview, position: int, version: int) -> ApiVersionsResponse | None:
        if len(body) < position + _CODE.size:
            raise ProtocolViolation("The response ends before its error code")
        (code,) = _CODE.unpack_from(body, position)
        if code == UNSUPPORTED_VERSION and version:
            return None
        answer = api.decode_response(body, position, version)
        assert isinstance(answer, ApiVersionsResponse)
        check(answer.error_code, f"version negotiation with {self.address}")
        return answer


class _Stranger(Connection):
    """A connection that only asks whether a login is required."""

    def _is_login_required(self) -> bool:
        return False
