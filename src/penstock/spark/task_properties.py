"""What Spark tells the tasks of a streaming query about it, and nobody else."""

from typing import Final

QUERY_ID: Final = "sql.streaming.queryId"
"""Lies in the checkpoint, so it outlives restarts."""
BATCH_ID: Final = "streaming.sql.batchId"
