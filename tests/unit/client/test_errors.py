"""What a refusal says."""

import pytest
from kio.schema.errors import ErrorCode

from penstock.client.errors import KINDS, BrokerRefused, check


def test_a_refusal_names_the_thing_the_sentence_and_the_code() -> None:
    error = BrokerRefused(36, "topic 'x'")
    assert str(error) == "topic 'x': the topic already exists (TOPIC_ALREADY_EXISTS)"
    assert (error.code, error.name, error.retriable) == (36, "TOPIC_ALREADY_EXISTS", False)


def test_the_brokers_own_sentence_is_preferred() -> None:
    assert (
        str(BrokerRefused(40, "topic 'x'", "retention.ms is odd.")) == "topic 'x': retention.ms is odd (INVALID_CONFIG)"
    )


@pytest.mark.parametrize(
    ("what", "message", "text"),
    [
        ("topic 'x'", "Topic x already exists.", "Topic x already exists"),
        ("topic 'x'", "There is no topic 'x'.", "There is no topic 'x'"),
        ("topic 'x'", "Topic x.y already exists.", "topic 'x': Topic x.y already exists"),
        ("topic 'x'", "no such thing", "topic 'x': no such thing"),
        ("groups", "no such thing", "groups: no such thing"),
    ],
)
def test_a_sentence_that_names_the_thing_is_not_told_of_what(what, message, text) -> None:
    assert str(BrokerRefused(36, what, message)) == f"{text} (TOPIC_ALREADY_EXISTS)"


def test_a_code_from_the_future_is_still_a_refusal() -> None:
    assert str(BrokerRefused(999)) == "the broker returned error 999 (ERROR_999)"


def test_code_0_is_no_error() -> None:
    check(0, "anything")
    with pytest.raises(BrokerRefused):
        check(-1)


@pytest.mark.parametrize("code", KINDS)
def test_names_and_what_may_be_tried_again_are_kafkas(code) -> None:
    theirs = ErrorCode(code)
    assert (KINDS[code].name.lower(), KINDS[code].retriable) == (theirs.name, theirs.retriable)
