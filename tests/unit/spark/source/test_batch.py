"""A query that ends, option by option."""

import json
import uuid
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual
from pyspark.sql.types import StructType

from penstock.client import Producer
from penstock.spark.errors import DataLossError, OptionError, SourceError
from penstock.spark.source.batch import FilteringRecordsReader

NOON = 1_700_000_000_000


def offsets(rows):
    """The offsets by partition, in order of partition."""
    found = {}
    for row in rows:
        found.setdefault(row["partition"], []).append(row["offset"])
    return [found[partition] for partition in sorted(found)]


def by_partition(topic, *numbers):
    return json.dumps({topic: {str(index): number for index, number in enumerate(numbers)}})


def test_everything_is_read_from_the_earliest_to_the_latest(rows, fill, topic) -> None:
    fill(topic, 3, 2)
    read = rows()
    assert offsets(read) == [[0, 1, 2], [0, 1]]
    assert {row["topic"] for row in read} == {topic}
    assert read[0]["value"] == b"0-0"
    assert read[0]["timestampType"] == 0


def test_an_empty_topic_has_no_rows(rows) -> None:
    assert rows() == []


def test_keys_values_and_headers_come_as_they_were_sent(rows, cluster, topic) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, None, key=b"k", partition=0, timestamp_ms=NOON)
        producer.send(topic, b"v", key=None, partition=0, timestamp_ms=NOON, headers=[("a", b"1"), ("b", None)])
        producer.send(topic, b"", key=b"", partition=0, timestamp_ms=NOON)
    first, second, third = rows(includeHeaders="true")
    assert (first["key"], first["value"], first["headers"]) == (b"k", None, None)
    assert (second["key"], second["value"]) == (None, b"v")
    assert second["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (third["key"], third["value"]) == (b"", b"")
    assert first["timestamp"].timestamp() * 1000 == NOON


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(rows, fill, topic, compression) -> None:
    from penstock.records.batch import Compression

    fill(topic, 500, compression=Compression[compression.upper()])
    assert [row["value"] for row in rows()] == [b"0-%d" % index for index in range(500)]


@pytest.mark.parametrize(
    "columns", [["value"], ["offset", "key"], ["topic"], ["partition", "topic"], ["timestampType"]]
)
def test_only_the_columns_that_are_asked_for_are_made_in_their_order(reader, fill, topic, columns) -> None:
    from penstock.spark.schema import RECORDS

    fill(topic, 3)
    made = reader(StructType([RECORDS[name] for name in columns]))
    (batch,) = (batch for part in made.partitions() for batch in made.read(part))
    assert batch.schema.names == columns
    assert batch.num_rows == 3


def test_offsets_by_partition(rows, fill, topic) -> None:
    fill(topic, 10, 10)
    read = rows(startingOffsets=by_partition(topic, 4, -2), endingOffsets=by_partition(topic, 6, -1))
    assert offsets(read) == [[4, 5], list(range(10))]


def test_offsets_must_name_every_partition(rows, topic) -> None:
    with pytest.raises(
        OptionError,
        match=f"startingOffsets must name exactly the partitions .* {topic}/0; there are {topic}/0, {topic}/1",
    ):
        rows(startingOffsets=by_partition(topic, 4))


def test_times(rows, fill, topic) -> None:
    fill(topic, 10, 10, timestamp_ms=NOON)
    assert offsets(rows(startingTimestamp=str(NOON + 7))) == [[7, 8, 9], [7, 8, 9]]
    assert offsets(rows(endingTimestamp=str(NOON + 2))) == [[0, 1], [0, 1]]
    read = rows(
        startingOffsetsByTimestamp=by_partition(topic, NOON + 8, NOON + 9),
        endingOffsetsByTimestamp=by_partition(topic, NOON + 9, NOON + 100),
    )
    assert offsets(read) == [[8], [9]]
    assert len(rows(startingTimestamp="-5")) == 20, "a time before 1970"


def test_a_time_that_nothing_is_as_late_as_is_an_error_or_the_end(rows, fill, topic) -> None:
    fill(topic, 3, 3, timestamp_ms=NOON)
    with pytest.raises(
        OptionError, match=f"{topic}/0 has no record at or after .* startingOffsetsByTimestampStrategy to latest"
    ):
        rows(startingTimestamp=str(NOON + 100))
    assert rows(startingTimestamp=str(NOON + 100), startingOffsetsByTimestampStrategy="latest") == []


def test_patterns_and_partitions_select(rows, fill, topic) -> None:
    fill(topic, 3, 2)
    assert offsets(rows(assign=json.dumps({topic: [1]}))) == [[0, 1]]
    assert len(rows(subscribePattern=f"^{topic[:-2]}..$")) == 5
    assert rows(subscribePattern=uuid.uuid4().hex) == []


def test_a_missing_topic_is_reported(rows) -> None:
    with pytest.raises(SourceError, match=r"Topic nowhere does not exist: create it first .* subscribePattern"):
        rows(subscribe="nowhere")


def test_a_missing_assigned_partition_is_reported(rows, fill, topic) -> None:
    fill(topic, 3, 2)
    with pytest.raises(SourceError, match=f"Partition {topic}/7 does not exist: correct the option assign"):
        rows(assign=json.dumps({topic: [0, 7]}))


def test_a_fetch_size_beyond_what_the_protocol_can_say_is_the_most_that_it_can(rows, fill, topic) -> None:
    fill(topic, 3)
    more = {"kafka.max.partition.fetch.bytes": str(2**31), "kafka.fetch.max.wait.ms": str(2**40)}
    assert offsets(rows(**more)) == [[0, 1, 2]]


def test_a_start_after_the_end_is_reported(rows, fill, topic) -> None:
    fill(topic, 5, 5)
    with pytest.raises(OptionError, match=f"{topic}/0 would start at offset 9 .startingOffsets., after its end, 5"):
        rows(startingOffsets=by_partition(topic, 9, 0))


def test_deleted_records_are_a_data_loss_by_default(rows, fill, topic, admin) -> None:
    fill(topic, 10)
    admin.delete_records({(topic, 0): 6})
    assert offsets(rows()) == [[6, 7, 8, 9]], "earliest is wherever it is"
    start = by_partition(topic, 4, 0)
    with pytest.raises(DataLossError, match=rf"{topic}/0 now starts at offset 6: offsets 4 to 5.* failOnDataLoss"):
        rows(startingOffsets=start)
    assert offsets(rows(startingOffsets=start, failOnDataLoss="false")) == [[6, 7, 8, 9]]


def test_an_end_that_does_not_exist_is_a_data_loss_by_default(rows, fill, topic) -> None:
    fill(topic, 10)
    end = by_partition(topic, 12, 0)
    with pytest.raises(DataLossError, match=rf"{topic}/0 ends at offset 10: endingOffsets asks for 12"):
        rows(endingOffsets=end)
    assert len(rows(endingOffsets=end, failOnDataLoss="false")) == 10


def test_records_that_go_between_plan_and_task_are_a_data_loss_unless_the_start_was_earliest(
    reader, fill, topic, admin
) -> None:
    fill(topic, 10)
    plans = {
        start: (made := reader(startingOffsets=start[0], failOnDataLoss=start[1]), made.partitions())
        for start in (("earliest", "true"), (by_partition(topic, 2, 0), "true"), (by_partition(topic, 2, 0), "false"))
    }
    admin.delete_records({(topic, 0): 6})
    outcomes = []
    for made, parts in plans.values():
        try:
            outcomes.append([row["offset"] for part in parts for batch in made.read(part) for row in batch.to_pylist()])
        except DataLossError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[2] == [6, 7, 8, 9]
    assert f"{topic}/0 [2, 10) cannot be read completely: the partition now starts at offset 6" in outcomes[1]


def test_a_topic_that_goes_between_plan_and_task_is_a_data_loss(reader, fill, topic, admin) -> None:
    fill(topic, 10)
    strict, lenient = reader(), reader(failOnDataLoss="false")
    plans = strict.partitions(), lenient.partitions()
    admin.delete_topic(topic)
    with pytest.raises(DataLossError, match=rf"{topic}/0 \[0, 10\) cannot be read: "):
        list(strict.read(plans[0][0]))
    assert list(lenient.read(plans[1][0])) == []


def test_partitions_are_cut_as_the_options_say(reader, fill, topic) -> None:
    fill(topic, 10, 2)
    made = reader(maxRecordsPerPartition="4")
    assert [str(part.range).split("/")[1] for part in made.partitions()] == [
        "0 [0, 3)",
        "0 [3, 6)",
        "0 [6, 10)",
        "1 [0, 2)",
    ]
    assert len(reader(minPartitions="5").partitions()) == 5
    read = [row["offset"] for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]
    assert read == [*range(10), 0, 1]


def test_pushed_filters_are_what_is_read(options, fill, topic) -> None:
    from penstock.spark.options import SparkOptions
    from penstock.spark.schema import RECORDS
    from penstock.spark.source.settings import batch_settings

    fill(topic, 10, 10, timestamp_ms=NOON)
    made = FilteringRecordsReader(batch_settings(SparkOptions(options)), RECORDS)
    assert list(made.pushFilters([EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 7)])) == []
    (part,) = made.partitions()
    assert (part.range.partition, part.range.from_offset, part.range.to_offset) == (1, 7, 10)  # type: ignore[attr-defined]


def test_a_pushed_filter_beyond_the_end_of_a_partition_is_no_data_loss(options, fill, topic) -> None:
    from penstock.spark.options import SparkOptions
    from penstock.spark.schema import RECORDS
    from penstock.spark.source.settings import batch_settings

    fill(topic, 10, 3)
    made = FilteringRecordsReader(batch_settings(SparkOptions(options)), RECORDS)
    made.pushFilters([GreaterThanOrEqual(("offset",), 7)])
    assert offsets(taken(made, made.partitions())) == [[7, 8, 9]]


def test_a_dataframe_that_is_used_again_has_what_came_since(reader, fill, topic) -> None:
    """Spark plans it once and runs the same tasks again."""
    fill(topic, 3)
    late, fixed = reader(), reader(endingTimestamp=str(2**52))
    plans = late.partitions(), fixed.partitions()
    fill(topic, 2, 4)
    assert offsets(taken(late, plans[0])) == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]
    assert offsets(taken(fixed, plans[1])) == [[0, 1, 2]], "an end that was given stays"


def test_a_dataframe_whose_topic_was_created_again_has_what_is_there_now(reader, fill, topic, admin) -> None:
    fill(topic, 10)
    admin.delete_records({(topic, 0): 8})
    made = reader()
    plan = made.partitions()
    assert offsets(taken(made, plan)) == [[8, 9]]
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=2)
    fill(topic, 3)
    assert offsets(taken(made, plan)) == [[0, 1, 2]]
    strict = reader(startingOffsets=by_partition(topic, 2, 0))
    plan = strict.partitions()
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=2)
    with pytest.raises(DataLossError, match=rf"{topic}/0 \[2, 3\) cannot be read: the partition now ends at offset 0"):
        taken(strict, plan)


def taken(made, parts):
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


def test_a_task_that_spark_made_up_reads_nothing(reader) -> None:
    from pyspark.sql.datasource import InputPartition

    assert list(reader().read(InputPartition(None))) == []


def test_records_of_a_megabyte_and_many_small_ones_come_in_batches_of_bounded_size(reader, cluster, topic) -> None:
    with Producer(cluster) as producer:
        for index in range(20):
            producer.send(topic, bytes([index]) * 1_000_000, partition=0)
        for index in range(70_000):
            producer.send(topic, b"%d" % index, partition=1)
    made = reader()
    batches = [batch for part in made.partitions() for batch in made.read(part)]
    assert max(batch.num_rows for batch in batches) <= 65_536
    assert max(batch.nbytes for batch in batches) < 32_000_000
    counted = Counter()
    for batch in batches:
        counted[batch.column("partition")[0].as_py()] += batch.num_rows
    assert counted == {0: 20, 1: 70_000}
    values = pa.concat_arrays([batch.column("value") for batch in batches])
    assert values[19].as_py() == bytes([19]) * 1_000_000
    assert values[20 + 69_999].as_py() == b"69999"


def test_a_fetch_smaller_than_a_record_still_reads_it(rows, cluster, topic) -> None:
    with Producer(cluster) as producer:
        producer.send(topic, b"x" * 100_000, partition=0)
        producer.send(topic, b"y" * 100_000, partition=0)
    assert [len(row["value"]) for row in rows(**{"kafka.max.partition.fetch.bytes": "1000"})] == [100_000, 100_000]
