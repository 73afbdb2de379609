"""What Spark's Kafka connector refuses is refused here, one by one, with what to write instead."""

import uuid

import pytest
from pyspark.errors import PySparkException

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def writer_of(spark, bootstrap):
    def writer_of(columns, **options):
        frame = spark.range(1).selectExpr(*columns)
        writer = frame.write.format("penstock").mode("append").option("kafka.bootstrap.servers", bootstrap)
        return writer.options(**options)

    return writer_of


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["'v' AS value"], {}, "The topic to write to is missing"),
        (["'k' AS key"], {"topic": "t"}, "required column 'value' is missing"),
        (["id AS value"], {"topic": "t"}, "'value' has type bigint, but must be string or binary"),
        (["'v' AS value", "id AS key"], {"topic": "t"}, "'key' has type bigint, but must be string or binary"),
        (["'v' AS value", "id AS topic"], {}, "'topic' has type bigint, but must be string"),
        (["'v' AS value", "id AS partition"], {"topic": "t"}, "'partition' has type bigint, but must be int"),
        (["'v' AS value", "array('h') AS headers"], {"topic": "t"}, "'headers' has type array<string>"),
        (["'v' AS value"], {"topic": "t", "kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
        (["'v' AS value"], {"topic": "t", "kafka.value.serializer": "x"}, "kafka.value.serializer is not supported"),
        (["'v' AS value"], {"topic": "t", "kafka.bootstrap.servers": " "}, r"kafka\.bootstrap\.servers"),
        (["'v' AS value"], {"topic": "no/such name"}, "INVALID_TOPIC"),
    ],
)
def test_a_wrong_write_is_refused_before_it_runs(writer_of, columns, options, said) -> None:
    with pytest.raises(PySparkException, match=said):
        writer_of(columns, **options).save()


def test_a_null_topic_in_a_row_is_refused(writer_of) -> None:
    with pytest.raises(PySparkException, match="null in the column 'topic'"):
        writer_of(["'v' AS value", "CAST(NULL AS STRING) AS topic"]).save()


def test_a_partition_that_is_not_there_is_refused(writer_of, topic) -> None:
    with pytest.raises(PySparkException, match="has partition 2, but topic"):
        writer_of(["'v' AS value", "2 AS partition"], topic=topic).save()


def test_columns_that_mean_nothing_here_are_left_alone(writer_of, topic) -> None:
    writer_of(["'v' AS value", "id AS offset", "id AS timestamp", "id AS timestampType"], topic=topic).save()


@pytest.mark.parametrize(
    ("mode", "said"),
    [("overwrite", r'use mode\("append"\)'), ("ignore", "(?i)append"), ("errorifexists", "(?i)append")],
)
def test_only_append_is_a_mode_of_a_topic(writer_of, topic, mode, said) -> None:
    with pytest.raises(PySparkException, match=said):
        writer_of(["'v' AS value"], topic=topic).mode(mode).save()


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["CAST(value AS STRING) AS key"], {"topic": "t"}, "required column 'value' is missing"),
        (["value"], {}, "The topic to write to is missing"),
        (["value"], {"topic": "t", "kafka.value.serializer": "x"}, "is not supported"),
        (["value"], {"topic": "t", "batchId": "3"}, "a stream numbers its own batches"),
    ],
)
def test_a_wrong_stream_is_refused(spark, bootstrap, tmp_path, columns, options, said) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("v\n")
    frame = spark.readStream.format("text").load(str(tmp_path / "in")).selectExpr(*columns)
    writer = frame.writeStream.format("penstock").options(**{"kafka.bootstrap.servers": bootstrap, **options})
    query = writer.option("checkpointLocation", str(tmp_path / uuid.uuid4().hex)).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=said):
        query.awaitTermination(60)
