import pytest
from grpc import StatusCode

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.errors import CODES, DETAIL_CHARS_MAX, code_of, details_of, topic_not_found


def test_every_reason_has_a_code() -> None:
    assert set(Reason) - set(CODES) == set()


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.UNKNOWN_TOPIC_OR_PARTITION, StatusCode.NOT_FOUND),
        (Reason.TOPIC_ALREADY_EXISTS, StatusCode.ALREADY_EXISTS),
        (Reason.OFFSET_OUT_OF_RANGE, StatusCode.OUT_OF_RANGE),
        (Reason.NOT_LEASE_OWNER, StatusCode.FAILED_PRECONDITION),
        (Reason.TOPIC_AUTHORIZATION_FAILED, StatusCode.PERMISSION_DENIED),
        (Reason.SHUTTING_DOWN, StatusCode.UNAVAILABLE),
        (Reason.UNKNOWN, StatusCode.INTERNAL),
    ],
)
def test_the_code_says_what_kind_of_refusal_it_is(reason, code) -> None:
    assert code_of(reason) is code


def test_no_refusal_is_told_as_success_or_as_the_clients_own_cancellation() -> None:
    assert not {StatusCode.OK, StatusCode.CANCELLED} & set(CODES.values())


def test_details_are_short_enough_for_every_client() -> None:
    error = PenstockError(Reason.INVALID_REQUEST, "ü" * 100_000)
    assert details_of(error) == "ü" * (DETAIL_CHARS_MAX - 3) + "..."
    assert details_of(PenstockError(Reason.INVALID_REQUEST, "x" * DETAIL_CHARS_MAX)) == "x" * DETAIL_CHARS_MAX


def test_a_topic_that_is_not_there_is_named() -> None:
    assert topic_not_found("x").text == "Topic 'x' not found"
    assert topic_not_found("x" * 1000).text == f"Topic '{'x' * 249}...' not found"
