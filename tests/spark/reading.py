"""What the tests of the source have in common: queries with a broker and a topic set, and the rows of a stream in memory."""

import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession


@dataclass
class Reading:
    """Queries of one topic."""

    spark: SparkSession
    bootstrap: str
    topic: str
    checkpoints: str

    def batch(self, **options) -> DataFrame:
        return self._with(self.spark.read, options).load()

    def stream(self, **options) -> DataFrame:
        return self._with(self.spark.readStream, options).load()

    def into_memory(self, frame: DataFrame, name: str = "", checkpoint: str = ""):
        """A writer that keeps the rows of a stream in a table of this name; further runs of one checkpoint continue."""
        name = name or f"m_{uuid.uuid4().hex}"
        writer = frame.writeStream.format("memory").queryName(name)
        return writer.option("checkpointLocation", checkpoint or f"{self.checkpoints}/{name}")

    def run(self, frame: DataFrame, checkpoint: str) -> tuple[list[tuple[int, int]], list[dict]]:
        """Everything that is available now: the partitions and offsets that came, and the progress of each batch."""
        rows: list[tuple[int, int]] = []

        def take(some: DataFrame, _: int) -> None:
            rows.extend((row.partition, row.offset) for row in some.select("partition", "offset").collect())

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", f"{self.checkpoints}/{checkpoint}")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sorted(rows), query.recentProgress

    def _with(self, reader, options):
        reader = reader.format("penstock").option("kafka.bootstrap.servers", self.bootstrap)
        if not {"subscribePattern", "assign", "subscribe"} & options.keys():
            reader = reader.option("subscribe", self.topic)
        schema = options.pop("schema", None)
        if schema:
            reader = reader.schema(schema)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader
