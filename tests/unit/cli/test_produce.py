"""From lines to records."""

import os

import pytest

from penstock.cli.failures import Failure
from penstock.cli.produce import READ_BYTES, _bytes_option, _chunks, _lines, _split


def lines_of(data, tmp_path):
    path = tmp_path / "input"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return [line for chunk in _lines(descriptor, "input") for line in chunk]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"a\r\nb\xff\x00\n", [b"a\r", b"b\xff\x00"]),
    ],
)
def test_each_line_is_a_record_and_nothing_is_changed_in_it(data, lines, tmp_path) -> None:
    assert lines_of(data, tmp_path) == lines


def test_a_line_may_be_longer_than_one_read(tmp_path) -> None:
    long = b"x" * (READ_BYTES * 2 + 1)
    assert lines_of(b"a\n" + long + b"\nb", tmp_path) == [b"a", long, b"b"]


def test_what_was_read_of_a_long_line_is_not_copied_at_each_read(monkeypatch) -> None:
    copied = []

    class Watched(bytes):
        def __radd__(self, other):
            copied.append(len(other))
            return bytes(other) + bytes(self)

    reads = [Watched(b"x" * 100) for _ in range(1000)]
    monkeypatch.setattr(os, "read", lambda *_: reads.pop() if reads else b"")
    assert list(_lines(0, "input")) == [[b"x" * 100_000]]
    assert sum(copied) <= 100_000


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_above_the_bound_is_refused_before_it_is_read_to_its_end(end, monkeypatch) -> None:
    monkeypatch.setattr("penstock.cli.produce.LINE_BYTES_MAX", 3 << 20)
    reads = [b"x" * READ_BYTES] * 3 + [b"x" + end]
    monkeypatch.setattr(os, "read", lambda *_: reads.pop(0))
    with pytest.raises(Failure, match="input has a line of more than 3 MiB, of which nothing was sent; is it a text"):
        list(_lines(0, "input"))


def test_files_follow_each_other(tmp_path) -> None:
    (tmp_path / "1").write_bytes(b"a\nb")
    (tmp_path / "2").write_bytes(b"c\n")
    assert [line for chunk in _chunks([str(tmp_path / "1"), str(tmp_path / "2")]) for line in chunk] == [
        b"a",
        b"b",
        b"c",
    ]


def test_a_file_that_is_not_there_is_told(tmp_path) -> None:
    with pytest.raises(Failure, match=r"Cannot read .*absent: No such file"):
        list(_chunks([str(tmp_path / "absent")]))


@pytest.mark.parametrize(
    ("line", "separator", "fixed", "expected"),
    [
        (b"a:b:c", None, None, (None, b"a:b:c")),
        (b"a:b:c", b":", None, (b"a", b"b:c")),
        (b"abc", b":", None, (None, b"abc")),
        (b":v", b":", None, (b"", b"v")),
        (b"k:", b":", None, (b"k", b"")),
        (b"v", None, b"k", (b"k", b"v")),
        (b"v", b":", b"k", (b"k", b"v")),
        (b"own:v", b":", b"k", (b"own", b"v")),
    ],
)
def test_the_key_stands_before_the_first_separator(line, separator, fixed, expected) -> None:
    assert _split(line, separator, fixed) == expected


def test_a_tab_may_be_written_as_people_do() -> None:
    assert _bytes_option("\\t", "--key-separator") == b"\t"
