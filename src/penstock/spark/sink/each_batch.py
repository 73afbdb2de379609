"""Exactly once from ``foreachBatch``: for update mode, which Spark lets no Python sink have, and for several topics from one query.

::

    counts.writeStream.outputMode("update").foreachBatch(each_batch({"kafka.bootstrap.servers": ..., "topic": "counts"}))

Each micro-batch is a batch write with a named sink. The name is the query's id, which lies in its checkpoint, so a batch that Spark
runs again after a failure appends nothing, and a new checkpoint begins anew.

Through Spark Connect the function runs in a process of the server, with a session that was made for the batch and knows nothing of the query. But it is
unpickled while the query's own session is the active one, and that knows the query by the name that it was given (``queryName``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.shipping import is_remote
from penstock.spark.task_properties import QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession


def each_batch(options: Mapping[str, str], *, name: str = "", query_name: str = "") -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes with these options. Two of them in one query need a ``name`` each.

    ``query_name`` is what ``queryName`` of the stream says; through Spark Connect it is needed when several queries run in the session.
    """
    return EachBatch(dict(options), name, query_name)


class EachBatch:
    """The function. Pickled to where Spark runs it."""

    def __init__(self, options: dict[str, str], name: str, query_name: str) -> None:
        self._options = options
        self._name = name
        self._query_name = query_name
        self._session: SparkSession | None = None
        """Through Spark Connect, on the server: that of the query."""

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
