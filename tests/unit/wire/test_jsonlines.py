"""Lines out of bytes: the same however they were cut, and never more in memory than one line."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.jsonlines import LineSplitter

LONGEST = 8


def split(pieces: list[bytes], line_bytes_max: int = LONGEST) -> list[bytes | None]:
    splitter = LineSplitter(line_bytes_max)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.end()


def expected(data: bytes) -> list[bytes | None]:
    """The rule itself, without regard to time and memory."""
    return [None if len(line) > LONGEST else line for line in data.split(b"\n") if len(line) > LONGEST or line.strip()]


@given(
    st.lists(st.sampled_from([b"a", b"bc", b" ", b"\r", b"\n", b"{}", b"\x00", b"\xff", b"longer than that"])),
    st.lists(st.integers(1, 5), min_size=1),
)
def test_lines_are_the_same_however_the_bytes_are_cut(words: list[bytes], sizes: list[int]) -> None:
    data = b"".join(words)
    pieces, at = [], 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    assert split(pieces) == split([data]) == expected(data)


def test_the_longest_line_is_taken_and_one_byte_more_is_not() -> None:
    assert split([b"x" * LONGEST + b"\n"]) == [b"x" * LONGEST]
    assert split([b"x" * (LONGEST + 1) + b"\nnext\n"]) == [None, b"next"]


def test_a_line_that_is_too_long_is_told_before_it_ends_and_once() -> None:
    splitter = LineSplitter(LONGEST)
    assert splitter.feed(b"x" * LONGEST) == []
    assert splitter.feed(b"x") == [None]
    assert splitter.feed(b"x" * 100) == []
    assert splitter.feed(b"still the same\nnext\nlast") == [b"next"]
    assert splitter.end() == [b"last"]


def test_the_rest_of_a_line_that_was_too_long_is_no_line() -> None:
    splitter = LineSplitter(LONGEST)
    splitter.feed(b"x" * 100)
    assert splitter.end() == []


def test_what_is_kept_is_at_most_one_line() -> None:
    splitter = LineSplitter(LONGEST)
    for _ in range(1_000):
        splitter.feed(b"abcde\nfgh")
        splitter.feed(b"x" * 50)
        assert splitter.kept_bytes == sum(map(len, splitter._kept)) <= LONGEST


def test_a_line_that_is_let_go_is_skipped_to_its_end() -> None:
    splitter = LineSplitter(LONGEST)
    splitter.feed(b"abc")
    assert splitter.kept_bytes == 3
    splitter.skip()
    assert splitter.kept_bytes == 0
    assert splitter.feed(b"def\nnext\n") == [b"next"]


def test_an_end_without_a_line_gives_none() -> None:
    assert LineSplitter(LONGEST).end() == []
    assert split([b"a\n"]) == [b"a"]
    assert split([b"a\n  "]) == [b"a"]
