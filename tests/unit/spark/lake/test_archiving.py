"""What is settled before an archive runs, against a real broker and a real lake."""

import json
import shutil
from dataclasses import replace

import pytest

from penstock.client import Admin, Cluster, Producer
from penstock.client.group_admin import GroupAdmin
from penstock.spark.errors import DataLossError
from penstock.spark.lake import archiving
from penstock.spark.lake.datasource import LakeTarget
from penstock.spark.lake.formats import LakeError, LakeFormat
from penstock.spark.lake.tier import read_split, read_tier
from penstock.spark.options import SparkOptions
from tests.unit.spark.lake.kit import NEW_YEAR_MS, Archive, expected, records


@pytest.fixture
def cluster(bare_broker):
    with Cluster(bare_broker.bootstrap) as cluster:
        Admin(cluster).create_topic("orders", partitions=2)
        with Producer(cluster) as producer:
            for n in range(20):
                producer.send("orders", b"%d" % n, partition=n % 2)
        yield cluster


def offsets(cluster, group="g"):
    return {place[1]: each.offset for place, each in GroupAdmin(cluster).offsets(group).items()}


def test_an_archive_starts_where_the_lake_ends_and_its_group_says_what_the_lake_has(parquet, cluster) -> None:
    start = archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    assert (json.loads(start.offsets), start.lag) == ({"orders": {"0": -2, "1": -2}}, 20)
    assert offsets(cluster) == {0: 0, 1: 0}
    parquet.run(0, records(offsets=range(4)))
    start = archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    assert (json.loads(start.offsets), start.lag) == ({"orders": {"0": 4, "1": -2}}, 16)
    assert offsets(cluster) == {0: 4, 1: 0}


def test_a_group_that_promises_more_than_the_lake_has_is_taken_back(parquet, cluster) -> None:
    GroupAdmin(cluster).commit("g", {("orders", 0): 9, ("orders", 1): 9})
    archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    assert offsets(cluster) == {0: 0, 1: 0}


@pytest.mark.parametrize("claims", [False, True])
def test_while_an_archive_runs_its_group_never_goes_back(bare_broker, cluster, parquet, claims) -> None:
    options, lake = {"kafka.bootstrap.servers": bare_broker.bootstrap}, parquet.open()
    if claims:
        lake.claim("orders", str(cluster.topic("orders").topic_id))
    archiving.commit_archived(options, "g", {"orders": {0: 5, 1: 2}}, lake)
    archiving.commit_archived(options, "g", {"orders": {0: 3, 1: 4}}, lake)
    archiving.commit_archived(options, "g", {}, lake)
    assert offsets(cluster) == {0: 5, 1: 4}


def make_anew(cluster) -> None:
    Admin(cluster).delete_topic("orders")
    Admin(cluster).create_topic("orders", partitions=2)
    cluster.forget("orders")
    with Producer(cluster) as producer:
        for n in range(20):
            producer.send("orders", b"new %d" % n, partition=n % 2)


def test_a_topic_created_again_during_an_archive_is_not_mistaken_for_the_old_one(bare_broker, cluster, parquet) -> None:
    """The broker would drop what the group says is archived: records of the new topic that no lake has."""
    archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    options = {"kafka.bootstrap.servers": bare_broker.bootstrap, "archive.group": "g", "path": str(parquet.folder)}
    target = LakeTarget(SparkOptions({**options, "lake": parquet.format}), parquet.layout)
    target.commit("q", 0, parquet.stage(0, records(offsets=range(3))))
    assert offsets(cluster) == {0: 3, 1: 0}
    staged = parquet.stage(1, records(offsets=range(3, 5)))
    make_anew(cluster)
    with pytest.raises(LakeError, match="created again"):
        target.commit("q", 1, staged)
    assert parquet.open().ends("orders") == {0: 3}
    assert offsets(cluster) == {}


def test_a_group_has_no_commit_for_a_topic_created_again_after_the_lakes_commit(bare_broker, cluster, parquet) -> None:
    lake = parquet.open()
    archiving.prepare(cluster, lake, ["orders"], "g")
    make_anew(cluster)
    with pytest.raises(LakeError, match="created again"):
        archiving.commit_archived({"kafka.bootstrap.servers": bare_broker.bootstrap}, "g", {"orders": {0: 5}}, lake)
    assert offsets(cluster) == {}


def test_a_lake_that_has_more_than_the_topic_is_of_another_topic(parquet, cluster) -> None:
    parquet.run(0, records(offsets=range(11)))
    with pytest.raises(LakeError, match="up to offset 11, but the topic ends at 10"):
        archiving.prepare(cluster, parquet.open(), ["orders"], "g")


@pytest.fixture
def checkpoint(tmp_path):
    """Of the query q, which has committed a batch."""
    folder = tmp_path / "checkpoint"
    (folder / "query" / "commits").mkdir(parents=True)
    (folder / "query" / "metadata").write_text(json.dumps({"id": "q"}))
    (folder / "query" / "commits" / "0").write_text("v1")
    return folder


def test_a_checkpoint_is_for_the_lake_that_knows_its_query(parquet, checkpoint) -> None:
    lake, commit = parquet.open(), checkpoint / "query" / "commits" / "0"
    archiving.check_checkpoint(lake, str(checkpoint.with_name("none")))
    commit.unlink()
    archiving.check_checkpoint(lake, str(checkpoint))
    commit.write_text("v1")
    with pytest.raises(LakeError, match="another lake"):
        archiving.check_checkpoint(lake, str(checkpoint))
    parquet.run(0, records(offsets=range(3)))
    archiving.check_checkpoint(lake, str(checkpoint))
    archiving.check_checkpoint(lake, "s3a://only/spark/knows/this")
    archiving.remember(lake, "s3a://only/spark/knows/this")


def test_a_checkpoint_of_another_lake_is_refused_with_both_places(parquet, checkpoint) -> None:
    parquet.run(0, records(offsets=range(3)))
    archiving.remember(parquet.open(), str(checkpoint))
    other = Archive(parquet.folder.with_name("other"), parquet.format).open()
    told = rf"in {parquet.open().location}, and {other.location} would lack .* another --name"
    with pytest.raises(LakeError, match=told):
        archiving.check_checkpoint(other, str(checkpoint))


def test_a_lake_that_was_moved_is_missed_where_it_was(archive, checkpoint) -> None:
    archive.run(0, records(offsets=range(3)))
    lake = archive.open()
    archiving.remember(lake, str(checkpoint))
    moved = archive.folder.rename(archive.folder.with_name("moved"))
    with pytest.raises(LakeError, match=f"wrote to {lake.location} no longer exists.* Move it back") as refused:
        archiving.check_checkpoint(archive.open(), str(checkpoint))
    assert ("--to" in str(refused.value)) is (archive.format is not LakeFormat.ICEBERG)
    shutil.rmtree(archive.folder)
    moved.rename(archive.folder)
    archiving.check_checkpoint(archive.open(), str(checkpoint))


@pytest.mark.parametrize("place", ["moved", "elsewhere/lake"])
def test_a_lake_that_was_moved_continues_unless_its_format_stores_the_place(archive, cluster, place) -> None:
    """An Iceberg table was taken for none: a second one was made beside it, without what the first has."""
    archiving.prepare(cluster, archive.open(), ["orders"], "g")
    archive.run(0, records(offsets=range(3)))
    moved = archive.folder.with_name(place.partition("/")[0]) / place.partition("/")[2]
    moved.parent.mkdir(exist_ok=True)
    ours = Archive(archive.folder.rename(moved), archive.format)
    if archive.format is LakeFormat.ICEBERG:
        with pytest.raises(LakeError, match=f"{moved} was created in .*{archive.folder}, .* move it back there"):
            archiving.prepare(cluster, ours.open(), ["orders"], "g")
        ours.folder.rename(archive.folder)
        ours = archive
    start = archiving.prepare(cluster, ours.open(), ["orders"], "another")
    assert json.loads(start.offsets) == {"orders": {"0": 3, "1": -2}}
    ours.run(1, records(offsets=range(3, 5)))
    assert ours.rows() == expected("orders", 0, range(5))


def test_a_tier_is_set_kept_and_found(parquet, cluster) -> None:
    lake = parquet.open()
    assert read_tier(cluster, "orders") is None
    archiving.check_tier(cluster, lake, ["orders"], "g", sets_tier=True)
    archiving.set_tier(cluster, lake, ["orders"], "g", 3_600_000)
    tier = read_tier(cluster, "orders")
    assert (tier.location, tier.format, tier.group) == (lake.location, "parquet", "g")
    configs = {entry.name: entry.value for entry in Admin(cluster).configs("orders")}
    assert configs["local.retention.ms"] == "3600000"
    archiving.check_tier(cluster, lake, ["orders"], "g", sets_tier=True)
    parquet.folder = parquet.folder.with_name("another")
    with pytest.raises(LakeError, match="may exist only there"):
        archiving.check_tier(cluster, parquet.open(), ["orders"], "other", sets_tier=True)
    archiving.check_tier(cluster, parquet.open(), ["orders"], "other", sets_tier=False)
    with pytest.raises(LakeError, match="the broker would delete records that only this lake has"):
        archiving.check_tier(cluster, parquet.open(), ["orders"], "g", sets_tier=False)


def test_a_tier_tells_what_it_has_and_calls_what_it_lacks_a_loss(parquet, cluster) -> None:
    parquet.run(0, records(offsets=range(2, 6)))
    archiving.set_tier(cluster, parquet.open(), ["orders"], "g", None)
    tier = read_tier(cluster, "orders")
    assert (tier.earliest(0, 6), tier.earliest(1, 1)) == (2, None)
    (split,) = tier.splits(0, 3, 6)
    assert [n for batch in read_split(split, ["offset"]) for n in batch["offset"].to_pylist()] == [3, 4, 5]
    # What was archived since the files were listed is found.
    parquet.run(1, records(offsets=range(6, 8)))
    assert tier.splits(0, 3, 8)[0].to_offset == 8
    for partition, first, end in ((0, 1, 6), (0, 3, 9), (1, 0, 5)):
        with pytest.raises(DataLossError, match=r"the lake .* has"):
            tier.splits(partition, first, end)
    assert [len(tier.splits(partition, 0, 100, whole=False)) for partition in (0, 1)] == [1, 0]
    for path in parquet.data_files():
        path.unlink()
    with pytest.raises(DataLossError, match="cannot be read"):
        list(read_split(split, ["offset"]))
    assert list(read_split(replace(split, whole=False), ["offset"])) == []


def test_what_the_broker_dropped_since_the_files_were_listed_is_found(parquet, cluster) -> None:
    """The archive continues while a query is planned: the broker's first offset says what the lake has by now."""
    parquet.run(0, records(offsets=range(4), timestamps_ms=[NEW_YEAR_MS + n for n in range(4)]))
    archiving.set_tier(cluster, parquet.open(), ["orders"], "g", None)
    tier = read_tier(cluster, "orders")
    assert (tier.earliest(0, 4), tier.earliest(1, 0)) == (0, None)
    parquet.run(1, records(offsets=range(4, 8), timestamps_ms=[NEW_YEAR_MS + n for n in range(4, 8)]))
    parquet.run(2, records(partition=1, offsets=range(3)))
    assert tier.offset_for_time(0, NEW_YEAR_MS + 6, 4) is None, "nothing says that the listing is old"
    assert tier.offset_for_time(0, NEW_YEAR_MS + 6, 8) == 6
    assert tier.earliest(1, 3) == 0
    parquet.run(3, records(offsets=range(8, 9)))
    assert [split.to_offset for split in tier.splits(0, 0, 9, whole=False)] == [9]


def test_a_lake_that_is_not_there_is_a_loss(parquet, cluster) -> None:
    archiving.set_tier(cluster, parquet.open(), ["orders"], "g", None)
    parquet.folder.rename(parquet.folder.with_name("elsewhere"))
    with pytest.raises(DataLossError, match=r"cannot be read .*no lake of records"):
        read_tier(cluster, "orders").earliest(0, 1)


def test_a_topic_that_was_created_again_is_refused_also_when_it_has_more_than_the_lake(parquet, cluster) -> None:
    archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    parquet.run(0, records(offsets=range(4)))
    archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    Admin(cluster).delete_topic("orders")
    Admin(cluster).create_topic("orders", partitions=2)
    with Producer(cluster) as producer:
        for n in range(40):
            producer.send("orders", b"%d" % n, partition=n % 2)
    with pytest.raises(LakeError, match="created again"):
        archiving.prepare(cluster, parquet.open(), ["orders"], "g")
    assert offsets(cluster) == {}, "nothing of the new topic is archived"


def test_a_checkpoint_of_an_archive_that_found_nothing_yet_is_its_own(archive, tmp_path) -> None:
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "q"}))
    (tmp_path / "checkpoint" / "commits" / "0").write_text("v1")
    archive.run(0)
    archiving.check_checkpoint(archive.open(), str(tmp_path / "checkpoint"))
