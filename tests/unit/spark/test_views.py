import uuid

import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructType

from penstock.client import Admin, Cluster, Producer
from penstock.spark.pipelines.sqltext import tokens_of
from penstock.spark.views import columns_named, distinct_names, latest_values, tables_named, topics_of


@pytest.mark.parametrize(
    ("sql", "some", "others"),
    [
        ("SELECT count(*) FROM orders", (), ("key", "value", "headers")),
        ("SELECT key FROM orders WHERE `offset` > 5", ("key", "offset"), ("value",)),
        ("SELECT KEY FROM orders -- and the value", ("key",), ("value",)),
        ("WITH a AS (SELECT value FROM orders) SELECT count( * ) FROM a WHERE 'key' = ''", ("value",), ("key",)),
        ("SELECT value FROM a UNION ALL SELECT value FROM b", ("value",), ("key",)),
    ],
)
def test_a_query_needs_the_columns_that_it_names(sql, some, others) -> None:
    named = columns_named(list(tokens_of(sql)))
    assert named is not None
    assert set(some) <= named
    assert not set(others) & named


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM orders",
        "SELECT o.* FROM orders o",
        "SELECT count(*), * FROM orders",
        "SELECT 2 * 3 FROM orders",
        "TABLE orders",
        "FROM orders |> LIMIT 1",
        "WITH a AS (FROM orders) SELECT 1 FROM a",
        "SELECT 1 FROM a NATURAL JOIN b",
        "DESCRIBE orders",
        "SELECT to_json(struct(*)) FROM orders",
        "SELECT `0` FROM orders PIVOT (count(offset) FOR partition IN (0))",
        "SELECT IDENTIFIER('key') FROM orders",
        "",
    ],
)
def test_a_query_may_mean_every_column(sql) -> None:
    assert columns_named(list(tokens_of(sql))) is None


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT id FROM orders", {"orders"}),
        ("SELECT value AS Orders FROM orders", {"orders"}),
        (
            "SELECT id, a.name FROM a, b x, `c.d` JOIN e ON a.id = e.id, f WHERE id IN (1, g)",
            {"a", "b", "c.d", "e", "f"},
        ),
        ("SELECT 1 FROM a JOIN b ON (id = 1) AND a.x IS DISTINCT FROM id JOIN c USING (name)", {"a", "b", "c"}),
        ("SELECT EXTRACT(HOUR FROM t), TRIM(BOTH 'x' FROM u), (SELECT max(id) FROM b) FROM a", {"a", "b"}),
        ("SELECT id FROM ((a) JOIN (b o JOIN c)) GROUP BY id, x ORDER BY y, z", {"a", "b", "c"}),
        ("WITH a AS (SELECT id FROM a), b AS (FROM c) SELECT id FROM a", {"a", "c"}),
        ("SELECT id FROM a UNION ALL SELECT name FROM b UNION TABLE c", {"a", "b", "c"}),
        ("FROM a |> WHERE id = 1 |> EXTEND id, x |> JOIN b USING (name) |> SELECT id, y", {"a", "b"}),
        ("FROM a o LATERAL VIEW explode(items) t AS x, y SELECT x, y", {"a"}),
        ("SELECT o.k FROM a AS o(k, v), LATERAL (SELECT value FROM b) p", {"a", "b"}),
        ("(SELECT id FROM session.a WHERE b.c = 1) LIMIT 1", {"session", "a"}),
        ("SELECT id FROM a JOIN b ON a.group = b.order, c", {"a", "b", "c"}),
        ("SELECT id FROM order, group WHERE id = 1 ORDER BY id, name", {"order", "group"}),
        ("", set()),
    ],
)
def test_a_query_needs_the_names_in_the_position_of_tables(sql, tables) -> None:
    assert tables_named(list(tokens_of(sql))) == tables


def test_another_statement_may_use_any_name() -> None:
    assert {"DESCRIBE", "orders"} <= tables_named(list(tokens_of("DESCRIBE orders")))


def test_fields_that_differ_in_capitals_only_get_names_that_do_not() -> None:
    number, text = LongType(), StringType()
    inner = StructType().add("A", number).add("a", number)
    fields = StructType().add("A", number).add("A_2", text).add("a", text).add("b", inner).add("c", ArrayType(inner))
    assert distinct_names(fields).simpleString() == (
        "struct<A:bigint,A_2:string,a_3:string,b:struct<A:bigint,a_2:bigint>,c:array<struct<A:bigint,a_2:bigint>>>"
    )
    plain = StructType().add("a", number).add("a_2", text)
    assert distinct_names(plain) == plain


@pytest.fixture
def cluster(penstock_broker):
    with Cluster(str(penstock_broker.bootstrap)) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = f"v-{uuid.uuid4().hex[:12]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


def test_the_latest_values_of_every_partition_are_a_sample(cluster, topic) -> None:
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2)
    assert sorted(latest_values(cluster, topic, 4)) == ["6", "7", "8", "9"]


def test_a_sample_has_no_bytes_that_are_not_text(cluster, topic) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"\xff", partition=0)
        producer.send(topic, None, partition=0)
        producer.send(topic, b"{}", partition=0)
    assert latest_values(cluster, topic, 10) == ["", "{}"]


def test_a_sample_of_large_values_is_small(cluster, topic) -> None:
    with Producer(cluster) as producer:
        for number in range(40):
            producer.send(topic, b"%d" % (number % 2) * 10_000, partition=number % 2)
            producer.flush()
    values = latest_values(cluster, topic, 1_000, bytes_max=100_000)
    assert len(values) == 10
    # Of each partition something.
    assert {value[0] for value in values} == {"0", "1"}


def test_a_value_that_is_larger_than_a_sample_is_one(cluster, topic) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"x" * 10_000, partition=0)
    assert latest_values(cluster, topic, 1_000, bytes_max=1) == ["x" * 10_000]


def test_an_empty_topic_has_an_empty_sample(cluster, topic) -> None:
    assert latest_values(cluster, topic, 10) == []


def test_internal_topics_are_no_views(cluster, topic) -> None:
    topics = topics_of(cluster)
    assert topic in topics
    assert not [name for name in topics if name.startswith("__")]
