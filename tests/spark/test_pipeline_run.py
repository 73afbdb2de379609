"""Pipelines end to end: a broker, Spark, and what comes out; each test its own topics and state, all one session."""

import json
import re
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.client import Admin
from penstock.spark.pipelines.errors import FileErrors, PipelineError, PipelineNotFoundError
from penstock.spark.pipelines.loading import load
from penstock.spark.pipelines.plan import PipelinePlan
from penstock.spark.pipelines.registry import PipelineState
from tests.spark.pipelining import Pipelines
from tests.spark.sinking import seen_in

pytestmark = pytest.mark.timeout(600)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
HOUR_MS = 3_600_000
BEGIN_MS = (int(time.time() * 1000) // HOUR_MS - 5) * HOUR_MS
"""A full hour some hours ago: records of long ago would be gone at once."""


@pytest.fixture
def pipelines(spark, bootstrap, tmp_path):
    # As a pipeline's own session has it.
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield Pipelines(spark, bootstrap, tmp_path)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def other(cluster):
    """A second topic, for joins."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    Admin(cluster).create_topic(name, partitions=2)
    return name


def values(*rows):
    return [(str(row.get("id", "")).encode(), json.dumps(row).encode()) for row in rows]


def hour(number):
    return datetime.fromtimestamp((BEGIN_MS + number * HOUR_MS) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def by_id(rows):
    return sorted(rows, key=lambda row: str(row.get("id")))


def test_a_filter_keeps_keys_and_continues_where_it_was(pipelines, topic, produce) -> None:
    out = f"{topic}.out"
    text = f"""
[pipeline]
name = "filter"
[source]
topics = "{topic}"
as = "orders"
schema = "id INT, amount DOUBLE"
[[steps]]
sql = "SELECT * FROM orders WHERE amount > 100"
[[sinks]]
kind = "topic"
topic = "{out}"
"""
    produce(topic, values({"id": 1, "amount": 50}, {"id": 2, "amount": 150}, {"id": 3, "amount": 250.5}))
    run = pipelines.run(text)
    assert (run.state, run.rows, run.lag) == (PipelineState.FINISHED, 3, 0)
    assert pipelines.screen.notes == ["starting Spark...", f"created topic {out} with the broker's defaults"]
    found = sorted((seen.key, json.loads(seen.value)["amount"]) for seen in seen_in(pipelines.bootstrap, out))
    assert found == [(b"2", 150.0), (b"3", 250.5)]
    assert pipelines.json_in(out)[0].keys() == {"id", "amount"}

    produce(topic, values({"id": 4, "amount": 400}))
    assert pipelines.run(text).rows == 1
    assert by_id(pipelines.json_in(out))[-1] == {"id": 4, "amount": 400.0}
    assert len(pipelines.json_in(out)) == 3
    assert pipelines.registry.load("filter").state is PipelineState.FINISHED


def test_records_without_a_schema_pass_as_they_are(pipelines, topic, produce) -> None:
    produce(topic, [(b"\xff\x00", b"\x00raw"), (None, b"no key")])
    pipelines.run(f"""
[source]
topics = "{topic}"
as = "raw"
[[steps]]
sql = "SELECT key, value FROM raw"
[[sinks]]
kind = "topic"
topic = "{topic}.out"
""")
    found = {(seen.key, seen.value) for seen in seen_in(pipelines.bootstrap, f"{topic}.out")}
    assert found == {(b"\xff\x00", b"\x00raw"), (None, b"no key")}


def test_a_field_that_no_schema_names_is_reported_with_the_schema_to_write(pipelines, topic) -> None:
    for sql in ("SELECT * FROM orders WHERE amount > 100", "SELECT value.amount FROM orders"):
        with pytest.raises(PipelineError) as caught:
            pipelines.builtin("transform", "big", from_=(f"orders={topic}",), sql=sql, to=f"{topic}.big")
        assert re.search(r'list them with their types in a schema: --schema "[^"]*amount DOUBLE', str(caught.value))
        assert "SQLSTATE" not in str(caught.value)
    source = f'[source]\ntopics = "{topic}"\nas = "orders"\n'
    sink = f'[[sinks]]\nkind = "topic"\ntopic = "{topic}.big"\n'
    for text in (
        source + '[[steps]]\nsql = "SELECT amount FROM orders"\n' + sink,
        source + sink + 'key = "amount"\n',
        source + 'event_time = "amount"\nwatermark = "1 hour"\n' + sink,
    ):
        with pytest.raises(FileErrors) as caught:
            pipelines.run(text)
        (problem,) = caught.value.problems
        assert problem.text.endswith(': schema = "amount DOUBLE, ..." in [source]')


def test_a_window_is_written_once_the_watermark_has_passed_it(pipelines, topic, produce) -> None:
    text = f"""
[source]
topics = "{topic}"
as = "orders"
schema = "id INT, amount DOUBLE, at TIMESTAMP"
event_time = "at"
watermark = "10 minutes"
[[steps]]
as = "hourly"
sql = '''
SELECT window.start AS hour, count(*) AS orders, sum(amount) AS amount
FROM orders
GROUP BY window(at, '1 hour')
'''
[[sinks]]
kind = "topic"
topic = "{topic}.hourly"
key = "CAST(hour AS STRING)"
[[sinks]]
kind = "parquet"
path = "{pipelines.folder}/hourly"
"""
    produce(
        topic,
        values(
            {"id": 1, "amount": 10, "at": "2026-03-01T12:05:00Z"},
            {"id": 2, "amount": 20, "at": "2026-03-01T12:55:00Z"},
            {"id": 3, "amount": 40, "at": "2026-03-01T13:05:00Z"},
        ),
    )
    pipelines.run(text)
    # Past the watermark: the first hour is final. Late for it: does not count any more.
    produce(topic, values({"id": 4, "amount": 80, "at": "2026-03-01T14:30:00Z"}))
    pipelines.run(text)
    produce(topic, values({"id": 5, "amount": 160, "at": "2026-03-01T12:10:00Z"}))
    pipelines.run(text)
    expected = [("2026-03-01T12:00:00.000Z", 2, 30.0), ("2026-03-01T13:00:00.000Z", 1, 40.0)]
    rows = pipelines.json_in(f"{topic}.hourly")
    assert sorted((row["hour"], row["orders"], row["amount"]) for row in rows) == expected
    found = pipelines.spark.read.parquet(f"{pipelines.folder}/hourly").collect()
    assert sorted((row.orders, row.amount) for row in found) == [(1, 40.0), (2, 30.0)]


def test_rows_of_any_columns_go_to_delta_and_iceberg_once(pipelines, topic, produce) -> None:
    text = f"""
[source]
topics = "{topic}"
as = "orders"
schema = "id INT, customer STRING, amount DOUBLE"
[[steps]]
sql = "SELECT id, customer, amount * 2 AS double_amount FROM orders"
[[sinks]]
kind = "delta"
path = "{pipelines.folder}/delta"
partition_by = ["customer"]
[[sinks]]
kind = "iceberg"
path = "{pipelines.folder}/iceberg"
"""
    produce(topic, values({"id": 1, "customer": "a", "amount": 1}, {"id": 2, "customer": "b", "amount": 2}))
    pipelines.run(text)
    produce(topic, values({"id": 3, "customer": "a", "amount": 3}))
    pipelines.run(text)
    for lake in ("delta", "iceberg"):
        options = {"path": f"{pipelines.folder}/{lake}", "lake": lake}
        rows = pipelines.spark.read.format("penstock-lake").options(**options).load().collect()
        found = sorted((row.id, row.customer, row.double_amount) for row in rows)
        assert found == [(1, "a", 2.0), (2, "b", 4.0), (3, "a", 6.0)], lake
    assert (pipelines.folder / "delta" / "_delta_log").is_dir()


def test_two_topics_are_joined_within_a_time(pipelines, topic, other, produce) -> None:
    produce(topic, values({"id": 1, "item": "book"}, {"id": 2, "item": "pen"}), timestamp_ms=BEGIN_MS)
    produce(other, values({"id": 1, "paid": 10.0}), timestamp_ms=BEGIN_MS + 60_000)
    pipelines.builtin(
        "transform",
        "join",
        from_=(f"orders={topic}", f"payments={other}"),
        schema=("orders=id INT, item STRING", "payments=id INT, paid DOUBLE"),
        watermark=("1 hour",),
        sql="""SELECT o.id, o.item, p.paid FROM orders o JOIN payments p ON o.id = p.id
               AND p._timestamp BETWEEN o._timestamp AND o._timestamp + INTERVAL 30 MINUTES""",
        to=f"{topic}.paid",
    )
    assert pipelines.json_in(f"{topic}.paid") == [{"id": 1, "item": "book", "paid": 10.0}]
    # The other half comes in a later run: the first half was kept in state.
    produce(other, values({"id": 2, "paid": 2.0}), timestamp_ms=BEGIN_MS + 120_000)
    pipelines.builtin(
        "transform",
        "join",
        from_=(f"orders={topic}", f"payments={other}"),
        schema=("orders=id INT, item STRING", "payments=id INT, paid DOUBLE"),
        watermark=("1 hour",),
        sql="""SELECT o.id, o.item, p.paid FROM orders o JOIN payments p ON o.id = p.id
               AND p._timestamp BETWEEN o._timestamp AND o._timestamp + INTERVAL 30 MINUTES""",
        to=f"{topic}.paid",
    )
    assert by_id(pipelines.json_in(f"{topic}.paid"))[1] == {"id": 2, "item": "pen", "paid": 2.0}


def test_running_totals_are_kept_across_runs_in_update_mode(pipelines, topic, produce) -> None:
    text = f"""
[source]
topics = "{topic}"
as = "orders"
schema = "id INT, amount DOUBLE"
[[steps]]
sql = "SELECT id, sum(amount) AS total FROM orders GROUP BY id"
[[sinks]]
kind = "topic"
topic = "{topic}.totals"
key = "CAST(id AS STRING)"
mode = "update"
"""
    produce(topic, values({"id": 1, "amount": 10}, {"id": 1, "amount": 5}, {"id": 2, "amount": 1}))
    pipelines.run(text)
    produce(topic, values({"id": 1, "amount": 100}))
    pipelines.run(text)
    rows = [(row["id"], row["total"]) for row in pipelines.json_in(f"{topic}.totals")]
    assert sorted(rows) == [(1, 15.0), (1, 115.0), (2, 1.0)]


def test_an_aggregate_without_watermark_in_append_mode_is_reported_with_the_line_of_its_sink(pipelines, topic) -> None:
    text = f'[source]\ntopics = "{topic}"\nas = "o"\n[[steps]]\nsql = "SELECT count(*) AS n FROM o"\n[[sinks]]\nkind = "topic"\ntopic = "{topic}.n"\n'
    with pytest.raises(FileErrors) as caught:
        pipelines.run(text)
    (problem,) = caught.value.problems
    assert problem.line == 6
    assert problem.text.endswith('Write mode = "update", or set a watermark for the source.')


def test_duplicates_are_dropped_also_across_runs(pipelines, topic, produce) -> None:
    text = f"""
[source]
topics = "{topic}"
schema = "id INT"
watermark = "1 hour"
[[steps]]
deduplicate = ["id"]
[[sinks]]
kind = "topic"
topic = "{topic}.once"
"""
    produce(topic, values({"id": 1}, {"id": 1}, {"id": 2}))
    pipelines.run(text)
    produce(topic, values({"id": 2}, {"id": 3}))
    pipelines.run(text)
    assert by_id(pipelines.json_in(f"{topic}.once")) == [{"id": 1}, {"id": 2}, {"id": 3}]


CLASHES = [
    b'{"id": 1, "amount": 2.5}',
    b'{"id": 2}',
    b'{"id": 3, "amount": "much"}',
    b"no JSON",
    b"",
    b'{"id": 4, "amount": 1, "extra": [1]}',
]


def test_a_field_that_is_added_mid_stream_and_values_that_do_not_fit(pipelines, topic, produce) -> None:
    def text(schema) -> str:
        return f"""
[pipeline]
name = "evolves"
[source]
topics = "{topic}"
as = "orders"
schema = "{schema}"
[[steps]]
sql = "SELECT *, _corrupt AS bad FROM orders"
[[sinks]]
kind = "topic"
topic = "{topic}.typed"
"""

    produce(topic, [(None, value) for value in CLASHES])
    pipelines.run(text("id INT, amount DOUBLE"))
    found = sorted(pipelines.json_in(f"{topic}.typed"), key=str)
    # A missing field is null, a field that nobody named is dropped; what does not fit keeps its good fields and says so.
    assert found == sorted(
        [
            {"id": 1, "amount": 2.5},
            {"id": 2},
            {"id": 3, "bad": '{"id": 3, "amount": "much"}'},
            {"bad": "no JSON"},
            {"bad": ""},
            {"id": 4, "amount": 1.0},
        ],
        key=str,
    )
    # The file gets the new field; the checkpoint continues, and old values lack it.
    produce(topic, [(None, b'{"id": 5, "amount": 1, "currency": "EUR"}'), (None, b'{"id": 6, "amount": 1}')])
    pipelines.run(text("id INT, amount DOUBLE, currency STRING"))
    new = [row for row in pipelines.json_in(f"{topic}.typed") if row.get("id", 0) > 4]
    assert by_id(new) == [{"id": 5, "amount": 1.0, "currency": "EUR"}, {"id": 6, "amount": 1.0}]


def test_values_that_do_not_fit_are_put_aside_with_where_they_came_from(pipelines, topic, produce) -> None:
    produce(topic, [(b"k", value) for value in CLASHES], partition=0)
    pipelines.run(f"""
[source]
topics = "{topic}"
schema = "id INT, amount DOUBLE"
on_bad = "dead_letter"
[[sinks]]
kind = "topic"
topic = "{topic}.good"
""")
    assert [row["id"] for row in by_id(pipelines.json_in(f"{topic}.good"))] == [1, 2, 4]
    bad = {seen.value: seen for seen in seen_in(pipelines.bootstrap, f"{topic}.bad")}
    assert set(bad) == {CLASHES[2], CLASHES[3], CLASHES[4]}
    assert bad[b"no JSON"].key == b"k"
    assert dict(bad[b"no JSON"].headers) == {
        "original_topic": topic.encode(),
        "original_partition": b"0",
        "original_offset": b"3",
        "last_error": b"the value is not JSON, or does not match the schema",
    }


def test_a_value_that_does_not_fit_can_fail_the_pipeline_and_is_named(pipelines, topic, produce) -> None:
    produce(topic, [(None, b'{"id": 1}'), (None, b"no JSON")], partition=1)
    with pytest.raises(
        PipelineError, match=f"{topic}/1@1: the value is not JSON, or does not match the schema: no JSON"
    ):
        pipelines.run(f"""
[pipeline]
name = "strict"
[source]
topics = "{topic}"
schema = "id INT"
on_bad = "fail"
[[sinks]]
kind = "topic"
topic = "{topic}.strict"
""")
    run = pipelines.registry.load("strict")
    assert run.state is PipelineState.FAILED
    assert f"{topic}/1@1" in run.reason


NEARLY = [
    b'{"id": 1}\n{"id": 2}',
    b'{"id": 3} oops',
    b'{"id": 4}}',
    b'{"id": 5}]',
    b'{"id": 6}, {"id": 7}',
    b'{"id": 8}, "name": "x"',
    b'{"id": 9, "name": "\xff"}',
    b"{'id': 10}",
    b'[{"id": 11}]',
    b'{"id": 12}], "list": [{"id": 13}',
    b'{"id": 14}, {"ended": true}]} ',
    b"null",
]
"""Not JSON, or no object, although a reader that is not strict finds one in most of them."""
FINE = [
    b' {"id": 100, "name": "a"} \n',
    b'{"id": 0, "id": 101}',
    b'{"id": 102, "more": {"twice": 1, "twice": 2}, "large": %s}' % (b"9" * 60),
    b'{"id": 103, "name": "it\'s", "real": NaN}',
    b'{"id": 104, "deep": %s}' % (b"[" * 500 + b"]" * 500),
    b'{"id": 105, "name": "},{]"}',
    b"{}",
]


def test_a_value_is_one_object_of_json_and_nothing_else(pipelines, topic, produce) -> None:
    produce(topic, [(None, value) for value in [*NEARLY, *FINE, None]], partition=0)
    pipelines.run(f"""
[source]
topics = "{topic}"
as = "orders"
schema = "id INT, name STRING"
[[steps]]
sql = "SELECT id, _offset AS at, _corrupt AS bad FROM orders"
[[sinks]]
kind = "topic"
topic = "{topic}.out"
""")
    rows = sorted(pipelines.json_in(f"{topic}.out"), key=lambda row: row["at"])
    assert rows[: len(NEARLY)] == [{"at": at, "bad": value.decode(errors="replace")} for at, value in enumerate(NEARLY)]
    good = rows[len(NEARLY) :]
    assert [row.get("id") for row in good] == [100, 101, 102, 103, 104, 105, None, None]
    assert not [row for row in good if "bad" in row]


def test_text_after_a_value_is_written_elsewhere_with_it(pipelines, topic, produce) -> None:
    produce(topic, [(None, NEARLY[0]), (None, b'{"id": 20}'), (None, NEARLY[6])], partition=0)
    pipelines.run(f"""
[source]
topics = "{topic}"
schema = "id INT, name STRING"
on_bad = "dead_letter"
[[sinks]]
kind = "topic"
topic = "{topic}.good"
""")
    assert pipelines.json_in(f"{topic}.good") == [{"id": 20}]
    assert {seen.value for seen in seen_in(pipelines.bootstrap, f"{topic}.bad")} == {NEARLY[0], NEARLY[6]}


def test_text_after_a_value_can_fail_the_pipeline(pipelines, topic, produce) -> None:
    produce(topic, [(None, b'{"id": 3} oops')], partition=0)
    with pytest.raises(PipelineError, match=f"{topic}/0@0: the value is not JSON, or does not match the schema: "):
        pipelines.run(
            f'[source]\ntopics = "{topic}"\nschema = "id INT"\non_bad = "fail"\n[[sinks]]\nkind = "topic"\ntopic = "{topic}.strict"\n'
        )


def test_a_static_source_may_have_brokers_of_its_own(pipelines, topic, other, produce) -> None:
    produce(topic, [(b"a", b"order")])
    produce(other, [(b"a", b"Ada")])
    pipelines.run(f"""
[sources.orders]
topics = "{topic}"
[sources.customers]
topics = "{other}"
static = true
options = {{ "kafka.bootstrap.servers" = "{pipelines.bootstrap}" }}
[[steps]]
sql = "SELECT c.value FROM orders o JOIN customers c ON o.key = c.key"
[[sinks]]
kind = "topic"
topic = "{topic}.named"
""")
    assert [seen.value for seen in seen_in(pipelines.bootstrap, f"{topic}.named")] == [b"Ada"]


def test_a_python_step_beside_the_file_runs_in_workers_too(pipelines, topic, produce) -> None:
    (pipelines.folder / "my_steps.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "def shout(text):\n    return text.upper()\n"
        "def loud(frame, spark):\n"
        "    return frame.withColumn('item', udf(shout)('item')).select('id', 'item')\n"
    )
    produce(topic, values({"id": 1, "item": "book"}))
    pipelines.run(f"""
[source]
topics = "{topic}"
schema = "id INT, item STRING"
[[steps]]
python = "my_steps.py:loud"
[[sinks]]
kind = "topic"
topic = "{topic}.loud"
""")
    assert pipelines.json_in(f"{topic}.loud") == [{"id": 1, "item": "BOOK"}]


def test_a_static_source_is_looked_up(pipelines, topic, produce, tmp_path) -> None:
    pipelines.spark.sql("SELECT 1 AS id, 'Ada' AS customer").write.parquet(str(tmp_path / "customers"))
    produce(topic, values({"id": 1, "amount": 3}, {"id": 2, "amount": 4}))
    pipelines.run(f"""
[sources.orders]
topics = "{topic}"
schema = "id INT, amount INT"
[sources.customers]
lake = "{tmp_path}/customers"
static = true
[[steps]]
sql = "SELECT o.id, amount, customer FROM orders o LEFT JOIN customers c ON o.id = c.id"
[[sinks]]
kind = "topic"
topic = "{topic}.named"
""")
    assert by_id(pipelines.json_in(f"{topic}.named")) == [
        {"id": 1, "amount": 3, "customer": "Ada"},
        {"id": 2, "amount": 4},
    ]


def test_spark_tells_the_line_of_what_it_does_not_understand(pipelines, topic) -> None:
    text = f'[source]\ntopics = "{topic}"\nas = "orders"\n[[steps]]\nsql = """\nSELECT offset,\n       amout\nFROM orders\n"""\n[[sinks]]\nkind = "console"\n'
    with pytest.raises(FileErrors) as caught:
        pipelines.run(text)
    (problem,) = caught.value.problems
    assert problem.line == 7
    assert "`amout` cannot be resolved" in problem.text
    assert "\n" not in problem.text
    with pytest.raises(FileErrors) as caught:
        pipelines.run(text.replace("amout", "timestamp timestamp timestamp"))
    assert caught.value.problems[0].line == 7


def test_what_spark_does_not_understand_leaves_no_topic_behind(pipelines, topic, cluster) -> None:
    for wrong in ({"sql": f"SELECT amout FROM `{topic}`"}, {"sql": f"SELECT value FROM `{topic}`", "key": "amout"}):
        with pytest.raises(PipelineError, match="`amout` cannot be resolved"):
            pipelines.builtin("transform", "transform", from_=(topic,), to=f"{topic}.out", **wrong)
    assert f"{topic}.out" not in {each.name for each in Admin(cluster).topics()}


def test_a_missing_topic_is_reported_before_spark_starts(pipelines, topic) -> None:
    with pytest.raises(PipelineNotFoundError, match=f"Topic {topic}x does not exist; did you mean {topic}"):
        pipelines.run(f'[source]\ntopics = "{topic}x"\n[[sinks]]\nkind = "console"\n')
    assert pipelines.registry.load("test").state is PipelineState.FAILED


def test_stats_count_by_window_into_a_topic_and_a_table(pipelines, topic, produce) -> None:
    def count() -> None:
        pipelines.builtin(
            "stats", "stats", topics=(topic,), to=f"{topic}.stats", table=f"{pipelines.folder}/stats", every="1 hour"
        )

    produce(topic, [(b"a", b"12345"), (b"b", b"1"), (b"a", None), (None, b"")], timestamp_ms=BEGIN_MS)
    count()
    row = pipelines.json_in(f"{topic}.stats")[-1]
    assert (row["window_start"], row["window_end"]) == (f"{hour(0)}.000Z", f"{hour(1)}.000Z")
    assert (row["topic"], row["records"], row["bytes"], row["keys"]) == (topic, 4, 9, 2)
    assert row["latency_ms_p50"] == row["latency_ms_p99"] == row["latency_ms_max"] > HOUR_MS
    # Two hours on, the first window is final, and goes to the table.
    produce(topic, [(b"c", b"x")], timestamp_ms=BEGIN_MS + 2 * HOUR_MS)
    count()
    found = pipelines.spark.read.parquet(f"{pipelines.folder}/stats").collect()
    assert [(row.topic, row.records, row.bytes, row["keys"]) for row in found] == [(topic, 4, 9, 2)]
    keys = {seen.key for seen in seen_in(pipelines.bootstrap, f"{topic}.stats")}
    assert keys == {f"{topic}@{hour(0)}Z".encode(), f"{topic}@{hour(2)}Z".encode()}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_spark_understands_every_example(pipelines, path) -> None:
    pipeline = load(path)
    if pipeline.arguments is None:
        plan = PipelinePlan(pipeline, pipelines.spark, {"kafka.bootstrap.servers": pipelines.bootstrap})
        assert list(plan.build()) == [*pipeline.sources, *(step.as_ for step in pipeline.steps)]
        assert [output.name for output in plan.outputs()][: len(pipeline.sinks)] == [
            sink.name for sink in pipeline.sinks
        ]
