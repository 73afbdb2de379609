"""A Delta table, through ``deltalake``: no JAR, no delta-spark.

A batch is one Delta commit with the query and the batch as its application transaction. The table stores the last one of each query
permanently.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction

from penstock.spark.lake.layout import OFFSET, PARTITION, TOPIC, LakeFile, LakeLayout, StoredFile
from penstock.spark.lake.manifests import Manifest
from penstock.spark.lake.store import Store
from penstock.spark.lake.table import LakeTable, stored_files

_RETRIES_MAX: Final = 15


class DeltaLakeTable(LakeTable):
    """A Delta table in the lake's folder."""

    def __init__(self, store: Store) -> None:
        store.refuse("%", "Delta")
        super().__init__(store)

    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        table = self._table()
        found = {} if table is None else {query: table.transaction_version(query) for query in queries}
        return {query: batch for query, batch in found.items() if batch is not None}

    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        table = self._table()
        if table is None:
            table = DeltaTable.create(
                self._store.uri,
                layout.schema,
                mode="ignore",
                partition_by=list(layout.folders) or None,
                name="penstock",
            )
        self._place(manifest)
        table.create_write_transaction(
            [_action(layout, file) for file in manifest.files],
            "append",
            layout.schema,
            list(layout.folders) or None,
            commit_properties=CommitProperties(
                max_commit_retries=_RETRIES_MAX,
                app_transactions=[Transaction(manifest.query, manifest.batch)],
                custom_metadata={"penstock.query": manifest.query, "penstock.batch": str(manifest.batch)},
            ),
        )
        # The library does not sync the log.
        self._store.sync(path for path, _, _ in self._store.files("_delta_log")[-2:])

    def files(self, topic: str) -> list[StoredFile]:
        table = self._table()
        if table is None:
            return []
        found: list[StoredFile] = []
        for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            if row.get(f"partition.{TOPIC}") != topic:
                continue
            partitions = row.get(f"min.{PARTITION}"), row.get(f"max.{PARTITION}")
            offsets = row.get(f"min.{OFFSET}"), row.get(f"max.{OFFSET}")
            found += stored_files(self._uri(row["path"]), topic, partitions, offsets, row["num_records"])
        return found

    def uris(self) -> list[str]:
        table = self._table()
        if table is None:
            return []
        return [self._uri(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]

    def schema(self) -> pa.Schema | None:
        table = self._table()
        return None if table is None else pa.schema(table.schema().to_arrow())

    def _uri(self, path: str) -> str:
        # Paths in Delta's log are quoted as in a URI.
        return f"{self._store.uri}/{path}"

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._store.uri)
        except TableNotFoundError:
            return None


def _action(layout: LakeLayout, file: LakeFile) -> AddAction:
    stats: dict[str, object] = {"numRecords": file.rows}
    if layout.is_records:
        stats["minValues"] = {PARTITION: file.partition, OFFSET: file.first_offset}
        stats["maxValues"] = {PARTITION: file.partition, OFFSET: file.last_offset}
        stats["nullCount"] = {PARTITION: 0, OFFSET: 0}
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(zip(layout.folders, file.values, strict=True)),
        modification_time=int(datetime.now(UTC).timestamp() * 1000),
        data_change=True,
        stats=msgspec.json.encode(stats).decode(),
    )
