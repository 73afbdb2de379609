"""JSON lines over a raw socket, as a person with ``nc`` or the simplest client would speak them."""

import json
import socket
from types import TracebackType
from typing import Any, Self

from penstock.address import parse_address

TIMEOUT_SECONDS = 60.0


class Tinymq:
    """One connection."""

    def __init__(self, address: str) -> None:
        where = parse_address(address)
        self.socket = socket.create_connection((where.host, where.port), TIMEOUT_SECONDS)
        self._lines = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        """Bytes, as they are."""
        self.socket.sendall(data)

    def read(self) -> dict[str, Any]:
        """The next answer."""
        line = self._lines.readline()
        assert line.endswith(b"\n"), f"the connection ended with {line!r}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def line(self, line: str | bytes) -> dict[str, Any]:
        """One line, and its answer."""
        self.send((line if isinstance(line, bytes) else line.encode()) + b"\n")
        return self.read()

    def ask(self, type_: str, **fields: object) -> dict[str, Any]:
        """One request, and its answer."""
        return self.line(request(type_, **fields))

    def data(self, type_: str, **fields: object) -> Any:
        """What a request that succeeds gives."""
        answer = self.ask(type_, **fields)
        assert set(answer) == {"ok", "data"}, answer
        assert answer["ok"] is True
        return answer["data"]

    def error(self, type_: str, **fields: object) -> str:
        """What a request that fails is told."""
        return told(self.ask(type_, **fields))

    def ended(self) -> bool:
        """Whether the broker has closed the connection, with nothing left to read."""
        return self._lines.readline() == b""

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()


def request(type_: str, **fields: object) -> str:
    """One request as a line without its end."""
    return json.dumps({"type": type_, **fields})


def told(answer: dict[str, Any]) -> str:
    """The text of an error."""
    assert set(answer) == {"ok", "error"}, answer
    assert answer["ok"] is False
    text = answer["error"]
    assert isinstance(text, str)
    return text
