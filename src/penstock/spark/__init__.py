"""Every topic is a Spark table: the data source behind ``format("penstock")``, ready sessions, and pipelines.

A first minute::

    from penstock.spark import session

    spark = session("first look")
    orders = spark.read.format("penstock").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders")
    orders.load().selectExpr("CAST(value AS STRING)").show()

Speaks to a broker through ``penstock.client`` alone, so tasks on another machine need no part of the broker. Needs the extra
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
    # Spark's Python workers import this package for every task: what drivers need is none of their business.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"Module {__name__!r} has no attribute {name!r}")
