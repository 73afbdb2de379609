import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords

from penstock.errors import PenstockError, Reason
from penstock.limits import MIB
from penstock.records.batch import (
    Compression,
    check_produced,
    crc_matches,
    read_header,
    set_log_append_time,
    set_offset,
)
from penstock.records.builder import BatchBuilder, build_batch, recompress, seal
from penstock.records.records import Record, read_records

headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=8)), max_size=4).map(tuple)
payloads = st.none() | st.binary(max_size=64) | st.binary(min_size=1, max_size=3).map(lambda data: data * 9000)
record_lists = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 2**50), payloads, payloads, headers), min_size=1, max_size=20
).map(lambda records: [record._replace(offset=offset) for offset, record in enumerate(records)])


@given(record_lists, st.sampled_from(Compression))
def test_what_is_built_is_accepted_and_read_back(records, compression) -> None:
    batch = build_batch(records, compression=compression)
    header = read_header(batch)
    check_produced(batch, header)
    assert header.compression is compression
    assert header.base_timestamp == records[0].timestamp
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert list(read_records(batch, 2 * MIB)) == records


@pytest.mark.parametrize("value_bytes", [0, 1, 63, 64, 8175, 8176, 8177, 8191, 8192, 20_000])
def test_values_alone_are_read_back_whatever_their_length_and_number(value_bytes) -> None:
    records = [Record(offset, 1000, None, b"v" * value_bytes, ()) for offset in range(9000 if value_bytes < 10 else 9)]
    batch = build_batch(records)
    check_produced(batch, read_header(batch))
    assert list(read_records(batch, 2 * MIB)) == records
    with_keys = [record._replace(key=b"") for record in records]
    assert list(read_records(build_batch(with_keys), 2 * MIB)) == with_keys


@given(record_lists)
def test_size_bytes_is_the_size_without_compression(records) -> None:
    builder = BatchBuilder()
    for record in records:
        builder.add(record.timestamp, record.key, record.value, record.headers)
        assert builder.size_bytes == len(builder.build())


@given(record_lists)
def test_aiokafka_reads_what_is_built(records) -> None:
    batch = AiokafkaRecords(bytes(build_batch(records))).next_batch()
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == records


@given(record_lists)
def test_kafka_python_reads_what_is_built(records) -> None:
    batch = MemoryRecords(bytes(build_batch(records, compression=Compression.GZIP))).next_batch()
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == records


def test_the_producer_stands_in_the_header() -> None:
    batch = build_batch([Record(0, 5, b"k", b"v")], producer_id=2**40, producer_epoch=3, base_sequence=77)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 3, 77)


def test_without_a_producer_the_header_says_so() -> None:
    header = read_header(build_batch([Record(0, 5, b"k", b"v")]))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize(("transactional", "control"), [(False, False), (True, False), (False, True), (True, True)])
def test_transactional_and_control_are_bits_of_the_attributes(transactional, control) -> None:
    builder = BatchBuilder()
    builder.add(0, b"", b"")
    header = read_header(builder.build(transactional=transactional, control=control))
    assert (header.is_transactional, header.is_control) == (transactional, control)


def test_sealing_changes_length_codec_and_checksum_alone() -> None:
    header = read_header(build_batch([Record(0, 5, b"k", b"v")], compression=Compression.ZSTD))
    header = header._replace(base_offset=9, leader_epoch=4, last_offset_delta=30, record_count=0)
    batch = seal(b"", header, Compression.NONE)
    assert crc_matches(batch)
    sealed = read_header(batch)
    assert sealed == header._replace(length=49, attributes=0, crc=sealed.crc)


RECORDS = [Record(n, 1000 + n, b"key%d" % n, b"value" * 50, (("h", b"x"),)) for n in range(100)]


@pytest.mark.parametrize("target", Compression)
@pytest.mark.parametrize("source", Compression)
def test_the_records_stay_and_the_codec_changes(source, target) -> None:
    batch = build_batch(RECORDS, compression=source, producer_id=5, producer_epoch=1, base_sequence=40)
    changed = recompress(batch, target, MIB)
    header = read_header(changed)
    check_produced(changed, header)
    assert header.compression is target
    assert list(read_records(changed, MIB)) == RECORDS
    before = read_header(batch)
    assert header == before._replace(length=header.length, crc=header.crc, attributes=int(target))


def test_offset_epoch_and_time_type_stay() -> None:
    batch = build_batch(RECORDS)
    set_offset(batch, 700, 9)
    set_log_append_time(batch, 123456)
    changed = recompress(batch, Compression.ZSTD, MIB)
    header = read_header(changed)
    assert crc_matches(changed)
    assert (header.base_offset, header.leader_epoch, header.max_timestamp) == (700, 9, 123456)
    assert header.is_log_append_time


def test_back_and_forth_is_the_same_batch() -> None:
    batch = build_batch(RECORDS)
    assert recompress(recompress(batch, Compression.LZ4, MIB), Compression.NONE, MIB) == batch


def test_a_batch_that_opens_too_far_is_refused() -> None:
    batch = build_batch([Record(0, 0, b"k", bytes(MIB))], compression=Compression.GZIP)
    with pytest.raises(PenstockError) as caught:
        recompress(batch, Compression.SNAPPY, MIB)
    assert caught.value.reason is Reason.RECORDS_TOO_LARGE
