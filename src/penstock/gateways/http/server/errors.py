"""Refusals, in the form of the API that was called: ``{"error": text}``, and under ``/v1`` ``{"error": CODE, "message": text}``."""

from collections.abc import Mapping
from typing import Final

from penstock.errors import PenstockError, QuotaExceeded, Reason
from penstock.gateways.http.server.answers import JSON, Answer, encoder

V1: Final = "/v1"


class Refusal(Exception):
    """A request that is refused with this status and text; ``more`` are further fields of the body."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers
        self.more = more


class UnknownTopic(Refusal):
    """This node does not know the topic. In a cluster, another node may have created it just now."""

    def __init__(self, topic: str, text: str) -> None:
        super().__init__(404, text)
        self.topic = topic


class UnknownTopicError(PenstockError):
    """The same under /v1."""

    def __init__(self, topic: str, text: str) -> None:
        super().__init__(Reason.INVALID_REQUEST, text)
        self.topic = topic


UNKNOWN_TOPIC: Final = (UnknownTopic, UnknownTopicError)

CODES: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "PAYLOAD_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    421: "MISDIRECTED_REQUEST",
    429: "RESOURCE_EXHAUSTED",
    431: "HEADERS_TOO_LARGE",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""The error code under /v1 of each status."""

STATUSES: Final[Mapping[Reason, int]] = {
    Reason.UNKNOWN_TOPIC_OR_PARTITION: 404,
    Reason.UNKNOWN_TOPIC_ID: 404,
    Reason.GROUP_ID_NOT_FOUND: 404,
    Reason.UNKNOWN_MEMBER_ID: 404,
    Reason.UNKNOWN_CONSUMER: 404,
    Reason.UNKNOWN_SINK: 404,
    Reason.UNKNOWN_NODE: 404,
    Reason.UNKNOWN_USER: 404,
    Reason.UNKNOWN_API_KEY: 404,
    Reason.UNKNOWN_ROLE: 404,
    Reason.AUTHENTICATION_REQUIRED: 401,
    Reason.AUTHENTICATION_FAILED: 401,
    Reason.TOPIC_AUTHORIZATION_FAILED: 403,
    Reason.GROUP_AUTHORIZATION_FAILED: 403,
    Reason.CLUSTER_AUTHORIZATION_FAILED: 403,
    Reason.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    Reason.USER_ALREADY_EXISTS: 409,
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
    Reason.QUOTA_EXCEEDED: 429,
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
    Reason.AUDIT_UNAVAILABLE: 503,
    Reason.LINK_LOST: 504,
    Reason.UNKNOWN: 500,
}
"""The status of each error of the core; 400 for all others, which are the caller's mistakes."""


def is_v1(path: str) -> bool:
    """Whether the path belongs to the API whose errors have a code."""
    return path.startswith(V1) and path[3:4] in ("", "/")


def error_answer(path: str, refusal: Refusal) -> Answer:
    """The response to a refused request, in the form of the API that ``path`` belongs to."""
    body: dict[str, object]
    if is_v1(path):
        body = {"error": CODES.get(refusal.status, "INTERNAL"), "message": refusal.text}
    else:
        body = {"error": refusal.text}
    if refusal.more:
        body |= refusal.more
    return Answer(refusal.status, encoder.encode(body), JSON, refusal.headers)


def failure_answer(path: str, request_id: bytes) -> Answer:
    """The response to a request that failed because of a bug; the log has the trace."""
    text = f"The broker had an internal error; its log has details under request {request_id.decode('ascii')}."
    return error_answer(path, Refusal(500, text))


MOVED: Final[Mapping[Reason, str]] = {
    Reason.NOT_LEADER_OR_FOLLOWER: "Another node now leads this partition. Send the request again.",
    Reason.LEADER_NOT_AVAILABLE: "The partition has no leader at the moment. Try again in a moment.",
    Reason.NOT_COORDINATOR: "Another node has taken over. Send the request again.",
    Reason.COORDINATOR_NOT_AVAILABLE: "No coordinator is available for this at the moment. Try again in a moment.",
    Reason.COORDINATOR_LOAD_IN_PROGRESS: "A node is taking over. Try again in a moment.",
}
"""Texts for errors without one that end within seconds in a cluster."""
CHALLENGE: Final = (b"www-authenticate", b'Basic realm="penstock", Bearer')
"""How a client can authenticate; part of every 401."""
_RETRY_AFTER: Final = ((b"retry-after", b"1"),)


def refusal_of(error: PenstockError) -> Refusal:
    """The refusal for an error of the core."""
    status = STATUSES.get(error.reason, 400)
    if status == 401:
        return Refusal(status, error.text, headers=(CHALLENGE,))
    moved = MOVED.get(error.reason)
    if moved is None:
        return Refusal(status, error.text, headers=_wait_first(error))
    return Refusal(status, moved if error.text == error.reason.value else error.text, headers=_RETRY_AFTER)


def _wait_first(error: PenstockError) -> tuple[tuple[bytes, bytes], ...]:
    """When to try again, in whole seconds."""
    if not isinstance(error, QuotaExceeded):
        return ()
    return ((b"retry-after", str(-(-error.retry_after_ms // 1000)).encode()),)
