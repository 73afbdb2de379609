"""A driver's program: where executors have Penstock from, a batch read, a batch write and a stream. Prints what it saw as JSON."""

import json
import sys

from penstock.spark import session


def where(batches):
    """Runs in executors."""
    import os

    import pyarrow as pa

    import penstock.client

    for _ in batches:
        yield pa.RecordBatch.from_pylist(
            [{"file": penstock.client.__file__, "python": sys.executable, "cwd": os.getcwd()}]
        )


def main(master, bootstrap, source, written, streamed, checkpoint) -> None:
    spark = session("job", master, **json.loads(sys.stdin.read() or "{}"))

    def broker(reader_or_writer):
        return reader_or_writer.format("penstock").option("kafka.bootstrap.servers", bootstrap)

    places = spark.range(0, 4, 1, 4).mapInArrow(where, "file string, python string, cwd string").distinct().collect()
    records = broker(spark.read).option("subscribe", source).load()
    values = sorted(row.value for row in records.selectExpr("CAST(value AS STRING) AS value").collect())
    broker(records.selectExpr("key", "upper(CAST(value AS STRING)) AS value").write).option("topic", written).mode(
        "append"
    ).save()
    stream = broker(spark.readStream).option("subscribe", source).option("startingOffsets", "earliest").load()
    query = (
        broker(stream.selectExpr("key", "concat('streamed ', CAST(value AS STRING)) AS value").writeStream)
        .option("topic", streamed)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(json.dumps({"places": [row.asDict() for row in places], "values": values}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
