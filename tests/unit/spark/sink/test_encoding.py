"""Rows to record batches that a topic takes."""

import pyarrow as pa
import pytest

from penstock.records.batch import Compression, read_header
from penstock.records.records import read_records
from penstock.spark.sink.encoding import encoded, gathered


def records(count, size=100):
    return pa.record_batch({"value": pa.array([b"%08d" % number + bytes(size - 8) for number in range(count)])})


@pytest.mark.parametrize("compression", list(Compression))
def test_batches_hold_every_row_in_order_and_know_their_count(compression) -> None:
    found = list(encoded(records(1000), now_ms=5, compression=compression, batch_bytes_max=20_000))
    assert len(found) > 4
    assert sum(count for _, count in found) == 1000
    values = []
    for batch, count in found:
        header = read_header(batch)
        assert (header.record_count, header.compression, header.base_timestamp) == (count, compression, 5)
        values += [int(bytes(record.value)[:8]) for record in read_records(batch, 1_000_000)]
    assert values == list(range(1000))


def test_a_record_larger_than_a_batch_has_its_own_batch() -> None:
    sizes = [
        len(batch)
        for batch, _ in encoded(records(3, 5000), now_ms=0, compression=Compression.NONE, batch_bytes_max=100)
    ]
    assert len(sizes) == 3
    assert min(sizes) > 5000


def test_kept_timestamps_reach_the_records() -> None:
    rows = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": pa.array([1000, 999], pa.int64())})
    ((batch, _),) = encoded(rows, now_ms=0, compression=Compression.NONE, batch_bytes_max=1000)
    assert [record.timestamp for record in read_records(batch, 1_000_000)] == [1000, 999]


def test_small_arrow_batches_are_put_together_in_order() -> None:
    pieces = [records(10).slice(start, 2) for start in range(0, 10, 2)]
    joined = list(gathered(iter(pieces), bytes_min=500))
    assert [batch.num_rows for batch in joined] == [6, 4]
    assert pa.concat_batches(joined) == records(10)
    assert list(gathered(iter([]), bytes_min=500)) == []
    assert [batch.num_rows for batch in gathered(iter(pieces), bytes_min=0)] == [2] * 5
