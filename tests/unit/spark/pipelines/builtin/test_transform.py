"""``transform`` is a pipeline file that nobody had to write."""

import pytest

from penstock.spark.pipelines.builtin.transform import TransformArguments, pipeline_of
from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.model import Mode, OnBad


def made(**arguments):
    given = {"from_": ("orders",), "sql": "SELECT * FROM orders", "to": "out"} | arguments
    return pipeline_of(TransformArguments(**given), "name")


def test_one_topic() -> None:
    pipeline = made(
        schema=("id INT, a STRUCT<b: INT>",), mode=Mode.UPDATE, on_bad=OnBad.FAIL, key="id", watermark=("5s",)
    )
    source = pipeline.sources["orders"]
    assert (source.schema, source.on_bad, source.watermark) == ("id INT, a STRUCT<b: INT>", OnBad.FAIL, "5s")
    (sink,) = pipeline.sinks
    assert (sink.topic, sink.mode, sink.key, sink.from_, sink.name) == ("out", Mode.UPDATE, "id", "step1", "topic-out")


def test_several_topics_have_names_and_options_of_their_own() -> None:
    pipeline = made(
        from_=("o=orders", "payments"),
        sql="SELECT * FROM o JOIN payments USING (id)",
        schema=("o=id INT", "payments=id INT, paid DOUBLE"),
        watermark=("1 hour", "o=2 hours"),
    )
    assert {name: (each.topics, each.schema, each.watermark) for name, each in pipeline.sources.items()} == {
        "o": ("orders", "id INT", "2 hours"),
        "payments": ("payments", "id INT, paid DOUBLE", "1 hour"),
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sql": "SELECT * FROM ordes"}, "--sql: unknown source or step ordes; did you mean orders?"),
        ({"sql": "@nosuch.sql"}, "--sql @nosuch.sql: cannot be read: [Errno 2] No such file or directory: 'nosuch.sql'"),
        ({"from_": ("orders", "orders")}, "--from: Two topics have the same name in the query; specify --from NAME=TOPIC"),
        ({"to": "orders"}, "--to: orders is also read, so the pipeline would process its own output endlessly; write to another topic"),
        (
            {"from_": ("orders", "b"), "schema": ("id INT",)},
            "--schema 'id INT': there are several topics; write --schema \"orders=id INT\"",
        ),
        ({"schema": ("id INTT",)}, "--schema: id has the unknown type INTT; did you mean INT?"),
        ({"watermark": ("soon",)}, '--watermark: "soon" is not a duration such as "10s", "5 minutes" or "2 hours"'),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_before_spark_starts(arguments, text) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        made(**arguments)
    assert str(caught.value) == text


def test_a_query_may_be_in_a_file(tmp_path) -> None:
    (tmp_path / "q.sql").write_text("SELECT id FROM orders")
    assert made(sql=f"@{tmp_path}/q.sql").steps[0].sql == "SELECT id FROM orders"
