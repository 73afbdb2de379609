"""A hint for a query with an unknown column: the fields of JSON values are columns only with a schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.spark.pipelines.feeding import origins
from penstock.spark.pipelines.model import Pipeline, SourceTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.errors import PySparkException

_NO_COLUMN: Final = "UNRESOLVED_COLUMN"
_NO_FIELDS: Final = "INVALID_EXTRACT_BASE_FIELD_TYPE"
"""For ``value.amount`` if the value is bytes."""


def schema_hint(pipeline: Pipeline, view: str, error: BaseException) -> str:
    """A schema to write if Spark misses a column in a source, a step, or a sink; empty if none applies."""
    from pyspark.errors import PySparkException

    condition = error.getCondition() if isinstance(error, PySparkException) else None
    if condition is None or not condition.startswith((_NO_COLUMN, _NO_FIELDS)):
        return ""
    read = origins(pipeline.sources, pipeline.steps).get(view.lower(), frozenset())
    untyped = [name for name, source in pipeline.sources.items() if name in read and _is_untyped(source)]
    if not untyped:
        return ""
    assert isinstance(error, PySparkException), "nothing else has a condition"
    field = _field(error)
    fields = f"{field} DOUBLE, ..." if field else "id INT, amount DOUBLE"
    written = _written(pipeline, untyped, fields)
    return f"To use the fields of JSON values as columns, list them with their types in a schema: {written}"


def _is_untyped(source: SourceTable) -> bool:
    return not source.schema and source.lake is None and source.table is None


def _field(error: PySparkException) -> str:
    """The last part of the name that Spark does not know, quoted as in a schema; empty if Spark gives no name."""
    parameters = error.getMessageParameters() or {}
    name = parameters.get("objectName", "").rpartition("`.`")[2].strip("`")
    return name if name.isidentifier() or not name else f"`{name}`"


def _written(pipeline: Pipeline, names: Sequence[str], fields: str) -> str:
    """The schema as in the file, or as on the command line if there is no file."""
    if not pipeline.lines:
        flags = [
            f'--schema "{name}={fields}"' if len(pipeline.sources) > 1 else f'--schema "{fields}"' for name in names
        ]
        return " or ".join(flags)
    tables = ["[source]" if "source" in pipeline.lines else f"[sources.{name}]" for name in names]
    return f'schema = "{fields}" in {" or ".join(tables)}'
