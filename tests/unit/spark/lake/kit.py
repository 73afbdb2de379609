"""Records, and a query that writes them to a lake."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.lake.lake import Lake, LakeCommit, open_lake
from penstock.spark.lake.layout import RECORDS, LakeFile, records_layout
from penstock.spark.lake.task_files import task_files

DAY_MS = 24 * 3600 * 1000
NEW_YEAR_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
NOW_MS = NEW_YEAR_MS + 10 * DAY_MS


def records(
    topic: str = "orders", partition: int = 0, offsets: Sequence[int] = (), timestamps_ms: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Records as the source returns them; the value contains the position."""
    count = len(offsets)
    times = [NEW_YEAR_MS] * count if timestamps_ms is None else timestamps_ms
    columns = {
        "key": pa.array([None if n % 3 == 0 else b"k%d" % n for n in offsets], pa.binary()),
        "value": pa.array([b"%s/%d/%d" % (topic.encode(), partition, n) for n in offsets], pa.binary()),
        "topic": pa.array([topic] * count, pa.string()),
        "partition": pa.array([partition] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([each * 1000 for each in times], pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
        "headers": pa.array(
            [[{"key": "h", "value": b"x"}] if n % 2 else None for n in offsets], RECORDS.field("headers").type
        ),
    }
    return pa.record_batch(columns)


class Archive:
    """A query that writes records to a lake."""

    def __init__(self, folder: Path, lake_format: LakeFormat, query: str = "q") -> None:
        self.folder = folder
        self.format = lake_format
        self.query = query
        self.layout = records_layout()

    def open(self) -> Lake:
        lake = open_lake(str(self.folder), self.format)
        lake.prepare(self.layout)
        return lake

    def stage(self, batch: int, *written: pa.RecordBatch) -> list[LakeFile]:
        """What the tasks of a batch do."""
        self.open()
        return task_files(str(self.folder), self.format, self.layout, self.query, batch).write(written)

    def commit(self, batch: int, files: list[LakeFile], now_ms: int = NOW_MS) -> LakeCommit:
        """What the driver does, in a process of its own."""
        return self.open().commit(self.layout, self.query, batch, files, now_ms)

    def run(self, batch: int, *written: pa.RecordBatch) -> LakeCommit:
        return self.commit(batch, self.stage(batch, *written))

    def rows(self) -> list[tuple[str, int, int, bytes]]:
        """As a stranger sees them, through the format's own reader."""
        if self.format is LakeFormat.PARQUET:
            import pyarrow.dataset

            table = pyarrow.dataset.dataset(self.folder, format="parquet", partitioning="hive").to_table()
        elif self.format is LakeFormat.DELTA:
            from deltalake import DeltaTable

            table = pa.table(DeltaTable(str(self.folder)).to_pyarrow_table())
        else:
            from pyiceberg.catalog import load_catalog

            with load_catalog("penstock", type="sql", uri=f"sqlite:///{self.folder}/catalog.sqlite") as catalog:
                table = catalog.load_table(("penstock", self.folder.name)).scan().to_arrow()
        columns = ("topic", "partition", "offset", "value")
        return sorted(tuple(row.values()) for row in table.select(columns).to_pylist())

    def data_files(self) -> list[Path]:
        """Every file that looks like data."""
        return sorted(path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts)

    def staged(self) -> list[Path]:
        return sorted(self.folder.rglob("*.staged"))


def expected(topic: str, partition: int, offsets: Sequence[int]) -> list[tuple[str, int, int, bytes]]:
    return [(topic, partition, n, b"%s/%d/%d" % (topic.encode(), partition, n)) for n in offsets]
