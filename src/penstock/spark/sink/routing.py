"""Which partition of which topic each row goes to.

The column ``partition`` decides. If it is null or missing, the hash of the key does, as in Kafka's clients. Rows without a key go to one
partition after another in pieces. Everything is computed by column: rows are sorted by destination, stably, and divided into slices.

Invariant: rows with the same destination stay in order. A router depends only on its seed and the rows, so a batch that is computed again
is routed in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.limits import KIB
from penstock.records.columnar import partition_for_keys
from penstock.spark.sink.rows import KEY, RowError, SinkRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

PIECE_BYTES: Final = 256 * KIB
"""The minimum size of batches for rows without a key, so that small writes stay together."""
RECORD_BYTES: Final = 8
"""About the overhead of a record: without it, every piece would leave a small batch."""
NOWHERE: Final = -1


class RoutedRows(NamedTuple):
    """Rows with one destination, in order. Without a partition, each batch of them goes to the next one."""

    topic: str
    partition: int | None
    records: pa.RecordBatch


class RowRouter:
    """Routes the rows of one task."""

    def __init__(self, partition_count: Callable[[str], int], *, topic: str | None, seed: int) -> None:
        self._partition_count = partition_count
        self._topic = topic
        self._seed = seed
        self._turns: dict[str, int] = {}
        """By topic, the number of pieces without a key so far."""

    def route(self, rows: SinkRows) -> Iterator[RoutedRows]:
        """The rows in slices with one destination each."""
        if not rows.records.num_rows:
            return
        if self._topic is not None:
            yield from self._within(self._topic, rows.records, rows.partitions)
            return
        assert rows.topics is not None, "a layout has a column for the topic unless one was named"
        if rows.topics.null_count:
            raise RowError("A row has null in the column 'topic': set it, or set the option 'topic' for all rows")
        named = rows.topics.dictionary_encode()
        if len(named.dictionary) == 1:
            yield from self._within(named.dictionary[0].as_py(), rows.records, rows.partitions)
            return
        order, counts = _grouped(named.indices.to_numpy(), len(named.dictionary))
        records = rows.records.take(order)
        partitions = None if rows.partitions is None else rows.partitions.take(order)
        start = 0
        for topic, count in zip(named.dictionary.to_pylist(), counts, strict=True):
            part = None if partitions is None else partitions.slice(start, count)
            yield from self._within(topic, records.slice(start, count), part)
            start += count

    def _within(self, topic: str, records: pa.RecordBatch, asked: pa.Array | None) -> Iterator[RoutedRows]:
        count = self._partition_count(topic)
        places = self._places(topic, records, asked, count)
        if places is None:
            yield RoutedRows(topic, None, records)
            return
        nowhere = places == NOWHERE
        if nowhere.any():
            places[nowhere] = self._turn(topic, count)
        first = int(places[0])
        if (places == first).all():
            yield RoutedRows(topic, first, records)
            return
        order, counts = _grouped(places, count)
        records = records.take(order)
        start = 0
        for partition, length in enumerate(counts):
            if length:
                yield RoutedRows(topic, partition, records.slice(start, length))
                start += length

    def _places(
        self, topic: str, records: pa.RecordBatch, asked: pa.Array | None, count: int
    ) -> npt.NDArray[np.int32] | None:
        """The partition of each row, -1 for any; None if all rows can go to any."""
        places: npt.NDArray[np.int32] | None = None
        if asked is not None and asked.null_count < len(asked):
            _check_partitions(topic, asked, count)
            places = np.array(pc.fill_null(asked, NOWHERE).to_numpy(zero_copy_only=False), dtype=np.int32)
            if not asked.null_count:
                return places
        if count == 1:
            return places
        if KEY not in records.schema.names or records.column(KEY).null_count == len(records.column(KEY)):
            return places
        by_key = partition_for_keys(records.column(KEY), count)
        return by_key if places is None else np.where(places == NOWHERE, by_key, places)

    def piece_bytes(self, rows: RoutedRows) -> int:
        """The maximum size of batches, so that rows without a partition are distributed to all partitions."""
        size_bytes: int = rows.records.nbytes + RECORD_BYTES * rows.records.num_rows
        return max(PIECE_BYTES, size_bytes // self._partition_count(rows.topic) + 1)

    def next_partition(self, topic: str) -> int:
        """The partition for the next batch that can go to any."""
        return self._turn(topic, self._partition_count(topic))

    def _turn(self, topic: str, count: int) -> int:
        turn = self._turns.get(topic, self._seed)
        self._turns[topic] = turn + 1
        return turn % count


def _grouped(places: npt.NDArray[np.int32], count: int) -> tuple[pa.Array, list[int]]:
    # NumPy sorts 16-bit integers with radix sort, in a tenth of the time.
    narrow = places.astype(np.uint16) if count <= np.iinfo(np.uint16).max else places
    order = np.argsort(narrow, kind="stable")
    return pa.array(order), np.bincount(places, minlength=count).tolist()


def _check_partitions(topic: str, asked: pa.Array, count: int) -> None:
    bounds = pc.min_max(asked)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest < 0:
        raise RowError(f"A row has partition {lowest}: a partition is 0 or more, or null to use the key")
    if highest >= count:
        raise RowError(
            f"A row has partition {highest}, but topic {topic!r} has {count} partitions (0 to {count - 1}): correct the column "
            "'partition', or add partitions to the topic first"
        )
