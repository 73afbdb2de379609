"""What leaves this gateway: answers as bytes, refusals in the shape of the API that was asked, and ids that name a request.

Outside ``/v1`` an error is ``{"error": text}``, inside it is ``{"error": CODE, "message": text}``. Every answer has an
``X-Request-Id``: the client's own when it sent one that is fit to be repeated, else one that is made here. Both ways to a
handler (``lane.py`` and ASGI) take an answer's headers from :func:`headers_of`, so that a client cannot tell which it went.
"""

import http
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.errors import PenstockError, Reason

JSON: Final = b"application/json"
NDJSON: Final = b"application/x-ndjson"
HTML: Final = b"text/html; charset=utf-8"
EVENTS: Final = b"text/event-stream"
REQUEST_ID: Final = b"x-request-id"
REQUEST_ID_CHARS_MAX: Final = 128
V1: Final = "/v1"

RawHeaders = list[tuple[bytes, bytes]]

encoder: Final = msgspec.json.Encoder()


class Answer(NamedTuple):
    """One whole answer. ``headers`` come behind the type, the length and the request id."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


NO_CONTENT: Final = Answer(204)


class Refusal(Exception):
    """A request that is refused with this status and text; ``code`` is for /v1, ``more`` are further fields of the body."""

    def __init__(
        self,
        status: int,
        text: str,
        code: str | None = None,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.code = code
        self.headers = headers
        self.more = more


class UnknownTopic(Refusal):
    """There is no such topic, as far as this node knows: in a cluster another one may have made it just now."""

    def __init__(self, topic: str, status: int, text: str) -> None:
        super().__init__(status, text)
        self.topic = topic


class UnknownTopicError(PenstockError):
    """The same in the words of /v1."""

    def __init__(self, topic: str, text: str) -> None:
        super().__init__(Reason.INVALID_REQUEST, text)
        self.topic = topic


UNKNOWN_TOPIC: Final = (UnknownTopic, UnknownTopicError)

CODES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    429: "RESOURCE_EXHAUSTED",
    431: "HEADERS_TOO_LARGE",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""What /v1 calls each status, unless the refusal says otherwise."""

STATUSES: Final[Mapping[Reason, int]] = {
    Reason.UNKNOWN_TOPIC_OR_PARTITION: 404,
    Reason.UNKNOWN_TOPIC_ID: 404,
    Reason.GROUP_ID_NOT_FOUND: 404,
    Reason.UNKNOWN_MEMBER_ID: 404,
    Reason.UNKNOWN_CONSUMER: 404,
    Reason.UNKNOWN_SINK: 404,
    Reason.UNKNOWN_NODE: 404,
    Reason.TOPIC_AUTHORIZATION_FAILED: 403,
    Reason.GROUP_AUTHORIZATION_FAILED: 403,
    Reason.CLUSTER_AUTHORIZATION_FAILED: 403,
    Reason.TOPIC_ALREADY_EXISTS: 409,
    Reason.NOT_LEASE_OWNER: 409,
    Reason.SINK_BUSY: 409,
    Reason.ELECTION_NOT_NEEDED: 409,
    Reason.NO_REASSIGNMENT_IN_PROGRESS: 409,
    Reason.NON_EMPTY_GROUP: 409,
    Reason.GROUP_SUBSCRIBED_TO_TOPIC: 409,
    Reason.INCONSISTENT_GROUP_PROTOCOL: 409,
    Reason.RECORDS_TOO_LARGE: 413,
    Reason.RECORD_LIST_TOO_LARGE: 413,
    Reason.BACKLOG_FULL: 429,
    Reason.GROUP_MAX_SIZE_REACHED: 429,
    Reason.POLICY_VIOLATION: 429,
    Reason.CORRUPT_RECORDS: 500,
    Reason.STORAGE_ERROR: 503,
    Reason.NOT_ENOUGH_REPLICAS: 503,
    Reason.SHUTTING_DOWN: 503,
    Reason.LEADER_NOT_AVAILABLE: 503,
    Reason.OFFSET_NOT_AVAILABLE: 503,
    Reason.PREFERRED_LEADER_NOT_AVAILABLE: 503,
    Reason.ELIGIBLE_LEADERS_NOT_AVAILABLE: 503,
    Reason.NOT_LEADER_OR_FOLLOWER: 503,
    Reason.COORDINATOR_LOAD_IN_PROGRESS: 503,
    Reason.COORDINATOR_NOT_AVAILABLE: 503,
    Reason.NOT_COORDINATOR: 503,
    Reason.REQUEST_TIMED_OUT: 504,
    Reason.METADATA_UNAVAILABLE: 503,
    Reason.LINK_LOST: 504,
    Reason.UNKNOWN: 500,
}
"""The status of a refusal of the core; 400 for the others, which are the caller's mistakes."""


def is_v1(path: str) -> bool:
    """Whether the path is of the API whose errors have a code."""
    return path.startswith(V1) and path[3:4] in ("", "/")


def json_answer(value: Any, status: int = 200) -> Answer:
    """A value as JSON: a msgspec struct, or plain lists and dicts."""
    return Answer(status, encoder.encode(value))


def error_answer(path: str, refusal: Refusal) -> Answer:
    """A refusal in the shape of the API that ``path`` belongs to."""
    body: dict[str, object]
    if is_v1(path):
        body = {"error": refusal.code or CODES.get(refusal.status, "INTERNAL"), "message": refusal.text}
    else:
        body = {"error": refusal.text}
    if refusal.more:
        body |= refusal.more
    return Answer(refusal.status, encoder.encode(body), JSON, refusal.headers)


def failure_answer(path: str, request_id: bytes) -> Answer:
    """A mistake of ours, whose trace is in the log."""
    text = f"The broker had an internal error; its log has details under request {request_id.decode('ascii')}."
    return error_answer(path, Refusal(500, text))


MOVED: Final[Mapping[Reason, str]] = {
    Reason.NOT_LEADER_OR_FOLLOWER: "Another node now leads this partition. Send the request again.",
    Reason.LEADER_NOT_AVAILABLE: "The partition has no leader at the moment. Try again in a moment.",
    Reason.NOT_COORDINATOR: "Another node has taken over. Send the request again.",
    Reason.COORDINATOR_NOT_AVAILABLE: "No coordinator is available for this at the moment. Try again in a moment.",
    Reason.COORDINATOR_LOAD_IN_PROGRESS: "A node is taking over. Try again in a moment.",
}
"""What passes within seconds in a cluster, in words for a refusal that comes without any."""
_RETRY_AFTER: Final = ((b"retry-after", b"1"),)


def refusal_of(error: PenstockError) -> Refusal:
    """A refusal of the core as HTTP says it."""
    status = STATUSES.get(error.reason, 400)
    moved = MOVED.get(error.reason)
    if moved is None:
        return Refusal(status, error.text)
    return Refusal(status, moved if error.text == error.reason.value else error.text, headers=_RETRY_AFTER)


def reason_refusal(reason: Reason) -> Refusal:
    """The same for a reason that comes without a text."""
    return refusal_of(PenstockError(reason))


def given_request_id(headers: RawHeaders) -> bytes | None:
    """The id that the client gave the request, if it is short and plain enough to be repeated."""
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
    """An answer as it goes over the wire. ``default_headers`` (the date) are rendered already and stand first."""
    if answer.headers or answer.status == 204:
        lines = b"".join(b"%s: %s\r\n" % header for header in headers_of(answer, request_id))
    else:
        lines = b"content-type: %s\r\ncontent-length: %d\r\nx-request-id: %s\r\n" % (
            answer.content_type,
            len(answer.body),
            request_id,
        )
    return b"%s%s%s\r\n%s" % (STATUS_LINES[answer.status], default_headers, lines, answer.body)
