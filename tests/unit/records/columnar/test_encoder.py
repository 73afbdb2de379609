"""The columnar encoder beside the builder: the same bytes."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, RECORD_HEADERS_MAX
from penstock.records.batch import Compression, check_produced, read_header
from penstock.records.builder import BatchBuilder
from penstock.records.columnar import encode
from penstock.records.records import read_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def by_builder(rows: list[Row], compression: Compression, bytes_max: int, records_max: int) -> list[bytearray]:
    """As many records in each batch as fit, one by one."""
    batches: list[bytearray] = []
    while rows:
        builder = BatchBuilder()
        taken = 0
        while taken < min(len(rows), records_max):
            bigger = BatchBuilder()
            for row in rows[: taken + 1]:
                bigger.add(*row)
            if taken and bigger.size_bytes > bytes_max:
                break
            builder, taken = bigger, taken + 1
        batches.append(builder.build(compression=compression))
        rows = rows[taken:]
    return batches


def columns(rows: list[Row]) -> dict[str, pa.Array]:
    return {
        "value": pa.array([row[2] for row in rows], pa.binary()),
        "key": pa.array([row[1] for row in rows], pa.binary()),
        "headers": pa.array(
            [[{"key": name, "value": value} for name, value in row[3]] or None for row in rows], HEADERS
        ),
        "timestamps_ms": pa.array([row[0] for row in rows], pa.int64()),
    }


few_bytes = st.binary(max_size=12)
some_bytes = st.one_of(
    st.none(), few_bytes, st.integers(50, 200).map(bytes), st.integers(8150, 8200).map(lambda n: b"x" * n)
)
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), few_bytes)), max_size=4)
timestamps = st.one_of(
    st.integers(0, 100), st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(-(2**54) + 1, 2**54 - 1)
)
some_rows = st.lists(
    st.tuples(timestamps, some_bytes, some_bytes, st.one_of(st.just([]), headers)), min_size=1, max_size=15
)


@settings(max_examples=300)
@given(some_rows, st.sampled_from(Compression), st.integers(60, 9000), st.integers(1, 10))
def test_the_batches_are_those_that_the_builder_makes(rows, compression, bytes_max, records_max) -> None:
    batches = encode(**columns(rows), compression=compression, batch_bytes_max=bytes_max, batch_records_max=records_max)
    assert batches == by_builder(rows, compression, bytes_max, records_max)
    for batch in batches:
        check_produced(batch, read_header(batch))


@given(some_rows, st.booleans(), st.booleans(), st.integers(0, 2**42))
def test_columns_that_are_not_given_are_null_in_every_record(rows, with_key, with_headers, timestamp) -> None:
    given_columns = columns(rows) | {"timestamps_ms": timestamp}
    if not with_key:
        given_columns["key"] = None
    if not with_headers:
        given_columns["headers"] = None
    rows = [(timestamp, row[1] if with_key else None, row[2], row[3] if with_headers else []) for row in rows]
    batches = encode(**given_columns, batch_bytes_max=MIB, batch_records_max=10_000)
    assert batches == by_builder(rows, Compression.NONE, MIB, 10_000)


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("size", [0, 40, 70])
def test_long_batches_grow_deltas_of_two_and_three_bytes(with_key, size) -> None:
    rows = [(1000 + n * 3, b"%d" % n if with_key else None, b"v" * (size + n % 9), []) for n in range(9000)]
    builder = BatchBuilder()
    for row in rows:
        builder.add(*row)
    (batch,) = encode(**columns(rows), batch_bytes_max=2 * MIB, batch_records_max=9000)
    assert batch == builder.build()


@pytest.mark.parametrize("bytes_max", [61 + 64, 1000, 16_384, 100_000])
def test_many_batches_hold_all_records_and_none_is_too_large(bytes_max) -> None:
    rows = [(1000 + n, b"%d" % (n % 7), b"v" * (n * 31 % 113), [("n", b"%d" % n)][: n % 2]) for n in range(5000)]
    batches = encode(**columns(rows), batch_bytes_max=bytes_max, batch_records_max=1000)
    assert max(len(batch) for batch in batches if read_header(batch).record_count > 1) <= bytes_max
    read = [record for batch in batches for record in read_records(batch, MIB)]
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in read] == rows


def test_more_bytes_than_are_put_together_at_once_come_out_whole() -> None:
    values = [b"%d" % n * 20_000 for n in range(120)]
    batches = encode(value=pa.array(values), timestamps_ms=1, batch_bytes_max=MIB, batch_records_max=100)
    assert [record.value for batch in batches for record in read_records(batch, 2 * MIB)] == values


TEXT = ["a", None, "", "ü" * 90, "tail"]


@pytest.mark.parametrize(
    "value",
    [
        pa.array(TEXT),
        pa.array(TEXT, pa.large_string()),
        pa.array([None if text is None else text.encode() for text in TEXT], pa.large_binary()),
        pa.array(TEXT, pa.string_view()),
        pa.array(["x", "y", *TEXT, "z"]).slice(2, 5),
        pa.chunked_array([pa.array(TEXT[:2]), pa.array([], pa.string()), pa.array(TEXT[2:])]),
        pa.array(TEXT).dictionary_encode(),
    ],
    ids=["string", "large string", "large binary", "view", "slice", "chunks", "dictionary"],
)
def test_any_kind_of_binary_or_text_is_taken(value) -> None:
    rows = [(5, None, None if text is None else text.encode(), []) for text in TEXT]
    wanted = by_builder(rows, Compression.NONE, MIB, 100)
    assert encode(value=value, timestamps_ms=5, batch_bytes_max=MIB, batch_records_max=100) == wanted
    keyed = [(5, value, value, []) for _, _, value, _ in rows]
    wanted = by_builder(keyed, Compression.NONE, MIB, 100)
    assert encode(value=value, key=value, timestamps_ms=5, batch_bytes_max=MIB, batch_records_max=100) == wanted


def test_slices_of_all_columns_are_taken() -> None:
    rows = [(1000 + n, b"%d" % n, b"v" * n, [("a", None), ("b", b"x")][: n % 3]) for n in range(20)]
    sliced = {name: column.slice(3, 11) for name, column in columns(rows).items()}
    chunked = {
        name: pa.chunked_array([column.slice(3, 4), column.slice(7, 7)]) for name, column in columns(rows).items()
    }
    wanted = by_builder(rows[3:14], Compression.NONE, MIB, 100)
    assert encode(**sliced, batch_bytes_max=MIB, batch_records_max=100) == wanted
    assert encode(**chunked, batch_bytes_max=MIB, batch_records_max=100) == wanted


def test_a_null_with_bytes_under_it_is_null() -> None:
    whole = pa.array([b"seen", b"hidden", b"seen"])
    bits = pa.py_buffer(b"\x05")
    hiding = pa.Array.from_buffers(pa.binary(), 3, [bits, *whole.buffers()[1:]])
    (batch,) = encode(value=hiding, key=hiding, timestamps_ms=1, batch_bytes_max=MIB, batch_records_max=10)
    assert [(record.key, record.value) for record in read_records(batch, MIB)] == [
        (b"seen", b"seen"),
        (None, None),
        (b"seen", b"seen"),
    ]


def test_a_table_without_rows_makes_no_batch() -> None:
    assert encode(value=pa.array([], pa.binary()), timestamps_ms=1, batch_bytes_max=MIB, batch_records_max=10) == []


def test_a_header_without_a_name_is_refused() -> None:
    bad = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with pytest.raises(PenstockError) as caught:
        encode(value=pa.array([b"v"]), headers=bad, timestamps_ms=1, batch_bytes_max=MIB, batch_records_max=10)
    assert caught.value.reason is Reason.INVALID_RECORD


def test_more_headers_than_a_reader_takes_are_refused() -> None:
    many = pa.array([[{"key": "", "value": None}] * (RECORD_HEADERS_MAX + 1)], HEADERS)
    with pytest.raises(PenstockError) as caught:
        encode(value=pa.array([b"v"]), headers=many, timestamps_ms=1, batch_bytes_max=MIB, batch_records_max=10)
    assert caught.value.reason is Reason.INVALID_RECORD


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_timestamps_of_any_unit_are_milliseconds_rounded_down(unit, zone) -> None:
    per_second = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    given_stamps = [0, 5 * per_second, -7 * per_second - (per_second > 1000)]
    stamps = pa.array(given_stamps, pa.int64()).cast(pa.timestamp(unit, zone))
    (batch,) = encode(value=pa.array([b"v"] * 3), timestamps_ms=stamps, batch_bytes_max=MIB, batch_records_max=10)
    wanted = [stamp * 1000 // per_second for stamp in given_stamps]
    assert [record.timestamp for record in read_records(batch, MIB)] == wanted


@pytest.mark.parametrize("stamps", [2**54, pa.array([-(2**54)]), pa.array([None], pa.int64())])
def test_a_timestamp_that_is_none_is_refused(stamps) -> None:
    with pytest.raises(PenstockError) as caught:
        encode(value=pa.array([b"v"]), timestamps_ms=stamps, batch_bytes_max=MIB, batch_records_max=10)
    assert caught.value.reason is Reason.INVALID_TIMESTAMP


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows"):
        encode(
            value=pa.array([b"v"]),
            key=pa.array([b"a", b"b"]),
            timestamps_ms=1,
            batch_bytes_max=MIB,
            batch_records_max=1,
        )
