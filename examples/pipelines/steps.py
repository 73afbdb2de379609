"""Steps of pipelines: functions from a DataFrame to a DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def shout(frame: DataFrame) -> DataFrame:
    """Customers in capitals."""
    return frame.withColumn("customer", f.upper("customer"))
