import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecordsBuilder

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, RECORD_HEADERS_MAX
from penstock.records.batch import Compression, read_header, set_log_append_time, set_offset
from penstock.records.builder import BatchBuilder, build_batch, encode_varint, seal
from penstock.records.records import (
    Record,
    check_keys,
    open_records,
    read_headers,
    read_records,
    read_spans,
    read_varint,
)

RECORDS = [
    Record(0, 1000, b"k", b"v"),
    Record(1, 1010, None, b"v" * 300, (("a", b"1"), ("b", None))),
    Record(2, 990, b"key" * 30, None, (("name ü", b""),)),
    Record(3, 1000 + 2**40, b"", b""),
]


def batch_of(data: bytes, count: int, last_offset_delta: int | None = None) -> bytearray:
    """A batch with a sound header around any bytes."""
    header = read_header(build_batch([Record(0, 1000, b"k", b"v")]))
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    return seal(data, header._replace(record_count=count, last_offset_delta=delta), Compression.NONE)


def reason_or_none(batch: bytes | bytearray) -> Reason | None:
    try:
        list(read_records(batch, MIB))
    except PenstockError as error:
        return error.reason
    return None


def refusal(batch: bytes | bytearray) -> Reason:
    with pytest.raises(PenstockError) as caught:
        list(read_records(batch, MIB))
    return caught.value.reason


def record_bytes(body: bytes) -> bytes:
    return encode_varint(len(body)) + body


def test_records_carry_their_offsets_and_timestamps() -> None:
    batch = build_batch(RECORDS)
    set_offset(batch, 500, 3)
    assert list(read_records(batch, MIB)) == [record._replace(offset=500 + record.offset) for record in RECORDS]


def test_with_log_append_time_every_record_has_the_brokers_time() -> None:
    batch = build_batch(RECORDS)
    set_log_append_time(batch, 7777)
    assert {record.timestamp for record in read_records(batch, MIB)} == {7777}


def test_a_batch_without_records_has_none() -> None:
    assert list(read_records(batch_of(b"", 0, 5), MIB)) == []


@pytest.mark.parametrize("compression", Compression)
def test_compressed_records_are_the_same_records(compression) -> None:
    assert list(read_records(build_batch(RECORDS, compression=compression), MIB)) == RECORDS


@pytest.mark.parametrize("compression", Compression)
def test_records_that_open_to_more_than_the_bound_are_refused(compression) -> None:
    batch = build_batch([Record(0, 0, b"k", bytes(10_000))], compression=compression)
    with pytest.raises(PenstockError) as caught:
        list(read_records(batch, 9_999))
    assert caught.value.reason is Reason.RECORDS_TOO_LARGE


def test_an_unknown_codec_is_refused() -> None:
    batch = build_batch(RECORDS)
    batch[22] |= 7
    assert refusal(batch) is Reason.UNSUPPORTED_COMPRESSION_TYPE


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_come_back(number) -> None:
    encoded = encode_varint(number)
    assert len(encoded) <= 10
    assert read_varint(encoded, 0) == (number, len(encoded))


SOUND = b"\x00\x00\x00\x02k\x02v\x00"


@pytest.mark.parametrize(
    ("what", "data", "count"),
    [
        ("no bytes for the records", b"", 1),
        ("a count that cannot be", record_bytes(SOUND), 2**31 - 1),
        ("a negative count", record_bytes(SOUND), -1),
        ("fewer records than counted", record_bytes(SOUND) * 3, 4),
        ("more records than counted", record_bytes(SOUND) * 3, 2),
        ("a negative length", b"\x01" + SOUND, 1),
        ("a length beyond the end", encode_varint(1000) + SOUND, 1),
        ("a length that is too short", encode_varint(5) + SOUND, 1),
        ("a length that ends inside the value", encode_varint(6) + SOUND, 1),
        ("a length with eleven bytes", b"\xff" * 11 + SOUND, 1),
        ("a key beyond the record", record_bytes(b"\x00\x00\x00" + encode_varint(2**40) + b"k\x02v\x00"), 1),
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
        ("a header value beyond the record", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x02a\x64b"), 1),
        ("a header value of minus two", record_bytes(b"\x00\x00\x00\x02k\x02v\x02\x02a\x03"), 1),
        ("bytes behind the headers", record_bytes(b"\x00\x00\x00\x02k\x02v\x00\x00"), 1),
    ],
)
def test_what_does_not_fit_is_corrupt(what, data, count) -> None:
    assert refusal(batch_of(data, count)) is Reason.CORRUPT_RECORDS


def test_headers_are_bounded_because_a_million_compress_to_nothing() -> None:
    def record(count: int) -> bytes:
        return record_bytes(b"\x00\x00\x00\x02k\x02v" + encode_varint(count) + b"\x00\x00" * count)

    (most,) = read_records(batch_of(record(RECORD_HEADERS_MAX), 1), MIB)
    assert most.headers == (("", b""),) * RECORD_HEADERS_MAX
    assert refusal(batch_of(record(RECORD_HEADERS_MAX + 1), 1)) is Reason.CORRUPT_RECORDS


@pytest.mark.parametrize(
    "data",
    [
        record_bytes(b"\x00\x00\x00\x02k\x04vv"),
        encode_varint(6) + SOUND + record_bytes(SOUND)[:-2],
        encode_varint(1000) + SOUND,
    ],
)
def test_a_span_never_reaches_behind_its_record(data) -> None:
    header = read_header(batch_of(data, 1))
    with pytest.raises(PenstockError) as caught:
        list(read_spans(data, header))
    assert caught.value.reason is Reason.CORRUPT_RECORDS


def test_the_record_that_the_corrupt_ones_are_made_from_is_sound() -> None:
    assert list(read_records(batch_of(record_bytes(SOUND), 1), MIB)) == [Record(0, 1000, b"k", b"v")]


@given(data=st.data())
def test_mutated_records_are_records_or_corrupt(data) -> None:
    opened = bytearray(bytes(build_batch(RECORDS)[61:]))
    for _ in range(data.draw(st.integers(1, 5))):
        opened[data.draw(st.integers(0, len(opened) - 1))] = data.draw(st.integers(0, 255))
    batch = batch_of(bytes(opened), data.draw(st.integers(-1, 6)), 3)
    assert reason_or_none(batch) in {None, Reason.CORRUPT_RECORDS}


def test_spans_say_where_each_record_lies() -> None:
    batch = build_batch(RECORDS)
    header = read_header(batch)
    data = open_records(batch, header, MIB)
    spans = list(read_spans(data, header))
    assert b"".join(data[span[0] : span[1]] for span in spans) == data
    assert [(span[4], span[5], span[6]) for span in spans] == [(r.offset, r.key, r.value) for r in RECORDS]
    assert [read_headers(data, span[7], span[1]) for span in spans] == [r.headers for r in RECORDS]
    assert [read_varint(data, span[3])[0] for span in spans] == [r.offset for r in RECORDS]


def test_records_built_by_kafka_python_are_read() -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=1, batch_size=MIB)
    for record in RECORDS:
        builder.append(record.timestamp, record.key, record.value, list(record.headers))
    builder.close()
    assert list(read_records(bytes(builder.buffer()), MIB)) == RECORDS


@pytest.mark.parametrize("compression", Compression)
def test_records_built_by_aiokafka_are_read(compression) -> None:
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=int(compression),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=MIB,
    )
    for record in RECORDS:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    assert list(read_records(bytes(builder.build()), MIB)) == RECORDS


def test_many_records_take_two_byte_deltas() -> None:
    builder = BatchBuilder()
    for number in range(9000):
        builder.add(number * 3, b"%d" % number, b"")
    assert [record.offset for record in read_records(builder.build(), MIB)] == list(range(9000))


@pytest.mark.parametrize("compression", Compression)
def test_records_without_a_key_are_named_by_their_index(compression) -> None:
    keys = [b"a", None, b"", None]
    batch = build_batch([Record(0, 0, key, b"v") for key in keys], compression=compression)
    assert [index for index, _ in check_keys(batch, read_header(batch), MIB)] == [1, 3]


def test_a_batch_of_keyed_records_has_nothing_to_complain_about() -> None:
    batch = build_batch([Record(0, 0, b"k", None)])
    assert check_keys(batch, read_header(batch), MIB) == []


def test_a_bomb_is_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", bytes(2 * MIB))], compression=Compression.ZSTD)
    with pytest.raises(PenstockError) as caught:
        check_keys(batch, read_header(batch), MIB)
    assert caught.value.reason is Reason.RECORDS_TOO_LARGE
