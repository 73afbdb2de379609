"""Steps of pipelines: functions from a DataFrame to a DataFrame."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def shout(frame: DataFrame) -> DataFrame:
    """Customer names in upper case."""
    return frame.withColumn("customer", f.upper("customer"))
