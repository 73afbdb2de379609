"""Tables are found by name, show their columns, and say what is wrong with a query before it runs."""

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark.errors import OptionError
from penstock.spark.tables import TABLES, table_named

NEEDED = {
    "queue": {"topic": "t", "group": "g"},
    "records": {"subscribe": "t", "kafka.bootstrap.servers": "127.0.0.1:1"},
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_name_and_its_columns(name) -> None:
    options = {"Table": name.upper().replace("_", "-"), **NEEDED.get(name, {})}
    table = table_named(options)
    assert table.name == name
    assert len(table.schema(options).names) >= 7


def test_records_are_the_default_table() -> None:
    assert table_named({"subscribe": "orders"}).name == "records"


def test_a_table_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"Unknown table 'topcs'.*topics"):
        table_named({"table": "topcs"})


@pytest.mark.parametrize("name", [name for name in TABLES if name != "records"])
def test_a_table_that_is_a_picture_cannot_be_streamed(name) -> None:
    options = {"table": name, **NEEDED.get(name, {})}
    table = table_named(options)
    with pytest.raises(OptionError, match=rf"Table {name} .*spark\.read"):
        table.stream_reader(options, table.schema(options))


@pytest.mark.parametrize("name", ["topics", "partitions", "groups"])
@pytest.mark.parametrize(
    ("field", "text"),
    [
        (StructField("colour", StringType()), "Unknown column 'colour'"),
        (StructField("topic", LongType()), "is string, not bigint"),
    ],
)
def test_a_schema_that_the_table_does_not_have_is_refused(name, field, text) -> None:
    with pytest.raises(OptionError, match=text):
        table_named({"table": name}).reader({"table": name}, StructType([field]))


def test_a_queue_is_named_by_topic_and_group() -> None:
    with pytest.raises(OptionError, match="needs the option group"):
        table_named({"table": "queue"}).schema({"table": "queue", "topic": "orders"})
