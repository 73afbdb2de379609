"""A SparkSession that is ready: Java found, this Python in the workers, the source known."""

import os
import sys

from pyspark.sql import SparkSession


def session(app_name: str = "penstock", master: str = "local[*]", **conf: object) -> SparkSession:
    """The one session of this process, made when there is none. ``conf`` are Spark settings, with ``_`` or ``.`` in their names."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    for name, value in {**defaults, **conf}.items():
        builder = builder.config(name, str(value))
    return builder.getOrCreate()
