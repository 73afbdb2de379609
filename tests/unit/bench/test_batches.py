import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kafka.record import MemoryRecords

from penstock.bench import batches


def read_by_aiokafka(data: bytes):
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return list(batch)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_other_readers_find_the_same_records(count) -> None:
    values = [bytes([index % 256]) * (index % 150) for index in range(count)]
    data = batches.batch_of(values, 1_700_000_000_123)
    records = read_by_aiokafka(data)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(count))
    assert {record.timestamp for record in records} == {1_700_000_000_123}
    assert all(record.key is None and not record.headers for record in records)
    memory = MemoryRecords(data)
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert [record.value for record in batch] == values
    assert memory.next_batch() is None


def test_a_filled_batch_is_as_large_as_allowed_and_no_larger() -> None:
    for limit in (200, 16 << 10, 1 << 20):
        data, count = batches.batch_filling(limit, b"v" * 100, 0)
        assert len(data) <= limit < len(data) + len(batches.record(count, b"v" * 100))
        assert len(read_by_aiokafka(data)) == count


def test_a_record_too_large_for_its_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="raise the batch size"):
        batches.batch_filling(100, b"v" * 100, 0)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        batches.batch_of([], 0)


def test_a_patched_value_breaks_the_crc_and_resealing_mends_it() -> None:
    data = batches.batch_of([bytes(100)], 0)
    frame = bytearray(b"head" + data + b"tail")
    struct.pack_into(">q", frame, len(frame) - 4 - 101, 42)
    patched = bytes(frame[4:-4])
    assert not DefaultRecordBatch(patched).validate_crc()
    batches.reseal(frame, 4, len(data))
    (record,) = read_by_aiokafka(bytes(frame[4:-4]))
    assert record.value == struct.pack(">q", 42) + bytes(92)
    assert frame.startswith(b"head")
    assert frame.endswith(b"tail")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"),
        (-1, b"\x01"),
        (1, b"\x02"),
        (63, b"\x7e"),
        (64, b"\x80\x01"),
        (-65, b"\x81\x01"),
        (300, b"\xd8\x04"),
    ],
)
def test_signed_numbers_are_encoded_as_the_protocol_says(value, encoded) -> None:
    assert batches.zigzag(value) == encoded
