"""A lake without a table format: the folder itself is the table, for ``spark.read.parquet``, pandas, DuckDB and everything else.

Invariant: a file is visible only if the manifest of its batch was written before. So readers see committed rows alone; a batch of several files appears
file by file, within the time that renaming takes. On an object store a rename is a copy, and a file appears when it is whole.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.formats import LakeError
from penstock.spark.lake.layout import DAY, RECORDS, TOPIC, LakeLayout, StoredFile, folder_path, folder_values
from penstock.spark.lake.manifests import Manifest, Manifests
from penstock.spark.lake.store import Store, open_uri, path_in

_NAME: Final = re.compile(r"(\d+)-(\d{20})-(\d{20})-[0-9a-f]+-\d+\.parquet")


class ParquetTable:
    """The commit is the manifest; the files follow."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._manifests = Manifests(store)

    def exists(self) -> bool:
        return bool(self._manifests.all())

    def last_batch(self, query: str) -> int | None:
        manifest = self._manifests.last(query)
        return None if manifest is None else manifest.batch

    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        found = {query: self.last_batch(query) for query in queries}
        return {query: batch for query, batch in found.items() if batch is not None}

    def recover(self, manifest: Manifest) -> None:
        waiting = [file for file in manifest.files if self._store.exists(file.staged)]
        self._store.move((file.staged, file.path) for file in waiting)
        lost = next((file for file in manifest.files if not self._store.exists(file.path)), None)
        # Files may be merged or removed once they are there; only what was never moved is lost.
        if waiting and lost is not None:
            raise LakeError(
                f"{self._store.uri_of(lost.path)} is missing: it was committed by batch {manifest.batch} of {manifest.query}"
            )

    def finish(self, manifest: Manifest) -> None:
        self.recover(manifest)

    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        del layout
        self._manifests.write(manifest)
        self._store.move((file.staged, file.path) for file in manifest.files)

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
            # A column's name may begin with an underscore, and so may its folders: Spark reads those too.
            if path.endswith(".parquet") and not any(part.startswith(("_", ".")) and "=" not in part for part in parts):
                yield path, size_bytes, changed_ms


@lru_cache(maxsize=10_000)
def ranges_in(uri: str, topic: str) -> tuple[StoredFile, ...]:
    """Which offsets lie in a file that somebody else wrote, by reading them: it may hold several partitions."""
    with open_uri(uri) as file:
        table = pq.ParquetFile(file).read(columns=["partition", "offset"])
    grouped = table.group_by("partition").aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return tuple(
        StoredFile(uri, topic, row["partition"], row["offset_min"], row["offset_max"], row["offset_count"])
        for row in grouped.to_pylist()
    )
