"""The writers for Spark: one for a batch write, one for the micro-batches of a stream.

A writer is made on the driver and pickled to the tasks. Exactly-once writes have a sink in the broker, and a batch number:

- For a stream, the sink is the query's id, which is stored in its checkpoint and so survives restarts, and the number is that of the
  micro-batch. Spark gives both to the tasks only, which return them to the driver.
- A batch write creates a sink of its own and deletes it at the end, unless the options ``sinkName`` and ``batchId`` specify one. So a
  function for ``foreachBatch`` is exactly-once too.

Invariant: a batch becomes visible as a whole, and a batch whose number the broker has is not written again.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from penstock.client.batches import BatchSender
from penstock.client.discovery import NoHttpListener, http_addresses
from penstock.client.errors import ClientError
from penstock.spark.connections import connected
from penstock.spark.errors import OptionError
from penstock.spark.sink.commit import SinkPlace, abort, commit, forget, not_committed, open_sink, staged_by
from penstock.spark.sink.encoding import GATHERED_BYTES_MAX, SHARE_BYTES, encoded, gathered
from penstock.spark.sink.routing import RowRouter
from penstock.spark.sink.rows import RowLayout, layout_of, rows_of
from penstock.spark.sink.settings import WriterSettings, settings_of
from penstock.spark.sink.staging import Outlet, Producing, Staged, StagingWriter
from penstock.spark.sink.targets import Targets, ensure_topic
from penstock.spark.task_properties import query_and_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
    from pyspark.sql.types import StructType

    from penstock.client.cluster import Cluster
    from penstock.operations.sinks import OpenedSink

ONE_OFF_REMEMBER_MS: Final = 24 * 3_600_000
"""How long the sink of one batch write is kept if the driver dies before it deletes the sink."""


class CheckpointError(RuntimeError):
    """The number of a batch is below the last committed one: the checkpoint is older than the data in the topics."""


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """The writer of ``df.write``."""
    if overwrite:
        raise OptionError(
            'A topic does not support mode("overwrite"), which would delete its records: use mode("append")'
        )
    settings = settings_of(options)
    rows = _task_writer(settings, schema)
    if (settings.sink_name is None) != (settings.batch_id is None):
        raise OptionError("The options 'sinkName' and 'batchId' belong together: set both, or neither")
    with connected(settings.options) as cluster:
        if settings.topic is not None:
            ensure_topic(cluster, settings.topic)
        place = sink_place(cluster, settings) if settings.exactly_once else None
    if place is None:
        return BatchWriter(rows, None, None)
    if settings.sink_name is not None:
        return BatchWriter(rows, place, open_sink(place, settings.sink_name))
    opened = open_sink(place, f"batch-{uuid.uuid4().hex}", remember_ms=ONE_OFF_REMEMBER_MS)
    return BatchWriter(rows, place, opened)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of ``df.writeStream``. In complete mode the whole result is appended, as with Spark's Kafka connector."""
    del overwrite
    settings = settings_of(options)
    if settings.batch_id is not None:
        raise OptionError("The option 'batchId' is for df.write: a stream numbers its own batches")
    return StreamWriter(_task_writer(settings, schema))


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one task. Pickled to the tasks."""

    settings: WriterSettings
    layout: RowLayout

    def produce(self, rows: Iterator[pa.RecordBatch], cluster: Cluster) -> WriterCommitMessage:
        """Write rows directly to their topics."""
        return self._write(rows, cluster, Producing(BatchSender(cluster, self.settings.acks)))

    def stage(
        self, rows: Iterator[pa.RecordBatch], cluster: Cluster, opened: OpenedSink, batch_id: int
    ) -> WriterCommitMessage:
        """Write rows to the staging topic, unless the broker has the batch already."""
        last = opened.last_batch_id
        if last is not None and batch_id < last:
            raise CheckpointError(
                f"Batch {batch_id} was started after the sink {opened.sink!r} committed batch {last}: the checkpoint is older than "
                "the topic, and continuing would lose or repeat records. Use the newest checkpoint; or start a new one with another sinkName, and set its starting offsets"
            )
        if last == batch_id:
            # The rows must be consumed, because an operator before the sink may save its state after its last row.
            for _ in rows:
                pass
            return Staged(opened.sink, batch_id, opened.staging_id)
        return self._write(rows, cluster, StagingWriter(cluster, opened, _task_number() % opened.partitions, batch_id))

    def _write(self, rows: Iterator[pa.RecordBatch], cluster: Cluster, outlet: Outlet) -> WriterCommitMessage:
        """Route and encode rows, and send them to the outlet."""
        settings = self.settings
        targets = Targets(cluster, batch_bytes=settings.batch_bytes)
        router = RowRouter(targets.partition_count, topic=settings.topic, seed=_task_number())
        for batch in gathered(rows, self._share_bytes(targets)):
            now_ms = time.time_ns() // 1_000_000
            for routed in router.route(rows_of(batch, self.layout, now_ms)):
                topic, partition, records = routed
                bytes_max = targets[topic].batch_bytes_max
                if partition is None:
                    bytes_max = min(bytes_max, router.piece_bytes(routed))
                batches = encoded(records, now_ms=now_ms, compression=settings.compression, batch_bytes_max=bytes_max)
                for data, record_count in batches:
                    place = router.next_partition(topic) if partition is None else partition
                    outlet.send(topic, place, data, record_count)
        return outlet.finish()

    def _share_bytes(self, targets: Targets) -> int:
        """How much is routed at a time."""
        if self.settings.topic is None:
            return GATHERED_BYTES_MAX // 4
        if self.layout.key is None and self.layout.partition is None:
            # Each batch of rows goes to one partition.
            return 0
        count = targets.partition_count(self.settings.topic)
        return min(count * SHARE_BYTES, GATHERED_BYTES_MAX) if count > 1 else 0


class BatchWriter(DataSourceArrowWriter):
    """All of a DataFrame, or nothing."""

    def __init__(self, rows: TaskWriter, place: SinkPlace | None, opened: OpenedSink | None) -> None:
        self._rows = rows
        self._settings = rows.settings
        self._place = place
        self._opened = opened

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        with connected(self._settings.options) as cluster:
            if self._opened is None:
                return self._rows.produce(iterator, cluster)
            return self._rows.stage(iterator, cluster, self._opened, self._batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when every task is done."""
        if self._place is None or self._opened is None:
            return
        try:
            commit(self._place, staged_by(messages))
        except ClientError as error:
            if self._settings.sink_name is not None:
                raise
            raise not_committed(self._place, self._opened.sink, self._batch_id, error) from error
        if self._settings.sink_name is None:
            forget(self._place, self._opened.sink)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        del messages
        if self._place is None or self._opened is None:
            return
        if abort(self._place, self._opened.sink, self._batch_id) and self._settings.sink_name is None:
            forget(self._place, self._opened.sink)

    @property
    def _batch_id(self) -> int:
        return self._settings.batch_id or 0


class StreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch of a query, once. Spark makes a new instance for each call on the driver."""

    def __init__(self, rows: TaskWriter) -> None:
        self._rows = rows
        self._settings = rows.settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        with connected(self._settings.options) as cluster:
            if not self._settings.exactly_once:
                return self._rows.produce(iterator, cluster)
            query_id, batch_id = _query_and_batch()
            opened = open_sink(sink_place(cluster, self._settings), self._settings.sink_name or query_id)
            return self._rows.stage(iterator, cluster, opened, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """On the driver, when every task of the batch is done."""
        staged = staged_by(messages)
        if any(message.parts for message in staged):
            assert all(message.batch_id == batchId for message in staged), "all messages are of this batch"
            commit(self._sink_place(), staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """On the driver, when a task or the commit failed.

        If no task finished, the query is not known here; what its tasks staged is invisible and deleted with the next commit.
        """
        for message in staged_by(messages)[:1]:
            abort(self._sink_place(), message.sink, batchId)

    def _sink_place(self) -> SinkPlace:
        with connected(self._settings.options) as cluster:
            return sink_place(cluster, self._settings)


def sink_place(cluster: Cluster, settings: WriterSettings) -> SinkPlace:
    """Where the brokers accept commits: at the option ``http``, else at what they say. OptionError, with an alternative, if they have none."""
    if settings.http is not None:
        return SinkPlace(settings.http, cluster.security)
    try:
        return SinkPlace(http_addresses(cluster), cluster.security)
    except NoHttpListener as error:
        raise OptionError(
            f"{error}. With the option exactlyOnce=false, rows are produced directly, at least once, which every Kafka broker supports"
        ) from error


def _task_writer(settings: WriterSettings, schema: StructType) -> TaskWriter:
    layout = layout_of(schema, topic_given=settings.topic is not None, keep_timestamp=settings.keep_timestamp)
    return TaskWriter(settings, layout)


def _task_number() -> int:
    task = TaskContext.get()
    return 0 if task is None else task.partitionId()


def _query_and_batch() -> tuple[str, int]:
    found = query_and_batch()
    if found is None:
        raise RuntimeError("Spark did not identify the query and batch of this task: use the option exactlyOnce=false")
    return found
