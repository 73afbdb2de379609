"""Read orders from a topic as a table, and write large ones to another topic as they arrive."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json

BOOTSTRAP = os.environ.get("PENSTOCK_BOOTSTRAP", "127.0.0.1:9092")
ORDER = "id BIGINT, customer STRING, total DOUBLE"
LARGE = 100.0


@dp.table
def orders() -> DataFrame:
    """Every order, once, however often the pipeline is run."""
    spark = SparkSession.active()
    records = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return records.select(from_json(col("value").cast("string"), ORDER).alias("order"), "timestamp").select(
        "order.*", "timestamp"
    )


dp.create_sink("large_orders", "penstock", {"kafka.bootstrap.servers": BOOTSTRAP, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """A record for each large order, with the customer as the key."""
    found = SparkSession.active().readStream.table("orders").where(col("total") >= LARGE)
    return found.select(col("customer").alias("key"), to_json(struct("id", "customer", "total")).alias("value"))
