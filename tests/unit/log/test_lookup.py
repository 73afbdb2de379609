import random

import pytest

from penstock.log.config import LogConfig
from penstock.records.batch import Compression, read_header, set_log_append_time
from penstock.records.builder import BatchBuilder
from tests.unit.log.kit import sync

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=200)


def add(log, *timestamps, compression=Compression.NONE, epoch=0) -> None:
    builder = BatchBuilder()
    for timestamp in timestamps:
        builder.add(timestamp, b"k", b"x" * 40)
    batch = builder.build(compression=compression)
    log.append(batch, read_header(batch), epoch)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_records_are_found_in_batches_of_any_order(kit, compression) -> None:
    numbers = random.Random(5)
    log = kit.open(CONFIG)
    stamps = []
    for _ in range(80):
        batch = [numbers.randint(0, 1000) for _ in range(numbers.randint(1, 5))]
        stamps += batch
        add(log, *batch, compression=compression)
    log.write_pending()
    sync(log)
    assert len(log.segments) > 2
    for start, upto in ((0, len(stamps)), (33, 100), (7, len(stamps) - 3)):
        log.start_offset = start
        for wanted in range(-1, 1003, 17):
            expected = next((n for n in range(start, upto) if stamps[n] >= wanted), None)
            found = log.offset_for_time(wanted, upto)
            assert (found.offset if found else None) == expected
            if found:
                assert found.timestamp == stamps[found.offset]


def test_the_latest_record_is_found(kit) -> None:
    log = kit.open(CONFIG)
    assert log.latest_by_time(0) is None
    for stamp in (5, 9, 7):
        add(log, stamp, stamp - 1, epoch=5)
    log.write_pending()
    assert log.latest_by_time(6) == (2, 9, 5)
    assert log.latest_by_time(2) == (0, 5, 5)
    log.roll()
    for stamp in (3, 9, 1):
        add(log, stamp, epoch=5)
    log.write_pending()
    assert log.latest_by_time(9) == (2, 9, 5)
    log.delete_before(4)
    assert log.latest_by_time(9) == (7, 9, 5)
    assert log.latest_by_time(7) == (4, 7, 5)


def test_a_batch_stamped_by_the_broker_has_one_time(kit) -> None:
    log = kit.open(CONFIG)
    builder = BatchBuilder()
    for timestamp in (1, 2, 3):
        builder.add(timestamp, b"k", b"v")
    batch = builder.build()
    set_log_append_time(batch, 500)
    log.append(batch, read_header(batch), 0)
    log.write_pending()
    assert log.offset_for_time(400, 3) == (0, 500, 0)
    log.delete_before(1)
    assert log.offset_for_time(400, 3) == (1, 500, 0)


def test_a_batch_that_cannot_be_opened_is_pointed_at(kit) -> None:
    log = kit.open(CONFIG)
    add(log, 10, 20, 30, compression=Compression.GZIP)
    log.write_pending()
    kit.disk.change(log.segments[0].log_path, lambda data: data.__setitem__(slice(65, 90), bytes(25)))
    assert log.offset_for_time(15, 3) == (0, 30, 0)


def test_an_empty_log_has_no_times(kit) -> None:
    log = kit.open(CONFIG)
    assert log.offset_for_time(0, 0) is None
    assert log.latest_by_time(0) is None
