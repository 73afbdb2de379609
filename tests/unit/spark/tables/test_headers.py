"""Headers to columns: what one record at a time would say, for whole batches."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.dead_letters.letters import read_dead_letter
from penstock.records.records import Record
from penstock.spark.tables.headers import HeaderColumns

TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
NAMES = st.sampled_from(["attempts", "original_offset", "original_partition", "last_error", "colour"])
VALUES = st.one_of(
    st.none(),
    st.integers(0, 10**20).map(lambda number: str(number).encode()),
    st.sampled_from([b"", b"12\n", b"-1", b"\xff", "\u0661".encode(), b"boom"]),
)
BATCHES = st.lists(st.one_of(st.none(), st.lists(st.tuples(NAMES, VALUES), max_size=4)), max_size=6)


def headers(*rows):
    return pa.array(rows, TYPE)


def test_a_header_is_a_column_with_null_where_a_record_has_none() -> None:
    columns = HeaderColumns(headers([("a", b"1"), ("b", b"x")], None, [], [("a", None)]))
    assert columns.text("a").to_pylist() == ["1", None, None, None]
    assert columns.text("nothing").to_pylist() == [None] * 4


def test_of_two_headers_of_a_name_the_last_counts() -> None:
    assert HeaderColumns(headers([("a", b"1"), ("b", b"x"), ("a", b"2")])).text("a").to_pylist() == ["2"]


def test_values_that_are_not_text_or_numbers_are_replaced() -> None:
    columns = HeaderColumns(headers([("a", b"\xff7")], [("a", b"7")], []))
    assert columns.text("a").to_pylist() == ["\ufffd7", "7", None]
    assert columns.number("a", pa.array([10, 20, 30])).to_pylist() == [10, 7, 30]
    assert columns.number_if_there("a", 0).to_pylist() == [0, 7, None]


def test_headers_without_some_names_keep_their_order_and_are_null_when_none_is_left() -> None:
    columns = HeaderColumns(headers([("b", b"1"), ("a", b"x"), ("c", None)], [("a", b"y")], None, [("c", b"2")]))
    left = columns.without({"a"})
    assert left.type == TYPE
    assert left.to_pylist() == [
        [{"key": "b", "value": b"1"}, {"key": "c", "value": None}],
        None,
        None,
        [{"key": "c", "value": b"2"}],
    ]


def test_a_slice_of_a_batch_is_read_as_the_whole_is() -> None:
    whole = headers([("a", b"1")], [("a", b"2"), ("b", b"x")], None, [("a", b"4")])
    columns = HeaderColumns(whole.slice(1, 3))
    assert columns.text("a").to_pylist() == ["2", None, "4"]
    assert columns.without({"a"}).to_pylist() == [[{"key": "b", "value": b"x"}], None, None]


@given(BATCHES)
def test_columns_say_what_the_broker_reads_from_each_record(rows) -> None:
    columns = HeaderColumns(headers(*rows))
    letters = [read_dead_letter("dlq.t", 3, Record(at, 0, None, None, tuple(row or ()))) for at, row in enumerate(rows)]
    there = pa.array([3] * len(rows), pa.int64())
    assert columns.number("original_partition", there).to_pylist() == [each.original_partition for each in letters]
    assert columns.number_if_there("original_offset", 0).to_pylist() == [each.original_offset for each in letters]
    assert [text or "unknown" for text in columns.text("last_error").to_pylist()] == [
        each.last_error for each in letters
    ]
