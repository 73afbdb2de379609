"""Topics, and tables about them, as views for SQL.

- ``orders``: key and value as text (bytes that are not UTF-8 as base64), partition, offset, timestamp, headers.
- ``orders__json``: the fields of JSON objects in values as columns, and ``_key``, ``_partition``, ``_offset``, ``_timestamp``, ``_headers``,
  and ``_value`` if a query names it. The types are inferred from the latest records. If the names of fields differ only in case, the first
  one (upper case comes first) keeps its name, and the others get a number: ``A``, ``a_2``.
- ``orders__raw``: the columns of ``format("penstock")``.
- ``penstock_topics``, ``penstock_partitions``, ``penstock_groups``, ``penstock_dead_letters``, ``penstock_queue``.

A name with dots or dashes needs backticks: ```dlq.orders```. Each view costs Spark a fraction of a second, so only the topics in a query are
registered (:meth:`Views.prepare`), with the columns in the query: the others are never decoded, which is most of the work of a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql import functions
from pyspark.sql.types import ArrayType, StructField, StructType

from penstock.client import Cluster, Consumer, QueueAdmin, TopicPartition, watermarks
from penstock.client.consumer import PARTITION_BYTES_MAX, OutOfRange, open_records
from penstock.client.discovery import http_addresses
from penstock.client.security import UNSECURED, ClientSecurity
from penstock.limits import MIB
from penstock.spark.pipelines.sqltext import Token, tokens_of
from penstock.spark.schema import RECORDS_WITH_HEADERS
from penstock.spark.security import options_for
from penstock.spark.tables.queue import QueueTable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_QUEUE: Final = "queue"
JSON_SUFFIX: Final = "__json"
RAW_SUFFIX: Final = "__raw"
TABLES: Final = {f"penstock_{table}": table for table in ("topics", "partitions", "groups", "dead_letters", "queue")}
COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
SAMPLE_RECORDS: Final = 1_000
SAMPLE_BYTES: Final = 16 * MIB
"""The maximum size of the sample from which Spark's driver infers types; it may have only a gigabyte of memory."""
_BINARY: Final = ("key", "value")
_VALUE: Final = "_value"
# With these, a query may use columns that it does not name.
_ALL_COLUMNS: Final = frozenset({"NATURAL", "TABLE", "IDENTIFIER", "PIVOT", "UNPIVOT"})
_QUERY_BEGINS: Final = ("SELECT", "WITH", "FROM", "(")
_BEFORE_TABLES: Final = ("FROM", "JOIN", "TABLE", "STREAM", ",", "(")
_AFTER_TABLES: Final = (
    "SELECT",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "SORT",
    "CLUSTER",
    "DISTRIBUTE",
    "WINDOW",
    "VIEW",
    "|",
)


class NotJson(ValueError):
    """The values of a topic are not JSON objects."""


class SameName(ValueError):
    """A query names two topics whose names are the same in SQL."""


@dataclass(frozen=True, slots=True)
class _NeededView:
    """A view for a query. ``columns`` is None for all."""

    name: str
    topic: str
    json: bool
    raw: bool
    columns: frozenset[str] | None


@dataclass(slots=True)
class _Group:
    """What is known about the brackets around a token of a query, or about the whole query."""

    in_tables: bool = False
    is_query: bool = False
    in_path: bool = False
    """The previous token is part of the name of a table, which may have several parts."""


class Views:
    """The views of one session. ``options`` are those of the source, such as where to start."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        options: Mapping[str, str] | None = None,
        json: bool = False,
        security: ClientSecurity = UNSECURED,
    ) -> None:
        self._spark = spark
        self._brokers = {"kafka.bootstrap.servers": bootstrap, **options_for(security)}
        self._options = dict(options or {})
        self._json = json
        self._cluster = Cluster(bootstrap, client_id="penstock-spark-sql", security=security)
        self._registered: dict[str, _NeededView] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the broker. The views remain."""
        self._cluster.close()

    def topics(self) -> list[str]:
        """The topics that exist now."""
        return topics_of(self._cluster)

    def prepare(self, sql: str, *, all_columns: bool = False) -> list[str]:
        """Register the views and the columns that a query names, and return the names of the views."""
        tokens = list(tokens_of(sql))
        named = tables_named(tokens)
        columns = None if all_columns else columns_named(tokens)
        prepared = self._register_tables(named)
        found = self._wanted(named, columns)
        for first, second in pairwise(sorted(found, key=lambda wanted: wanted.name.lower())):
            if first.name != second.name and first.name.lower() == second.name.lower():
                raise SameName(
                    f"The topics {first.topic} and {second.topic} differ only in case, and are the same name in SQL: query one at a time"
                )
        for wanted in found:
            if self._registered.get(wanted.name) != wanted:
                self.register(wanted)
            prepared.append(wanted.name)
        return prepared

    def hint(self, sql: str) -> str:
        """For a query that failed: a name that needs backticks, or an empty text."""
        bare = "".join(token.text for token in tokens_of(sql) if token.kind not in ("quoted", "text"))
        odd = [topic for topic in self.topics() if not topic.isidentifier() and topic in bare]
        return f"names with dots or dashes need backticks: `{max(odd, key=len)}`" if odd else ""

    def register(self, wanted: _NeededView) -> None:
        """Create or replace the view."""
        if wanted.raw:
            frame = self._records(wanted.topic, None)
        elif wanted.json:
            frame = self._json_columns(wanted)
        else:
            frame = self._text_columns(wanted)
        frame.createOrReplaceTempView(f"`{wanted.name}`")
        # In SQL it replaced any view whose name differs only in case.
        self._registered = {
            name: each for name, each in self._registered.items() if name.lower() != wanted.name.lower()
        }
        self._registered[wanted.name] = wanted

    def _wanted(self, named: Collection[str], columns: frozenset[str] | None) -> list[_NeededView]:
        topics = self.topics()
        # SQL ignores the case of names, but topics do not: an exact match takes precedence.
        by_name = {topic.lower(): topic for topic in sorted(topics, reverse=True)} | {topic: topic for topic in topics}
        found = []
        for name in sorted(named):
            if name.lower() in TABLES:
                continue
            topic = by_name.get(name) or by_name.get(name.lower())
            if topic is not None:
                found.append(_NeededView(topic, topic, self._json, False, columns))
                continue
            for suffix in (JSON_SUFFIX, RAW_SUFFIX):
                base = name[: -len(suffix)]
                topic = by_name.get(base) or by_name.get(base.lower()) if name.lower().endswith(suffix) else None
                if topic is not None:
                    is_json = suffix == JSON_SUFFIX
                    found.append(_NeededView(topic + suffix, topic, is_json, not is_json, columns))
        return found

    def _register_tables(self, named: Collection[str]) -> list[str]:
        names = [name for name in TABLES if name in {each.lower() for each in named}]
        for name in names:
            # Created again each time, because nothing is read before the query runs.
            frame = self._queues() if TABLES[name] == _QUEUE else self._table(TABLES[name])
            frame.select(*(_shown(column).alias(column) for column in frame.columns)).createOrReplaceTempView(name)
        return names

    def _table(self, table: str, **options: str) -> DataFrame:
        reader = self._spark.read.format("penstock").options(**self._brokers)
        return reader.option("table", table).options(**options).load()

    def _queues(self) -> DataFrame:
        """All queues with unfinished records as one table; the source reads one queue."""
        with QueueAdmin(http_addresses(self._cluster), security=self._cluster.security) as admin:
            queues = [queue for queue in admin.queues() if any(part.floor < part.end for part in queue.partitions)]
        frames = [self._table(_QUEUE, topic=queue.topic, group=queue.group) for queue in queues]
        empty = self._spark.createDataFrame([], QueueTable.columns)
        return reduce(lambda all_before, one: all_before.unionByName(one), frames) if frames else empty

    def _records(self, topic: str, columns: Iterable[str] | None) -> DataFrame:
        reader = self._spark.read.format("penstock").options(**self._options)
        reader = reader.options(**self._brokers).option("subscribe", topic)
        if columns is None:
            return reader.option("includeHeaders", "true").load()
        fields = [field for field in RECORDS_WITH_HEADERS.fields if field.name in set(columns)]
        return reader.option("includeHeaders", "true").schema(StructType(fields)).load()

    def _text_columns(self, wanted: _NeededView) -> DataFrame:
        chosen = [name for name in COLUMNS if wanted.columns is None or name in wanted.columns]
        # If no column is named, rows must still be counted.
        chosen = chosen or ["offset"]
        return self._records(wanted.topic, chosen).select(*(_shown(name).alias(name) for name in chosen))

    def _json_columns(self, wanted: _NeededView) -> DataFrame:
        fields = self._infer(wanted.topic)
        shown = distinct_names(fields)
        taken = {name.lower() for name in shown.fieldNames()}
        of_record = [name for name in COLUMNS if name != "value" and f"_{name}" not in taken]
        if wanted.columns is not None:
            of_record = [name for name in of_record if f"_{name}" in wanted.columns]
        text = functions.col("value").cast("string")
        columns: list[Column] = [_shown(name).alias(f"_{name}") for name in of_record]
        if wanted.columns is not None and _VALUE in wanted.columns and _VALUE not in taken:
            columns.append(_shown("value").alias(_VALUE))
        # A cast uses the order of fields, so it can rename them.
        columns.append(functions.from_json(text, fields).cast(shown).alias("fields of value"))
        kept = [f"`{column}`" for column in (f"_{name}" for name in of_record)]
        if len(columns) > len(of_record) + 1:
            kept.append(_VALUE)
        return self._records(wanted.topic, ["value", *of_record]).select(*columns).select("`fields of value`.*", *kept)

    def _infer(self, topic: str) -> StructType:
        values = latest_values(self._cluster, topic, SAMPLE_RECORDS)
        texts = [(text,) for text in values if text.lstrip().startswith("{")]
        corrupt = "_corrupt_record"
        found: list[StructField] = []
        if texts:
            schema = self._spark.read.json(self._spark.createDataFrame(texts, "value string")).schema
            found = [field for field in schema.fields if field.name != corrupt]
        if not found:
            raise NotJson(
                f"Topic {topic} has no JSON object among its latest values: query `{topic}` for its values as text"
            )
        return StructType(found)


def topics_of(cluster: Cluster) -> list[str]:
    """The topics that are not internal, by name."""
    return sorted(topic.name for topic in cluster.describe(None).topics.values() if not topic.internal)


def columns_named(tokens: list[Token]) -> frozenset[str] | None:
    """The columns that a query may use: every name in it; None if it may use all columns."""
    words = {token.upper for token in tokens}
    if not tokens or tokens[0].upper not in ("SELECT", "WITH") or words & _ALL_COLUMNS:
        return None
    for index, token in enumerate(tokens):
        before = [each.upper or each.text for each in tokens[max(0, index - 2) : index]]
        # COUNT(*) uses no column; any other star may use all, and so do a pipe and FROM without SELECT.
        if (
            (token.text == "*" and before != ["COUNT", "("])
            or token.text == "|"
            or (token.upper == "FROM" and before[-1:] == ["("])
        ):
            return None
    return frozenset(_name_of(token).lower() for token in tokens if token.kind in ("word", "quoted"))


def tables_named(tokens: list[Token]) -> set[str]:
    """The names in the position of a table in a query; every name of another statement.

    Columns are excluded, because the topic of the same name may have no JSON, or differ only in case. In contrast to ``views_read``, which
    omits uncertain names, this function includes them: a wrong name costs a view, but a missing one fails the query. So it includes names
    in comma-separated lists, and names that the query defines itself, because it may read a topic in the definition:
    ``WITH orders AS (SELECT * FROM orders)``.
    """
    if tokens and (tokens[0].upper or tokens[0].text) not in _QUERY_BEGINS:
        return {_name_of(token) for token in tokens if token.kind in ("word", "quoted")}
    found: set[str] = set()
    before = ""
    groups = [_Group(is_query=True)]
    for token in tokens:
        word = token.upper or token.text
        group = groups[-1]
        is_table = before == "TABLE" or (group.in_tables and before in _BEFORE_TABLES)
        if word == "(":
            groups.append(_Group(in_tables=is_table))
        elif word == ")":
            groups = groups[:-1] or [_Group(is_query=True)]
        elif before == ".":
            # The last of several parts is the view: session.orders. Columns do not occur in this position.
            if group.in_path:
                found.add(_name_of(token))
        elif word == "FROM":
            if before == "DISTINCT" or not (group.is_query or before == "("):
                # As in a IS DISTINCT FROM b, or EXTRACT(HOUR FROM t).
                word = "argument"
            else:
                group.in_tables = True
        elif word in _AFTER_TABLES and (word == "SELECT" or not is_table):
            # Directly after FROM, it is a name: Spark allows a table called order.
            group.in_tables = False
        elif word == "JOIN":
            group.in_tables = True
        elif is_table and token.kind in ("word", "quoted") and word != "LATERAL":
            found.add(_name_of(token))
        group.is_query = group.is_query or word in ("SELECT", "WITH")
        group.in_path = is_table or (group.in_path and "." in (word, before))
        before = word
    return found


def distinct_names(fields: StructType) -> StructType:
    """The same fields with names that differ in more than case, which SQL ignores."""
    names = {name.lower() for name in fields.fieldNames()}
    taken: set[str] = set()
    found = []
    for field in fields.fields:
        name, number = field.name, 1
        while name.lower() in taken or (number > 1 and name.lower() in names):
            number += 1
            name = f"{field.name}_{number}"
        taken.add(name.lower())
        found.append(StructField(name, _distinct_names(field.dataType), field.nullable))
    return StructType(found)


def _distinct_names(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return distinct_names(kind)
    return ArrayType(_distinct_names(kind.elementType), kind.containsNull) if isinstance(kind, ArrayType) else kind


def latest_values(cluster: Cluster, topic: str, records_max: int, bytes_max: int = SAMPLE_BYTES) -> list[str]:
    """Text values of the last records of each partition: about ``records_max``, and at most ``bytes_max`` in total."""
    places: list[TopicPartition] = [(topic, partition.index) for partition in cluster.topic(topic).partitions]
    bounds = watermarks(cluster, places)
    share = max(1, records_max // len(places))
    starts = {place: max(first, end - share) for place, (first, end) in bounds.items() if first < end}
    # So that one answer contains records of every partition.
    partition_bytes_max = max(1, bytes_max // len(places))
    consumer = Consumer(
        cluster,
        out_of_range=OutOfRange.EARLIEST,
        fetch_bytes_max=bytes_max,
        partition_bytes_max=min(PARTITION_BYTES_MAX, partition_bytes_max),
    )
    consumer.assign(starts)
    values: list[str] = []
    size = 0
    while any(consumer.positions[place] < bounds[place][1] for place in starts):
        # Decoded one after another, because compressed batches may expand to a hundred times their size.
        for record in chain.from_iterable(map(open_records, consumer.fetch())):
            try:
                values.append((record.value or b"").decode())
            except UnicodeDecodeError:
                continue
            size += len(record.value or b"")
            if size >= bytes_max:
                return values
    return values


def _name_of(token: Token) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _shown(name: str) -> Column:
    """A column of records, readable."""
    if name in _BINARY:
        return _text(functions.col(name))
    if name == "headers":
        return functions.transform(
            functions.col(name),
            lambda header: functions.struct(header["key"].alias("key"), _text(header["value"]).alias("value")),
        )
    return functions.col(name)


def _text(column: Column) -> Column:
    text = column.cast("string")
    return functions.when(functions.is_valid_utf8(text), text).otherwise(functions.base64(column))
