"""What can be said of a query without Spark."""

import pytest

from penstock.spark.pipelines.sqltext import slips_of, views_read


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  select * from orders where note = 'it''s (fine' -- (not counted\n",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "FROM orders |> WHERE x > 1",
        "VALUES (1), (2)",
        "/* a ( comment */ SELECT 1;",
        "SELECT `a)b` FROM t",
    ],
)
def test_a_query_has_no_slips(sql) -> None:
    assert slips_of(sql) == []


@pytest.mark.parametrize(
    ("sql", "line", "text"),
    [
        ("", 0, "the query is empty; write SELECT ... FROM ..."),
        ("  -- nothing\n", 0, "the query is empty; write SELECT ... FROM ..."),
        ("SELECT 'a\nFROM b", 0, "the quote ' is not closed"),
        ("SELECT 1\n/* FROM b", 1, "the comment is not closed"),
        ("SELECT (1\nFROM b", 0, "a closing ) is missing"),
        ("SELECT 1)\nFROM b", 0, "there is an extra )"),
        ("SELEC 1", 0, "a query starts with SELECT, WITH, FROM or VALUES, not with SELEC"),
        (
            "\nINSERT INTO x SELECT 1",
            1,
            "INSERT is not allowed: a step is a query; write SELECT ..., and specify the target in [[sinks]]",
        ),
    ],
)
def test_a_slip_is_reported_with_its_line(sql, line, text) -> None:
    assert [(slip.line, slip.text) for slip in slips_of(sql)] == [(line, text)]


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("SELECT * FROM orders", [("orders", 0)]),
        ("SELECT *\nFROM `orders-eu` o\nJOIN payments p ON o.id = p.id", [("orders-eu", 1), ("payments", 2)]),
        ("SELECT * FROM orders-eu", [("orders-eu", 0)]),
        ("WITH a AS (SELECT * FROM x), b (c) AS (SELECT * FROM a) SELECT * FROM b, a", [("x", 0)]),
        ("SELECT extract(HOUR FROM ts), trim(BOTH 'x' FROM y) FROM t", [("t", 0)]),
        ("SELECT a IS DISTINCT FROM b FROM t", [("t", 0)]),
        ("SELECT * FROM range(10)", []),
        ("SELECT * FROM parquet.`lake`", []),
        ("SELECT * FROM (SELECT * FROM inner_one) JOIN LATERAL explode(x)", [("inner_one", 0)]),
        ("SELECT 'FROM nowhere' -- FROM nothing\n FROM t", [("t", 1)]),
    ],
)
def test_the_views_that_a_query_reads_are_found(sql, views) -> None:
    assert views_read(sql) == views
