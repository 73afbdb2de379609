"""A lake as queries and readers know it: files go in batch by batch, each batch once, and offsets are found again.

Invariant: a batch of a query is in the lake as a whole or not at all, and once. The order of a commit: the tasks' files are on the disk; the
manifest is written; the files get their names; the table's commit, where there is one; the staging folder goes. A crash anywhere is
finished or cleaned up by the query's next commit, or by an archive of the same topics when it starts.

One query at a time may archive a partition into a lake. A second one is refused when its offsets are there already.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import LakeFile, LakeLayout, StoredFile, kind_of
from penstock.spark.lake.manifests import VERSION, Ends, Manifest, Manifests, Mark, ends_of
from penstock.spark.lake.store import HIDDEN, Store
from penstock.spark.lake.task_files import staging_folder

SINGLE_WRITE: Final = "write-"
"""How the query of a write that is no stream begins: it has one batch, and its name never comes again."""
ORPHAN_MS: Final = 24 * 60 * 60 * 1000
"""Staged files of other queries are given up when they are so old: no batch takes that long."""


class LakeTable(Protocol):
    """How one format says which files belong to the lake."""

    def exists(self) -> bool:
        """Whether anything was ever committed."""
        ...

    def last_batch(self, query: str) -> int | None:
        """The last batch of this query that is in the table."""
        ...

    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        """The same of several queries, with one look at the table; without those that have none."""
        ...

    def recover(self, manifest: Manifest) -> None:
        """Finish what a crash interrupted, or take it back. Only for the manifest's own query, or when that is long gone."""
        ...

    def finish(self, manifest: Manifest) -> None:
        """Finish a commit of any query, as far as it is one; takes nothing back, for that query may be in the midst of it."""
        ...

    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        """Make the files of the manifest, which is not written yet, part of the table."""
        ...

    def files(self, topic: str) -> list[StoredFile]:
        """All files that hold records of the topic."""
        ...

    def uris(self) -> list[str]:
        """All files."""
        ...

    def schema(self) -> pa.Schema | None:
        """The table's columns with those that are folders; None when the lake is empty."""
        ...


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """What a commit did: ``already`` when the batch was there before. ``ends`` is how far the query has archived."""

    already: bool
    rows: int
    ends: Ends


class Lake:
    """One lake. Made by :func:`open_lake`, in the driver; tasks write files and know nothing of a table (``task_files.py``)."""

    def __init__(self, store: Store, table: LakeTable, lake_format: LakeFormat) -> None:
        self.format: Final = lake_format
        self._store = store
        self._table = table
        self._manifests = Manifests(store)

    @property
    def location(self) -> str:
        """Its URI."""
        return self._store.uri

    # Writing.

    def prepare(self, layout: LakeLayout) -> None:
        """Before anything is written: the lake is of this format and layout, or new and becomes so."""
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
        """Finish what queries left half done of these topics; what is no commit is taken back when it is old."""
        for manifest in self._manifests.all():
            if any(file.topic in topics for file in manifest.files):
                self._table.finish(manifest)
        for manifest in self._manifests.changed_before(now_ms - ORPHAN_MS):
            if any(file.topic in topics for file in manifest.files):
                self._table.recover(manifest)

    def topic_id(self, topic: str) -> str | None:
        """Which topic of that name the lake has records of; None when nobody said it."""
        return self._manifests.topic_id(topic)

    def claim(self, topic: str, topic_id: str) -> None:
        """Say which topic of that name this is; refuse when the lake has records of another one, whose offsets mean others."""
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
        """Whether this query has ever committed here, be it batches without rows."""
        return self._manifests.last(query) is not None or self._table.last_batch(query) is not None

    def last_batch(self, query: str) -> int | None:
        """The last batch of this query that is in the lake."""
        return self._table.last_batch(query)

    def commit(self, layout: LakeLayout, query: str, batch: int, files: Sequence[LakeFile], now_ms: int) -> LakeCommit:
        """Make a batch part of the lake, unless it is there already. What tasks left behind goes."""
        # What is checked must hold until it is written: two archives of a topic would both find its offsets new.
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
            # A lake must know the queries that write to it, also while they have found nothing.
            self._manifests.write(Manifest(query, batch, [], own, own))
        self._clean(query, now_ms)
        self._forget(layout, query)
        return LakeCommit(already=False, rows=sum(file.rows for file in files), ends=ends)

    def abort(self, query: str, batch: int, files: Iterable[LakeFile]) -> None:
        """Drop what was staged, unless the batch was committed: Spark aborts also when a commit failed after it was done."""
        done = self._table.last_batch(query)
        if done is None or done < batch:
            self._store.remove(file.staged for file in files)

    def _check_columns(self, layout: LakeLayout) -> None:
        """What the table's own columns cannot take would be lost without a word, or make it unreadable."""
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
        """Up to where each query has archived. Rows that are no records have no offsets, whoever wrote them."""
        if not layout.is_records:
            return {}
        manifests = self._manifests.all()
        # What the batch did not change need not be asked for.
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
        """Drop the manifest of a single write that is done: nobody comes back for it, and there would be one for every write.

        Not of records, whose manifests keep offsets from coming twice; nor in a plain lake, where nothing else says that the write was done.
        In the other formats the table knows the write, and a manifest that a crash leaves here is read by nobody.
        """
        if query.startswith(SINGLE_WRITE) and not layout.is_records and self.format is not LakeFormat.PARQUET:
            # The write is done, and must not be called failed for this.
            with suppress(OSError):
                self._manifests.remove(query)

    def _clean(self, query: str, now_ms: int) -> None:
        """Nothing that is staged for this query is needed any more; of others, nothing that is very old."""
        self._store.remove_folder(staging_folder(query))
        staging = f"{HIDDEN}/staging"
        for other in self._store.folders(staging):
            files = self._store.files(f"{staging}/{other}")
            if all(changed_ms < now_ms - ORPHAN_MS for _, _, changed_ms in files) and files:
                self._store.remove_folder(f"{staging}/{other}")

    # Reading.

    def exists(self) -> bool:
        """Whether anything was committed here."""
        return self._table.exists()

    def is_records(self) -> bool:
        """Whether it holds records of topics."""
        mark = self._manifests.mark()
        return mark is not None and mark.is_records

    def schema(self) -> pa.Schema | None:
        """Its columns; None when it is empty."""
        return self._table.schema()

    def uris(self) -> list[str]:
        """All its files."""
        return self._table.uris()

    def files(self, topic: str) -> list[StoredFile]:
        """The files with records of a topic, by partition and offset."""
        return sorted(self._table.files(topic), key=lambda file: (file.partition, file.first_offset, file.last_offset))

    def ends(self, topic: str) -> dict[int, int]:
        """Of each partition that the lake has records of: the offset behind the last."""
        found: dict[int, int] = {}
        for file in self._table.files(topic):
            found[file.partition] = max(found.get(file.partition, 0), file.last_offset + 1)
        return found

    def ranges(self, topic: str, partition: int) -> list[tuple[int, int]]:
        """The first offset and the one behind the last, of each stretch of files that touch or overlap."""
        found: list[tuple[int, int]] = []
        for file in self.files(topic):
            if file.partition != partition:
                continue
            start, end = file.first_offset, file.last_offset + 1
            if found and start <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], end))
            else:
                found.append((start, end))
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
