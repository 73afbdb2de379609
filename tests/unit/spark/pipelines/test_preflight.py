"""What is found wrong before Spark starts."""

from pathlib import Path

import pytest

from penstock.client import Admin, BrokerRefused, CannotConnect, Cluster
from penstock.spark.pipelines.errors import PipelineNotFoundError, PipelineUsageError
from penstock.spark.pipelines.loading import loads
from penstock.spark.pipelines.preflight import check_broker, check_folders, check_topics, make_topics

FILE = """
[source]
topics = "orders"
[[sinks]]
kind = "parquet"
name = "table"
path = "{path}"
"""


@pytest.fixture
def pipeline(tmp_path):
    return loads(FILE.format(path=tmp_path / "table"), Path("orders.toml"), {})


def log(folder, *names) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def test_a_folder_with_batches_of_another_checkpoint_is_refused(pipeline, tmp_path) -> None:
    checkpoint = tmp_path / "checkpoint"
    check_folders(pipeline, str(checkpoint))
    log(tmp_path / "table" / "_spark_metadata", "8", "9.compact", "10", ".10.crc")
    with pytest.raises(PipelineUsageError, match="has batches up to 10 from a checkpoint other than"):
        check_folders(pipeline, str(checkpoint))
    log(checkpoint / "table" / "offsets", "8", "9")
    with pytest.raises(PipelineUsageError, match="Spark would skip"):
        check_folders(pipeline, str(checkpoint))
    # Killed between the sink's log and its own, or a batch further than that.
    log(checkpoint / "table" / "offsets", "10", "11")
    check_folders(pipeline, str(checkpoint))


def test_a_place_that_only_spark_knows_is_left_to_it(pipeline) -> None:
    check_folders(pipeline, "s3a://only/spark/knows/this")


def test_a_broker_that_does_not_answer_is_reported() -> None:
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1:1"):
        check_broker({"kafka.bootstrap.servers": "127.0.0.1:1"})


def test_topics_are_checked_without_making_any_and_made_when_asked(penstock_broker_factory) -> None:
    broker = penstock_broker_factory()

    def there():
        with Cluster(broker.bootstrap) as cluster:
            return {topic.name for topic in Admin(cluster).topics() if not topic.internal}

    try:
        brokers = {"kafka.bootstrap.servers": broker.bootstrap}
        check_broker(brokers)
        assert list(make_topics(brokers, {"orders"})) == ["created topic orders with the broker's defaults"]
        check_topics(brokers, {"orders", "new"}, {"new"})
        with pytest.raises(PipelineNotFoundError, match="Topic order does not exist; did you mean orders"):
            check_topics(brokers, {"order"}, {"new"})
        with pytest.raises(BrokerRefused):
            check_topics(brokers, {"orders"}, {"no/such/name"})
        assert there() == {"orders"}
        assert list(make_topics(brokers, {"orders", "new"})) == ["created topic new with the broker's defaults"]
        assert there() == {"orders", "new"}
    finally:
        broker.stop()
