"""Records and envelopes as /v1 gives them."""

import msgspec
import pytest

from penstock.core.queues.envelope import read_envelope, write_envelope
from penstock.errors import PenstockError
from penstock.gateways.http.v1.models import EnvelopeFields, RetryPolicy
from penstock.gateways.http.v1.records import bytes_of, consumed, envelope_in, envelope_out
from penstock.operations.queues import Delivery
from penstock.types import TopicName

NOW_MS = 1_700_000_000_000


def delivery(*, key=b"k", value=b"v", headers=(), attempts=1, last_error=None) -> Delivery:
    return Delivery(TopicName("t"), 1, 7, attempts, key, value, headers, 1234, last_error, NOW_MS)


def line(record) -> dict:
    return msgspec.json.decode(msgspec.json.encode(record))


def test_a_plain_record_has_the_fields_of_the_contract_and_no_others() -> None:
    assert line(consumed(delivery())) == {
        "partition": 1,
        "offset": 7,
        "attempts": 1,
        "key": "k",
        "value": "v",
        "last_error": "",
        "topic": "t",
        "timestamp": 1234,
    }


def test_a_polled_record_says_until_when_it_is_leased() -> None:
    assert line(consumed(delivery(), until=True))["lease_until_ms"] == NOW_MS


def test_a_record_without_key_or_value_has_an_empty_key_and_a_null_value() -> None:
    found = line(consumed(delivery(key=None, value=None)))
    assert (found["key"], found["value"]) == ("", None)


def test_bytes_that_are_no_text_come_as_base64_and_say_so() -> None:
    found = line(consumed(delivery(key=b"\xff", value=b"\x00\xfe", headers=(("h", b"\xfd"), ("g", b"ok")))))
    assert (found["key"], found["key_encoding"]) == ("/w==", "base64")
    assert (found["value"], found["encoding"]) == ("AP4=", "base64")
    assert found["headers"] == {"h": "/Q==", "g": "ok"}
    assert found["header_encodings"] == {"h": "base64"}


def test_of_a_header_that_comes_twice_the_last_counts() -> None:
    found = line(consumed(delivery(headers=(("h", b"\xfd"), ("h", b"text")))))
    assert found["headers"] == {"h": "text"}
    assert "header_encodings" not in found


def test_an_envelope_goes_into_headers_and_comes_back_as_it_was() -> None:
    given = EnvelopeFields(
        run_id="r",
        tenant_id="t",
        idempotency_key="i",
        deadline="2099-01-01T00:00:00+02:00",
        partition_override=3,
        retry_policy=RetryPolicy(max_attempts=2, backoff_ms=5, max_backoff_ms=9),
    )
    headers = write_envelope(envelope_in(given, NOW_MS))
    assert dict(headers)["penstock.deadline_ms"] == b"4070901600000"
    found = line(consumed(delivery(headers=headers)))
    assert found["envelope"] == {
        "run_id": "r",
        "tenant_id": "t",
        "idempotency_key": "i",
        "deadline": "2099-01-01T00:00:00+02:00",
        "partition_override": 3,
        "retry_policy": {"max_attempts": 2, "backoff_ms": 5, "max_backoff_ms": 9},
    }
    assert "headers" not in found


def test_a_delay_becomes_the_moment_when_it_is_over() -> None:
    assert envelope_in(EnvelopeFields(delay_ms=500), NOW_MS).not_before_ms == NOW_MS + 500
    assert envelope_in(EnvelopeFields(delay_ms=500, not_before_ms=NOW_MS + 900), NOW_MS).not_before_ms == NOW_MS + 900
    assert envelope_in(EnvelopeFields(delay_ms=500, not_before_ms=3), NOW_MS).not_before_ms == NOW_MS + 500


def test_the_longest_delay_is_still_one_that_the_queue_can_read() -> None:
    headers = write_envelope(envelope_in(EnvelopeFields(delay_ms=10**15 - 1), NOW_MS))
    assert read_envelope(headers).not_before_ms == 10**15 - 1


def test_empty_texts_of_an_envelope_are_no_texts() -> None:
    assert write_envelope(envelope_in(EnvelopeFields(run_id="", tenant_id="", deadline=""), NOW_MS)) == ()


def test_a_deadline_that_a_kafka_client_set_is_given_in_words() -> None:
    envelope = envelope_out((("penstock.deadline_ms", b"4070901600000"),))
    assert line(envelope) == {"deadline": "2098-12-31T22:00:00.000Z"}


def test_a_deadline_that_no_calendar_has_is_left_out() -> None:
    found = line(consumed(delivery(headers=(("penstock.deadline_ms", b"999999999999999"),))))
    assert "envelope" not in found


def test_a_dead_letter_tells_what_it_was_and_how_often_it_was_delivered_since() -> None:
    headers = (
        ("trace", b"x"),
        ("penstock.move_id", b"m"),
        ("original_topic", b"orders"),
        ("original_partition", b"2"),
        ("original_offset", b"41"),
        ("original_group", b"g"),
        ("attempts", b"3"),
        ("last_error", b"boom"),
        ("routed_at_ms", b"99"),
    )
    found = line(consumed(delivery(headers=headers, attempts=2, last_error="ack_timeout")))
    assert {name: found[name] for name in found if name not in ("key", "value", "timestamp", "topic")} == {
        "partition": 1,
        "offset": 7,
        "attempts": 3,
        "last_error": "boom",
        "deliveries": 2,
        "delivery_error": "ack_timeout",
        "original_topic": "orders",
        "original_partition": 2,
        "original_offset": 41,
        "original_group": "g",
        "routed_at_ms": 99,
        "headers": {"trace": "x"},
    }


def test_headers_that_only_look_like_a_dead_letters_stay_the_producers() -> None:
    found = line(consumed(delivery(headers=(("attempts", b"3"), ("last_error", b"mine")), last_error="own")))
    assert (found["attempts"], found["last_error"]) == (1, "own")
    assert found["headers"] == {"attempts": "3", "last_error": "mine"}


def test_a_dead_letter_with_nonsense_in_its_headers_is_still_a_record() -> None:
    headers = (("original_topic", b"\xff"), ("original_partition", b"x"), ("attempts", b"-1"))
    found = line(consumed(delivery(headers=headers)))
    assert found["attempts"] == 1
    assert "original_partition" not in found


def test_base64_that_is_none_is_refused() -> None:
    assert bytes_of("value", "AP4=", "base64") == b"\x00\xfe"
    assert bytes_of("value", "AP4=", "utf-8") == b"AP4="
    with pytest.raises(PenstockError, match="invalid value: it is not base64"):
        bytes_of("value", "AP4", "base64")
