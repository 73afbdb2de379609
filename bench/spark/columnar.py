"""`python -m bench.spark.columnar`: records to Arrow columns and back, beside the row reader and the builder, on one core.

No broker and no Spark: what the codec itself can do. Each number is the best of several rounds, in processor time, so that what else the
machine does counts as little as it can.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from bench.results import table
from penstock.limits import MIB
from penstock.records.batch import BatchHeader, Compression, read_header, set_offset
from penstock.records.builder import BatchBuilder
from penstock.records.columnar import decode, encode
from penstock.records.columnar.opened import COLUMN_BYTES_MAX
from penstock.records.records import read_records

OPENED_BYTES_MAX: Final = 64 * MIB
NOW_MS: Final = 1_750_000_000_000
COLUMNS: Final = frozenset({"key", "value", "offset", "timestamp", "timestampType"})
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Header = tuple[str, bytes | None]
Batches = list[tuple[BatchHeader, memoryview]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the records look like."""

    title: str
    records: int
    batch_records: int
    value_bytes: int
    spread: float = 0.1
    """How much larger or smaller a value may be, as a share of its size."""
    has_keys: bool = True
    has_headers: bool = False
    only_values: bool = False
    compression: Compression = Compression.NONE


SHAPES: Final = (
    Shape("100 B, all the same size", 100_000, 10_000, 100, spread=0),
    Shape("100 B, sizes vary", 100_000, 10_000, 100),
    Shape("100 B, sizes vary, the value alone", 100_000, 10_000, 100, only_values=True),
    Shape("100 B, sizes vary, no keys", 100_000, 10_000, 100, has_keys=False),
    Shape("100 B, two headers", 50_000, 10_000, 100, has_headers=True),
    Shape("100 B, 140 in a batch", 100_000, 140, 100),
    Shape("100 B, one in a batch", 50_000, 1, 100),
    Shape("100 B, zstd", 100_000, 10_000, 100, compression=Compression.ZSTD),
    Shape("20 B", 100_000, 10_000, 20),
    Shape("1 kB", 20_000, 1000, 1000),
    Shape("1 MB", 40, 1, 1_000_000),
)


@dataclass(frozen=True, slots=True)
class Rows:
    """The records of a shape, as Python has them and as Arrow has them."""

    keys: list[bytes | None]
    values: list[bytes]
    headers: list[Header]
    key: pa.Array | None
    value: pa.Array
    header: pa.Array | None


def rows_of(shape: Shape) -> Rows:
    """The same every time."""
    chance = random.Random(7)
    spread = int(shape.value_bytes * shape.spread)
    sizes = [shape.value_bytes + chance.randint(-spread, spread) for _ in range(shape.records)]
    values = [b"x" * size for size in sizes]
    keys = [b"key-%05d" % (number % 99_999) if shape.has_keys else None for number in range(shape.records)]
    headers: list[Header] = [("trace", b"0123456789abcdef"), ("kind", None)] if shape.has_headers else []
    return Rows(
        keys,
        values,
        headers,
        pa.array(keys, pa.binary()) if shape.has_keys else None,
        pa.array(values, pa.binary()),
        pa.array([headers] * shape.records, HEADERS) if shape.has_headers else None,
    )


def build(shape: Shape, rows: Rows) -> list[bytearray]:
    """The batches, a record at a time."""
    batches: list[bytearray] = []
    for begin in range(0, shape.records, shape.batch_records):
        builder = BatchBuilder()
        end = begin + shape.batch_records
        for key, value in zip(rows.keys[begin:end], rows.values[begin:end], strict=True):
            builder.add(NOW_MS, key, value, rows.headers)
        batches.append(builder.build(compression=shape.compression))
    return batches


def encode_columns(shape: Shape, rows: Rows) -> list[bytearray]:
    """The batches, from columns."""
    return encode(
        value=rows.value,
        key=rows.key,
        headers=rows.header,
        timestamps_ms=NOW_MS,
        compression=shape.compression,
        batch_bytes_max=OPENED_BYTES_MAX,
        batch_records_max=shape.batch_records,
    )


def fetched(batches: list[bytearray]) -> Batches:
    """As a fetch gives them: in one buffer, placed in a log."""
    offset = 0
    for batch in batches:
        set_offset(batch, offset, 0)
        offset += read_header(batch).record_count
    whole = memoryview(b"".join(batches))
    placed: Batches = []
    at = 0
    for batch in batches:
        placed.append((read_header(whole, at), whole[at : at + len(batch)]))
        at += len(batch)
    return placed


def columns_of(shape: Shape) -> frozenset[str]:
    """What is read of the records."""
    if shape.only_values:
        return frozenset({"value"})
    return COLUMNS | {"headers"} if shape.has_headers else COLUMNS


def decode_columns(shape: Shape, batches: Batches) -> int:
    """All records as one Arrow batch; how many there were."""
    decoded = decode(
        batches,
        columns=columns_of(shape),
        from_offset=0,
        to_offset=shape.records,
        bytes_max=OPENED_BYTES_MAX,
        group_bytes=COLUMN_BYTES_MAX,
    )
    return sum(int(batch.num_rows) for batch in decoded)


def decode_rows(shape: Shape, batches: Batches) -> int:
    """The same through the row reader."""
    found = [record for _, data in batches for record in read_records(data, OPENED_BYTES_MAX)]
    columns = [pa.array([record.value for record in found], pa.binary())]
    if not shape.only_values:
        columns.append(pa.array([record.key for record in found], pa.binary()))
        columns.append(pa.array([record.offset for record in found], pa.int64()))
        columns.append(pa.array([record.timestamp * 1000 for record in found], pa.timestamp("us", tz="UTC")))
    if shape.has_headers:
        columns.append(pa.array([record.headers for record in found], HEADERS))
    return len(columns[0])


def rate(records: int, work: Callable[[], object], seconds: float) -> float:
    """Thousand records a second in the best round."""
    best = float("inf")
    until = time.monotonic() + seconds
    while best == float("inf") or time.monotonic() < until:
        begin = time.thread_time()
        work()
        best = min(best, time.thread_time() - begin)
    return records / best / 1000


def measure(shape: Shape, seconds: float) -> list[str]:
    """A row of the table."""
    rows = rows_of(shape)
    built = build(shape, rows)
    if encode_columns(shape, rows) != built:
        raise SystemExit(f"{shape.title}: the encoder and the builder do not agree")
    batches = fetched(built)
    if decode_columns(shape, batches) != shape.records:
        raise SystemExit(f"{shape.title}: not all records came back")
    rates = [
        rate(shape.records, lambda: decode_rows(shape, batches), seconds),
        rate(shape.records, lambda: decode_columns(shape, batches), seconds),
        rate(shape.records, lambda: build(shape, rows), seconds),
        rate(shape.records, lambda: encode_columns(shape, rows), seconds),
    ]
    return [
        shape.title,
        *(f"{one:,.0f}" if one >= 10 else f"{one:.1f}" for one in rates),
        f"{rates[1] / rates[0]:.1f}x",
        f"{rates[3] / rates[2]:.1f}x",
    ]


def main() -> int:
    """Exit code 0 when all was measured, 1 when something was wrong, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark.columnar", description="Measure the columnar codec.")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number")
    parser.add_argument("--only", default="", help="rows whose title has this in it")
    given = parser.parse_args()
    head = ["krecords/s, one core", "decode, rows", "columns", "encode, rows", "columns", "decode", "encode"]
    measured = [measure(shape, given.seconds) for shape in SHAPES if given.only in shape.title]
    if not measured:
        parser.error(f"no row has {given.only!r} in its title")
    print(table(head, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
