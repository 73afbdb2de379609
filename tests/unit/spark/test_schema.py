"""The columns of a record."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from penstock.spark.errors import OptionError
from penstock.spark.schema import RECORDS, RECORDS_WITH_HEADERS, arrow_schema, check_columns, columns_of


def test_columns_are_those_of_the_kafka_connector() -> None:
    assert RECORDS.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert RECORDS_WITH_HEADERS.fields[-1].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert all(field.nullable for field in RECORDS_WITH_HEADERS.fields)


def test_a_text_lists_columns_with_their_types() -> None:
    assert columns_of("name string not null, replicas integers") == StructType(
        [StructField("name", StringType(), False), StructField("replicas", ArrayType(IntegerType(), False))]
    )


def test_arrow_columns_are_what_spark_compares_with() -> None:
    schema = arrow_schema(RECORDS_WITH_HEADERS)
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert schema.field("headers").type.value_field.name == "element"
    assert schema.field("topic").type == pa.string()


@pytest.mark.parametrize("kept", [["value"], ["offset", "key"], ["headers", "topic"]])
def test_a_query_may_ask_for_some_columns_in_any_order(kept) -> None:
    by_name = {field.name: field for field in RECORDS_WITH_HEADERS.fields}
    check_columns(StructType([by_name[name] for name in kept]))


def test_other_columns_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(OptionError, match=r"Unknown column 'price': .* key, value, topic, .*headers"):
        check_columns(StructType().add("price", "double"))


def test_other_types_are_refused_with_what_to_write() -> None:
    with pytest.raises(OptionError, match=r"column value is binary, not string: .*CAST\(value AS STRING\)"):
        check_columns(StructType().add("value", "string"))
