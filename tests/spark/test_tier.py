"""A topic with a tier: the broker drops what is archived, and ``format("penstock")`` still reads every offset, once."""

import json
import uuid

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.client.consumer import Consumer
from penstock.client.errors import OFFSET_OUT_OF_RANGE, BrokerRefused
from penstock.client.offsets import watermarks
from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.errors import PipelineError
from tests.spark.archiving import run_builtin
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

PARTITIONS = 2


@pytest.fixture(scope="module")
def tidy_broker(penstock_broker_factory):
    """A broker that looks at retention all the time."""
    return penstock_broker_factory({"log.housekeeping_interval_ms": 20})


@pytest.fixture(scope="module")
def tidy_cluster(tidy_broker):
    with Cluster(str(tidy_broker.bootstrap)) as cluster:
        yield cluster


class Tiered:
    """A topic whose records are small segments, with its lake."""

    def __init__(self, spark, cluster, bootstrap, folder, lake_format) -> None:
        self.spark, self.cluster, self.bootstrap = spark, cluster, bootstrap
        self.folder, self.format = folder, lake_format
        self.lake = folder / "lake"
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.sent = []
        Admin(cluster).create_topic(self.topic, partitions=PARTITIONS, configs={"segment.bytes": "2000"})

    def produce(self, count) -> None:
        with Producer(self.cluster) as producer:
            for n in range(len(self.sent), len(self.sent) + count):
                producer.send(
                    self.topic, b"%d" % n, key=b"k%d" % n, partition=n % PARTITIONS, headers=[("n", b"%d" % n)]
                )
                self.sent.append(n)
                if n % 20 == 19:
                    # A batch of its own each time, so that segments roll.
                    producer.flush()

    def archive(self, **more) -> None:
        arguments = {"topics": (self.topic,), "to": str(self.lake), "format": self.format, **more}
        name = f"archive-{self.topic}"
        state = self.folder / "state"
        run_builtin(self.spark, "archive", arguments, bootstrap=self.bootstrap, state=state, name=name)

    def bounds(self):
        found = watermarks(self.cluster, [(self.topic, p) for p in range(PARTITIONS)])
        return [found[self.topic, p] for p in range(PARTITIONS)]

    def dropped_up_to(self, offsets) -> None:
        eventually(lambda: [first for first, _ in self.bounds()] == offsets, what=f"retention drops up to {offsets}")

    def options(self, **more):
        return {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, "includeHeaders": "true", **more}

    def read(self, **more):
        return values(self.spark.read.format("penstock").options(**self.options(**more)).load())

    def expected(self, first=0):
        """(partition, offset, value) of what was sent, from an offset on."""
        return sorted((n % PARTITIONS, n // PARTITIONS, b"%d" % n) for n in self.sent if n // PARTITIONS >= first)


def values(frame):
    rows = frame.select("partition", "offset", "value", "key", "headers").collect()
    for row in rows:
        assert (row.key, row.headers[0].value) == (b"k" + row.value, row.value)
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


@pytest.fixture
def tiered(spark, tidy_cluster, tidy_broker, tmp_path):
    def make(lake_format=LakeFormat.PARQUET):
        return Tiered(spark, tidy_cluster, str(tidy_broker.bootstrap), tmp_path, lake_format)

    return make


@pytest.mark.parametrize("lake_format", list(LakeFormat))
def test_old_offsets_come_from_the_lake_and_new_ones_from_the_broker_as_one_table(tiered, lake_format) -> None:
    topic = tiered(lake_format)
    topic.produce(200)
    topic.archive(tier=True, local_retention="0s")
    topic.dropped_up_to([100, 100])
    topic.produce(60)
    assert topic.read() == topic.expected()
    start = json.dumps({topic.topic: {"0": 37, "1": -2}})
    end = json.dumps({topic.topic: {"0": 110, "1": 99}})
    some = topic.read(startingOffsets=start, endingOffsets=end)
    assert some == [row for row in topic.expected() if (37 <= row[1] < 110 if row[0] == 0 else row[1] < 99)]
    if lake_format is LakeFormat.PARQUET:
        check_stream(topic)
    topic.archive(tier=True)
    topic.dropped_up_to([130, 130])
    assert topic.read() == topic.expected()


def check_stream(topic) -> None:
    """A stream from the earliest offset begins in the lake."""
    options = topic.options(startingOffsets="earliest", maxOffsetsPerTrigger="150")
    frame = topic.spark.readStream.format("penstock").options(**options).load()
    target = topic.folder / "streamed"
    query = (
        frame.writeStream.format("penstock-lake")
        .option("path", str(target))
        .option("checkpointLocation", str(topic.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert values(topic.spark.read.format("penstock-lake").option("path", str(target)).load()) == topic.expected()


def test_what_is_not_archived_is_never_dropped(tiered, tidy_cluster) -> None:
    topic = tiered()
    topic.produce(100)
    topic.archive(tier=True, local_retention="0s")
    topic.dropped_up_to([50, 50])
    topic.produce(100)
    # A topic beside it with the same limits and no tier: when its records are gone, retention has looked at this one too.
    beside = f"{topic.topic}-beside"
    Admin(tidy_cluster).create_topic(beside, configs={"segment.bytes": "2000", "retention.ms": "0"})
    with Producer(tidy_cluster) as producer:
        producer.send(beside, b"x")
    eventually(lambda: watermarks(tidy_cluster, [(beside, 0)])[beside, 0] == (1, 1), what="retention was at work")
    assert topic.bounds() == [(50, 100), (50, 100)]
    assert topic.read() == topic.expected()


@pytest.fixture(scope="module")
def dropped(spark, tidy_cluster, tidy_broker, tmp_path_factory):
    """Offsets 0 to 49 of both partitions are in the lake alone, 50 to 59 at the broker alone."""
    folder = tmp_path_factory.mktemp("tiered")
    topic = Tiered(spark, tidy_cluster, str(tidy_broker.bootstrap), folder, LakeFormat.PARQUET)
    topic.produce(100)
    topic.archive(tier=True, local_retention="0s")
    topic.dropped_up_to([50, 50])
    topic.produce(20)
    return topic


def test_kafka_consumers_see_the_broker_alone(dropped, tidy_cluster) -> None:
    consumer = Consumer(tidy_cluster)
    consumer.assign({(dropped.topic, 0): 10})
    with pytest.raises(BrokerRefused) as refused:
        consumer.fetch()
    assert refused.value.code == OFFSET_OUT_OF_RANGE


def test_a_lake_that_is_gone_is_a_loss_of_data_and_not_an_empty_table(dropped) -> None:
    elsewhere = dropped.folder / "elsewhere"
    dropped.lake.rename(elsewhere)
    try:
        with pytest.raises(Exception, match=r"DataLossError[^\n]*lake that cannot be read"):
            dropped.read()
        assert dropped.read(failOnDataLoss="false") == dropped.expected(first=50)
    finally:
        elsewhere.rename(dropped.lake)


def test_a_tier_stays_at_its_lake(dropped, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dropped, "lake", tmp_path / "another")
    with pytest.raises(PipelineError, match=r"The tier of .* may exist only there"):
        dropped.archive(tier=True)


def test_a_compacted_topic_is_refused_a_tier(tiered, tidy_cluster) -> None:
    topic = tiered()
    Admin(tidy_cluster).alter_configs(topic.topic, {"cleanup.policy": "compact"})
    with pytest.raises(BrokerRefused, match="compacted"):
        topic.archive(tier=True)
