"""One connection to a server, plain or with TLS and a login, and the requests on it; the CPU time of the server's process.

Invariant: a session sends its next requests when all responses to the last ones have arrived. Its own cost is not measured, so it uses
blocking sockets and Python's TLS; every response is counted and checked as by the load generator of `penstock bench`.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from typing import TypeVar

import grpc
import msgspec

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.gateways.http1 import ResponseReader
from penstock.bench.gateways.http2 import SERVICE
from penstock.bench.kafka import CLIENT_ID
from penstock.bench.pump import Counter, RequestSource
from penstock.client.login import log_in
from penstock.client.security import ClientSecurity
from penstock.client.sockets import connect
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import RequestHeader, decode_response_header, frame_request
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest

TIMEOUT_MS = 30_000
_RECEIVE_BYTES = 1 << 20
_ASKED: dict[type[msgspec.Struct], tuple[ApiKey, int]] = {
    ApiVersionsRequest: (ApiKey.API_VERSIONS, 0),
    SaslHandshakeRequest: (ApiKey.SASL_HANDSHAKE, 1),
    SaslAuthenticateRequest: (ApiKey.SASL_AUTHENTICATE, 2),
}
"""What is sent before the measured requests, in versions that every broker has."""

A = TypeVar("A", bound=msgspec.Struct)


def cpu_s_of(pid: int) -> float:
    """The CPU time that a process has used, in nanosecond steps: /proc counts in hundredths of a second."""
    try:
        # Linux: the clock of a process, as clock_getcpuclockid(3) makes it.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError as error:
        raise BenchError(f"The CPU time of process {pid} cannot be read: {error}; this needs Linux") from error


class Session(ABC):
    """A connection that is open."""

    @abstractmethod
    def exchange(self) -> int:
        """Send requests and wait for their responses; how many there were."""

    @abstractmethod
    def close(self) -> None:
        """End it."""


class SocketSession(Session):
    """`window` requests of a source at once, over a socket."""

    def __init__(self, sock: socket.socket, source: RequestSource, counter: Counter, window: int = 1) -> None:
        sock.settimeout(TIMEOUT_MS / 1000)
        self._sock = sock
        self._source = source
        self._counter = counter
        self._window = window
        self._scratch = memoryview(bytearray(_RECEIVE_BYTES))

    def exchange(self) -> int:
        unsent = self._window
        while unsent:
            data, count = self._source.take(unsent)
            self._sock.sendall(data)
            unsent -= count
        unanswered = self._window
        while unanswered > 0:
            got = self._sock.recv_into(self._scratch)
            if not got:
                raise BenchError("The server closed a connection during the measurement; see its log")
            unanswered -= self._counter.feed(self._scratch[:got])
        if unanswered:
            raise BenchError("The server sent more responses than it got requests")
        return self._window

    def close(self) -> None:
        self._sock.close()


class LoginSession(Session):
    """A new connection each time: the TLS handshake, the login, and one request, if the server has these."""

    def __init__(self, address: Address, security: ClientSecurity) -> None:
        self._address = address
        self._security = security

    def exchange(self) -> int:
        kafka_socket(self._address, self._security).close()
        return 1

    def close(self) -> None:
        pass


class GrpcSession(Session):
    """Unary calls of Publish, one at a time."""

    def __init__(self, address: Address, security: ClientSecurity, message: bytes) -> None:
        self._channel = _grpc_channel(address, security)
        self._publish = self._channel.unary_unary(f"{SERVICE}Publish")
        authorization = security.authorization()
        self._metadata = (("authorization", authorization),) if authorization else None
        self._message = message

    def exchange(self) -> int:
        try:
            self._publish(self._message, metadata=self._metadata, timeout=TIMEOUT_MS / 1000)
        except grpc.RpcError as error:
            raise BenchError(f"The server refused a call: {error}") from error
        return 1

    def close(self) -> None:
        self._channel.close()


class HttpCounter:
    """Counts responses that have a content length."""

    def __init__(self) -> None:
        self._reader = ResponseReader()

    def feed(self, data: memoryview) -> int:
        """The number of responses that `data` completes."""
        return len(self._reader.feed(data))


def kafka_socket(address: Address, security: ClientSecurity) -> socket.socket:
    """A connection to a Kafka listener that is logged in and has answered one request, so that the server has accepted it."""
    sock = connect(address, security, timeout_ms=TIMEOUT_MS)
    try:
        asking = _Asking(sock, address)
        if security.sasl_mechanism is not None:
            log_in(asking, security, timeout_ms=TIMEOUT_MS)
        asking.call(ApiVersionsRequest(), ApiVersionsResponse)
    except BaseException:
        sock.close()
        raise
    return sock


class _Asking:
    """One request after the other on a socket, as far as a login needs it."""

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self._sock = sock
        self.address = address

    def call(
        self,
        request: msgspec.Struct,
        answer: type[A],
        *,
        version_max: int | None = None,  # noqa: ARG002  versions are fixed
        timeout_ms: int | None = None,  # noqa: ARG002  that of the socket
    ) -> A:
        """Send and wait for the answer."""
        key, version = _ASKED[type(request)]
        api = API[key]
        header = RequestHeader(int(key), version, 0, CLIENT_ID)
        self._sock.sendall(b"".join(frame_request(header, api.encode_request(request, version))))
        body = self._receive(int.from_bytes(self._receive(4), "big"))
        _, at = decode_response_header(body, 0, api.response_header_version(version))
        message = api.decode_response(body, at, version)
        assert isinstance(message, answer)
        return message

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._sock.recv(size - len(data))
            if not piece:
                raise BenchError(f"{self.address} closed a new connection; see the server's log")
            data += piece
        return data


def _grpc_channel(address: Address, security: ClientSecurity) -> grpc.Channel:
    if not security.uses_tls:
        return grpc.insecure_channel(str(address))
    assert security.ca_pem is not None
    return grpc.secure_channel(str(address), grpc.ssl_channel_credentials(security.ca_pem.encode()))
