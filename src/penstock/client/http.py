"""HTTP requests to a broker: a persistent connection, JSON in both directions, and the errors of this client.

With several nodes ("HOST:PORT,HOST:PORT"), a new connection goes to the first node that accepts it. The node that failed last is tried
last, since a node that hangs still accepts connections.

Not thread-safe. Before each request, the client checks whether the broker closed the idle connection, and reconnects if so. A request that
was sent is not repeated, because it may have been carried out; only a GET is sent to the next node.
"""

import http.client
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock import __version__
from penstock.address import Address, parse_address
from penstock.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    NotPenstock,
    RequestRefused,
    RequestTimeout,
    TlsFailed,
    cannot_connect,
    cannot_connect_to_any,
)
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.client.sockets import connect, is_readable

HTTP_DEFAULT: Final = "127.0.0.1:8080"
TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 10_000
CONNECT_TIMEOUT_MS_WITH_OTHERS: Final = 2_000
"""For each of several nodes except the last: the client should not wait long for a machine that is down."""
ANSWER_TIMEOUT_MS_WITH_OTHERS: Final = 5_000
"""The same for a node that accepts the connection and does not respond."""
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One line of a stream: a record of the largest size that a topic takes, in base64."""

_HTTP: Final = "http"
_HTTPS: Final = "https"

T = TypeVar("T")
Fields = Mapping[str, object]


class ErrorBody(msgspec.Struct):
    """The body of a refusal by ``/v1``."""

    error: str
    message: str = ""
    reason: str | None = None
    retry_after_ms: int | None = None


class HttpSession:
    """Requests to one broker, or to one of several nodes, one after the other."""

    def __init__(
        self, address: str = HTTP_DEFAULT, *, timeout_ms: int = TIMEOUT_MS, security: ClientSecurity = UNSECURED
    ) -> None:
        """Raises ValueError if the address is invalid."""
        self.addresses: Final = parse_addresses(address)
        self._encrypted: Final = _encrypted(address, default=security.uses_tls)
        self._security: Final = security
        self.address: Address = self.addresses[0]
        """The node of the current or last connection."""
        self.timeout_ms: Final = timeout_ms
        self._order = list(self.addresses)
        """The node that failed last is the last."""
        self._connection: http.client.HTTPConnection | None = None
        self._has_answered = False
        """Whether there has been any HTTP response."""

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> None:
        """Connect now instead of with the first request; :class:`CannotConnect` if that fails."""
        self._connected()

    def get(self, path: str, answer: type[T], query: Fields | None = None) -> T:
        """GET, with the decoded response; fields of the query that are None are left out."""
        asked = _with_query(path, query)
        for _ in self.addresses[1:]:
            try:
                return self._ask("GET", asked, None, answer, min(self.timeout_ms, ANSWER_TIMEOUT_MS_WITH_OTHERS))
            except (RequestTimeout, ConnectionLost):
                continue
        return self._ask("GET", asked, None, answer, self.timeout_ms)

    def post(self, path: str, body: Fields, answer: type[T], *, wait_ms: int = 0) -> T:
        """POST a JSON object without the fields that are None; ``wait_ms`` is how long the request lets the broker wait."""
        return self._ask("POST", path, _encoded(body), answer, self.timeout_ms + wait_ms)

    def post_only(self, path: str, body: Fields) -> None:
        """POST a JSON object, for a response without a body."""
        self._exchange("POST", path, _encoded(body), self.timeout_ms)

    def put_only(self, path: str, body: Fields) -> None:
        """PUT a JSON object, for a response without a body."""
        self._exchange("PUT", path, _encoded(body), self.timeout_ms)

    def delete(self, path: str) -> None:
        """DELETE, for a response whose body is not needed."""
        self._exchange("DELETE", path, None, self.timeout_ms)

    def _ask(self, method: str, path: str, body: bytes | None, answer: type[T], timeout_ms: int) -> T:
        return self._decoded(self._exchange(method, path, body, timeout_ms), answer)

    def _decoded(self, data: bytes, answer: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=answer)
        except msgspec.MsgspecError as error:
            raise self._not_ours(str(error)) from error

    def _exchange(self, method: str, path: str, body: bytes | None, timeout_ms: int) -> bytes:
        with self._translated(timeout_ms):
            response = self._send(method, path, body, timeout_ms)
            data = response.read(ANSWER_BYTES_MAX)
            if response.will_close:
                self.close()
        if response.status >= http.client.BAD_REQUEST:
            raise self._refusal(response, data)
        return data

    def stream(
        self, method: str, path: str, line: type[T], *, query: Fields | None = None, body: Fields | None = None
    ) -> Generator[T, None, None]:
        """The lines of a streaming response, each decoded when it arrives. There is no timeout between two lines.

        The iterator takes over the connection, and closes it when it is closed itself.
        """
        self.close()
        encoded = None if body is None else _encoded(body)
        with self._translated(self.timeout_ms):
            response = self._send(method, _with_query(path, query), encoded, self.timeout_ms)
            if response.status >= http.client.BAD_REQUEST:
                error = self._refusal(response, response.read(ANSWER_BYTES_MAX))
                self.close()
                raise error
        assert self._connection is not None
        connection, self._connection = self._connection, None
        try:
            if connection.sock is not None:
                connection.sock.settimeout(None)
            while True:
                with self._translated(0):
                    data = response.readline(LINE_BYTES_MAX)
                if not data:
                    return
                if not data.endswith(b"\n"):
                    raise ConnectionLost(f"{self.address} closed the connection in the middle of a line")
                yield self._decoded(data, line)
        finally:
            response.close()
            connection.close()

    # -- the connection

    def _send(self, method: str, path: str, body: bytes | None, timeout_ms: int) -> http.client.HTTPResponse:
        connection = self._connected()
        assert connection.sock is not None
        connection.sock.settimeout(timeout_ms / 1000)
        headers = {"User-Agent": f"penstock/{__version__}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        authorization = self._security.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        self._has_answered = True
        return response

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is not None and self._connection.sock is not None:
            # No response is due, so if there is something to read, it is the end of the connection.
            if not is_readable(self._connection.sock):
                return self._connection
            self.close()
        *others, last = self._order
        for address in others:
            try:
                return self._connect(address, CONNECT_TIMEOUT_MS_WITH_OTHERS)
            except OSError:
                continue
        try:
            return self._connect(last, CONNECT_TIMEOUT_MS)
        except OSError as error:
            if others:
                raise cannot_connect_to_any(self.addresses, "--http") from error
            raise cannot_connect(last, error, "--http") from error

    def _connect(self, address: Address, timeout_ms: int) -> http.client.HTTPConnection:
        self.address = address
        connected = connect(
            address, self._security, timeout_ms=min(self.timeout_ms, timeout_ms), tls=self._encrypted[address]
        )
        connection = http.client.HTTPConnection(address.host, address.port)
        connection.sock = connected
        self._connection = connection
        return connection

    def _give_up(self) -> None:
        """Close the connection after a failure; from now on the other nodes are tried first."""
        self.close()
        at = self._order.index(self.address) + 1
        self._order = self._order[at:] + self._order[:at]

    @contextmanager
    def _translated(self, timeout_ms: int) -> Iterator[None]:
        """Translate errors of the network and of HTTP to those of this client. After one, the connection is not used again."""
        try:
            yield
        except ClientError:
            raise
        except TimeoutError as error:
            self._give_up()
            raise RequestTimeout(
                f"{self.address} did not answer within {timeout_ms} ms; check whether it is overloaded"
            ) from error
        except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError) as error:
            failure = self._failure_of(error)
            self._give_up()
            if failure is not None:
                raise failure from error
            doubt = (
                ""
                if self._has_answered
                else "; it may be the Kafka port. Use the http= address of the broker's ready line"
            )
            raise ConnectionLost(f"{self.address} closed the connection before it answered{doubt}") from error
        except http.client.HTTPException as error:
            self.close()
            if not self._has_answered and (failure := self._expects_tls()) is not None:
                raise failure from error
            raise self._not_ours(str(error)) from error
        except OSError as error:
            failure = self._failure_of(error)
            self._give_up()
            if failure is not None:
                raise failure from error
            raise ConnectionLost(f"The connection to {self.address} broke: {error.strerror or error}") from error

    def _expects_tls(self) -> TlsFailed | None:
        """The error for a server that expects TLS and was asked without."""
        if self._encrypted[self.address]:
            return None
        from penstock.client.tls import answers_tls

        if not answers_tls(self.address, min(self.timeout_ms, CONNECT_TIMEOUT_MS)):
            return None
        return TlsFailed(f"{self.address} uses TLS: connect with --tls, or with --tls-ca and the certificate of its CA")

    def _failure_of(self, error: Exception) -> TlsFailed | None:
        """What a broken connection means for TLS. If the server never answered, it may expect TLS, or a certificate."""
        is_first = not self._has_answered
        if not self._encrypted[self.address]:
            return self._expects_tls() if is_first else None
        if not isinstance(error, OSError):
            return None
        from penstock.client.tls import explained

        return explained(self.address, error, self._security, is_first=is_first)

    def _refusal(self, response: http.client.HTTPResponse, data: bytes) -> ClientError:
        try:
            body = msgspec.json.decode(data, type=ErrorBody)
        except msgspec.MsgspecError:
            if response.status == http.client.BAD_REQUEST and (failure := self._expects_tls()) is not None:
                self.close()
                return failure
            error = self._not_ours(f"it answered {response.status} {response.reason}")
            # A proxy responds like this while the broker is down.
            return CannotConnect(str(error)) if response.status >= http.client.INTERNAL_SERVER_ERROR else error
        # Outside /v1 the error is the sentence itself.
        sentence = body.message or body.error
        code = body.error if body.message else str(response.status)
        return RequestRefused(response.status, code, sentence, reason=body.reason, retry_after_ms=body.retry_after_ms)

    def _not_ours(self, seen: str) -> NotPenstock:
        self.close()
        # It may be any protocol, with bytes that control a terminal.
        shown = "".join(sign if sign.isprintable() else "." for sign in seen[:200]).strip()
        return NotPenstock(
            f"{self.address} is not Penstock's HTTP API ({shown}); use the http= address of the broker's ready line"
        )


class HttpClient:
    """The base of the HTTP clients: a connection to a broker, or to the first of several nodes that accepts it. Use it in a ``with`` statement."""

    def __init__(
        self, address: str = HTTP_DEFAULT, *, timeout_ms: int = TIMEOUT_MS, security: ClientSecurity = UNSECURED
    ) -> None:
        self._http = HttpSession(address, timeout_ms=timeout_ms, security=security)
        self.security: Final = security
        self.timeout_ms: Final = timeout_ms

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse ``HOST:PORT``, or several separated by commas. Raises ValueError if one is invalid."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{text!r} contains no address; write HOST:PORT, for example {HTTP_DEFAULT}")
    return tuple(_split_scheme(part)[1] for part in parts)


def _split_scheme(text: str) -> tuple[str | None, Address]:
    scheme, separator, rest = text.rpartition("://")
    if scheme not in ("", _HTTP, _HTTPS):
        raise ValueError(f"{text!r} must begin with https:// or http://, or with the host")
    return scheme if separator else None, parse_address(rest.rstrip("/"))


def _encrypted(text: str, *, default: bool) -> dict[Address, bool]:
    """For each address, whether TLS is used there."""
    found = [_split_scheme(part.strip()) for part in text.split(",") if part.strip()]
    return {address: default if scheme is None else scheme == _HTTPS for scheme, address in found}


def v1_path(*parts: str) -> str:
    """A path under ``/v1``; a part may contain any character."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _with_query(path: str, query: Fields | None) -> str:
    fields = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(fields)}" if fields else path


def _encoded(body: Fields) -> bytes:
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})
