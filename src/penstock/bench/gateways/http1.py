"""HTTP/1.1 as bytes: requests that are made once, and responses that are split on a connection that stays open."""

from __future__ import annotations

import re

from penstock.address import Address
from penstock.bench.faults import BenchError

JSON = "application/json"
NDJSON = "application/x-ndjson"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SHOWN_BYTES = 300
FAILURES = (b"\nHTTP/1.1 3", b"\nHTTP/1.1 4", b"\nHTTP/1.1 5")
"""How a response that reports a failure begins, with the line feed before it."""


def request(
    method: str,
    path: str,
    address: Address,
    body: bytes = b"",
    content_type: str = JSON,
    authorization: str | None = None,
) -> bytes:
    """A whole request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {address}\r\n"
    if authorization:
        head += f"Authorization: {authorization}\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def streamed_request(path: str, address: Address, content_type: str) -> bytes:
    """The head of a POST whose body follows in chunks."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode()


def chunk(data: bytes) -> bytes:
    """A piece of such a body; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class ResponseReader:
    """Splits what a connection receives into responses by their content length; a failure is a BenchError."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: memoryview) -> list[bytes]:
        """The bodies of the responses that are complete now."""
        text = self._data + data if self._data else bytes(data)
        bodies = []
        at = 0
        while (head_end := text.find(b"\r\n\r\n", at)) >= 0:
            status = text[at + 9 : at + 12]
            if not status.startswith(b"2"):
                raise BenchError(
                    f"The broker refused a request: {text[at : at + _SHOWN_BYTES].decode(errors='replace')}"
                )
            length = _LENGTH.search(text, at, head_end)
            if length is None and status != b"204":
                raise BenchError("A response has no content length, so the row cannot tell where it ends")
            end = head_end + 4 + (int(length[1]) if length else 0)
            if end > len(text):
                break
            bodies.append(text[head_end + 4 : end])
            at = end
        self._data = text[at:]
        return bodies
