"""``penstock pipeline archive``: every record of the topics is in the lake once, and the group says so."""

import shutil
import uuid

import pytest

from penstock.client import Admin
from penstock.client.group_admin import GroupAdmin
from penstock.client.offsets import watermarks
from penstock.spark.lake.formats import LakeFormat
from penstock.spark.pipelines.errors import PipelineError
from tests.spark.archiving import run_builtin

pytestmark = pytest.mark.timeout(300)


class Archive:
    """One archive: its lake, its name, and what it has done."""

    def __init__(self, spark, bootstrap, folder, topics, lake_format) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.folder = folder
        self.lake = folder / "lake"
        self.topics = topics
        self.format = lake_format
        self.name = f"a-{uuid.uuid4().hex[:8]}"

    @property
    def group(self) -> str:
        return f"penstock.archive.{self.name}"

    def run(self, *, rate=None, lake=None, **arguments):
        given = {"topics": tuple(self.topics), "to": str(lake or self.lake), "format": self.format, **arguments}
        state = self.folder / "state"
        return run_builtin(
            self.spark, "archive", given, bootstrap=self.bootstrap, state=state, name=self.name, rate=rate
        )

    def rows(self):
        """As the lake shows them: (topic, partition, offset, key, value, headers, timestamp)."""
        frame = self.spark.read.format("penstock-lake").option("path", str(self.lake)).option("lake", self.format)
        return contents(frame.load())


def contents(frame):
    rows = frame.select(
        "topic", "partition", "offset", "key", "value", "headers", "timestamp", "timestampType"
    ).collect()
    return sorted(
        (
            r.topic,
            r.partition,
            r.offset,
            r.key,
            r.value,
            tuple(tuple(h) for h in r.headers or ()),
            r.timestamp,
            r.timestampType,
        )
        for r in rows
    )


@pytest.fixture
def archive(spark, bootstrap, tmp_path, topic, cluster):
    # Some records here are of the first days of 2026.
    Admin(cluster).alter_configs(topic, {"retention.ms": "-1"})

    def make(lake_format=LakeFormat.PARQUET, topics=()):
        return Archive(spark, bootstrap, tmp_path, topics or [topic], lake_format)

    return make


@pytest.fixture
def in_topics(spark, bootstrap):
    def read(*topics):
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics), "includeHeaders": "true"}
        return contents(spark.read.format("penstock").options(**options).load())

    return read


def numbered(count, start=0):
    return [(None if n % 5 == 0 else b"k%d" % n, b"%d" % n) for n in range(start, start + count)]


def committed(cluster, group):
    return {place: each.offset for place, each in GroupAdmin(cluster).offsets(group).items()}


def ends(cluster, topic):
    return {place: end for place, (_, end) in watermarks(cluster, [(topic, 0), (topic, 1)]).items()}


@pytest.mark.parametrize("lake_format", list(LakeFormat))
def test_every_record_is_in_the_lake_once_and_the_group_says_how_far(
    archive, lake_format, spark, topic, produce, cluster, in_topics
) -> None:
    ours = archive(lake_format)
    produce(topic, numbered(60), headers=[("h", b"1"), ("h", None)], timestamp_ms=1_767_225_599_000)
    produce(topic, numbered(40, 60), timestamp_ms=1_767_225_600_000)
    ours.run(rate=30)
    assert ours.rows() == in_topics(topic)
    assert committed(cluster, ours.group) == ends(cluster, topic)
    ours.run()
    assert len(ours.rows()) == 100
    produce(topic, numbered(10, 100))
    ours.run()
    assert ours.rows() == in_topics(topic)
    assert committed(cluster, ours.group) == ends(cluster, topic)
    days = {path.name for path in ours.lake.rglob("day=*")}
    assert {"day=2025-12-31", "day=2026-01-01"} < days
    if lake_format is LakeFormat.PARQUET:
        assert spark.read.parquet(str(ours.lake)).where("day = '2025-12-31'").count() == 60


def test_without_its_checkpoint_an_archive_continues_where_the_lake_ends(archive, topic, produce, in_topics) -> None:
    ours = archive()
    produce(topic, numbered(30))
    ours.run()
    shutil.rmtree(ours.folder / "state")
    produce(topic, numbered(30, 30))
    ours.run()
    assert ours.rows() == in_topics(topic)


def test_a_checkpoint_of_another_lake_is_refused_and_the_groups_offsets_are_the_lakes(
    archive, topic, produce, cluster, tmp_path, in_topics
) -> None:
    ours = archive()
    produce(topic, numbered(30))
    ours.run()
    with pytest.raises(
        PipelineError, match=rf"belongs to an archive in file://{ours.lake}, and file://{tmp_path}/another would"
    ):
        ours.run(lake=tmp_path / "another")
    shutil.rmtree(ours.folder / "state")
    shutil.rmtree(ours.lake)
    ours.run()
    assert ours.rows() == in_topics(topic)
    assert committed(cluster, ours.group) == ends(cluster, topic)


@pytest.mark.parametrize("lake_format", [LakeFormat.PARQUET, LakeFormat.DELTA])
def test_a_lake_that_was_moved_continues_from_where_it_is(
    archive, lake_format, topic, produce, in_topics, tmp_path
) -> None:
    ours = archive(lake_format)
    produce(topic, numbered(30))
    ours.run()
    was, ours.lake = ours.lake, ours.lake.rename(tmp_path / "moved")
    produce(topic, numbered(30, 30))
    with pytest.raises(
        PipelineError, match=rf"wrote to file://{was} no longer exists.* Move it back, or specify .* --to"
    ):
        ours.run(lake=was)
    ours.run()
    assert ours.rows() == in_topics(topic)
    ours.lake = ours.lake.rename(tmp_path / "moved again")
    ours.name += "-anew"
    produce(topic, numbered(30, 60))
    ours.run()
    assert ours.rows() == in_topics(topic)


def test_a_topic_created_again_is_not_mixed_with_the_old_one(archive, topic, produce, cluster) -> None:
    ours = archive()
    produce(topic, numbered(30))
    ours.run()
    Admin(cluster).delete_topic(topic)
    Admin(cluster).create_topic(topic, partitions=2)
    cluster.forget(topic)
    produce(topic, numbered(5))
    shutil.rmtree(ours.folder / "state")
    with pytest.raises(PipelineError, match="created again"):
        ours.run()


def test_wrong_arguments_are_reported_before_spark_starts(archive, topic) -> None:
    with pytest.raises(PipelineError, match="requires --tier"):
        archive().run(local_retention="1h")
    with pytest.raises(PipelineError, match="is not a duration"):
        archive().run(tier=True, local_retention="soon")
    with pytest.raises(PipelineError, match="NAME=VALUE"):
        archive().run(catalog=("uri",))
    with pytest.raises(PipelineError, match="Topic nowhere does not exist"):
        archive(topics=["nowhere"]).run()
