import uuid

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.spark.pipelines.sqltext import tokens_of
from penstock.spark.views import columns_named, latest_values, topics_of


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
def test_a_query_needs_the_columns_that_it_names(sql, some, others):
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
def test_a_query_may_mean_every_column(sql):
    assert columns_named(list(tokens_of(sql))) is None


@pytest.fixture
def cluster(penstock_broker):
    with Cluster(str(penstock_broker.bootstrap)) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = f"v-{uuid.uuid4().hex[:12]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


def test_the_latest_values_of_every_partition_are_a_sample(cluster, topic):
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2)
    assert sorted(latest_values(cluster, topic, 4)) == ["6", "7", "8", "9"]


def test_a_sample_has_no_bytes_that_are_not_text(cluster, topic):
    with Producer(cluster) as producer:
        producer.send(topic, b"\xff", partition=0)
        producer.send(topic, None, partition=0)
        producer.send(topic, b"{}", partition=0)
    assert latest_values(cluster, topic, 10) == ["", "{}"]


def test_an_empty_topic_has_an_empty_sample(cluster, topic):
    assert latest_values(cluster, topic, 10) == []


def test_internal_topics_are_no_views(cluster, topic):
    topics = topics_of(cluster)
    assert topic in topics
    assert not [name for name in topics if name.startswith("__")]
