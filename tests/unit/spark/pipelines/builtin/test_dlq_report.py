"""A sample is whole characters, or bytes as they are."""

import pytest

from penstock.spark.pipelines.builtin.dlq_report import _whole_characters


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        (b"abc", b"abc"),
        ("aé".encode()[:2], b"a"),
        ("a€".encode()[:3], b"a"),
        ("a😀".encode()[:4], b"a"),
        (b"\xff\xfe\xfd\xfc\xfb", b"\xff\xfe\xfd\xfc\xfb"),
        (b"", b""),
    ],
)
def test_a_text_that_was_cut_inside_a_character_loses_the_piece(cut, whole) -> None:
    assert _whole_characters(cut) == whole
