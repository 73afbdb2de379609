"""An Iceberg table, through ``pyiceberg``: files are added where they are, in one snapshot for each batch.

The snapshot has the query and the batch as properties (``penstock.query``, ``penstock.batch``). The same commit stores the last batch of
each query in a property of the table, which remains when snapshots expire. The catalog comes from the options, else from the
configuration of pyiceberg under the name ``penstock``, else it is an SQLite file in the lake, which must be a local folder. The table is
``penstock.<last part of the lake's path>``.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote
from weakref import finalize

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.types import IntegerType, LongType
from pyiceberg.utils.config import Config

from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.layout import (
    NO_DATES,
    OFFSET,
    PARTITION,
    RECORDS,
    TIMESTAMP,
    TOPIC,
    LakeFile,
    LakeLayout,
    StoredFile,
)
from penstock.spark.lake.manifests import Manifest
from penstock.spark.lake.store import Store, local_path_of
from penstock.spark.lake.table import Bounds, LakeTable, stored_files

CATALOG: Final = "penstock"
NAMESPACE: Final = "penstock"
SQLITE: Final = "catalog.sqlite"
_BATCH: Final = "penstock.batch."
_COMMITS_MAX: Final = 10
"""The number of attempts if others commit to the same table."""
_LOG_OF_STATISTICS: Final = logging.getLogger("pyiceberg.io.pyarrow")
_AT_TIMESTAMP: Final = RECORDS.get_field_index(TIMESTAMP)


class IcebergTable(LakeTable):
    """The table with its data in the lake's folder."""

    def __init__(self, store: Store, options: Mapping[str, str]) -> None:
        store.refuse("%?#", "Iceberg")
        super().__init__(store)
        # Iceberg's locations look like URIs, but nothing in them is quoted.
        self._location = store.uri if store.local_path is None else f"file://{store.local_path}"
        self._options = dict(options)
        self._name = (NAMESPACE, re.sub(r"[^A-Za-z0-9_]", "_", self._location.rsplit("/", 1)[-1]) or "records")
        self._found_catalog: Catalog | None = None

    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        table = self._table()
        properties = {} if table is None else table.properties
        return {query: int(properties[_BATCH + query]) for query in queries if _BATCH + query in properties}

    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        self._place(manifest)
        table = self._table() or self._create(layout)
        uris = [f"{self._location}/{file.path}" for file in manifest.files]
        marks = {"penstock.query": manifest.query, "penstock.batch": str(manifest.batch)}
        for attempt in range(_COMMITS_MAX):
            try:
                with _quiet_about_no_dates(manifest), table.transaction() as transaction:
                    transaction.add_files(uris, snapshot_properties=marks, check_duplicate_files=False)
                    transaction.set_properties({_BATCH + manifest.query: str(manifest.batch)})
                break
            except CommitFailedException:
                if attempt == _COMMITS_MAX - 1:
                    raise
                table.refresh()
            except OverflowError as error:
                # pyiceberg converts the statistics of the files to Python dates.
                raise LakeError(
                    f"Rows for {self._location} have a time outside the years 1 to 9999, which cannot be committed to Iceberg: remove them, or write to Parquet or Delta"
                ) from error
        self._sync(table)

    def files(self, topic: str) -> list[StoredFile]:
        table = self._table()
        if table is None:
            return []
        partition_id = table.schema().find_field(PARTITION).field_id
        offset_id = table.schema().find_field(OFFSET).field_id
        found: list[StoredFile] = []
        for task in table.scan(row_filter=f"{TOPIC} = '{topic}'").plan_files():
            file, uri = task.file, _uri(task.file.file_path)
            partitions, offsets = _bounds(file, partition_id, IntegerType()), _bounds(file, offset_id, LongType())
            found += stored_files(uri, topic, partitions, offsets, file.record_count)
        return found

    def uris(self) -> list[str]:
        table = self._table()
        return [] if table is None else [_uri(task.file.file_path) for task in table.scan().plan_files()]

    def schema(self) -> pa.Schema | None:
        table = self._table()
        if table is None:
            return None
        # Without Iceberg's field ids.
        return pa.schema([pa.field(each.name, each.type) for each in table.schema().as_arrow()])

    def _catalog(self) -> Catalog:
        if self._found_catalog is None:
            properties: dict[str, Any] = dict(self._options)
            if not properties and Config().get_catalog_config(CATALOG) is None:
                folder = self._store.local_path
                if folder is None:
                    raise LakeError(
                        f"An Iceberg lake at {self._store.uri} needs a catalog: set catalog.type and catalog.uri, or configure pyiceberg's catalog 'penstock' (PYICEBERG_CATALOG__PENSTOCK__URI)"
                    )
                folder.mkdir(parents=True, exist_ok=True)
                properties = {"type": "sql", "uri": f"sqlite:///{folder / SQLITE}", "warehouse": self._location}
            self._found_catalog = load_catalog(CATALOG, **properties)
            # The catalog has connections, and a lake has no close method.
            finalize(self, self._found_catalog.close)
        return self._found_catalog

    def _table(self) -> PyIcebergTable | None:
        folder = self._store.local_path
        if not self._options and folder is not None and not self._store.exists("metadata"):
            # A query creates the file of an SQLite catalog, but reading a lake that does not exist must not create one.
            return None
        try:
            found = self._catalog().load_table(self._name)
        except NoSuchTableError:
            self._check_not_moved()
            return None
        except FileNotFoundError:
            self._check_not_moved()
            raise
        if found.location().rstrip("/") != self._location:
            # In a catalog for many lakes, the last part of the path must be unique.
            raise LakeError(
                f"The catalog has a table {'.'.join(self._name)} at {found.location()}, and this lake is {self._location}: rename its folder"
            )
        return found

    def _check_not_moved(self) -> None:
        """Refuse a folder that was renamed or moved: its table would not be found, and another one would be created."""
        folder = self._store.local_path
        written = [] if folder is None else sorted(folder.glob("metadata/*.metadata.json"))
        if not written:
            return
        place = str(json.loads(written[-1].read_bytes())["location"]).rstrip("/")
        if place != self._location:
            raise LakeError(
                f"The Iceberg table in {self._location} was created in {place}, and its metadata contains that path: move it back there, or archive to a new place"
            )

    def _create(self, layout: LakeLayout) -> PyIcebergTable:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        with (
            catalog.create_table_transaction(self._name, schema=layout.schema, location=self._location) as transaction,
            transaction.update_spec() as spec,
        ):
            for name in layout.folders:
                spec.add_identity(name)
        return catalog.load_table(self._name)

    def _sync(self, table: PyIcebergTable) -> None:
        """The catalog is synced by itself; sync the files that it refers to."""
        root = self._store.local_path
        snapshot = table.current_snapshot()
        if root is None or snapshot is None:
            return
        written = [table.metadata_location, snapshot.manifest_list]
        written += [
            each.manifest_path
            for each in snapshot.manifests(table.io)
            if each.added_snapshot_id == snapshot.snapshot_id
        ]
        paths = [local_path_of(_uri(each)) for each in written]
        self._store.sync(
            str(path.relative_to(root)) for path in paths if path is not None and path.is_relative_to(root)
        )


@contextmanager
def _quiet_about_no_dates(manifest: Manifest) -> Iterator[None]:
    """Suppress the warnings of pyiceberg for files without statistics of timestamps, which cannot be dates."""
    if not any(_has_no_date(file) for file in manifest.files):
        yield
        return
    _LOG_OF_STATISTICS.addFilter(_is_wanted)
    try:
        yield
    finally:
        _LOG_OF_STATISTICS.removeFilter(_is_wanted)


def _has_no_date(file: LakeFile) -> bool:
    return file.topic is not None and any(value in NO_DATES for value in file.values)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not (str(record.msg).startswith("PyArrow statistics missing") and record.args == (_AT_TIMESTAMP,))


def _uri(location: str) -> str:
    """As :func:`~penstock.spark.lake.store.open_uri` takes it."""
    scheme, found, rest = location.rpartition("://")
    return f"{scheme}{found}{quote(rest, safe='/=:@')}" if found else location


def _bounds(file: DataFile, field_id: int, kind: IntegerType | LongType) -> Bounds:
    low, high = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    return _integer(kind, low), _integer(kind, high)


def _integer(kind: IntegerType | LongType, raw: bytes | None) -> int | None:
    return None if raw is None else int(from_bytes(kind, raw))
