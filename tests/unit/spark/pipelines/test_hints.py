"""What is said of a column that is not there."""

import pytest
from pyspark.errors import AnalysisException

from penstock.spark.pipelines.hints import schema_hint
from penstock.spark.pipelines.model import Pipeline, PipelineHead, SourceTable, Step

ORDERS = {"orders": SourceTable(topics="orders")}
TYPED = {"orders": SourceTable(topics="orders", schema="id INT")}
BOTH = {**TYPED, "payments": SourceTable(topics="payments")}
FILE = {"source": 1, "steps.0.sql": 5}
FILE_OF_TWO = {"sources.orders": 1, "sources.payments": 3, "steps.0.sql": 5}


def missing(name="`amount`", condition="UNRESOLVED_COLUMN.WITH_SUGGESTION"):
    return AnalysisException("no", errorClass=condition, messageParameters={"objectName": name} if name else {})


def hint(sources, sql, error=None, lines=None, view="step1"):
    steps = [Step(sql=sql, as_="step1")]
    return schema_hint(
        Pipeline(head=PipelineHead(), sources=sources, steps=steps, lines=lines or {}), view, error or missing()
    )


@pytest.mark.parametrize(
    ("sources", "lines", "written"),
    [
        (ORDERS, {}, ': --schema "amount DOUBLE, ..."'),
        (BOTH, {}, ': --schema "payments=amount DOUBLE, ..."'),
        (ORDERS, FILE, ': schema = "amount DOUBLE, ..." in [source]'),
        (BOTH, FILE_OF_TWO, ': schema = "amount DOUBLE, ..." in [sources.payments]'),
    ],
)
def test_the_hint_for_a_source_without_a_schema_shows_one(sources, lines, written) -> None:
    names = " JOIN ".join(sources)
    assert hint(sources, f"SELECT amount FROM {names}", lines=lines).endswith(written)


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (missing("`o`.`amount`"), '"amount DOUBLE, ..."'),
        (missing("`net-amount`"), '"`net-amount` DOUBLE, ..."'),
        (missing("", "INVALID_EXTRACT_BASE_FIELD_TYPE"), '"id INT, amount DOUBLE"'),
    ],
)
def test_the_schema_has_the_missing_field(error, fields) -> None:
    assert hint(ORDERS, "SELECT 1 FROM Orders o", error).endswith(f": --schema {fields}")


@pytest.mark.parametrize(
    ("sources", "error"),
    [
        (TYPED, missing()),
        ({"orders": SourceTable(lake="lake")}, missing()),
        ({"orders": SourceTable(table="dead_letters")}, missing()),
        (ORDERS, missing(condition="DIVIDE_BY_ZERO")),
        (ORDERS, ValueError("UNRESOLVED_COLUMN")),
    ],
)
def test_there_is_no_hint_where_a_schema_would_not_help(sources, error) -> None:
    assert hint(sources, "SELECT amount FROM orders", error) == ""


def test_a_source_that_is_not_read_is_not_blamed() -> None:
    assert hint(BOTH, "SELECT amount FROM orders") == ""
    assert hint(BOTH, "SELECT 1 FROM orders", view="payments")
