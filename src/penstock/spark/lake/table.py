"""How a format records which files belong to a lake. The folder of the lake is the table."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.spark.lake.layout import LakeLayout, StoredFile
from penstock.spark.lake.manifests import Manifest, Manifests
from penstock.spark.lake.store import Store, open_uri

Bounds = tuple[int | None, int | None]


class LakeTable(ABC):
    """The table of one format. A commit of the formats with a table is atomic; see ``parquet.py`` for the one without."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._manifests = Manifests(store)

    @abstractmethod
    def last_batches(self, queries: Iterable[str]) -> dict[str, int]:
        """The last batch of each of these queries in the table, without those that have none."""

    def last_batch(self, query: str) -> int | None:
        """The last batch of this query in the table."""
        return self.last_batches([query]).get(query)

    def recover(self, manifest: Manifest) -> None:
        """Finish what a crash interrupted, or undo it. Only for the manifest's own query, or if it is very old."""
        last = self.last_batch(manifest.query)
        if last is None or last < manifest.batch:
            # The files were moved for a commit that failed. The batch is repeated with other files.
            self._store.remove(file.path for file in manifest.files)

    def finish(self, manifest: Manifest) -> None:  # noqa: B027  a table's own commit needs no finishing
        """Finish a commit of any query, and undo nothing, because that query may be committing now."""

    @abstractmethod
    def append(self, layout: LakeLayout, manifest: Manifest) -> None:
        """Write the manifest and make its files part of the table."""

    @abstractmethod
    def files(self, topic: str) -> list[StoredFile]:
        """All files with records of the topic."""

    @abstractmethod
    def uris(self) -> list[str]:
        """All files."""

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The table's columns, including those that are folders; None if nothing was committed."""

    def _place(self, manifest: Manifest) -> None:
        """Write the manifest and move its files to their final places."""
        self._manifests.write(manifest)
        self._store.move((file.staged, file.path) for file in manifest.files)


def stored_files(uri: str, topic: str, partitions: Bounds, offsets: Bounds, rows: int) -> Iterable[StoredFile]:
    """What the table's statistics say about a file; if that is not enough, what reading it shows."""
    partition, (first, last) = partitions[0], offsets
    if partition is None or partition != partitions[1] or first is None or last is None:
        return ranges_in(uri, topic)
    return [StoredFile(uri, topic, partition, first, last, rows)]


@lru_cache(maxsize=10_000)
def ranges_in(uri: str, topic: str) -> tuple[StoredFile, ...]:
    """The offsets in a file that another program wrote. It is read, because it may contain several partitions."""
    with open_uri(uri) as file:
        table = pq.ParquetFile(file).read(columns=["partition", "offset"])
    grouped = table.group_by("partition").aggregate([("offset", "min"), ("offset", "max"), ("offset", "count")])
    return tuple(
        StoredFile(uri, topic, row["partition"], row["offset_min"], row["offset_max"], row["offset_count"])
        for row in grouped.to_pylist()
    )
