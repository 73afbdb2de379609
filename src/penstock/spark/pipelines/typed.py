"""Sources in Spark: read as a stream or once, their JSON values typed, late rows told from others.

With a ``schema``, a source has the JSON's fields as columns and, behind them, the record's own with an underscore: ``_key``, ``_topic``,
``_partition``, ``_offset``, ``_timestamp``, ``_headers`` when asked for, and ``_corrupt``: the whole value when it is not JSON or does not
fit. Fields that a value lacks are null; fields that the schema lacks are dropped. Without a schema, its columns are those of
``format("penstock")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.model import OnBad, Source, topics_of
from penstock.spark.pipelines.values import interval_of, start_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CORRUPT: Final = "_corrupt"
BAD_REASON: Final = "the value is not JSON, or does not fit the schema"
_PARSING: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}
_END: Final = "penstock: the value has ended"
_RECORD_COLUMNS: Final = ("key", "topic", "partition", "offset", "timestamp")


def source_options(source: Source) -> dict[str, str]:
    """A source's options as ``format("penstock")`` takes them."""
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


def read(spark: SparkSession, source: Source, bootstrap: str, rate: int | None) -> DataFrame:
    """The rows as they come."""
    if source.lake is not None:
        return _read_lake(spark, source)
    options = {"kafka.bootstrap.servers": bootstrap}
    if source.static:
        return spark.read.format("penstock").options(**(options | source_options(source))).load()
    if rate is not None:
        options["maxOffsetsPerTrigger"] = str(rate)
    return spark.readStream.format("penstock").options(**(options | source_options(source))).load()


def _read_lake(spark: SparkSession, source: Source) -> DataFrame:
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


def typed(frame: DataFrame, source: Source) -> DataFrame:
    """The rows as steps see them."""
    if source.schema:
        frame = _with_json_columns(frame, source)
    if source.watermark:
        frame = frame.withWatermark(source.event_time or _time_column(source), interval_of(source.watermark))
    return frame


def bad_records(frame: DataFrame, source: Source) -> DataFrame:
    """The values that do not fit, as they came, with where they came from in their headers: rows for a topic."""
    from pyspark.sql import functions as f

    names = {"original_topic": "topic", "original_partition": "partition", "original_offset": "offset"}
    headers = [_header(name, f.col(column)) for name, column in names.items()]
    headers.append(_header("last_error", f.lit(BAD_REASON)))
    return frame.where(_corrupt(_json(source)).isNotNull()).select("key", "value", f.array(*headers).alias("headers"))


def bad_topic(source: Source) -> str:
    """Where they go."""
    topics = topics_of(source)
    return source.dead_letters or f"{topics[0] if topics else 'records'}.bad"


def _time_column(source: Source) -> str:
    return "_timestamp" if source.schema else "timestamp"


def _json(source: Source) -> Column:
    from pyspark.sql import functions as f

    text = f.col("value").cast("string")
    return f.from_json(f.when(_is_one_object(text), text), f"{source.schema}, `{CORRUPT}` STRING", _PARSING)


def _is_one_object(text: Column) -> Column:
    """Whether a text is a JSON object and nothing else.

    Spark's parser stops behind the first value, whatever follows it, and puts a sign of its own for bytes that are no text; its VARIANT
    stops there too, and refuses a key that stands twice. As the first of two in an array, a value must be followed by the comma.
    """
    from pyspark.sql import functions as f

    both = f.concat(f.lit("["), text, f.lit(f', {{"{_END}": true}}]'))
    ends = [f.struct(f.lit(has).cast("boolean").alias(_END)) for has in (None, True)]
    found = f.from_json(both, f"ARRAY<STRUCT<`{_END}`: BOOLEAN>>", _PARSING)
    # Compared whole, for each mention of the array would be one more pass over the text.
    return f.is_valid_utf8(text) & (found == f.array(*ends))


def _corrupt(parsed: Column) -> Column:
    from pyspark.sql import functions as f

    # Nothing was made of what is not one object. As text it must be text, or no reader of a lake can read it.
    nothing = f.col("value").isNotNull() & parsed.isNull()
    return f.when(nothing, f.make_valid_utf8(f.col("value").cast("string"))).otherwise(parsed[CORRUPT])


def _with_json_columns(frame: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql import functions as f

    own = [column for column in (*_RECORD_COLUMNS, *(["headers"] if source.headers else [])) if column in frame.columns]
    parsed = frame.withColumn("_json", _json(source)).select(
        "_json", _corrupt(f.col("_json")).alias("_bad"), *(f.col(name).alias(f"_{name}") for name in own)
    )
    names = [name for name in parsed.select("_json.*").columns if name != CORRUPT]
    columns = [*(f.col(f"_json.{_quoted(name)}") for name in names), *(f.col(f"_{name}") for name in own)]
    if source.on_bad is OnBad.DEAD_LETTER:
        return parsed.where("_bad IS NULL").select(*columns)
    if source.on_bad is OnBad.FAIL:
        place = f.concat_ws("", f.col("_topic"), f.lit("/"), f.col("_partition"), f.lit("@"), f.col("_offset"))
        text = f.concat(place, f.lit(f": {BAD_REASON}: "), f.substring("_bad", 1, 200))
        # In a filter, where nothing can leave it out because nobody reads it.
        return parsed.where(f.when(f.col("_bad").isNotNull(), f.raise_error(text)).otherwise(f.lit(True))).select(
            *columns
        )
    return parsed.select(*columns, f.col("_bad").alias(CORRUPT))


def _header(name: str, value: Column) -> Column:
    from pyspark.sql import functions as f

    return f.struct(f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
