"""What each query commits: one small file a query, replaced with every batch.

On disk, below ``_penstock/``::

    lake.json                   what the lake is made of and how it is laid out; written once
    staging/<query>/<batch>/    what tasks wrote and no commit has taken yet
    commits/<query>.json        the last batch of a query: its files, staged and final, and how far its topics are archived
    lock                        held during a commit, on a local disk
    topics/<topic>              the id of the topic whose records these are: another one may have its name later

A manifest is written before anything is moved. In a plain Parquet lake it *is* the commit, and a batch counts once it is there; in the other formats
it is an intent, and the table's own commit decides. Either way it says all that is needed to finish or to clean up. So where a table remembers it, that of
a single write of rows goes once the write is done.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.layout import LakeFile
from penstock.spark.lake.store import HIDDEN, Store

VERSION: Final = 1
_MARK: Final = f"{HIDDEN}/lake.json"
_COMMITS: Final = f"{HIDDEN}/commits"
_TOPICS: Final = f"{HIDDEN}/topics"

Ends = dict[str, dict[int, int]]
"""Of each topic and partition: the offset behind the last that is archived."""


class Mark(msgspec.Struct, frozen=True):
    """What a lake says of itself."""

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
        """What the lake is made of; None when it is new."""
        data = self._store.read(_MARK)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=Mark)
        except msgspec.DecodeError as error:
            raise LakeError(f"{self._store.uri_of(_MARK)} is damaged ({error}); restore it from a copy") from error
        if found.version != VERSION:
            raise LakeError(
                f"The lake {self._store.uri} has version {found.version}; this version of Penstock supports {VERSION}"
            )
        return found

    def set_mark(self, mark: Mark) -> None:
        """Say what the lake is made of."""
        self._store.write_atomic(_MARK, msgspec.json.format(msgspec.json.encode(mark)))

    def last(self, query: str) -> Manifest | None:
        """The last batch that the query committed or meant to."""
        return self._read(_path(query))

    def all(self) -> list[Manifest]:
        """Of every query that wrote here, but for those that are over and forgotten."""
        found = (self._read(path) for path, _, _ in self._store.files(_COMMITS) if path.endswith(".json"))
        return [each for each in found if each is not None]

    def write(self, manifest: Manifest) -> None:
        """Durable when this returns."""
        self._store.write_atomic(_path(manifest.query), msgspec.json.encode(manifest))

    def remove(self, query: str) -> None:
        """Of a query that is over, and that the table itself remembers."""
        self._store.remove([_path(query)])

    def changed_before(self, moment_ms: int) -> list[Manifest]:
        """Of queries that have committed nothing since."""
        paths = [path for path, _, changed_ms in self._store.files(_COMMITS) if changed_ms < moment_ms]
        found = (self._read(path) for path in paths if path.endswith(".json"))
        return [each for each in found if each is not None]

    def topic_id(self, topic: str) -> str | None:
        """Which topic of that name this is; None when nobody said it."""
        data = self._store.read(f"{_TOPICS}/{topic}")
        return None if data is None else data.decode().strip()

    def set_topic_id(self, topic: str, topic_id: str) -> None:
        """Durable when this returns."""
        self._store.write_atomic(f"{_TOPICS}/{topic}", f"{topic_id}\n".encode())

    def _read(self, path: str) -> Manifest | None:
        data = self._store.read(path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise LakeError(f"{self._store.uri_of(path)} is damaged ({error}); restore it from a copy") from error


def ends_of(files: Iterable[LakeFile], before: Mapping[str, Mapping[int, int]]) -> Ends:
    """How far topics are archived once these files are there too."""
    ends: Ends = {topic: dict(partitions) for topic, partitions in before.items()}
    for file in files:
        if file.topic is not None:
            of_topic = ends.setdefault(file.topic, {})
            of_topic[file.partition] = max(of_topic.get(file.partition, 0), file.last_offset + 1)
    return ends


def _path(query: str) -> str:
    return f"{_COMMITS}/{query}.json"
