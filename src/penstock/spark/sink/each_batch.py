"""Exactly once from ``foreachBatch``: for update mode, which Spark lets no Python sink have, and for several topics from one query.

::

    counts.writeStream.outputMode("update").foreachBatch(each_batch({"kafka.bootstrap.servers": ..., "topic": "counts"}))

Each micro-batch is a batch write with a named sink. The name is the query's id, which lies in its checkpoint, so a batch that Spark
runs again after a failure appends nothing, and a new checkpoint begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.task_properties import QUERY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame


def each_batch(options: Mapping[str, str], *, name: str = "") -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that writes with these options. Two of them in one query need a ``name`` each."""

    def write(frame: DataFrame, batch_id: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise RuntimeError("this is not a batch of a streaming query: use it with writeStream.foreachBatch")
        sink_name = f"{query_id}.{name}" if name else query_id
        writer = frame.write.format("penstock").mode("append")
        writer.options(**{**options, "sinkName": sink_name, "batchId": str(batch_id)}).save()

    return write
