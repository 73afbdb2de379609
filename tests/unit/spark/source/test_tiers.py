"""Old offsets from a topic's lake, new ones from the broker, as one table."""

import json
import shutil

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client import GroupAdmin, Producer
from penstock.spark.errors import DataLossError
from penstock.spark.lake.formats import LakeFormat
from tests.unit.spark.lake.kit import NEW_YEAR_MS, Archive, records

ALL = ReadAllAvailable()
ARCHIVED, HELD_FROM, END = 8, 6, 10


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def tiered(topic, admin, cluster, folder):
    """Ten records in partition 0, a millisecond apart: the first eight in a lake, and the broker will drop the first six."""
    with Producer(cluster) as producer:
        for offset in range(END):
            value = b"%s/0/%d" % (topic.encode(), offset)
            producer.send(topic, value, partition=0, timestamp_ms=NEW_YEAR_MS + offset)
    archive = Archive(folder, LakeFormat.PARQUET)
    times = [NEW_YEAR_MS + offset for offset in range(ARCHIVED)]
    archive.commit(0, archive.stage(0, records(topic, 0, range(ARCHIVED), times)))
    tier = {"location": str(folder), "format": "parquet", "group": f"archive-{topic}"}
    admin.alter_configs(topic, {f"penstock.tier.{name}": value for name, value in tier.items()})
    GroupAdmin(cluster).commit(tier["group"], {(topic, 0): ARCHIVED})
    return topic


@pytest.fixture
def drop_old(tiered, admin):
    return lambda: admin.delete_records({(tiered, 0): HELD_FROM})


def offsets(read):
    return [row["offset"] for row in read]


def starting(topic, offset):
    return json.dumps({topic: {"0": offset, "1": 0}})


def test_earliest_is_the_first_record_of_the_lake(rows, tiered, drop_old) -> None:
    drop_old()
    read = rows()
    assert offsets(read) == list(range(END))
    assert [row["value"] for row in read] == [b"%s/0/%d" % (tiered.encode(), offset) for offset in range(END)]
    assert {(row["topic"], row["partition"]) for row in read} == {(tiered, 0)}


def test_offsets_and_times_may_be_in_the_lake(rows, tiered, drop_old) -> None:
    drop_old()
    assert offsets(rows(startingOffsets=starting(tiered, 3))) == list(range(3, END))
    assert offsets(rows(startingOffsets=starting(tiered, 3), endingOffsets=starting(tiered, 5))) == [3, 4]
    times = {
        "startingOffsetsByTimestamp": json.dumps({tiered: {"0": NEW_YEAR_MS + 4, "1": 0}}),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert offsets(rows(**times)) == list(range(4, END))


def test_only_the_columns_that_are_asked_for_come_from_the_lake(reader, drop_old) -> None:
    from pyspark.sql.types import StructType

    from penstock.spark.schema import RECORDS

    drop_old()
    for names in (["value"], ["topic"], ["partition", "offset"]):
        made = reader(StructType([RECORDS[name] for name in names]))
        batches = [batch for part in made.partitions() for batch in made.read(part)]
        assert {tuple(batch.schema.names) for batch in batches} == {tuple(names)}
        assert sum(batch.num_rows for batch in batches) == END


def test_what_the_broker_drops_between_plan_and_task_comes_from_the_lake(reader, tiered, drop_old) -> None:
    made = [reader(), reader(startingOffsets=starting(tiered, 2), endingOffsets=starting(tiered, 9))]
    plans = [each.partitions() for each in made]
    drop_old()
    read = [
        [row["offset"] for part in plan for batch in each.read(part) for row in batch.to_pylist()]
        for each, plan in zip(made, plans, strict=True)
    ]
    assert read == [list(range(END)), list(range(2, 9))]


def test_a_stream_catches_up_from_the_lake(stream, tiered, drop_old) -> None:
    drop_old()
    query = stream(startingOffsets="earliest")
    start = query.initialOffset()
    assert start == {tiered: {"0": 0, "1": 0}}
    end = query.latestOffset(start, ALL)
    read = [row for part in query.partitions(start, end) for batch in query.read(part) for row in batch.to_pylist()]
    assert offsets(read) == list(range(END))


def test_a_missing_lake_is_a_data_loss_by_default(rows, folder, drop_old) -> None:
    drop_old()
    shutil.rmtree(folder)
    with pytest.raises(DataLossError, match="lake"):
        rows()
    assert offsets(rows(failOnDataLoss="false")) == list(range(HELD_FROM, END))
