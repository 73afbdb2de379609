"""``penstock sql`` over a real broker: views, JSON columns, the broker's own tables, errors in a sentence."""

import contextlib
import io
import json
import os
import re
import signal
import threading
import time
import uuid

import pytest

from penstock.cli.failures import Exit, Failure
from penstock.cli.sql import answer
from penstock.cli.sql_rows import RowFormat
from penstock.cli.sql_shell import obey, shell
from penstock.client import Admin, QueueClient
from penstock.spark.views import Views

# The first of them may wait for Spark to start.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def views(spark, bootstrap):
    with Views(spark, bootstrap) as views:
        yield views


@pytest.fixture
def ask(spark, views):
    """What a statement finds, as a program gets it."""

    def ask(statement, views=views):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            answer(spark, views, statement, RowFormat.JSON, 10)
        return json.loads(out.getvalue())

    return ask


@pytest.fixture
def orders(topic, produce):
    """A topic of JSON values whose name is a word of SQL's too."""
    produce(
        topic,
        [
            (b"ann", json.dumps({"id": 1, "customer": "ann", "total": 10.5, "items": [{"sku": "a"}]}).encode()),
            (b"bob", json.dumps({"id": 2, "customer": "bob", "total": 20}).encode()),
            (b"ann", json.dumps({"id": 3, "customer": "ann", "total": 1.5, "note": "late"}).encode()),
        ],
        partition=0,
        headers=[("trace", b"t")],
    )
    return topic


def test_a_topic_is_a_view_of_readable_records(ask, orders) -> None:
    rows = ask(f"SELECT * FROM `{orders}` ORDER BY offset")
    assert [row["key"] for row in rows] == ["ann", "bob", "ann"]
    assert json.loads(rows[1]["value"])["total"] == 20
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert rows[0]["headers"] == [{"key": "trace", "value": "t"}]


def test_a_count_decodes_nothing_it_does_not_name(ask, spark, views, orders) -> None:
    assert ask(f"SELECT count(*) AS n FROM `{orders}`") == [{"n": 3}]
    assert spark.table(f"`{orders}`").columns == ["offset"]


def test_a_query_may_name_other_columns_than_the_one_before(ask, orders) -> None:
    assert ask(f"SELECT max(offset) AS m FROM `{orders}`") == [{"m": 2}]
    assert ask(f"SELECT key FROM `{orders}` WHERE partition = 0 AND offset = 1") == [{"key": "bob"}]


def test_json_values_are_columns_on_demand(ask, orders) -> None:
    rows = ask(f"SELECT customer, sum(total) AS total FROM `{orders}__json` GROUP BY customer ORDER BY customer")
    assert rows == [{"customer": "ann", "total": 12.0}, {"customer": "bob", "total": 20.0}]


def test_json_columns_have_the_record_beside_them(ask, orders) -> None:
    rows = ask(f"SELECT id, items, note, _key, _offset, _value FROM `{orders}__json` ORDER BY id")
    assert [row["_key"] for row in rows] == ["ann", "bob", "ann"]
    assert [row["note"] for row in rows] == [None, None, "late"]
    assert rows[0]["items"] == [{"sku": "a"}]
    assert json.loads(rows[0]["_value"])["id"] == 1


def test_every_topic_can_be_taken_as_json(spark, bootstrap, ask, orders) -> None:
    with Views(spark, bootstrap, json=True) as views:
        assert ask(f"SELECT id FROM `{orders}` WHERE customer = 'bob'", views) == [{"id": 2}]


def test_a_topic_without_json_says_so(ask, topic, produce) -> None:
    produce(topic, [(None, b"plain")])
    with pytest.raises(Failure, match="has no JSON object among its latest values"):
        ask(f"SELECT * FROM `{topic}__json`")


def test_bytes_that_are_no_text_are_base64_and_raw_bytes_are_there_too(ask, topic, produce) -> None:
    produce(topic, [(None, b"\xff\xfe"), (None, None), (None, "grün".encode())], partition=0)
    assert [row["value"] for row in ask(f"SELECT value FROM `{topic}` ORDER BY offset")] == ["//4=", None, "grün"]
    assert ask(f"SELECT hex(value) AS h FROM `{topic}__raw` WHERE offset = 0") == [{"h": "FFFE"}]


def test_topics_join(ask, orders, cluster, produce) -> None:
    other = f"t_{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(other, partitions=1)
    produce(other, [(b"ann", b'{"customer": "ann", "city": "Oslo"}')])
    found = ask(
        f"SELECT c.city, count(*) AS n FROM `{orders}__json` o JOIN {other}__json c USING (customer) GROUP BY 1"
    )
    assert found == [{"city": "Oslo", "n": 2}]


def test_what_the_broker_knows_is_there_too(ask, orders) -> None:
    assert ask(f"SELECT topic, records FROM penstock_topics WHERE topic = '{orders}'") == [
        {"topic": orders, "records": 3}
    ]
    assert ask(f"SELECT count(*) AS n FROM penstock_partitions WHERE topic = '{orders}'") == [{"n": 2}]
    assert ask(f"SELECT count(*) AS n FROM penstock_groups WHERE topic = '{orders}'") == [{"n": 0}]
    assert ask(f"SELECT count(*) AS n FROM penstock_dead_letters WHERE topic = '{orders}'") == [{"n": 0}]


def test_the_unfinished_records_of_all_queues_are_one_table(ask, broker, topic) -> None:
    with QueueClient(broker.address("http"), owner="worker-7") as client:
        for value in (b"one", b"two"):
            client.produce(topic, value, key=b"same")
        leased = client.lease(topic, "g", max_records=1, lease_ms=600_000, wait_ms=10_000)
    found = ask(f"SELECT value, owner FROM penstock_queue WHERE topic = '{topic}' AND `group` = 'g' ORDER BY offset")
    assert found == [{"value": leased[0].value.decode(), "owner": "worker-7"}, {"value": "two", "owner": None}]


def test_show_tables_lists_topics_that_no_query_has_named_yet(ask, orders) -> None:
    names = [row["name"] for row in ask("SHOW TABLES")]
    assert f"`{orders}`" in names
    assert "penstock_groups" in names


def test_the_list_tells_of_the_other_views_of_a_topic_in_one_line_and_each_of_them_has_its_columns(
    spark, views, orders, capsys
) -> None:
    def asked(command):
        obey(command, lambda statement: answer(spark, views, statement, RowFormat.TABLE, 10))
        return capsys.readouterr()

    listed = asked("\\d")
    assert orders in listed.out
    assert "__json" not in listed.out
    (told,) = [line for line in listed.err.splitlines() if "__" in line]
    suffixes = re.findall(r"NAME(__\w+)", told)
    assert suffixes == ["__json", "__raw"]
    for suffix, column in zip(suffixes, (r"^total +double", r"^value +binary"), strict=True):
        assert re.search(column, asked(f"\\d {orders}{suffix}").out, re.MULTILINE)


def test_a_query_reads_from_a_moment_on(spark, bootstrap, ask, topic, produce) -> None:
    now_ms = int(time.time() * 1000)
    produce(topic, [(None, b"old")], partition=0, timestamp_ms=now_ms - 60_000)
    produce(topic, [(None, b"new")], partition=0, timestamp_ms=now_ms)
    options = {"startingTimestamp": str(now_ms - 1000), "startingOffsetsByTimestampStrategy": "latest"}
    with Views(spark, bootstrap, options=options) as views:
        assert ask(f"SELECT value FROM `{topic}`", views) == [{"value": "new"}]


@pytest.mark.parametrize(
    ("statement", "sentence", "code"),
    [
        ("SELECT * FROM nowhere_at_all", "`nowhere_at_all` cannot be found", Exit.NOT_FOUND),
        ("SELEC 1", "Syntax error at or near 'SELEC'", Exit.FAILED),
        ("SELECT 1 / 0", "Division by zero", Exit.FAILED),
    ],
)
def test_what_is_wrong_is_a_sentence(ask, statement, sentence, code) -> None:
    with pytest.raises(Failure, match=sentence) as refused:
        ask(statement)
    assert refused.value.code is code
    assert "\n" not in str(refused.value)
    assert "org.apache" not in str(refused.value)


def test_an_unknown_column_is_reported_with_the_known_ones(ask, orders) -> None:
    with pytest.raises(Failure, match=r"`nonsense` cannot be resolved.*`headers`"):
        ask(f"SELECT nonsense FROM `{orders}`")


def test_a_name_that_needs_backticks_is_reported(ask, orders) -> None:
    with pytest.raises(Failure, match=f"need backticks: `{orders}`"):
        ask(f"SELECT * FROM {orders}")


def test_topics_that_differ_in_capitals_only_are_distinguished(ask, cluster, produce) -> None:
    lower = f"case{uuid.uuid4().hex[:8]}"
    upper = lower.upper()
    for name in (lower, upper):
        Admin(cluster).create_topic(name)
        produce(name, [(None, name.encode())])
    for name in (upper, lower, upper, lower):
        assert ask(f"SELECT value FROM {name}") == [{"value": name}]
    with pytest.raises(Failure, match="differ only in case"):
        ask(f"SELECT * FROM {upper} JOIN {lower} ON true")


def test_a_column_may_have_the_name_of_a_topic_that_is_no_json(spark, bootstrap, ask, cluster, produce, orders) -> None:
    other = f"c{uuid.uuid4().hex[:8]}"
    Admin(cluster).create_topic(other)
    produce(other, [(None, b"plain text")])
    produce(orders, [(None, b'{"%s": 7}' % other.encode())])
    with Views(spark, bootstrap, json=True) as views:
        assert ask(f"SELECT {other} FROM `{orders}` WHERE {other} > 0", views) == [{other: 7}]


def test_a_column_may_differ_from_a_topic_in_capitals_only(ask, cluster, produce) -> None:
    lower = f"case{uuid.uuid4().hex[:8]}"
    upper = lower.upper()
    for name in (lower, upper):
        Admin(cluster).create_topic(name)
        produce(name, [(None, name.encode())])
    assert ask(f"SELECT value AS {upper} FROM {lower}") == [{upper: lower}]


def test_fields_that_differ_in_capitals_only_are_columns_each(ask, topic, produce) -> None:
    produce(topic, [(None, b'{"a": 1, "A": 2, "in": [{"b": 3, "B": 4}]}')])
    assert ask(f"SELECT A, a_2, `in`[0].B AS B, `in`[0].b_2 AS b_2 FROM `{topic}__json`") == [
        {"A": 2, "a_2": 1, "B": 4, "b_2": 3}
    ]


def test_a_topic_does_not_take_the_place_of_what_the_broker_knows(ask, cluster, orders) -> None:
    Admin(cluster).create_topic("penstock_topics")
    for _ in range(2):
        assert ask(f"SELECT records FROM penstock_topics WHERE topic = '{orders}'") == [{"records": 3}]
    assert ask("SELECT value FROM penstock_topics__raw") == []


def test_a_star_in_a_function_means_all_columns(ask, orders) -> None:
    (row, *_) = ask(f"SELECT to_json(struct(*)) AS row FROM `{orders}` ORDER BY offset")
    assert {"key", "value", "partition", "offset", "timestamp"} <= json.loads(row["row"]).keys()
    assert len(ask(f"SELECT v FROM `{orders}` AS o(k, v, p, off, ts, h)")) == 3


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("SELECT raise_error('boom') FROM range(3)", "boom"),
        ("SELECT timestamp_millis(253402300800000)", "cannot be shown .*cast it to STRING"),
        ("SELECT date_add(date'9999-12-31', 5)", "cannot be shown"),
    ],
)
def test_what_goes_wrong_with_rows_is_a_sentence_too(ask, statement, told) -> None:
    with pytest.raises(Failure, match=told):
        ask(statement)


def test_an_interrupt_at_the_prompt_cancels_the_job_and_the_next_statement_is_answered(
    spark, views, monkeypatch, tmp_path, capsys
) -> None:
    lines = iter(["SELECT max(id % 7) FROM range(1000000000000);", "SELECT 2 + 40 AS n;", "\\q"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    jobs = spark.sparkContext.statusTracker()
    over = threading.Event()

    def interrupt() -> None:
        while not jobs.getActiveJobsIds() and not over.wait(0.05):
            pass
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        shell(lambda statement: answer(spark, views, statement, RowFormat.CSV, 10))
    finally:
        over.set()
        interrupting.join()
    shown = capsys.readouterr()
    assert shown.out.split() == ["n", "42"]
    assert shown.err.splitlines()[1:] == ["Interrupted"]
