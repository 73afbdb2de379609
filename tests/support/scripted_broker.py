"""A broker that answers as a test says: for what a real one does only when something breaks.

``ScriptedBroker({ApiKey.METADATA: lambda request: MetadataResponse(...)})`` listens on a free port in a ``with``. A handler returns the
response, None for no answer, or CLOSE to close the connection. ApiVersions is answered by itself.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from penstock.wire.kafka.api_versions_generated import ApiVersionsResponse, ApiVersionsResponseApiKey
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.headers import decode_request_header, frame


class Fate(Enum):
    """What a handler may say in the room of a response."""

    CLOSE = "close"


CLOSE = Fate.CLOSE
Handler = Callable[[Any], Any]


class ScriptedBroker:
    """``bootstrap`` is where it listens, ``requests`` what came, by API and in order."""

    def __init__(self, handlers: dict[ApiKey, Handler], *, tls: ssl.SSLContext | None = None) -> None:
        self.handlers = handlers
        self._tls = tls
        self.requests: list[tuple[ApiKey, Any]] = []
        self.port = 0
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def bootstrap(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def listen(self, port: int = 0) -> "ScriptedBroker":
        """Start; port 0 is any free one."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop listening and hang up on everyone."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        # Wakes the accepting thread; closing alone would not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self._thread.join(5)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def __enter__(self) -> "ScriptedBroker":
        return self.listen()

    def __exit__(self, *_: object) -> None:
        self.close()

    def requests_of(self, key: ApiKey) -> list[Any]:
        """The requests of one API, in order."""
        return [request for came, request in self.requests if came is key]

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            while head := _exactly(connection, 4):
                (size,) = struct.unpack(">i", head)
                data = _exactly(connection, size)
                if len(data) < size:
                    return
                if not self._answer(connection, data):
                    connection.shutdown(socket.SHUT_RDWR)
                    return
        except OSError:
            return
        finally:
            if self._tls is not None:
                # It took over the socket that is closed at the end.
                connection.close()

    def _answer(self, connection: socket.socket, data: bytes) -> bool:
        header, position = decode_request_header(data)
        api = API[header.api_key]
        if api.key is ApiKey.API_VERSIONS:
            keys = [ApiKey.API_VERSIONS, *self.handlers]
            spans = [ApiVersionsResponseApiKey(int(key), API[key].min_version, API[key].max_version) for key in keys]
            response: Any = ApiVersionsResponse(api_keys=spans)
        else:
            request = api.decode_request(data, position, header.api_version)
            self.requests.append((api.key, request))
            response = self.handlers[api.key](request)
        if response is CLOSE:
            return False
        if response is not None:
            parts = api.encode_response(response, header.api_version)
            connection.sendall(
                b"".join(frame(header.correlation_id, api.response_header_version(header.api_version), parts))
            )
        return True


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or fewer at the end. A TLS socket knows no MSG_WAITALL."""
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            break
        received += piece
    return received
