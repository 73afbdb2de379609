"""Every topic is a Spark table: the data source behind ``format("penstock")``, ready sessions, and pipelines.

A first minute::

    from penstock.spark import session

    spark = session("first look")
    orders = spark.read.format("penstock").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders")
    orders.load().selectExpr("CAST(value AS STRING)").show()

It uses only ``penstock.client`` to access a broker, so tasks on another machine need no part of the broker. It needs the extra
``penstock[spark]``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.sessions import session
    from penstock.spark.sink.each_batch import each_batch

_HOMES = {"each_batch": "penstock.spark.sink.each_batch", "session": "penstock.spark.sessions"}

__all__ = ["each_batch", "session"]


def __getattr__(name: str) -> object:
    # Lazily, because Spark's Python workers import this package for every task, and these are for drivers.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"Module {__name__!r} has no attribute {name!r}")
