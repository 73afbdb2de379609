"""A streaming query from text files to a topic, that stops and waits at a given point, to be killed there.

``python driver.py '{"bootstrap": ..., "topic": ..., "input": ..., "checkpoint": ..., "markers": ..., "hold": ...}'``. ``hold`` is
"write" (a task has its rows staged or sent, and has not come to its end), "before" or "after" (the sink's commit), or null. A place that is held makes the file
``markers/<hold>`` and then waits for a writer of the pipe ``markers/pipe``, who never comes. One task of the first run fails when its rows are written, and is tried again.
"""

import json
import sys
from pathlib import Path

from penstock.spark import session
from penstock.spark.datasource import PenstockDataSource


def hold_at(markers: Path, place: str) -> None:
    """Say that this place is reached, and go no further."""
    (markers / place).touch()
    with (markers / "pipe").open() as pipe:
        pipe.read()


def held_source(markers: Path, hold: str | None) -> type[PenstockDataSource]:
    """The source with a commit that can be held up; made in a function so that workers need not find this file."""

    class Held(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-held"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            commit = writer.commit

            def held_commit(messages, batch_id) -> None:
                if hold == "before":
                    hold_at(markers, hold)
                commit(messages, batch_id)
                if hold == "after":
                    hold_at(markers, hold)

            writer.commit = held_commit
            return writer

    return Held


def main(told: dict[str, str | None]) -> None:
    """Run the query to its end, or to where it is held."""
    markers, hold = Path(str(told["markers"])), told["hold"]
    spark = session("killed", "local[2,4]", **{"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2})
    spark.dataSource.register(held_source(markers, hold))

    def in_tasks(batches):
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
        failed = markers / "failed"
        if rows and not failed.exists():
            failed.touch()
            raise RuntimeError("one task fails when its rows are written")
        if hold == "write" and rows:
            hold_at(markers, hold)

    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 2).load(str(told["input"]))
    rows = rows.mapInArrow(in_tasks, "value string").selectExpr("value AS key", "value")
    writer = rows.writeStream.format("penstock-held").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(told["checkpoint"]))
    options = {"kafka.bootstrap.servers": str(told["bootstrap"]), "topic": str(told["topic"])}
    query = writer.options(**options).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
