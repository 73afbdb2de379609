"""Sources in Spark: read as a stream or once, with typed JSON values and a watermark.

With a ``schema``, the columns of a source are the fields of the JSON value, followed by those of the record with an underscore: ``_key``,
``_topic``, ``_partition``, ``_offset``, ``_timestamp``, optionally ``_headers``, and ``_corrupt``, the whole value if it is not JSON or does
not match. Fields that a value lacks are null; fields that the schema lacks are dropped. Without a schema, the columns are those of
``format("penstock")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.model import OnBad, SourceTable, topics_of
from penstock.spark.pipelines.values import CORRUPT, RECORD_COLUMNS, interval_of, start_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

BAD_REASON: Final = "the value is not JSON, or does not match the schema"
_PARSING: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}


def source_options(source: SourceTable) -> dict[str, str]:
    """The options of a source for ``format("penstock")``."""
    options: dict[str, str] = {}
    if source.table is not None:
        options["table"] = source.table
    else:
        options |= start_options(source.start)
    if source.pattern is not None:
        options["subscribePattern"] = source.pattern
    elif source.topics is not None:
        options["subscribe"] = ",".join(topics_of(source))
    if source.headers:
        options["includeHeaders"] = "true"
    return options | {name: str(value) for name, value in source.options.items()}


def read(spark: SparkSession, source: SourceTable, brokers: Mapping[str, str], rate: int | None) -> DataFrame:
    """The rows as they are read."""
    if source.lake is not None:
        return _read_lake(spark, source)
    options = dict(brokers)
    if source.static:
        return spark.read.format("penstock").options(**(options | source_options(source))).load()
    if rate is not None:
        options["maxOffsetsPerTrigger"] = str(rate)
    return spark.readStream.format("penstock").options(**(options | source_options(source))).load()


def _read_lake(spark: SparkSession, source: SourceTable) -> DataFrame:
    assert source.lake is not None, "asked for only then"
    options = {name: str(value) for name, value in source.options.items()}
    if source.format is LakeFormat.PARQUET and not source.static:
        schema = spark.read.options(**options).parquet(source.lake).schema
        return spark.readStream.options(**options).schema(schema).parquet(source.lake)
    if source.format is LakeFormat.PARQUET:
        return spark.read.options(**options).parquet(source.lake)
    options |= {"path": source.lake, "lake": source.format.value}
    if source.static:
        return spark.read.format("penstock-lake").options(**options).load()
    return spark.readStream.format("penstock-lake").options(**options).load()


def typed(frame: DataFrame, source: SourceTable) -> DataFrame:
    """The rows for steps."""
    if source.schema:
        frame = _with_json_columns(frame, source)
    if source.watermark:
        frame = frame.withWatermark(source.event_time or _time_column(source), interval_of(source.watermark))
    return frame


def bad_records(frame: DataFrame, source: SourceTable) -> DataFrame:
    """The values that do not match, unchanged, with their origin in headers, as rows for a topic."""
    from pyspark.sql import functions as f

    names = {"original_topic": "topic", "original_partition": "partition", "original_offset": "offset"}
    headers = [_header(name, f.col(column)) for name, column in names.items()]
    headers.append(_header("last_error", f.lit(BAD_REASON)))
    return frame.where(_Parser(source).is_bad()).select("key", "value", f.array(*headers).alias("headers"))


def bad_topic(source: SourceTable) -> str:
    """The topic for the values that do not match."""
    topics = topics_of(source)
    return source.dead_letters or f"{topics[0] if topics else 'records'}.bad"


def _time_column(source: SourceTable) -> str:
    return "_timestamp" if source.schema else "timestamp"


class _Parser:
    """Parses the values of one source. ``_json`` has the fields, and ``_bad`` is the value if it is not one JSON object that matches.

    Spark's parser ignores everything after the first value and replaces invalid UTF-8, and its VARIANT refuses duplicate keys. So the value
    is embedded as the first of two items in a list in an object: then it must be followed by the second item. The key of both contains a
    random ``mark``, so no value can imitate the end.
    """

    def __init__(self, source: SourceTable) -> None:
        from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

        assert source.schema, "asked for only then"
        self._on_bad = source.on_bad
        self.mark: Final = uuid4().hex[:16]
        # Parsed separately, so that Spark's errors refer to the text in the file.
        fields = StructType.fromDDL(source.schema)
        assert isinstance(fields, StructType), "that is what a list of fields is"
        pair = ArrayType(StructType([*fields, StructField(self.mark, BooleanType())]))
        self._schema = StructType([StructField(self.mark, pair), StructField(CORRUPT, StringType())])

    def is_bad(self) -> Column:
        """Whether there is a value that does not match."""
        from pyspark.sql import functions as f

        return f.exists(f.array(self._parsed()), self._does_not_fit)

    def rows(self) -> Column:
        """A list with the row for a record, empty if the value does not match and is written elsewhere.

        A list is computed once. With a plain column, each reference, and each filter that Spark moves before it, would parse the value again.
        """
        from pyspark.sql import functions as f

        rows = f.transform(f.array(self._parsed()), self._row)
        if self._on_bad is OnBad.DEAD_LETTER:
            return f.filter(rows, lambda row: row["_bad"].isNull())
        return rows

    def _parsed(self) -> Column:
        """Null if the value is null or not text."""
        from pyspark.sql import functions as f

        text = f.col("value").cast("string")
        begin, end = f'{{"{self.mark}": [', f', {{"{self.mark}": true}}]}}'
        whole = f.concat(f.lit(begin), f.when(f.is_valid_utf8(text), text), f.lit(end))
        return f.from_json(whole, self._schema, _PARSING)

    def _is_one(self, parsed: Column) -> Column:
        from pyspark.sql import functions as f

        pair = parsed[self.mark]
        is_followed = (f.size(pair) == 2) & pair[1][self.mark]
        return f.coalesce(is_followed & pair[0].isNotNull(), f.lit(False))

    def _does_not_fit(self, parsed: Column) -> Column:
        from pyspark.sql import functions as f

        return f.col("value").isNotNull() & ~(self._is_one(parsed) & parsed[CORRUPT].isNull())

    def _row(self, parsed: Column) -> Column:
        from pyspark.sql import functions as f

        # It must be valid text, or no reader of a lake can read it.
        bad = f.when(self._does_not_fit(parsed), f.make_valid_utf8(f.col("value").cast("string")))
        if self._on_bad is OnBad.FAIL:
            place = f.concat_ws("", f.col("topic"), f.lit("/"), f.col("partition"), f.lit("@"), f.col("offset"))
            text = f.concat(place, f.lit(f": {BAD_REASON}: "), f.substring(bad, 1, 200))
            bad = f.when(bad.isNotNull(), f.raise_error(text).cast("string"))
        fields = f.when(self._is_one(parsed), parsed[self.mark][0])
        return f.struct(fields.alias("_json"), bad.alias("_bad"))


def _with_json_columns(frame: DataFrame, source: SourceTable) -> DataFrame:
    from pyspark.sql import functions as f

    own = [column for column in RECORD_COLUMNS if column in frame.columns and (column != "headers" or source.headers)]
    parser = _Parser(source)
    made = frame.select(*(f.col(name).alias(f"_{name}") for name in own), f.inline(parser.rows()))
    columns = [f.col("_json.*"), *(f.col(f"_{name}") for name in own)]
    columns += [f.col("_bad").alias(CORRUPT)] if source.on_bad is OnBad.NULL else []
    return made.select(*columns).drop(parser.mark)


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
