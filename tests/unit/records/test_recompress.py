import pytest

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
from penstock.records.builder import build_batch
from penstock.records.recompress import recompress
from penstock.records.records import Record, read_records

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
