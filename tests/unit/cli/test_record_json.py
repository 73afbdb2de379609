"""Records as JSON, there and back."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.output import to_json
from penstock.cli.record_json import decode_record, encode_record
from penstock.client import ConsumerRecord
from penstock.types import TimestampType


def record(key=None, value=b"v", headers=(), timestamp_ms=5):
    return ConsumerRecord("t", 1, 2, timestamp_ms, TimestampType.CREATE_TIME, key, value, headers)


def test_text_stays_text() -> None:
    shown = json.loads(to_json(encode_record(record(key="kéy".encode(), headers=(("h", b"1"), ("h", None))))))
    assert shown == {
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "timestamp": 5,
        "timestamp_type": "CreateTime",
        "key": "kéy",
        "value": "v",
        "headers": [{"key": "h", "value": "1"}, {"key": "h", "value": None}],
    }


def test_bytes_that_are_no_text_are_base64_and_say_so() -> None:
    shown = encode_record(record(key=b"\xff", value=b"\xfe\xff", headers=(("h", b"\xff"),)))
    assert (shown["key"], shown["key_encoding"]) == ("/w==", "base64")
    assert (shown["value"], shown["encoding"]) == ("/v8=", "base64")
    assert shown["headers"] == [{"key": "h", "value": "/w==", "encoding": "base64"}]


blobs = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)


@given(blobs, blobs, st.lists(st.tuples(st.text(max_size=5), blobs), max_size=3), st.integers(0, 2**50))
def test_what_consume_writes_produce_reads(key, value, headers, timestamp_ms) -> None:
    line = to_json(encode_record(record(key, value, tuple(headers), timestamp_ms))).encode()
    assert b"\n" not in line
    read = decode_record(line)
    assert (read.key, read.value, read.headers, read.timestamp_ms) == (key, value, headers, timestamp_ms)


def test_a_line_needs_a_value_and_nothing_else() -> None:
    read = decode_record(b'{"value": "v"}')
    assert (read.key, read.value, read.headers, read.timestamp_ms) == (None, b"v", [], None)
    assert decode_record(b'{"value": null}').value is None


@pytest.mark.parametrize(
    "line",
    [b"", b"v", b"[]", b"{}", b'{"value": 5}', b'{"value": "v", "headers": {}}', b'{"value": "v", "timestamp": "now"}'],
)
def test_what_is_no_record_is_refused(line) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_record(line)


@pytest.mark.parametrize("line", [b'{"value": "v", "encoding": "hex"}', b'{"value": "?", "encoding": "base64"}'])
def test_an_encoding_that_is_not_what_it_says_is_refused(line) -> None:
    with pytest.raises(ValueError):
        decode_record(line)
