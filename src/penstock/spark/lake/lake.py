"""A lake as queries and readers use it.

Invariant: a batch of a query is in the lake completely or not at all, and once. The steps of a commit are: the tasks' files are synced; the
manifest is written; the files get their names; the table's commit, if there is one; the staging folder is deleted. After a crash, the
query's next commit finishes or undoes it, or an archive of the same topics when it starts.

Only one query at a time can archive a partition to a lake. A second one is refused if its offsets are there already.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import LakeFile, LakeLayout, StoredFile, kind_of
from penstock.spark.lake.manifests import VERSION, Ends, Manifest, Manifests, Mark, ends_of
from penstock.spark.lake.store import HIDDEN, Store
from penstock.spark.lake.task_files import staging_folder

if TYPE_CHECKING:
    from penstock.spark.lake.table import LakeTable

SINGLE_WRITE: Final = "write-"
"""The prefix of the query's name of a batch write, which has one batch and a unique name."""
ORPHAN_MS: Final = 24 * 60 * 60 * 1000
"""Staged files of other queries are deleted at this age: no batch takes that long."""


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """The result of a commit. ``already``: the batch was there before. ``ends``: up to where the query has archived."""

    already: bool
    rows: int
    ends: Ends


class Lake:
    """One lake, for the driver. Tasks only write files (``task_files.py``)."""

    def __init__(self, store: Store, table: LakeTable, lake_format: LakeFormat) -> None:
        self.format: Final = lake_format
        self._store = store
        self._table = table
        self._manifests = Manifests(store)

    @property
    def location(self) -> str:
        """Its URI."""
        return self._store.uri

    def prepare(self, layout: LakeLayout) -> None:
        """Before anything is written: check that the lake has this format and layout, or set them if it is new."""
        mark = Mark(VERSION, self.format, layout.is_records, layout.folders)
        found = self._manifests.mark()
        if found is not None and found.format is not self.format:
            raise LakeError(
                f"{self.location} is a lake of format {found.format}, not {self.format}: specify --format {found.format}, or another place"
            )
        if found is not None and found != mark:
            what = "records of topics" if found.is_records else f"rows by {', '.join(found.folders) or 'no folder'}"
            raise LakeError(f"{self.location} contains {what}: write the same, or choose another place")
        if found is None or not layout.is_records:
            self._check_columns(layout)
        if found is None:
            self._manifests.set_mark(mark)

    def recover(self, topics: Collection[str], now_ms: int) -> None:
        """Finish interrupted commits with records of these topics. What was not committed is undone if it is old."""
        for manifest in self._manifests.all():
            if any(file.topic in topics for file in manifest.files):
                self._table.finish(manifest)
        for manifest in self._manifests.all(changed_before_ms=now_ms - ORPHAN_MS):
            if any(file.topic in topics for file in manifest.files):
                self._table.recover(manifest)

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic with this name whose records the lake has; None if it was not set."""
        return self._manifests.topic_id(topic)

    def claim(self, topic: str, topic_id: str) -> None:
        """Set the id of the topic. Refuse if the lake has records of another topic with this name."""
        found = self._manifests.topic_id(topic)
        if found == topic_id:
            return
        if found is not None and self._table.files(topic):
            raise LakeError(
                f"{self.location} contains records of another topic {topic}: the topic was deleted and created again, or this is another cluster. "
                "Archive it to another place"
            )
        self._manifests.set_topic_id(topic, topic_id)

    def knows(self, query: str) -> bool:
        """Whether this query has ever committed here, even batches without rows."""
        return self._manifests.last(query) is not None or self._table.last_batch(query) is not None

    def commit(self, layout: LakeLayout, query: str, batch: int, files: Sequence[LakeFile], now_ms: int) -> LakeCommit:
        """Make a batch part of the lake, unless it is there already, and delete staged files that are not needed."""
        # Under the lock: otherwise, two archives of a topic could both find that its offsets are new.
        with self._store.held():
            return self._commit(layout, query, batch, files, now_ms)

    def _commit(self, layout: LakeLayout, query: str, batch: int, files: Sequence[LakeFile], now_ms: int) -> LakeCommit:
        last = self._manifests.last(query)
        if last is not None:
            self._table.recover(last)
        done = self._table.last_batch(query)
        if done is not None and batch <= done:
            self._clean(query, now_ms)
            self._forget(layout, query)
            return LakeCommit(already=True, rows=0, ends=self._ends(layout).get(query, {}))
        before = self._ends(layout)
        own = before.get(query, {})
        ends = ends_of(files, own)
        if files:
            self._check_new(files, before, query)
            self._table.append(layout, Manifest(query, batch, list(files), ends, own))
        else:
            # The lake must know a query even if it has not written any rows yet.
            self._manifests.write(Manifest(query, batch, [], own, own))
        self._clean(query, now_ms)
        self._forget(layout, query)
        return LakeCommit(already=False, rows=sum(file.rows for file in files), ends=ends)

    def abort(self, query: str, batch: int, files: Iterable[LakeFile]) -> None:
        """Delete staged files, unless the batch was committed: Spark also aborts if a commit fails after it was done."""
        done = self._table.last_batch(query)
        if done is None or done < batch:
            self._store.remove(file.staged for file in files)

    def _check_columns(self, layout: LakeLayout) -> None:
        """Refuse columns that the table lacks or has in another type: they would be lost, or make the table unreadable."""
        there = self._table.schema()
        if there is None:
            return
        for field in layout.schema:
            at = there.get_field_index(field.name)
            if at < 0:
                raise LakeError(
                    f"{self.location} has the columns {', '.join(there.names)}, and this query also writes {field.name}: add the column to the table, remove it from the query, or choose another place"
                )
            if field.name not in layout.folders and kind_of(there.field(at).type) != kind_of(field.type):
                raise LakeError(
                    f"The column {field.name} of {self.location} is {there.field(at).type}, and this query writes {field.type}: write the same type, or choose another place"
                )

    def _ends(self, layout: LakeLayout) -> dict[str, Ends]:
        """Up to where each query has archived. Rows other than records have no offsets."""
        if not layout.is_records:
            return {}
        manifests = self._manifests.all()
        # Only queries whose last batch changed something need a lookup.
        done = self._table.last_batches(each.query for each in manifests if each.ends != each.ends_before)
        return {
            each.query: each.ends if done.get(each.query, -1) >= each.batch else each.ends_before for each in manifests
        }

    def _check_new(self, files: Iterable[LakeFile], ends: Mapping[str, Ends], query: str) -> None:
        for file in files:
            for whose, of_query in ends.items():
                end = of_query.get(file.topic or "", {}).get(file.partition, 0)
                if file.topic is not None and file.first_offset < end:
                    who = "this query" if whose == query else "another query"
                    raise LakeError(
                        f"{self.location} has {file.topic}/{file.partition} up to offset {end} already, from {who}, and this batch starts at {file.first_offset}. Only one archive at a time can write a topic; if the topic was deleted and created again, archive it to another place"
                    )

    def _forget(self, layout: LakeLayout, query: str) -> None:
        """Delete the manifest of a finished batch write, since there would be one for every write.

        Manifests of records remain, because they prevent duplicate offsets, and so do those of a Parquet lake, because they are the commits.
        In the other formats the table knows the write, and a manifest that remains after a crash is not used.
        """
        if query.startswith(SINGLE_WRITE) and not layout.is_records and self.format is not LakeFormat.PARQUET:
            # The write is done and must not fail because of this.
            with suppress(OSError):
                self._manifests.remove(query)

    def _clean(self, query: str, now_ms: int) -> None:
        """Delete what is staged for this query, and very old files of other queries."""
        self._store.remove_folder(staging_folder(query))
        staging = f"{HIDDEN}/staging"
        for other in self._store.folders(staging):
            files = self._store.files(f"{staging}/{other}")
            if all(changed_ms < now_ms - ORPHAN_MS for _, _, changed_ms in files) and files:
                self._store.remove_folder(f"{staging}/{other}")

    def is_records(self) -> bool:
        """Whether it contains records of topics."""
        mark = self._manifests.mark()
        return mark is not None and mark.is_records

    def schema(self) -> pa.Schema | None:
        """Its columns; None if it is empty."""
        return self._table.schema()

    def uris(self) -> list[str]:
        """All its files."""
        return self._table.uris()

    def files(self, topic: str) -> list[StoredFile]:
        """The files with records of a topic, by partition and offset."""
        return sorted(self._table.files(topic), key=lambda file: (file.partition, file.first_offset, file.last_offset))

    def ends(self, topic: str) -> dict[int, int]:
        """The offset after the last record of each partition in the lake."""
        found: dict[int, int] = {}
        for file in self._table.files(topic):
            found[file.partition] = max(found.get(file.partition, 0), file.last_offset + 1)
        return found


def open_lake(location: str, lake_format: LakeFormat, options: Mapping[str, str] | None = None) -> Lake:
    """The lake at a path or URI. ``options`` are those of the format: of Iceberg, the properties of its catalog."""
    store = Store(location)
    try:
        return Lake(store, _table(store, lake_format, options or {}), lake_format)
    except ModuleNotFoundError as error:
        raise LakeError(
            f"A lake of format {lake_format} needs the library {error.name}, which the Python that Spark runs ({sys.executable}) does not "
            "have: pip install 'penstock[spark]' there"
        ) from error


def _table(store: Store, lake_format: LakeFormat, options: Mapping[str, str]) -> LakeTable:
    match lake_format:
        case LakeFormat.PARQUET:
            from penstock.spark.lake.parquet import ParquetTable

            return ParquetTable(store)
        case LakeFormat.DELTA:
            from penstock.spark.lake.delta import DeltaLakeTable

            return DeltaLakeTable(store)
        case LakeFormat.ICEBERG:
            from penstock.spark.lake.iceberg import IcebergTable

            return IcebergTable(store, options)
