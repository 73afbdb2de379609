"""Answers as lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.publish import Placed
from penstock.gateways.tcp.answers import answer, encode_lines, failure, iso_time, produced, record
from penstock.gateways.tcp.requests import Request, new_record


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_007, "2023-11-14T22:13:20.007Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (2**62, None),
        (-1, None),
    ],
)
def test_times_are_iso_with_milliseconds_or_nothing(timestamp_ms: int, text: str | None) -> None:
    assert iso_time(timestamp_ms) == text


@given(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20))
def test_any_bytes_can_be_sent_back_as_they_were_fetched(key: bytes | None, value: bytes | None) -> None:
    fetched = json.loads(answer(record(4, 5, key, value)))["data"]
    assert set(fetched) <= {"offset", "timestamp", "value", "key", "encoding", "keyEncoding"}
    again = new_record(
        Request(
            value=fetched["value"],
            key=fetched["key"],
            encoding=fetched.get("encoding"),
            key_encoding=fetched.get("keyEncoding"),
        )
    )
    assert (again.key, again.value) == (key, value or b"")


def test_a_produced_record_is_what_was_given_with_its_place() -> None:
    lines = encode_lines(
        [
            produced(Request(topic="t", value="v", key="k"), Placed(1, 2, 3)),
            produced(Request(topic="t", value="/w==", encoding="base64"), Placed(1, 3, 3)),
        ]
    )
    first, second = lines.splitlines()
    time = "1970-01-01T00:00:00.003Z"
    assert json.loads(first) == {
        "ok": True,
        "data": {"offset": 2, "timestamp": time, "value": "v", "key": "k", "partition": 1},
    }
    assert json.loads(second)["data"] == {
        "offset": 3,
        "timestamp": time,
        "value": "/w==",
        "key": None,
        "partition": 1,
        "encoding": "base64",
    }


def test_an_answer_is_one_line_whatever_it_says() -> None:
    for line in (failure("a\nb\r\u2028"), answer({"topics": ["a\nb"]})):
        assert line.count(b"\n") == 1
        assert line.endswith(b"\n")
