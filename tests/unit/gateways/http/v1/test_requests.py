"""The requests of /v1 from query strings and bodies."""

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.v1.models import (
    AckRequest,
    ConsumeRequest,
    CreateTopicRequest,
    EnvelopeFields,
    NackRequest,
    NoFields,
    ProduceRequest,
    RedriveRequest,
    RetryPolicy,
)
from penstock.gateways.http.v1.requests import moment_ms, names_of, read


def refusal(call, *arguments) -> str:
    with pytest.raises(PenstockError) as caught:
        call(*arguments)
    assert caught.value.reason is Reason.INVALID_REQUEST
    return caught.value.text


def test_a_query_string_is_read_by_the_names_of_the_fields() -> None:
    assert read(AckRequest, b"topic=t&group=g&owner=o&partition=2&offset=7", b"") == AckRequest(
        topic="t", group="g", owner="o", partition=2, offset=7
    )


def test_a_body_that_is_not_empty_wins_over_the_query_string() -> None:
    assert read(CreateTopicRequest, b"name=other&nonsense=1", b'{"name": "t"}') == CreateTopicRequest(name="t")


@pytest.mark.parametrize(
    ("model", "query", "body"),
    [
        (CreateTopicRequest, b"partitions=-1", b'{"name": "t"}'),
        (ProduceRequest, b"delay_ms=soon&nonsense=1", b'{"topic": "t", "value": "v"}'),
    ],
)
def test_a_field_of_the_query_string_is_refused_when_it_cannot_be_read_though_the_body_wins(
    model: type, query: bytes, body: bytes
) -> None:
    with pytest.raises(PenstockError, match=r"invalid (partitions|delay_ms)"):
        read(model, query, body)


def test_several_offsets_stand_in_a_query_string_with_commas() -> None:
    assert read(AckRequest, b"offsets=1,2,%203", b"").offsets == [1, 2, 3]


def test_a_name_without_a_value_counts_as_not_given() -> None:
    assert read(AckRequest, b"topic=t&partition=&owner=%20", b"") == AckRequest(topic="t")


def test_of_two_equal_names_the_first_counts() -> None:
    assert read(ConsumeRequest, b"topic=a&topic=b", b"").topic == "a"


def test_names_are_trimmed_and_values_are_not() -> None:
    assert read(ProduceRequest, b"topic=%20t%20&value=%20v%20&key=%20k", b"") == ProduceRequest(
        topic="t", value=" v ", key=" k"
    )
    assert read(ProduceRequest, b"value=%20&run_id=%20", b"") == ProduceRequest(value=" ")


@pytest.mark.parametrize(
    ("model", "query", "body"),
    [
        (AckRequest, b"topic=t&lease=1", b""),
        (NoFields, b"x=1", b""),
        (ProduceRequest, b"topic=t&value=v&retry_max_attempt=1", b""),
        (ProduceRequest, b"", b'{"topic": "t", "value": "v", "tenant": "x"}'),
        (ProduceRequest, b"", b'{"topic": "t", "value": "v", "envelope": {"tenant": "x"}}'),
        (ProduceRequest, b"", b'{"topic": "t", "value": "v", "envelope": {"retry_policy": {"attempts": 1}}}'),
    ],
)
def test_an_unknown_field_is_refused_by_its_name(model, query, body) -> None:
    assert "unknown field" in refusal(read, model, query, body)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"x"', b"null", b'{"topic": 1}', b"\xff", b"[" * 100_000, b'{"partition": -1}', b"{} {}"]
)
def test_a_body_that_cannot_be_read_is_refused(body) -> None:
    assert refusal(read, AckRequest, b"", body).startswith("invalid json body: ")


@pytest.mark.parametrize("number", ["x", "-1", "1.0", "1_0", "٣", "9" * 30, "0x1"])
def test_a_number_that_is_none_is_refused_with_its_field(number) -> None:
    from urllib.parse import quote

    assert refusal(read, AckRequest, f"partition={quote(number)}".encode(), b"").startswith("invalid partition")


@pytest.mark.parametrize("query", [b"topic=%ff", b"topic=\xc3\xa4", b"&".join(b"topic=t" for _ in range(65))])
def test_a_query_string_that_cannot_be_read_is_refused(query) -> None:
    assert refusal(read, ConsumeRequest, query, b"").startswith("invalid query string")


def test_the_flat_names_of_a_produce_query_fill_the_envelope() -> None:
    query = (
        b"topic=t&key=k&value=v&run_id=r&step_id=s&parent_step_id=p&tenant_id=x&idempotency_key=i&target_topic=o"
        b"&deadline=2030-01-01T00:00:00Z&partition_override=1&delay_ms=5&not_before_ms=6"
        b"&retry_max_attempts=3&retry_backoff_ms=10&retry_max_backoff_ms=20"
    )
    assert read(ProduceRequest, query, b"") == ProduceRequest(
        topic="t",
        key="k",
        value="v",
        envelope=EnvelopeFields(
            run_id="r",
            step_id="s",
            parent_step_id="p",
            tenant_id="x",
            idempotency_key="i",
            target_topic="o",
            deadline="2030-01-01T00:00:00Z",
            partition_override=1,
            delay_ms=5,
            not_before_ms=6,
            retry_policy=RetryPolicy(max_attempts=3, backoff_ms=10, max_backoff_ms=20),
        ),
    )


def test_the_other_names_of_fields_stand_for_them() -> None:
    query = b"topic=t&value=v&tenant=x&idem_key=i&deadline_rfc3339=2030-01-01T00:00:00Z"
    assert read(ProduceRequest, query, b"").envelope == EnvelopeFields(
        tenant_id="x", idempotency_key="i", deadline="2030-01-01T00:00:00Z"
    )


def test_the_name_itself_wins_over_its_other_name() -> None:
    for query in (b"tenant=b&tenant_id=a", b"tenant_id=a&tenant=b"):
        assert read(ProduceRequest, query, b"").envelope == EnvelopeFields(tenant_id="a")


def test_a_deadline_in_milliseconds_becomes_the_same_moment_in_words() -> None:
    envelope = read(ProduceRequest, b"deadline_ms=1893456000123", b"").envelope
    assert envelope is not None
    assert envelope.deadline == "2030-01-01T00:00:00.123Z"
    assert moment_ms("deadline", envelope.deadline) == 1893456000123


@pytest.mark.parametrize("deadline", ["2030-01-01T00:00:00", "tomorrow", "", "2030-13-01T00:00:00Z"])
def test_a_deadline_that_names_no_moment_is_refused(deadline) -> None:
    assert refusal(moment_ms, "deadline", deadline).startswith("invalid deadline: use RFC 3339")


def test_a_deadline_beyond_all_calendars_is_refused() -> None:
    assert refusal(read, ProduceRequest, b"deadline_ms=9223372036854775807", b"").startswith("invalid deadline_ms")


def test_a_produce_query_without_envelope_fields_has_no_envelope() -> None:
    assert read(ProduceRequest, b"topic=t&value=v", b"").envelope is None


def test_more_attempts_than_can_be_counted_are_refused_both_ways() -> None:
    assert refusal(read, ProduceRequest, b"retry_max_attempts=65536", b"").startswith("invalid retry_max_attempts")
    body = b'{"envelope": {"retry_policy": {"max_attempts": 65536}}}'
    assert refusal(read, ProduceRequest, b"", body).startswith("invalid json body")


def test_a_rate_may_have_a_fraction_and_may_not_be_endless() -> None:
    assert read(RedriveRequest, b"rate_per_second=0.5", b"").rate_per_second == 0.5
    for text in (b"inf", b"nan", b"-1", b"fast"):
        assert refusal(read, RedriveRequest, b"rate_per_second=" + text, b"").startswith("invalid rate_per_second")


def test_a_worker_gives_three_names() -> None:
    assert names_of(NackRequest(topic=" t", group="g ", owner="o")) == ("t", "g", "o")
    for missing in ("topic", "group", "owner"):
        given = {name: "x" for name in ("topic", "group", "owner") if name != missing}
        assert refusal(names_of, NackRequest(**given)) == "topic, group, and owner are required"


@pytest.mark.parametrize("query", [b"topic", b"&&topic=t&", b"topic=a=b", b"=t", b"topic=t&group"])
def test_a_plain_query_string_is_read_as_a_coded_one(query) -> None:
    """A percent sign in a field that is dropped anyway takes the other way through."""

    def outcome(text: bytes):
        try:
            return read(ConsumeRequest, text, b"")
        except PenstockError as error:
            return error.text

    assert outcome(query) == outcome(query + b"&lease_ms=%20")
