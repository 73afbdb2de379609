"""A Spark program that reads and writes with credentials, and shows all that Spark shows about its queries.

Its arguments are the brokers, a folder, and the options of the connection as JSON. Everything that it prints is searched for secrets.
"""

import json
import logging
import sys
from pathlib import Path

from pyspark.errors import PySparkException

from penstock.spark import session


def main() -> None:
    """Write a batch, read it back, copy it with a stream, read a table, and fail once."""
    bootstrap, folder = sys.argv[1], Path(sys.argv[2])
    connection = {"kafka.bootstrap.servers": bootstrap, **json.loads(sys.argv[3])}
    logging.basicConfig(level=logging.DEBUG)
    # It logs every call from Python to Java, with all arguments.
    logging.getLogger("py4j").setLevel(logging.INFO)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "false",
    }
    spark = session("secure", "local[2]", **conf)
    spark.sparkContext.setLogLevel("INFO")
    rows = spark.range(20).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format("penstock").mode("append").options(**connection, topic="spark-in").save()
    read = spark.read.format("penstock").options(**connection, subscribe="spark-in").load()
    read.explain("extended")
    print(read._jdf.queryExecution().toString())
    print(read._jdf.queryExecution().logical().toJSON())
    print("READ", read.count())
    stream = spark.readStream.format("penstock").options(**connection, subscribe="spark-in", startingOffsets="earliest")
    writer = stream.load().writeStream.format("penstock").options(**connection, topic="spark-out")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print(query.recentProgress, query.status, query.exception())
    copied = spark.read.format("penstock").options(**connection, subscribe="spark-out").load()
    print("COPIED", copied.count())
    tables = spark.read.format("penstock").options(**connection, table="topics").load()
    print("TABLES", tables.where("topic = 'spark-out'").count())
    try:
        spark.read.format("penstock").options(**connection, subscribe="missing").load().count()
    except PySparkException as error:
        print("FAILED", error)
    print(json.dumps(dict(spark.sparkContext.getConf().getAll())))
    spark.stop()


if __name__ == "__main__":
    main()
