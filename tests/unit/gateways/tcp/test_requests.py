"""One line to one request: what is taken, and what is said of what is not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.publish import NewRecord
from penstock.gateways.tcp.errors import INVALID_FIELD, INVALID_JSON, UNKNOWN_TYPE, Refused
from penstock.gateways.tcp.requests import FIELDS, Request, new_record, parse

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
NAMES = sorted({name for fields in FIELDS.values() for name in (*fields.needed, *fields.optional)})
WHOLE_NUMBERS = {"partition", "offset", "max", "partitions"}


def refused(line: bytes) -> tuple[str, str]:
    with pytest.raises(Refused) as error:
        parse(line)
    return error.value.kind, error.value.text


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(line: bytes) -> None:
    try:
        parse(line)
    except Refused as error:
        assert error.text
        assert len(error.text) < 400


@given(
    st.sampled_from([*FIELDS, "other"]),
    st.dictionaries(st.sampled_from([*NAMES, "more"]), VALUES),
)
def test_a_request_has_what_its_type_needs_of_the_right_kind_or_is_refused(
    type_: str, fields: dict[str, object]
) -> None:
    """The quick decoder and the slow one agree with the rule."""
    line = json.dumps({"type": type_, **fields}).encode()
    known = FIELDS.get(type_)
    try:
        request = parse(line)
    except Refused as error:
        if known is None:
            assert error.kind == UNKNOWN_TYPE
            return
        assert error.kind == INVALID_FIELD
        used = [*known.needed, *known.optional]
        right = {
            name: type(fields[name]) is (int if name in WHOLE_NUMBERS else str)
            for name in used
            if fields.get(name) is not None
        }
        missing = any(fields.get(name) is None or fields.get(name) == "" for name in known.needed)
        too_large = any(right.get(name) and abs(fields[name]) >= 2**63 for name in WHOLE_NUMBERS & set(fields))  # type: ignore[arg-type, operator]
        assert missing or not all(right.values()) or too_large
    else:
        assert known is not None
        assert request.type == type_
        for name in known.needed:
            assert fields[name] is not None


def test_the_slow_way_gives_the_same_request() -> None:
    fields = {"type": "fetch", "topic": "t", "partition": 1, "offset": 2, "max": 3}
    quick = parse(json.dumps(fields).encode())
    slow = parse(json.dumps({**fields, "groupId": 5, "value": []}).encode())
    assert quick == slow == Request(type="fetch", topic="t", partition=1, offset=2, max=3)


def test_what_an_unused_field_holds_is_nobodys_business() -> None:
    assert parse(b'{"type":"listTopics","topic":5,"partition":"x"}').type == "listTopics"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"{", INVALID_JSON),
        (b"[]", INVALID_JSON),
        (b"\xff", INVALID_JSON),
        (b"[" * 100_000, INVALID_JSON),
        (b'{"type":"x"}', UNKNOWN_TYPE),
        (b'{"type":[1]}', UNKNOWN_TYPE),
        (b'{"type":"fetch","topic":"t","partition":0,"offset":' + b"9" * 4_000 + b"}", INVALID_FIELD),
        (b'{"type":"fetch","topic":"t","partition":0,"offset":' + b"9" * 50_000 + b"}", INVALID_JSON),
        (b'{"type":"produce","topic":"t","value":"v","partition":' + b"9" * 4_000 + b"}", INVALID_FIELD),
    ],
)
def test_refusals_are_counted_by_their_kind_and_short(line: bytes, kind: str) -> None:
    found, text = refused(line)
    assert found == kind
    assert len(text) < 100


def test_a_long_type_comes_back_cut() -> None:
    _, text = refused(b'{"type":"' + b"x" * 100_000 + b'"}')
    assert text.startswith("Unknown type: xxx")
    assert len(text) < 300


class TestRecords:
    def test_text_becomes_bytes(self) -> None:
        request = Request(type="produce", topic="t", value="grün", key="k", partition=3)
        assert new_record(request) == NewRecord(b"k", "grün".encode(), (), 3)
        assert type(new_record(request)) is NewRecord

    def test_no_key_stays_none_and_an_empty_one_empty(self) -> None:
        assert new_record(Request(type="produce", topic="t", value="")).key is None
        assert new_record(Request(type="produce", topic="t", value="", key="")).key == b""

    def test_base64_is_opened(self) -> None:
        request = Request(type="produce", topic="t", value="/w==", encoding="base64", key="gA==", key_encoding="base64")
        assert new_record(request) == NewRecord(b"\x80", b"\xff")

    @pytest.mark.parametrize("text", ["/w", "/w=", "=", "a b=", "ä", "/w==\n"])
    def test_what_is_not_base64_is_refused(self, text: str) -> None:
        with pytest.raises(Refused, match="Invalid value: it is not base64"):
            new_record(Request(type="produce", topic="t", value=text, encoding="base64"))
        with pytest.raises(Refused, match="Invalid key: it is not base64"):
            new_record(Request(type="produce", topic="t", value="", key=text, key_encoding="base64"))

    def test_an_encoding_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(Refused, match="Invalid keyEncoding"):
            new_record(Request(type="produce", topic="t", value="", key="", key_encoding=""))
