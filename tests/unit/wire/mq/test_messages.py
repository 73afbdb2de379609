from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.mq.ids import MessageIds
from penstock.wire.mq.messages import MessageEncoder, encode_frame, encode_lease, varint
from penstock.wire.mq.mq_generated import Message, MessageFrame

TOPIC_ID = UUID("8f6f1d0c-6f0e-4b8e-9c5d-1d2e3f405162")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SMALL_AND_LARGE = st.one_of(
    st.integers(0, 300), st.integers(0, 2**63 - 1), st.sampled_from([127, 128, 16383, 16384, 2**31])
)
HEADERS = st.dictionaries(TEXT, st.one_of(st.none(), st.binary(max_size=20), TEXT.map(str.encode)), max_size=3)


def encoded(topic="t", partition=0, offset=0, timestamp_ms=0, key=None, value=b"", headers=()):
    return MessageEncoder(topic, TOPIC_ID, partition).encode(offset, timestamp_ms, key, value, headers)


def generated(topic, partition, offset, timestamp_ms, key, value, headers):
    message = Message(
        id=MessageIds(TOPIC_ID, partition).of(offset).decode(),
        topic=topic,
        payload=value,
        timestamp=timestamp_ms // 1000,
        partition=partition,
        offset=offset,
        key=key,
        timestamp_ms=timestamp_ms,
        tombstone=value is None,
    )
    for name, content in headers:
        read = Message.FromString(encoded(headers=((name, content),)))
        message.headers[name] = read.headers[name]
        message.base64_headers.extend(read.base64_headers)
    return message


@given(
    TEXT.filter(bool),
    st.integers(0, 9999),
    SMALL_AND_LARGE,
    st.one_of(st.just(-1), SMALL_AND_LARGE),
    st.one_of(st.none(), st.binary(max_size=300)),
    st.one_of(st.none(), st.binary(max_size=300)),
    HEADERS,
)
def test_a_message_is_what_the_generated_code_reads_and_as_long_as_what_it_writes(
    topic, partition, offset, timestamp_ms, key, value, headers
) -> None:
    items = tuple(headers.items())
    ours = encoded(topic, partition, offset, timestamp_ms, key, value, items)
    theirs = generated(topic, partition, offset, timestamp_ms, key, value, items)
    assert Message.FromString(ours) == theirs
    # A map has no order, so that only messages without one are the same bytes.
    assert len(ours) == theirs.ByteSize()
    if len(items) < 2:
        assert ours == theirs.SerializeToString()


def test_one_encoder_serves_records_of_different_times() -> None:
    encoder = MessageEncoder("t", TOPIC_ID, 3)
    times = [1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_001, 1_700_000_001_000, 0, 1_700_000_000_000]
    read = [Message.FromString(encoder.encode(at, time, None, b"v")) for at, time in enumerate(times)]
    assert [message.timestamp_ms for message in read] == times
    assert [message.timestamp for message in read] == [time // 1000 for time in times]


def test_header_values_are_text_where_they_can_be_and_base64_where_not() -> None:
    headers = (("text", "grün".encode()), ("bytes", b"\xff\x00"), ("null", None), ("empty", b""))
    message = Message.FromString(encoded(headers=headers))
    assert dict(message.headers) == {"text": "grün", "bytes": "/wA=", "null": "", "empty": ""}
    assert list(message.base64_headers) == ["bytes"]


def test_of_headers_with_one_name_the_last_is_given() -> None:
    message = Message.FromString(encoded(headers=(("a", b"\xff"), ("b", b"1"), ("a", b"2"))))
    assert dict(message.headers) == {"a": "2", "b": "1"}
    assert not message.base64_headers


def test_a_record_without_a_value_is_a_tombstone_and_an_empty_one_is_not() -> None:
    assert Message.FromString(encoded(value=None)).tombstone
    assert not Message.FromString(encoded(value=b"")).tombstone


def test_a_key_that_is_empty_is_a_key() -> None:
    assert Message.FromString(encoded(key=b"")).HasField("key")
    assert not Message.FromString(encoded(key=None)).HasField("key")


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_a_frame_is_what_the_generated_code_writes(payloads) -> None:
    messages = [encoded(offset=at, value=payload) for at, payload in enumerate(payloads)]
    frame = MessageFrame(messages=[Message.FromString(message) for message in messages])
    assert encode_frame(messages) == frame.SerializeToString()


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_are_what_the_generated_code_writes(number) -> None:
    expected = Message(timestamp=number).SerializeToString()
    assert (b"\x20" + varint(number) if number else b"") == expected


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**63 - 1), st.one_of(st.none(), TEXT))
def test_a_lease_goes_behind_the_message(attempts, until_ms, last_error) -> None:
    ours = encoded(offset=7, value=b"v") + encode_lease(attempts, until_ms, last_error)
    theirs = Message.FromString(encoded(offset=7, value=b"v"))
    theirs.attempts, theirs.lease_until_ms, theirs.last_error = attempts, until_ms, last_error or ""
    assert ours == theirs.SerializeToString()
