"""The columns of a lake, and the folder of a row: ``topic=orders/day=2026-01-31/`` for records.

A lake of records has the columns of the source, the topic and the UTC day of the timestamp as folders, and files with one partition each,
so that the offsets of a file are a range. A lake of other rows has the columns of the query, and folders as specified.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final
from urllib.parse import quote, unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.formats import LakeError

TOPIC: Final = "topic"
DAY: Final = "day"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder for null in Hive, Spark and others."""
_DAY_US: Final = 24 * 60 * 60 * 1_000_000
_EPOCH: Final = date(1970, 1, 1)
_DAY_FIRST: Final = (date.min - _EPOCH).days
_DAY_LAST: Final = (date.max - _EPOCH).days
NO_DATES: Final = (str(date.min), str(date.max))
"""The days of all timestamps outside the range of dates."""

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
RECORDS: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS_TYPE),
        pa.field(TOPIC, pa.string()),
        pa.field(DAY, pa.date32()),
    ]
)
_NEEDED: Final = frozenset({"value", TOPIC, PARTITION, OFFSET, TIMESTAMP})


class LakeFile(msgspec.Struct, frozen=True):
    """A file that a task wrote: its staged and its final path (both below the lake), and its content."""

    staged: str
    path: str
    values: tuple[str | None, ...]
    """Of the columns that are folders, as text."""
    rows: int
    size_bytes: int
    topic: str | None = None
    partition: int = -1
    first_offset: int = -1
    last_offset: int = -1


class StoredFile(msgspec.Struct, frozen=True):
    """A file of records that is part of a lake."""

    uri: str
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class LakeLayout:
    """The columns of a lake, and those of them that are folders."""

    schema: pa.Schema
    folders: tuple[str, ...]
    is_records: bool

    def file_schema(self, *, with_folders: bool) -> pa.Schema:
        """The columns in the files."""
        return pa.schema([field for field in self.schema if with_folders or field.name not in self.folders])

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str | None, ...], int, pa.RecordBatch]]:
        """The batch in the lake's own columns, by folder and (of records) partition. Rows stay in order."""
        whole = self._in_own_columns(batch)
        names = [*self.folders, PARTITION] if self.is_records else list(self.folders)
        for values, part in _groups(whole, names):
            folders = tuple(_text(value) for value in values[: len(self.folders)])
            partition = values[-1] if self.is_records else -1
            assert isinstance(partition, int)
            yield folders, partition, part

    def _in_own_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        for field in self.schema:
            if self.is_records and field.name == DAY:
                columns.append(_days(batch.column(TIMESTAMP)))
                continue
            at = batch.schema.get_field_index(field.name)
            column = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
            column = column if column.type.equals(field.type) else column.cast(field.type)
            columns.append(_no_empty(column) if _is_text_of(field, self.folders) else column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def kind_of(data_type: pa.DataType) -> str:
    """The kind of a column in words. The formats use different widths of integers, texts and lists."""
    kinds = {
        "an integer": pa.types.is_integer,
        "a number": pa.types.is_floating,
        "a decimal": pa.types.is_decimal,
        "text": lambda each: pa.types.is_string(each) or pa.types.is_large_string(each),
        "bytes": lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each),
        "a list": lambda each: pa.types.is_list(each) or pa.types.is_large_list(each),
        "a struct": pa.types.is_struct,
        "a map": pa.types.is_map,
        "a time": pa.types.is_timestamp,
    }
    return next((kind for kind, holds in kinds.items() if holds(data_type)), str(data_type))


def records_layout() -> LakeLayout:
    """The layout for records of topics."""
    return LakeLayout(RECORDS, (TOPIC, DAY), is_records=True)


def layout_for(schema: pa.Schema, folders: Sequence[str]) -> LakeLayout:
    """The layout for a query's columns. Columns like those of ``format("penstock")`` are records, unless ``folders`` are specified."""
    names = set(schema.names)
    if not folders and names >= _NEEDED and names <= set(RECORDS.names):
        return records_layout()
    for name in folders:
        if name not in names:
            raise LakeError(
                f"partitionBy names {name!r}, which is not a column of the query: it has {', '.join(schema.names)}"
            )
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or kind_of(kind) == "bytes":
            # No reader could parse the text that Python makes of these.
            raise LakeError(
                f"partitionBy names {name!r}, which is {kind_of(kind)}, but a folder name needs a simple value: select it as text, such as "
                f"CAST({name} AS STRING) AS {name}, or name another column"
            )
    if folders and len(set(folders)) == len(names):
        raise LakeError("partitionBy names every column, so no column is left for the files: remove one")
    # An empty text becomes null, even in a column without nulls.
    fields = [field.with_nullable(field.nullable or _is_text_of(field, folders)) for field in schema]
    return LakeLayout(pa.schema(fields), tuple(folders), is_records=False)


def folder_path(folders: Sequence[str], values: Sequence[str | None]) -> str:
    """``topic=orders/day=2026-01-31/``; empty without folders."""
    return "".join(
        f"{name}={NULL_FOLDER if value is None else quote(value, safe=' ')}/"
        for name, value in zip(folders, values, strict=True)
    )


def folder_values(path: str) -> Mapping[str, str | None]:
    """The values of the folders in a path."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[name] = None if value == NULL_FOLDER else unquote(value)
    return found


def _days(timestamps: pa.Array) -> pa.Array:
    micros = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    days = np.floor_divide(micros.fill_null(0).to_numpy(), _DAY_US)
    # Timestamps can be any number, but dates are limited.
    return pa.array(np.clip(days, _DAY_FIRST, _DAY_LAST).astype(np.int32)).cast(pa.date32())


def _no_empty(column: pa.Array) -> pa.Array:
    """Empty texts as null, as in Spark and Delta, because a folder cannot have an empty name. In files with the column too."""
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def _is_text_of(field: pa.Field, folders: Sequence[str]) -> bool:
    return field.name in folders and kind_of(field.type) == "text"


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _groups(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    if not names:
        yield (), batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    dictionaries: list[pa.Array] = []
    for name in names:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        dictionaries.append(encoded.dictionary)
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    found = np.unique(codes)
    for code in found:
        values: list[object] = []
        rest = int(code)
        for dictionary in reversed(dictionaries):
            rest, at = divmod(rest, len(dictionary))
            values.append(dictionary[at].as_py())
        part = batch if len(found) == 1 else batch.filter(pc.equal(pa.array(codes), pa.scalar(code)))
        yield tuple(reversed(values)), part
