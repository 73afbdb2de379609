"""``stats`` is a pipeline file that nobody had to write."""

import pytest

from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.builtin.stats import StatsArguments, pipeline_of
from penstock.spark.pipelines.errors import PipelineUsageError
from penstock.spark.pipelines.model import Mode, SinkKind


def test_a_topic_gets_changes_and_a_table_what_is_final() -> None:
    arguments = StatsArguments(topics=("a", "b"), to="s", table="lake", format=LakeFormat.DELTA, every="5 minutes")
    pipeline = pipeline_of(arguments, "stats")
    topic, table = pipeline.sinks
    assert (topic.kind, topic.topic, topic.mode) == (SinkKind.TOPIC, "s", Mode.UPDATE)
    assert (table.kind, table.path, table.mode) == (SinkKind.DELTA, "lake", Mode.APPEND)
    assert "window(timestamp, '300000 milliseconds')" in pipeline.steps[0].sql


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "stats: specify where to write the results: --to TOPIC, --table PATH, or both"),
        ({"to": "s", "every": "x"}, '--every: "x" is not a duration such as "10s", "5 minutes" or "2 hours"'),
        ({"to": "s", "start": "x"}, '--start: "x" is not "earliest", "latest", a time such as "2026-03-01T12:00:00Z", or offsets'),
        ({"to": "s", "lateness": "x"}, '--lateness: "x" is not a duration such as "10s", "5 minutes" or "2 hours"'),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_before_spark_starts(arguments, text) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        pipeline_of(StatsArguments(topics=("a",), **arguments), "stats")
    assert str(caught.value) == text
