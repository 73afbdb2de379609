"""Responses as bytes, and the ids of requests.

Every response has an ``X-Request-Id``: the client's own if it is short and printable, otherwise a generated one. The fast lane
(``lane.py``) and ASGI both send exactly the headers of :func:`headers_of`, so a client cannot tell which of them served it.
"""

import http
from typing import Any, Final, NamedTuple

import msgspec

JSON: Final = b"application/json"
NDJSON: Final = b"application/x-ndjson"
HTML: Final = b"text/html; charset=utf-8"
EVENTS: Final = b"text/event-stream"
REQUEST_ID: Final = b"x-request-id"
REQUEST_ID_CHARS_MAX: Final = 128

RawHeaders = list[tuple[bytes, bytes]]

encoder: Final = msgspec.json.Encoder()


class Answer(NamedTuple):
    """A complete response. ``headers`` follow the type, the length and the request id."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


NO_CONTENT: Final = Answer(204)


def json_answer(value: Any, status: int = 200) -> Answer:
    """A msgspec struct, or plain lists and dicts, as JSON."""
    return Answer(status, encoder.encode(value))


def given_request_id(headers: RawHeaders) -> bytes | None:
    """The id that the client gave the request, if it is short and printable."""
    for name, value in headers:
        if name == REQUEST_ID:
            fit = 0 < len(value) <= REQUEST_ID_CHARS_MAX and value.isascii() and value.decode("ascii").isprintable()
            return value.strip() or None if fit else None
    return None


def headers_of(answer: Answer, request_id: bytes) -> RawHeaders:
    """All headers of an answer, in the order in which they are sent."""
    headers: RawHeaders = []
    if answer.status != 204:
        headers.append((b"content-type", answer.content_type))
        headers.append((b"content-length", b"%d" % len(answer.body)))
    headers.append((REQUEST_ID, request_id))
    headers.extend(answer.headers)
    return headers


STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode()) for status in http.HTTPStatus
}


def rendered(answer: Answer, request_id: bytes, default_headers: bytes = b"") -> bytes:
    """The bytes of an answer. ``default_headers`` (the date) are rendered already and come first."""
    if answer.headers or answer.status == 204:
        lines = b"".join(b"%s: %s\r\n" % header for header in headers_of(answer, request_id))
    else:
        lines = b"content-type: %s\r\ncontent-length: %d\r\nx-request-id: %s\r\n" % (
            answer.content_type,
            len(answer.body),
            request_id,
        )
    return b"%s%s%s\r\n%s" % (STATUS_LINES[answer.status], default_headers, lines, answer.body)
