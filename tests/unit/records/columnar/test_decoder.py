"""The columnar decoder beside the row reader: the same records, the same refusals."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, RECORD_HEADERS_MAX
from penstock.records.batch import (
    DELETE_HORIZON_BIT,
    BatchHeader,
    Compression,
    read_header,
    set_log_append_time,
    set_offset,
)
from penstock.records.builder import BatchBuilder, build_batch, encode_varint, seal
from penstock.records.columnar import COLUMNS, SCHEMA, decode, fields, headers, lanes, opened, starts
from penstock.records.records import Record, open_records, read_records, read_spans

EVERYTHING = 2**62
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Batches = list[tuple[BatchHeader, memoryview]]


def in_one_buffer(batches: list[bytearray]) -> Batches:
    """As a fetch gives them: views into one buffer, one behind the other."""
    view = memoryview(b"".join(batches))
    found: Batches = []
    at = 0
    for batch in batches:
        found.append((read_header(batch), view[at : at + len(batch)]))
        at += len(batch)
    return found


def placed(*batches: bytearray, base_offset: int = 0) -> Batches:
    for batch in batches:
        set_offset(batch, base_offset, 0)
        base_offset += max(0, read_header(batch).last_offset_delta) + 1
    return in_one_buffer(list(batches))


def decoded(batches: Batches, columns: frozenset[str] = COLUMNS, **options: object) -> pa.RecordBatch | None:
    settled = {"from_offset": 0, "to_offset": EVERYTHING, "bytes_max": MIB} | options
    found = list(decode(batches, columns=columns, group_bytes=opened.COLUMN_BYTES_MAX, **settled))
    assert len(found) <= 1
    return found[0] if found else None


@contextmanager
def eager() -> Iterator[None]:
    """Everything that is meant for many records is done for few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "_CHUNK_RECORDS", 5)
        patch.setattr(headers, "_ROUND_MIN", 2)
        patch.setattr(lanes, "_GUESS_RECORDS_MIN", 1)
        patch.setattr(lanes, "_LANE_RECORDS_MIN", 2)
        patch.setattr(lanes, "_LANES_MIN", 2)
        patch.setattr(opened, "_NEIGHBOUR_BYTES_MIN", 1)
        patch.setattr(starts, "_RUN_REGION_MIN", 8)
        patch.setattr(starts, "_RUN_MIN", 4)
        patch.setattr(starts, "_RUN_TRIED", 6)
        patch.setattr(starts, "_RUN_GROWTH", 2)
        yield


Row = dict[str, object]


def rows(batch: pa.RecordBatch | None) -> list[Row]:
    if batch is None:
        return []
    batch.validate(full=True)
    # As integers: Arrow's timestamps reach further than Python's.
    at = batch.schema.get_field_index("timestamp")
    if at >= 0:
        batch = batch.set_column(at, "timestamp", batch.column("timestamp").cast(pa.int64()))
    return batch.to_pylist()


def expected(batches: Batches) -> list[Row]:
    return [
        {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(header.is_log_append_time),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for header, data in batches
        for record in read_records(data, MIB)
    ]


WITHOUT_HEADERS = COLUMNS - {"headers"}


def expected_without_headers(batches: Batches) -> list[Row]:
    """What a reader sees, and refuses, that does not look into the headers."""
    return [
        {
            "key": key,
            "value": value,
            "offset": header.base_offset + offset_delta,
            "timestamp": 1000
            * (header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta),
            "timestampType": int(header.is_log_append_time),
        }
        for header, data in batches
        for _, _, timestamp_delta, _, offset_delta, key, value, _ in read_spans(open_records(data, header, MIB), header)
    ]


def check_same(batches: Batches) -> None:
    """The same rows or the same refusal as the row reader, with headers and without."""
    assert rows_or_reason(lambda: rows(decoded(batches))) == rows_or_reason(expected, batches)
    without = rows_or_reason(lambda: rows(decoded(batches, WITHOUT_HEADERS)))
    assert without == rows_or_reason(expected_without_headers, batches)


def rows_or_reason(read: object, *arguments: object) -> list[Row] | Reason:
    try:
        return read(*arguments)
    except PenstockError as error:
        return error.reason


def batch_of(data: bytes, count: int, last_offset_delta: int, compression: Compression = Compression.NONE) -> bytearray:
    """A batch with a sound header around any bytes."""
    header = read_header(build_batch([Record(0, 1000, b"k", b"v")]))
    return seal(data, header._replace(record_count=count, last_offset_delta=last_offset_delta), compression)


def record_bytes(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


def record(delta: int, value: bytes = b"v", timestamp_delta: int = 0, headers: bytes = b"\x00") -> bytes:
    return record_bytes(
        b"\x00%b%b\x02k%b%b%b"
        % (encode_varint(timestamp_delta), encode_varint(delta), encode_varint(len(value)), value, headers)
    )


few_bytes = st.binary(max_size=12)
some_bytes = st.one_of(
    st.none(), few_bytes, st.integers(50, 300).map(bytes), st.integers(8180, 8200).map(lambda n: b"x" * n)
)
some_headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), few_bytes)), max_size=4).map(tuple)
timestamps = st.one_of(st.integers(0, 100), st.integers(-(2**40), 2**40), st.integers(0, 2**43))
some_records = st.lists(
    st.builds(Record, st.just(0), timestamps, some_bytes, some_bytes, some_headers), min_size=1, max_size=12
)
some_batches = st.lists(st.tuples(some_records, st.sampled_from(Compression), st.booleans()), min_size=1, max_size=5)


def built(described: list[tuple[list[Record], Compression, bool]], base_offset: int = 0) -> Batches:
    batches = []
    for records, compression, is_appended in described:
        batch = build_batch(records, compression=compression)
        if is_appended:
            set_log_append_time(batch, 123_456_789)
        batches.append(batch)
    return placed(*batches, base_offset=base_offset)


@given(some_batches)
def test_the_columns_hold_what_the_row_reader_reads(described) -> None:
    batches = built(described)
    assert rows(decoded(batches)) == expected(batches)
    with eager():
        assert rows(decoded(batches)) == expected(batches)


@given(some_batches, st.integers(0, 70), st.integers(0, 70), st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1))
def test_only_the_wanted_offsets_and_columns_come(described, from_offset, to_offset, columns) -> None:
    batches = built(described, base_offset=5)
    wanted = [
        {name: row[name] for name in SCHEMA.names if name in columns}
        for row in expected(batches)
        if from_offset <= row["offset"] < to_offset
    ]
    batch = decoded(batches, frozenset(columns), from_offset=from_offset, to_offset=to_offset)
    assert rows(batch) == wanted
    assert batch is None or batch.schema.names == [name for name in SCHEMA.names if name in columns]


@given(some_batches, st.integers(1, 3000))
def test_in_groups_the_records_are_the_same(described, group_bytes) -> None:
    batches = built(described)
    groups = decode(
        batches, columns=COLUMNS, from_offset=0, to_offset=EVERYTHING, bytes_max=MIB, group_bytes=group_bytes
    )
    assert [row for group in groups for row in rows(group)] == expected(batches)


@given(some_batches)
def test_batches_that_lie_in_buffers_of_their_own_are_read_too(described) -> None:
    batches = [(header, bytes(data)) for header, data in built(described)]
    assert rows(decoded(batches)) == expected(batches)


def mutated(draw: st.DataObject, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 5))):
        at = draw.draw(st.integers(0, len(changed) - 1))
        match draw.draw(st.integers(0, 5)):
            case 0:
                changed[at] = draw.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFE, 0xFF]))
            case 1:
                changed[at] = draw.draw(st.integers(0, 255))
            case 2:
                changed[at] ^= 1 << draw.draw(st.integers(0, 7))
            case 3:
                del changed[at : at + draw.draw(st.integers(1, 3))]
            case 4:
                changed[at:at] = draw.draw(st.binary(min_size=1, max_size=10))
            case _:
                # The same number in more bytes than it needs, or a number without an end.
                changed[at : at + 1] = bytes([changed[at] | 0x80]) + b"\x80" * draw.draw(st.integers(0, 9)) + b"\x00"
        if not changed:
            changed += b"\x00"
    return bytes(changed)


@settings(max_examples=300)
@given(some_records, st.booleans(), st.data())
def test_of_mutated_bytes_the_same_is_read_or_refused(records, is_eager, data) -> None:
    body = bytes(build_batch(records)[61:])
    count = len(records) + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1]))
    bad = batch_of(mutated(data, body), count, len(records) - 1 + data.draw(st.sampled_from([0, 0, 0, -1, 5])))
    # With a sound batch on either side, whose bytes must not be taken for the mutated one's.
    batches = placed(build_batch(records), bad, build_batch(records))
    with eager() if is_eager else nullcontext():
        check_same(batches)


KINDS = ["text", "zeros", "fixed", "runs", "headers"]


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.data())
def test_of_long_mutated_batches_the_same_is_read_or_refused(seed, kind, data) -> None:
    count = data.draw(st.integers(10, 300))
    body = bytes(long_batch(seed, kind, count)[61:])
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(body) - 40))
        body = body[:at] + mutated(data, body[at : at + 40]) + body[at + 40 :]
    batches = placed(batch_of(body, count, count - 1), long_batch(seed + 1, kind, 30))
    with eager():
        check_same(batches)


def long_batch(seed: int, kind: str, count: int) -> bytearray:
    builder = BatchBuilder()
    state = seed
    for index in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        size = {"fixed": 30, "runs": 30 + index // 200}.get(kind, state >> 58)
        value = bytes(state >> 8 & 1 if kind == "zeros" else 65 for _ in range(size))
        some = [("h", value[:3]), ("", None)][: state >> 20 & 3] if kind == "headers" else ()
        builder.add(1000 + (state >> 40) % 100, None if state >> 63 else b"key", value, some)
    return builder.build()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_several_long_batches_are_read(kind, compression) -> None:
    """More records than are walked one by one, and than are read at a time."""
    batches = placed(
        *(
            seal(bytes(batch[61:]), read_header(batch), compression)
            for batch in (long_batch(seed, kind, count) for seed, count in enumerate([9000, 70, 1, 12_000]))
        )
    )
    assert rows(decoded(batches)) == expected(batches)


def test_long_batches_among_very_many_small_ones_are_read() -> None:
    """Neither do they share lanes evenly, nor do the long ones tell how large the small ones are."""
    small = [build_batch([Record(0, n, None, b"v" * (n % 5))]) for n in range(150)]
    batches = placed(*small, *(long_batch(seed, "text", 90) for seed in range(100)), *small)
    assert rows(decoded(batches)) == expected(batches)
    with eager():
        assert rows(decoded(batches)) == expected(batches)


def test_very_many_small_batches_are_read() -> None:
    batches = placed(*(build_batch([Record(0, n, b"%d" % n, b"v" * (n % 90))]) for n in range(1000)))
    assert rows(decoded(batches)) == expected(batches)


def test_bytes_that_look_like_records_inside_values_mislead_nobody() -> None:
    inner = bytes(long_batch(3, "text", 6)[61:])
    builder = BatchBuilder()
    for index in range(2500):
        builder.add(1000, b"k", inner[: 20 + index % (len(inner) - 20)])
    batches = placed(builder.build())
    assert rows(decoded(batches)) == expected(batches)
    with eager():
        assert rows(decoded(batches)) == expected(batches)


@pytest.mark.parametrize("count", [3, 5000])
def test_compacted_batches_keep_the_gaps_in_their_offsets(count) -> None:
    data = b"".join(record(index * 7, b"x" * (index % 50)) for index in range(count))
    batches = placed(batch_of(data, count, count * 10), base_offset=1000)
    assert rows(decoded(batches)) == expected(batches)
    assert rows(decoded(batches, frozenset({"offset"}), from_offset=1008, to_offset=1015)) == [{"offset": 1014}]


def test_the_delete_horizon_is_no_other_timestamp() -> None:
    batch = build_batch([Record(0, 5000, b"k", None), Record(0, 5010, b"k", b"v")])
    header = read_header(batch)
    marked = seal(bytes(batch[61:]), header._replace(attributes=DELETE_HORIZON_BIT), Compression.NONE)
    batches = placed(marked)
    assert rows(decoded(batches)) == expected(batches)


def test_a_batch_without_records_has_none() -> None:
    empty = batch_of(b"", 0, 5)
    assert decoded(placed(empty)) is None
    batches = placed(build_batch([Record(0, 1, b"a", b"1")]), empty, build_batch([Record(0, 2, b"b", b"2")]))
    assert [row["offset"] for row in rows(decoded(batches))] == [0, 7]


def test_without_batches_there_is_nothing() -> None:
    assert decoded([]) is None


def test_without_columns_there_is_the_number_of_rows() -> None:
    batch = decoded(placed(build_batch([Record(0, 1, b"a", b"1")] * 3)), frozenset())
    assert batch.num_rows == 3
    assert batch.num_columns == 0


def test_the_schema_is_sparks() -> None:
    batch = decoded(placed(build_batch([Record(0, 1, b"a", b"1", (("h", b"x"),))])))
    assert batch.schema == SCHEMA
    assert batch.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert batch.column("timestamp")[0].as_py() == EPOCH + timedelta(milliseconds=1)
    assert str(batch.schema.field("headers").type) == "list<element: struct<key: string, value: binary>>"


@pytest.mark.parametrize(
    ("base", "delta", "microseconds"),
    [
        (2**62, 0, (2**63 - 1) // 1000 * 1000),
        (2**62, 2**62, (2**63 - 1) // 1000 * 1000),
        (-(2**62), -(2**62) - 5, -((2**63 - 1) // 1000) * 1000),
        (2**62, -(2**62) + 7, 7000),
    ],
)
def test_a_timestamp_beyond_microseconds_is_the_last_that_there_is(base, delta, microseconds) -> None:
    header = read_header(build_batch([Record(0, 0, b"k", b"v")]))._replace(base_timestamp=base)
    batches = placed(seal(record(0, timestamp_delta=delta), header, Compression.NONE))
    assert [row["timestamp"] for row in rows(decoded(batches))] == [microseconds]


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_opens_to_more_than_the_bound_is_refused(compression) -> None:
    batches = placed(build_batch([Record(0, 0, b"k", bytes(10_000))], compression=compression))
    with pytest.raises(PenstockError) as caught:
        decoded(batches, bytes_max=9_999)
    assert caught.value.reason is Reason.RECORDS_TOO_LARGE


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_opens_to_nothing_is_corrupt(compression) -> None:
    batches = placed(batch_of(b"", 1, 0, compression))
    assert rows_or_reason(expected, batches) is Reason.CORRUPT_RECORDS
    assert rows_or_reason(lambda: rows(decoded(batches))) is Reason.CORRUPT_RECORDS


def test_an_unknown_codec_is_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v")])
    batch[22] |= 7
    with pytest.raises(PenstockError) as caught:
        decoded(placed(batch))
    assert caught.value.reason is Reason.UNSUPPORTED_COMPRESSION_TYPE


def test_a_batch_that_is_not_whole_is_refused() -> None:
    ((header, data),) = placed(build_batch([Record(0, 0, b"k", b"v" * 100)]))
    for given_bytes in (data[:-1], bytes(data) + b"\x00"):
        with pytest.raises(PenstockError) as caught:
            decoded([(header, given_bytes)])
        assert caught.value.reason is Reason.CORRUPT_RECORDS


SOUND = b"\x00\x00\x00\x02k\x02v\x00"


@pytest.mark.parametrize(
    ("what", "data", "count"),
    [
        ("no bytes for the records", b"", 1),
        ("a count that cannot be", record_bytes(SOUND), 2**31 - 1),
        ("a negative count", record_bytes(SOUND), -1),
        ("fewer records than counted", record_bytes(SOUND) * 3, 4),
        ("more records than counted", record(0) + record(1) + record(2), 2),
        ("a negative length", b"\x01" + SOUND, 1),
        ("a length beyond the end", encode_varint(1000) + SOUND, 1),
        ("a length that is too short", encode_varint(5) + SOUND, 1),
        ("a length that ends inside the value", encode_varint(6) + SOUND, 1),
        ("a length with eleven bytes", b"\xff" * 11 + SOUND, 1),
        ("a key beyond the record", record_bytes(b"\x00\x00\x00" + encode_varint(2**40) + b"k\x02v\x00"), 1),
        ("a key beyond all numbers", record_bytes(b"\x00\x00\x00" + encode_varint(2**63 - 1) + b"k\x02v\x00"), 1),
        ("a key of minus two", record_bytes(b"\x00\x00\x00\x03\x02v\x00"), 1),
        ("a value beyond the record", record_bytes(b"\x00\x00\x00\x02k\xc8\x01v\x00"), 1),
        ("a value of minus two", record_bytes(b"\x00\x00\x00\x02k\x03\x00"), 1),
        ("an offset before the batch", record_bytes(b"\x00\x00\x01\x02k\x02v\x00"), 1),
        ("an offset behind the batch", record_bytes(b"\x00\x00\x02\x02k\x02v\x00"), 1),
        ("two records at one offset", record_bytes(SOUND) * 2, 2),
        ("offsets that go back", record_bytes(b"\x00\x00\x02\x02k\x02v\x00") + record_bytes(SOUND), 2),
        ("no room for the headers", record_bytes(b"\x00\x00\x00\x02k\x04vv"), 1),
        ("headers that cannot be", record_bytes(b"\x00\x00\x00\x02k\x02v\xfe\xff\xff\xff\x0f"), 1),
        ("a negative count of headers", record_bytes(b"\x00\x00\x00\x02k\x02v\x01\x00\x00"), 1),
        ("a header name beyond the record", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x64a\x00"), 1),
        ("a header name of minus one", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x01\x00"), 1),
        ("a header name that is no UTF-8", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x02\xff\x00"), 1),
        ("a header name with half a pair", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x06\xed\xa0\x80\x00"), 1),
        ("a header value beyond the record", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x02a\x64b"), 1),
        ("a header value of minus two", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x02a\x03"), 1),
        ("bytes behind the headers", record_bytes(b"\x00\x00\x00\x02k\x02v\x00\x00"), 1),
    ],
)
@pytest.mark.parametrize("beside", [0, 60])
def test_what_does_not_fit_is_corrupt(what, data, count, beside) -> None:
    """Alone, and among so many sound batches that all are walked together."""
    sound = [build_batch([Record(0, 1000, b"k", b"v")]) for _ in range(beside)]
    batches = placed(*sound, batch_of(data, count, max(0, count - 1)), *sound)
    assert rows_or_reason(expected, batches) is Reason.CORRUPT_RECORDS
    check_same(batches)


@pytest.mark.parametrize("at", range(1, 12))
def test_an_offset_that_comes_twice_is_found_wherever_it_is(at) -> None:
    data = b"".join(record(index - (index >= at)) for index in range(12))
    batches = placed(batch_of(data, 12, 11), build_batch([Record(0, 1000, b"k", b"v")]))
    with eager():
        check_same(batches)
        assert rows_or_reason(lambda: rows(decoded(batches))) is Reason.CORRUPT_RECORDS


def header_bytes(count: int) -> bytes:
    return encode_varint(count) + b"".join(
        encode_varint(len(name)) + name + value
        for name, value in ((b"n%d" % n, b"\x01" if n % 3 else b"\x02v") for n in range(count))
    )


@pytest.mark.parametrize("counts", [[0, 1, 2, 3] * 30, [5] * 100 + [200], [RECORD_HEADERS_MAX]])
def test_headers_of_any_number_are_read(counts) -> None:
    data = b"".join(record(index, headers=header_bytes(count)) for index, count in enumerate(counts))
    batches = placed(batch_of(data, len(counts), len(counts) - 1))
    assert rows(decoded(batches)) == expected(batches)


def test_headers_are_bounded_because_a_million_compress_to_nothing() -> None:
    data = record(0, headers=encode_varint(RECORD_HEADERS_MAX + 1) + b"\x00\x00" * (RECORD_HEADERS_MAX + 1))
    batches = placed(batch_of(data, 1, 0, Compression.ZSTD))
    assert rows_or_reason(lambda: rows(decoded(batches))) is Reason.CORRUPT_RECORDS


def test_offsets_beyond_64_bits_are_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", b"v")] * 3)
    set_offset(batch, 2**63 - 2, 0)
    with pytest.raises(PenstockError) as caught:
        decoded(in_one_buffer([batch]), to_offset=2**63 - 1)
    assert caught.value.reason is Reason.CORRUPT_RECORDS
