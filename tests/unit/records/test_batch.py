import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError, Reason
from penstock.limits import BATCH_RECORDS_MAX
from penstock.records.batch import (
    CONTROL_BIT,
    check_produced,
    crc_matches,
    read_header,
    set_crc,
    set_log_append_time,
    set_offset,
    set_producer,
)
from penstock.records.builder import build_batch
from penstock.records.records import Record

RECORDS = [Record(n, 1000 + n, b"k%d" % n, b"value") for n in range(10)]


def refusal(batch: bytearray) -> Reason:
    with pytest.raises(PenstockError) as caught:
        check_produced(batch, read_header(batch))
    return caught.value.reason


def with_field(at: int, value: bytes) -> bytearray:
    """A batch with other bytes somewhere in its header, under a checksum that is right for them."""
    batch = build_batch(RECORDS)
    batch[at : at + len(value)] = value
    set_crc(batch)
    return batch


def test_a_sound_batch_passes() -> None:
    batch = build_batch(RECORDS)
    check_produced(batch, read_header(batch))


def test_the_header_says_how_far_the_batch_goes() -> None:
    batch = build_batch(RECORDS)
    set_offset(batch, 50, 2)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (50, 2, 60)
    assert header.size_bytes == len(batch)


def test_the_last_sequence_wraps() -> None:
    header = read_header(build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 3))
    assert header.last_sequence == 6


def test_offset_and_epoch_are_outside_the_checksum() -> None:
    batch = build_batch(RECORDS)
    set_offset(batch, 2**40, 7)
    assert crc_matches(batch)


def test_a_producer_comes_with_a_right_checksum() -> None:
    batch = build_batch([Record(0, 1, b"k", b"v"), Record(1, 2, b"k", b"w")])
    set_producer(batch, 2**40, 7, 99)
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**40, 7, 99)
    assert (header.max_timestamp, header.record_count) == (2, 2)
    check_produced(batch, header)


def test_log_append_time_comes_with_a_right_checksum() -> None:
    batch = build_batch(RECORDS)
    set_log_append_time(batch, 5555)
    assert crc_matches(batch)
    assert read_header(batch).max_timestamp == 5555


@given(st.integers(21 * 8, len(build_batch(RECORDS)) * 8 - 1))
def test_any_flipped_bit_under_the_checksum_is_noticed(bit) -> None:
    batch = build_batch(RECORDS)
    batch[bit // 8] ^= 1 << bit % 8
    assert not crc_matches(batch)
    with pytest.raises(PenstockError):
        check_produced(batch, read_header(batch))


@pytest.mark.parametrize(
    ("bit", "reason"),
    [
        (0x08, Reason.INVALID_TIMESTAMP),
        (0x10, Reason.TRANSACTIONS_NOT_SUPPORTED),
        (0x20, Reason.INVALID_RECORD),
        (0x40, Reason.INVALID_RECORD),
    ],
)
def test_what_only_the_broker_says_of_a_batch_is_refused(bit: int, reason: Reason) -> None:
    assert refusal(with_field(22, bytes([bit]))) is reason


def test_a_batch_that_damage_makes_transactional_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    batch[22] |= 0x10
    assert refusal(batch) is Reason.CORRUPT_RECORDS


def test_an_old_record_format_is_named() -> None:
    assert refusal(with_field(16, b"\x01")) is Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_length_that_is_not_the_frames_is_corrupt() -> None:
    assert refusal(build_batch(RECORDS) + b"\x00") is Reason.CORRUPT_RECORDS
    assert refusal(build_batch(RECORDS)[:-1]) is Reason.CORRUPT_RECORDS


@pytest.mark.parametrize("count", [0, -1, 9, 11])
def test_a_count_that_does_not_match_the_last_delta_is_invalid(count) -> None:
    assert refusal(with_field(57, count.to_bytes(4, "big", signed=True))) is Reason.INVALID_RECORD


def test_a_batch_of_more_records_than_can_be_opened_in_passing_is_too_large() -> None:
    most = BATCH_RECORDS_MAX
    for count, reason in ((most, Reason.CORRUPT_RECORDS), (most + 1, Reason.RECORDS_TOO_LARGE)):
        batch = with_field(57, count.to_bytes(4, "big"))
        batch[23:27] = (count - 1).to_bytes(4, "big")
        # Only the checksum is wrong with the first, since what is looked at last is refused last.
        assert refusal(batch) is reason


def test_an_unknown_codec_is_refused() -> None:
    assert refusal(with_field(22, b"\x05")) is Reason.UNSUPPORTED_COMPRESSION_TYPE


def test_a_control_batch_of_a_client_is_invalid() -> None:
    assert refusal(with_field(22, bytes([CONTROL_BIT]))) is Reason.INVALID_RECORD


def test_a_wrong_checksum_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    batch[-1] ^= 1
    assert refusal(batch) is Reason.CORRUPT_RECORDS
