"""The lake of a topic: old offsets come from it, new ones from the broker, and a reader gets one table.

The topic's configs specify the lake (``penstock.tier.location``, ``penstock.tier.format``). All offsets that are requested here are below
the broker's first one: the broker deleted them because the lake has them. So if the lake cannot be read or lacks some of them, that is a
data loss and not an empty answer; :class:`~penstock.spark.errors.DataLossError` names the lake and the missing offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from penstock.client.admin import Admin
from penstock.spark.errors import DataLossError
from penstock.spark.lake.formats import LakeError, LakeFormat, format_named
from penstock.spark.lake.lake import Lake, open_lake
from penstock.spark.lake.layout import StoredFile
from penstock.spark.lake.reading import LakeSplit, find_time, plan_splits
from penstock.spark.lake.reading import read_split as _read_split

if TYPE_CHECKING:
    from penstock.client.cluster import Cluster

LOCATION: Final = "penstock.tier.location"
FORMAT: Final = "penstock.tier.format"
GROUP: Final = "penstock.tier.group"

T = TypeVar("T")
_UNREADABLE: Final = (LakeError, OSError, pa.ArrowException)


@dataclass(slots=True)
class Tier:
    """What a lake has of one topic, for one plan, which needs every partition: its files are listed once.

    Meanwhile the archive continues, and the broker deletes what is archived. So each call passes the broker's first offset, up to which the
    lake must have everything, and the files are listed again if they end before it.
    """

    topic: str
    location: str
    format: LakeFormat
    group: str
    _files: list[StoredFile] | None = None
    _listed_for: dict[int, int] = field(default_factory=dict)
    """By partition, the offset for which the files were listed again."""

    def earliest(self, partition: int, held: int) -> int | None:
        """The first offset of a partition in the lake, if ``held`` is the broker's first offset; None if the lake has none."""
        return min((file.first_offset for file in self._of(partition, held)), default=None)

    def splits(self, partition: int, from_offset: int, to_offset: int, *, whole: bool = True) -> list[LakeSplit]:
        """What the lake has of a range, in order. With ``whole``, missing offsets at either end are a data loss."""
        files = self._of(partition, to_offset)
        if whole:
            self._check_whole(files, partition, from_offset, to_offset)
        return [replace(split, whole=whole) for split in plan_splits(files, from_offset, to_offset)]

    def offset_for_time(self, partition: int, timestamp_ms: int, held: int) -> int | None:
        """The first offset in the lake at or after this time, if ``held`` is the broker's first offset; None if there is none."""
        return self._reading(lambda: find_time(self._of(partition, held), timestamp_ms))

    def _check_whole(self, files: Sequence[StoredFile], partition: int, from_offset: int, to_offset: int) -> None:
        first = min((file.first_offset for file in files), default=to_offset)
        end = max((file.last_offset + 1 for file in files), default=from_offset)
        if first > from_offset or end < to_offset:
            has = f"only offsets {first} to {end - 1}" if files else "none"
            raise DataLossError(
                f"{self.topic}/{partition}: offsets {from_offset} to {to_offset - 1} are no longer in the broker, and the lake {self.location} has {has} of them. Restore the lake, read from another offset, or set failOnDataLoss to false."
            )

    def _of(self, partition: int, until: int) -> list[StoredFile]:
        if self._files is None:
            self._files = self._reading(self._list)
        found = [file for file in self._files if file.partition == partition]
        end = max((file.last_offset + 1 for file in found), default=0)
        if end >= until or self._listed_for.get(partition, -1) >= until:
            return found
        self._files = None
        self._listed_for[partition] = until
        return self._of(partition, until)

    def _list(self) -> list[StoredFile]:
        lake: Lake = open_lake(self.location, self.format)
        if not lake.is_records():
            raise LakeError("There is no lake of records")
        return lake.files(self.topic)

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except _UNREADABLE as error:
            raise _lost(self.topic, self.location, error) from error


def read_tier(cluster: Cluster, topic: str) -> Tier | None:
    """The topic's tier according to the broker; None if it has none."""
    configs = {entry.name: entry.value or "" for entry in Admin(cluster).configs(topic)}
    location = configs.get(LOCATION, "")
    if not location:
        return None
    return Tier(topic, location, format_named(configs.get(FORMAT, LakeFormat.PARQUET)), configs.get(GROUP, ""))


def read_split(split: LakeSplit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of a split in the order of their offsets, with exactly these columns."""
    try:
        yield from _read_split(split, columns)
    except _UNREADABLE as error:
        raise _lost(split.topic, split.files[0].uri, error) from error


def _lost(topic: str, where: str, error: Exception) -> DataLossError:
    return DataLossError(
        f"Old records of {topic} are in a lake that cannot be read ({where}): {error}. Make it reachable, or set failOnDataLoss to false to read only the records in the broker."
    )
