"""Exactly once from ``foreachBatch``: for update mode, which Spark does not allow for Python sinks, and for several topics per query.

::

    counts.writeStream.outputMode("update").foreachBatch(each_batch({"kafka.bootstrap.servers": ..., "topic": "counts"}))

Each micro-batch is a batch write with a named sink. The name is the query's id, which is stored in its checkpoint. So a batch that Spark
repeats after a failure appends nothing, and a new checkpoint starts again.

With Spark Connect, the function runs in a process of the server, in a session for the batch that does not know the query. But it is
unpickled while the query's own session is active, which knows the query by its ``queryName``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.shipping import is_remote
from penstock.spark.task_properties import QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession


def each_batch(options: Mapping[str, str], *, name: str = "", query_name: str = "") -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes with these options. Several in one query need different names.

    ``query_name`` is the ``queryName`` of the stream. With Spark Connect, it is required if several queries run in the session.
    """
    return EachBatch(dict(options), name, query_name)


class EachBatch:
    """The function, which Spark pickles."""

    def __init__(self, options: dict[str, str], name: str, query_name: str) -> None:
        self._options = options
        self._name = name
        self._query_name = query_name
        self._session: SparkSession | None = None
        """With Spark Connect, on the server: the session of the query."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        query_id = self._query_id(frame)
        sink_name = f"{query_id}.{self._name}" if self._name else query_id
        writer = frame.write.format("penstock").mode("append")
        writer.options(**{**self._options, "sinkName": sink_name, "batchId": str(batch_id)}).save()

    def __getstate__(self) -> tuple[dict[str, str], str, str]:
        return self._options, self._name, self._query_name

    def __setstate__(self, state: tuple[dict[str, str], str, str]) -> None:
        from pyspark.sql import SparkSession

        self._options, self._name, self._query_name = state
        self._session = SparkSession.getActiveSession()

    def _query_id(self, frame: DataFrame) -> str:
        if is_remote(frame.sparkSession):
            return self._query_id_on_server(self._session or frame.sparkSession)
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise RuntimeError("This is not a batch of a streaming query: use it with writeStream.foreachBatch")
        return str(query_id)

    def _query_id_on_server(self, session: SparkSession) -> str:
        wanted = [query for query in session.streams.active if self._query_name in ("", query.name)]
        if len(wanted) != 1:
            raise RuntimeError(
                f"{len(wanted)} queries of this session could own this batch: set a unique queryName for the stream, and pass the same query_name to each_batch"
            )
        return str(wanted[0].id)
