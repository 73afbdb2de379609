"""What each query commits: one small file per query, replaced with every batch.

On disk, below ``_penstock/``::

    lake.json                   the format and the layout of the lake; written once
    staging/<query>/<batch>/    what tasks wrote and no commit has used yet
    commits/<query>.json        the last batch of a query: its files, staged and final, and up to where its topics are archived
    lock                        held during a commit, on a local disk
    topics/<topic>              the id of the topic with these records, because another topic may have its name later

A manifest is written before files are moved. In a Parquet lake it *is* the commit; in the other formats it is an intent, and the table's own
commit decides. In both cases it contains all that is needed to finish or to clean up. If the table knows the write, the manifest of a batch
write of rows is deleted at the end.
"""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Final, TypeVar

import msgspec

from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import LakeFile
from penstock.spark.lake.store import HIDDEN, Store

T = TypeVar("T")
VERSION: Final = 1
_MARK: Final = f"{HIDDEN}/lake.json"
_COMMITS: Final = f"{HIDDEN}/commits"
_TOPICS: Final = f"{HIDDEN}/topics"

Ends = dict[str, dict[int, int]]
"""For each topic and partition, the offset after the last archived one."""


class Mark(msgspec.Struct, frozen=True):
    """The format and the layout of a lake."""

    version: int
    format: LakeFormat
    is_records: bool
    folders: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True):
    """One batch of one query."""

    query: str
    batch: int
    files: list[LakeFile]
    ends: Ends = {}
    ends_before: Ends = {}


class Manifests:
    """The manifests of one lake."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mark(self) -> Mark | None:
        """The format and the layout; None if the lake is new."""
        found = self._read(_MARK, Mark)
        if found is not None and found.version != VERSION:
            raise LakeError(
                f"The lake {self._store.uri} has version {found.version}; this version of Penstock supports {VERSION}"
            )
        return found

    def set_mark(self, mark: Mark) -> None:
        """Set the format and the layout."""
        self._store.write_atomic(_MARK, msgspec.json.format(msgspec.json.encode(mark)))

    def last(self, query: str) -> Manifest | None:
        """The last batch that the query committed or intended to."""
        return self._read(_path(query), Manifest)

    def all(self, *, changed_before_ms: float = inf) -> list[Manifest]:
        """Of every query that wrote here, except finished batch writes; optionally only those that have not committed since."""
        files = self._store.files(_COMMITS)
        paths = [path for path, _, changed_ms in files if path.endswith(".json") and changed_ms < changed_before_ms]
        return [found for path in paths if (found := self._read(path, Manifest)) is not None]

    def write(self, manifest: Manifest) -> None:
        """Durable when this returns."""
        self._store.write_atomic(_path(manifest.query), msgspec.json.encode(manifest))

    def remove(self, query: str) -> None:
        """Remove the manifest of a finished query that the table knows."""
        self._store.remove([_path(query)])

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic with this name; None if it was not set."""
        data = self._store.read(f"{_TOPICS}/{topic}")
        return None if data is None else data.decode().strip()

    def set_topic_id(self, topic: str, topic_id: str) -> None:
        """Durable when this returns."""
        self._store.write_atomic(f"{_TOPICS}/{topic}", f"{topic_id}\n".encode())

    def _read(self, path: str, kind: type[T]) -> T | None:
        data = self._store.read(path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise LakeError(f"{self._store.uri_of(path)} is damaged ({error}); restore it from a copy") from error


def ends_of(files: Iterable[LakeFile], before: Mapping[str, Mapping[int, int]]) -> Ends:
    """Up to where topics are archived, including these files."""
    ends: Ends = {topic: dict(partitions) for topic, partitions in before.items()}
    for file in files:
        if file.topic is not None:
            of_topic = ends.setdefault(file.topic, {})
            of_topic[file.partition] = max(of_topic.get(file.partition, 0), file.last_offset + 1)
    return ends


def _path(query: str) -> str:
    return f"{_COMMITS}/{query}.json"
