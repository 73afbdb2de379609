"""HTTP requests to a broker: a persistent connection, JSON in both directions, and this client's own errors.

Several nodes of a cluster may be named ("HOST:PORT,HOST:PORT"): whenever a connection is made it is to the first that takes one, counted from behind the one
that failed last: a node that hangs still takes connections.

Not for two threads at a time. A connection that the broker closed while nothing was asked is noticed before the next request
is sent, so a worker may take its time between two calls. Once a request is sent it is never sent again by itself: whether it
was carried out is not known, and that is for the caller to decide. Only what merely asks (GET) goes on to the next node.
"""

import http.client
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
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
)

HTTP_DEFAULT: Final = "127.0.0.1:8080"
TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 10_000
CONNECT_TIMEOUT_MS_WITH_OTHERS: Final = 2_000
"""For a node that has others named behind it: a machine that is gone should not keep whoever waits from them."""
ANSWER_TIMEOUT_MS_WITH_OTHERS: Final = 5_000
"""The same for a node that takes the connection and does not answer what another could."""
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""One line of a stream: a record of the largest size that a topic takes, in base64."""

T = TypeVar("T")
Fields = Mapping[str, object]


class ErrorBody(msgspec.Struct):
    """A refusal as ``/v1`` gives it."""

    error: str
    message: str = ""
    reason: str | None = None
    retry_after_ms: int | None = None


class HttpConnection:
    """Requests to one broker, or to one of several nodes, one after the other."""

    def __init__(self, address: str = HTTP_DEFAULT, *, timeout_ms: int = TIMEOUT_MS) -> None:
        """ValueError says what is wrong with the address."""
        self.addresses: Final = parse_addresses(address)
        self.address: Address = self.addresses[0]
        """The one that is connected to, or was last."""
        self.timeout_ms: Final = timeout_ms
        self._order = list(self.addresses)
        """Whoever failed last comes last."""
        self._connection: http.client.HTTPConnection | None = None
        self._has_answered = False
        """Whether what is there has ever answered in HTTP."""

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self) -> None:
        """Connect now, and not with the first request: :class:`CannotConnect` when nobody is there."""
        self._connected()

    def get(self, path: str, answer: type[T], query: Fields | None = None) -> T:
        """GET, decoded; what is None in the query is left out."""
        asked = _with_query(path, query)
        for _ in self.addresses[1:]:
            try:
                return self._ask("GET", asked, None, answer, min(self.timeout_ms, ANSWER_TIMEOUT_MS_WITH_OTHERS))
            except (RequestTimeout, ConnectionLost):
                continue
        return self._ask("GET", asked, None, answer, self.timeout_ms)

    def post(self, path: str, body: Fields, answer: type[T], *, wait_ms: int = 0) -> T:
        """POST a JSON object, what is None left out; ``wait_ms`` is how long the broker was told to wait."""
        return self._ask("POST", path, _encoded(body), answer, self.timeout_ms + wait_ms)

    def tell(self, path: str, body: Fields) -> None:
        """POST something that has no answer but yes or no."""
        self._exchange("POST", path, _encoded(body), self.timeout_ms)

    def delete(self, path: str) -> None:
        """DELETE, which has no answer but yes or no."""
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
        """The lines of an answer without a foreseeable end, each decoded when it comes. It waits for ever between two.

        The connection is the stream's own as long as the iterator lives; closing the iterator closes it.
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
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        self._has_answered = True
        return response

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is not None and self._connection.sock is not None:
            # Nothing is owed to us: what can be read now is the end of the connection.
            if not _is_readable(self._connection.sock):
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
            raise CannotConnect(_why_not(self.addresses, error)) from error

    def _connect(self, address: Address, timeout_ms: int) -> http.client.HTTPConnection:
        timeout_seconds = min(self.timeout_ms, timeout_ms) / 1000
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_seconds)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address, self._connection = address, connection
        return connection

    def _give_up(self) -> None:
        """The one that is connected to has failed: the others come before it from now on."""
        self.close()
        at = self._order.index(self.address) + 1
        self._order = self._order[at:] + self._order[:at]

    @contextmanager
    def _translated(self, timeout_ms: int) -> Iterator[None]:
        """Errors of the network and of HTTP, in this client's words; the connection is not used again after one."""
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
            self._give_up()
            doubt = (
                ""
                if self._has_answered
                else "; it may be the Kafka port. Use the http= address of the broker's ready line"
            )
            raise ConnectionLost(f"{self.address} closed the connection before it answered{doubt}") from error
        except http.client.HTTPException as error:
            self.close()
            raise self._not_ours(str(error)) from error
        except OSError as error:
            self._give_up()
            raise ConnectionLost(f"the connection to {self.address} broke: {error.strerror or error}") from error

    def _refusal(self, response: http.client.HTTPResponse, data: bytes) -> ClientError:
        try:
            body = msgspec.json.decode(data, type=ErrorBody)
        except msgspec.MsgspecError:
            error = self._not_ours(f"it answered {response.status} {response.reason}")
            # What stands before a broker answers so while the broker is away.
            return CannotConnect(str(error)) if response.status >= http.client.INTERNAL_SERVER_ERROR else error
        # Outside /v1 the error is the sentence itself.
        sentence = body.message or body.error
        code = body.error if body.message else str(response.status)
        return RequestRefused(response.status, code, sentence, reason=body.reason, retry_after_ms=body.retry_after_ms)

    def _not_ours(self, seen: str) -> NotPenstock:
        self.close()
        # It may be any protocol, and bytes that mean something to a terminal.
        shown = "".join(sign if sign.isprintable() else "." for sign in seen[:200]).strip()
        return NotPenstock(
            f"{self.address} is not Penstock's HTTP API ({shown}); use the http= address of the broker's ready line"
        )


class HttpClient:
    """Asks one broker over a connection of its own, of several nodes the first that answers. Use it in a ``with`` statement."""

    def __init__(self, address: str = HTTP_DEFAULT, *, timeout_ms: int = TIMEOUT_MS) -> None:
        self._http = HttpConnection(address, timeout_ms=timeout_ms)

    def connect(self) -> None:
        """Connect now, and not with the first request."""
        self._http.connect()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_addresses(text: str) -> tuple[Address, ...]:
    """``HOST:PORT``, or several with commas; ValueError says what is wrong."""
    parts = [part.strip().removeprefix("http://").rstrip("/") for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"{text!r} contains no address; write HOST:PORT, for example {HTTP_DEFAULT}")
    return tuple(parse_address(part) for part in parts)


def v1_path(*parts: str) -> str:
    """A path below ``/v1``; a part may hold any character."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _is_readable(connected: socket.socket) -> bool:
    """Whether something came, if only the end. Not by ``select``, which a process of more than 1024 files cannot use."""
    connected.setblocking(False)
    try:
        connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _with_query(path: str, query: Fields | None) -> str:
    fields = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(fields)}" if fields else path


def _encoded(body: Fields) -> bytes:
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def _why_not(addresses: Sequence[Address], error: OSError) -> str:
    if len(addresses) > 1:
        names = ", ".join(map(str, addresses))
        return f"cannot connect to any of {names}: start the cluster, or specify its nodes with --http"
    (address,) = addresses
    if isinstance(error, socket.gaierror):
        return f"cannot find the host {address.host!r}: check the name in --http"
    if isinstance(error, ConnectionRefusedError):
        why = "is the broker running?"
    elif isinstance(error, TimeoutError):
        why = "no answer in time."
    else:
        why = f"{error.strerror or error}."
    return f'cannot connect to {address}: {why} start one with "penstock serve", or specify another with --http'
