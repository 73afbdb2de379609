"""A lake without a table format: the folder itself is the table, for ``spark.read.parquet``, pandas, DuckDB and others.

Invariant: a file is visible only if the manifest of its batch was written before. So readers see only committed rows. The files of a batch
appear one after another, in the time that renaming takes. On an object store, a rename is a copy, and a file appears when it is complete.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.layout import DAY, RECORDS, TOPIC, LakeLayout, StoredFile, folder_path, folder_values
from penstock.spark.lake.manifests import Manifest
from penstock.spark.lake.store import open_uri, path_in
from penstock.spark.lake.table import LakeTable, ranges_in

_NAME: Final = re.compile(r"(\d+)-(\d{20})-(\d{20})-[0-9a-f]+-\d+\.parquet")


class ParquetTable(LakeTable):
    """The manifest is the commit. Then the files are moved."""

    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        found = {query: self._manifests.last(query) for query in queries}
        return {query: manifest.batch for query, manifest in found.items() if manifest is not None}

    def recover(self, manifest: Manifest) -> None:
        waiting = [file for file in manifest.files if self._store.exists(file.staged)]
        self._store.move((file.staged, file.path) for file in waiting)
        lost = next((file for file in manifest.files if not self._store.exists(file.path)), None)
        # Other programs may merge or remove files later; only a file that was never moved is lost.
        if waiting and lost is not None:
            raise LakeError(
                f"{self._store.uri_of(lost.path)} is missing: it was committed by batch {manifest.batch} of {manifest.query}"
            )

    def finish(self, manifest: Manifest) -> None:
        self.recover(manifest)

    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        del layout
        self._place(manifest)

    def files(self, topic: str) -> list[StoredFile]:
        found: list[StoredFile] = []
        for path, _, _ in self._visible(folder_path([TOPIC], [topic])):
            uri = self._store.uri_of(path)
            name = _NAME.fullmatch(path.rsplit("/", 1)[-1])
            if name is None:
                found += ranges_in(uri, topic)
            else:
                partition, first, last = (int(each) for each in name.groups())
                found.append(StoredFile(uri, topic, partition, first, last, last - first + 1))
        return found

    def uris(self) -> list[str]:
        return [self._store.uri_of(path) for path, _, _ in self._visible("")]

    def schema(self) -> pa.Schema | None:
        mark = self._manifests.mark()
        if mark is not None and mark.is_records:
            return RECORDS
        uri = next(iter(self.uris()), None)
        if uri is None:
            return None
        with open_uri(uri) as file:
            schema = pq.read_schema(file)
        for name in folder_values(path_in(uri)):
            schema = schema.append(pa.field(name, pa.date32() if name == DAY else pa.string()))
        return schema

    def _visible(self, folder: str) -> Iterator[tuple[str, int, int]]:
        for path, size_bytes, changed_ms in self._store.files(folder.rstrip("/")):
            parts = path.split("/")
            # The name of a column, and so of its folders, may begin with an underscore: Spark reads those too.
            if path.endswith(".parquet") and not any(part.startswith(("_", ".")) and "=" not in part for part in parts):
                yield path, size_bytes, changed_ms
