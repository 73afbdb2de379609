"""Bytes in JSON: whatever they are, they come back the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text import BASE64, bytes_of, text_of, texts_of


@given(st.binary(max_size=40))
def test_any_bytes_come_back_and_only_what_is_no_text_is_encoded(data: bytes) -> None:
    text, encoding = text_of(data)
    assert bytes_of(text, encoding) == data
    assert (encoding is None) == (text == data.decode(errors="replace"))


def test_nothing_stays_nothing() -> None:
    assert text_of(None) == (None, None)
    assert text_of(b"") == ("", None)


def test_the_last_value_of_a_header_counts() -> None:
    assert texts_of([("a", b"\xff"), ("b", b"x"), ("a", b"y"), ("b", b"\xfe"), ("c", None)]) == (
        {"a": "y", "b": "/g==", "c": None},
        {"b": BASE64},
    )


@pytest.mark.parametrize("text", ["AP4", "A", "AP4=!", "AP\n4=", "Ä"])
def test_what_is_not_the_base64_that_it_says_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        bytes_of(text, BASE64)
    assert bytes_of(text, None) == bytes_of(text, "utf-8") == text.encode()
