"""What makes ``format("penstock")`` known to every Spark session: Spark looks for packages named ``pyspark_*`` by itself."""

from penstock.spark.datasource import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
