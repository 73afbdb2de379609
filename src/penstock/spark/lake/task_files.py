"""What one task writes: Parquet files in the staging folder of its query and batch, in bounded memory.

A file contains rows of one folder and, of records, one partition. Rows are buffered until they fill a row group. The total size of the
buffers and the number of open files are bounded. Staged files are invisible to readers: they are below ``_penstock/``, and their names do
not end in ``.parquet``.
"""

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.limits import MIB
from penstock.spark.lake.formats import LakeFormat
from penstock.spark.lake.layout import (
    DAY,
    NO_DATES,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TOPIC,
    LakeFile,
    LakeLayout,
    folder_path,
)
from penstock.spark.lake.store import HIDDEN, Store

STAGED: Final = ".staged"
_HEADERS: Final = ("headers.list.element.key", "headers.list.element.value")


@dataclass(frozen=True, slots=True)
class WriteBounds:
    """Limits of a task's memory, and of the size of its files."""

    group_bytes: int = 16 * MIB
    """A row group is written at this size: small enough for a reader's memory, large enough to compress."""
    group_rows_max: int = 262_144
    waiting_bytes_max: int = 64 * MIB
    """Of the buffers of all files."""
    file_bytes_max: int = 512 * MIB
    open_max: int = 16


@dataclass(slots=True)
class _Open:
    """A file that is being written."""

    values: tuple[str | None, ...]
    partition: int
    staged: str
    sink: pa.NativeFile
    writer: pq.ParquetWriter
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    waiting_rows: int = 0
    rows: int = 0
    first_offset: int = -1
    last_offset: int = -1


class TaskFiles:
    """The files of one attempt of one task. ``attempt`` makes their names unique."""

    def __init__(
        self,
        store: Store,
        layout: LakeLayout,
        staging: str,
        attempt: str,
        *,
        with_folders: bool,
        data_folder: str = "",
        bounds: WriteBounds | None = None,
    ) -> None:
        self._store = store
        self._layout = layout
        self._staging = staging
        self._attempt = attempt
        self._data_folder = data_folder
        self._bounds = bounds or WriteBounds()
        self._with_folders = with_folders
        self._schema = layout.file_schema(with_folders=with_folders)
        self._open: OrderedDict[tuple[tuple[str | None, ...], int], _Open] = OrderedDict()
        self._done: list[LakeFile] = []
        self._count = 0
        self._waiting_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> list[LakeFile]:
        """Write and sync everything. A failure leaves no files."""
        try:
            for batch in batches:
                if batch.num_rows:
                    self._add(batch)
            while self._open:
                self._close(next(iter(self._open)))
        except BaseException:
            self._discard()
            raise
        self._store.sync(file.staged for file in self._done)
        return self._done

    def _add(self, batch: pa.RecordBatch) -> None:
        for values, partition, part in self._layout.split(batch):
            key = (values, partition)
            file = self._open.get(key)
            if file is None:
                file = self._begin(values, partition)
            self._open.move_to_end(key)
            self._wait(file, part)
            if file.waiting_bytes >= self._bounds.group_bytes or file.waiting_rows >= self._bounds.group_rows_max:
                self._write_group(file)
            if self._waiting_bytes > self._bounds.waiting_bytes_max:
                self._write_group(max(self._open.values(), key=lambda each: each.waiting_bytes))
            if file.sink.tell() >= self._bounds.file_bytes_max:
                self._close(key)

    def _begin(self, values: tuple[str | None, ...], partition: int) -> _Open:
        if len(self._open) >= self._bounds.open_max:
            self._close(next(iter(self._open)))
        staged = f"{self._staging}/{self._attempt}-{self._count}{STAGED}"
        self._count += 1
        sink = self._store.open_output(staged)
        file = _Open(values, partition, staged, sink, self._new_writer(sink, values))
        self._open[values, partition] = file
        return file

    def _new_writer(self, sink: pa.NativeFile, values: tuple[str | None, ...]) -> pq.ParquetWriter:
        if not self._layout.is_records:
            return pq.ParquetWriter(sink, self._schema, compression="zstd")
        rising = [OFFSET, TIMESTAMP]
        repeated = [name for name in (PARTITION, "timestampType", TOPIC, DAY) if name in self._schema.names]
        # Ranges of keys and values are of no use, but Iceberg warns of each column without statistics.
        counted = [*rising, *repeated, *(("key", "value", *_HEADERS) if self._with_folders else ())]
        if values[self._layout.folders.index(DAY)] in NO_DATES:
            # Iceberg converts statistics to Python dates, which end with the year 9999.
            counted.remove(TIMESTAMP)
        return pq.ParquetWriter(
            sink,
            self._schema,
            compression="zstd",
            # Keys and values rarely repeat, so a dictionary costs more than it saves.
            use_dictionary=[*repeated, _HEADERS[0]],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            write_statistics=counted,
        )

    def _wait(self, file: _Open, part: pa.RecordBatch) -> None:
        if self._layout.is_records:
            bounds = pc.min_max(part.column(OFFSET)).as_py()
            file.first_offset = bounds["min"] if file.first_offset < 0 else min(file.first_offset, bounds["min"])
            file.last_offset = max(file.last_offset, bounds["max"])
        part = part.select(self._schema.names)
        file.waiting.append(part)
        file.waiting_bytes += part.nbytes
        file.waiting_rows += part.num_rows
        file.rows += part.num_rows
        self._waiting_bytes += part.nbytes

    def _write_group(self, file: _Open) -> None:
        table = pa.Table.from_batches(file.waiting, schema=self._schema)
        # Huge batches may exceed the limit of a group, so Arrow divides it by rows.
        file.writer.write_table(table, row_group_size=self._bounds.group_rows_max)
        self._waiting_bytes -= file.waiting_bytes
        file.waiting, file.waiting_bytes, file.waiting_rows = [], 0, 0

    def _close(self, key: tuple[tuple[str | None, ...], int]) -> None:
        file = self._open[key]
        if file.waiting:
            self._write_group(file)
        file.writer.close()
        size_bytes = file.sink.tell()
        file.sink.close()
        del self._open[key]
        self._done.append(
            LakeFile(
                staged=file.staged,
                path=self._final_path(file),
                values=file.values,
                rows=file.rows,
                size_bytes=size_bytes,
                topic=file.values[self._layout.folders.index(TOPIC)] if self._layout.is_records else None,
                partition=file.partition,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
            )
        )

    def _final_path(self, file: _Open) -> str:
        number = len(self._done)
        if self._layout.is_records:
            name = f"{file.partition}-{file.first_offset:020d}-{file.last_offset:020d}-{self._attempt}-{number}"
        else:
            name = f"part-{self._attempt}-{number}"
        return f"{self._data_folder}{folder_path(self._layout.folders, file.values)}{name}.parquet"

    def _discard(self) -> None:
        for file in self._open.values():
            with suppress(OSError, ValueError, pa.ArrowException):
                file.writer.close()
            with suppress(OSError, ValueError):
                file.sink.close()
        self._store.remove([*(file.staged for file in self._open.values()), *(file.staged for file in self._done)])
        self._open.clear()


def task_files(location: str, lake_format: LakeFormat, layout: LakeLayout, query: str, batch: int) -> TaskFiles:
    """The writer for one attempt of a task. It needs no library of the format, which executors may lack."""
    return TaskFiles(
        Store(location),
        layout,
        staging_folder(query, batch),
        uuid4().hex,
        with_folders=lake_format.with_folders,
        data_folder=lake_format.data_folder,
    )


def staging_folder(query: str, batch: int | None = None) -> str:
    """The folder for the tasks of a query, or of one of its batches."""
    whole = f"{HIDDEN}/staging/{query}"
    return whole if batch is None else f"{whole}/{batch}"
