"""Answers and refusals as they leave, and the ids of requests."""

import json

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import (
    NO_CONTENT,
    Answer,
    given_request_id,
    headers_of,
    json_answer,
    rendered,
)
from penstock.gateways.http.server.errors import CODES, STATUSES, Refusal, error_answer, is_v1, refusal_of


@pytest.mark.parametrize(
    ("path", "inside"),
    [("/v1", True), ("/v1/topics", True), ("/v10", False), ("/topics", False), ("/", False), ("", False)],
)
def test_only_v1_has_coded_errors(path: str, *, inside: bool) -> None:
    assert is_v1(path) is inside
    body = json.loads(error_answer(path, Refusal(404, "gone")).body)
    assert body == ({"error": "NOT_FOUND", "message": "gone"} if inside else {"error": "gone"})


def test_a_refusal_may_have_headers_and_further_fields() -> None:
    refusal = Refusal(429, "full", headers=((b"retry-after", b"1"),), more={"reason": "why"})
    answer = error_answer("/v1/produce", refusal)
    assert json.loads(answer.body) == {"error": "RESOURCE_EXHAUSTED", "message": "full", "reason": "why"}
    assert (answer.status, answer.headers) == (429, ((b"retry-after", b"1"),))


def test_every_status_that_a_reason_has_has_a_code() -> None:
    assert set(STATUSES.values()) <= set(CODES)


def test_a_reason_without_a_status_is_the_callers_mistake() -> None:
    assert refusal_of(PenstockError(Reason.INVALID_CONFIG, "no")).status == 400
    assert refusal_of(PenstockError(Reason.STORAGE_ERROR, "no")).status == 503


@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"a": 1}),
        json_answer([], 201),
        NO_CONTENT,
        Answer(405, b"{}", headers=((b"allow", b"GET"),)),
        Answer(200, b"", b"text/html"),
    ],
)
def test_what_the_lane_renders_is_what_asgi_sends(answer: Answer) -> None:
    head, _, body = rendered(answer, b"id-1", b"date: now\r\n").partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    assert status.startswith(b"HTTP/1.1 %d " % answer.status)
    assert lines == [b"date: now", *(b"%s: %s" % header for header in headers_of(answer, b"id-1"))]
    assert body == answer.body


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"abc-1", b"abc-1"),
        (b"with space", b"with space"),
        (b"x" * 128, b"x" * 128),
        (b"x" * 129, None),
        (b"", None),
        (b" ", None),
        (b"tab\there", None),
        (b"\xe9", None),
    ],
)
def test_a_request_id_is_kept_when_it_is_fit_to_be_repeated(value: bytes, kept: bytes | None) -> None:
    assert given_request_id([(b"host", b"x"), (b"x-request-id", value)]) == kept
