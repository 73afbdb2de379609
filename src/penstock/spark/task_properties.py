"""The local properties by which Spark identifies a streaming query and its micro-batch in their tasks."""

from typing import Final

from pyspark import TaskContext

QUERY_ID: Final = "sql.streaming.queryId"
"""Stored in the checkpoint, so it survives restarts."""
BATCH_ID: Final = "streaming.sql.batchId"


def query_and_batch() -> tuple[str, int] | None:
    """The id of the query and the number of the micro-batch that this task belongs to."""
    task = TaskContext.get()
    query_id = None if task is None else task.getLocalProperty(QUERY_ID)
    batch_id = None if task is None else task.getLocalProperty(BATCH_ID)
    return None if query_id is None or batch_id is None else (query_id, int(batch_id))
