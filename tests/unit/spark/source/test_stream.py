"""A stream as Spark uses it: where to start, where the next batch ends, and its tasks."""

import json
import uuid

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from penstock.client import At, GroupAdmin, GroupConsumer
from penstock.spark.errors import DataLossError, SourceError
from penstock.spark.source.stream import NOT_BEGUN, dump, load

ALL = ReadAllAvailable()


def read(stream, start, end):
    """The offsets that a batch reads, by topic and partition."""
    found = {}
    for part in stream.partitions(start, end):
        for batch in stream.read(part):
            for row in batch.to_pylist():
                found.setdefault((row["topic"], row["partition"]), []).append(row["offset"])
    return found


def test_offsets_in_a_checkpoint_have_the_format_of_the_kafka_connector() -> None:
    offsets = {("b", 0): 5, ("a", 10): 1, ("a", 2): 7}
    assert json.dumps(dump(offsets)) == '{"a": {"2": 7, "10": 1}, "b": {"0": 5}}'
    assert load(dump(offsets)) == offsets


def test_a_stream_from_the_earliest_reads_what_is_there_and_then_what_comes(stream, fill, topic) -> None:
    fill(topic, 3, 2)
    query = stream(startingOffsets="earliest")
    start = query.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    end = query.latestOffset(start, ALL)
    assert end == {topic: {"0": 3, "1": 2}}
    assert read(query, start, end) == {(topic, 0): [0, 1, 2], (topic, 1): [0, 1]}
    assert query.latestOffset(end, ALL) == end, "nothing new"
    fill(topic, 1)
    assert read(query, end, query.latestOffset(end, ALL)) == {(topic, 0): [3]}


def test_a_stream_begins_at_the_latest_and_a_first_batch_that_is_tried_again_loses_nothing(stream, fill, topic) -> None:
    fill(topic, 3, 2)
    first = stream()
    start = first.initialOffset()
    assert start == NOT_BEGUN
    end = first.latestOffset(start, ALL)
    assert end == {topic: {"0": 3, "1": 2}}
    assert first.partitions(start, end) == []
    fill(topic, 5)
    # The batch is in the offset log but was not committed: another process plays it again.
    again = stream()
    assert again.partitions(again.initialOffset(), end) == []
    assert read(again, end, again.latestOffset(end, ALL)) == {(topic, 0): [3, 4, 5, 6, 7]}


def test_one_partition_at_the_latest_is_enough_for_that(stream, fill, topic) -> None:
    fill(topic, 3, 2)
    query = stream(startingOffsets=json.dumps({topic: {"0": 1, "1": -1}}))
    assert query.initialOffset() == NOT_BEGUN
    assert query.latestOffset(NOT_BEGUN, ALL) == {topic: {"0": 1, "1": 2}}


def test_a_batch_takes_what_the_limit_allows_in_proportion(stream, fill, topic) -> None:
    fill(topic, 90, 10)
    query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="20")
    limit = query.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    start = query.initialOffset()
    assert query.latestOffset(start, limit) == {topic: {"0": 18, "1": 2}}
    assert query.reportLatestOffset() == {topic: {"0": 90, "1": 10}}
    assert query.latestOffset(start, ALL) == {topic: {"0": 90, "1": 10}}, "the trigger wants everything"


def test_a_limit_takes_new_partitions_from_where_they_begin(stream, fill, topic, admin) -> None:
    query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = query.initialOffset()
    admin.add_partitions(topic, 3)
    fill(topic, 0, 0, 10)
    assert query.latestOffset(start, query.getDefaultReadLimit()) == {topic: {"0": 0, "1": 0, "2": 4}}


def test_a_batch_waits_for_the_minimum(stream, fill, topic) -> None:
    query = stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    limit = query.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    fill(topic, 1)
    end = query.latestOffset(query.initialOffset(), limit)
    assert end == {topic: {"0": 1, "1": 0}}, "the first batch does not wait"
    fill(topic, 4)
    assert query.latestOffset(end, limit) == end
    fill(topic, 1)
    assert query.latestOffset(end, limit) == {topic: {"0": 6, "1": 0}}


def test_both_limits_hold_together(stream, fill, topic) -> None:
    query = stream(startingOffsets="earliest", minOffsetsPerTrigger="5", maxOffsetsPerTrigger="6")
    limit = query.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    start = query.latestOffset(query.initialOffset(), limit)
    fill(topic, 4)
    assert query.latestOffset(start, limit) == start
    fill(topic, 4)
    assert query.latestOffset(start, limit) == {topic: {"0": 6, "1": 0}}


def test_available_now_ends_where_the_topics_ended_and_does_not_wait_for_a_minimum(stream, fill, topic) -> None:
    fill(topic, 3)
    query = stream(startingOffsets="earliest", maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    query.prepareForTriggerAvailableNow()
    start = query.initialOffset()
    fill(topic, 5)
    limit = query.getDefaultReadLimit()
    first = query.latestOffset(start, limit)
    assert first == {topic: {"0": 2, "1": 0}}
    last = query.latestOffset(first, limit)
    assert last == {topic: {"0": 3, "1": 0}}
    assert query.latestOffset(last, limit) == last


def test_available_now_from_the_latest_reads_in_the_next_run_what_came_in_between(stream, fill, topic) -> None:
    fill(topic, 3)
    first = stream()
    first.prepareForTriggerAvailableNow()
    fill(topic, 1)
    end = first.latestOffset(first.initialOffset(), ALL)
    assert end == {topic: {"0": 3, "1": 0}}
    assert first.latestOffset(end, ALL) == end
    second = stream()
    second.prepareForTriggerAvailableNow()
    assert read(second, end, second.latestOffset(end, ALL)) == {(topic, 0): [3]}


def test_new_partitions_and_topics_are_read_from_their_beginning(stream, fill, topic, admin) -> None:
    query = stream(subscribePattern=f"^{topic}")
    start = query.latestOffset(query.initialOffset(), ALL)
    admin.add_partitions(topic, 3)
    admin.create_topic(f"{topic}-new", partitions=1)
    fill(topic, 0, 0, 2)
    fill(f"{topic}-new", 1)
    end = query.latestOffset(start, ALL)
    assert read(query, start, end) == {(topic, 2): [0, 1], (f"{topic}-new", 0): [0]}


def test_a_pattern_that_finds_nothing_yet_waits(stream, admin, fill) -> None:
    name = f"t-{uuid.uuid4().hex}"
    query = stream(subscribePattern=f"^{name}$")
    start = query.initialOffset()
    assert query.latestOffset(start, ALL) == start
    admin.create_topic(name, partitions=1)
    fill(name, 2)
    assert read(query, start, query.latestOffset(start, ALL)) == {(name, 0): [0, 1]}


def test_a_topic_that_is_missing_at_the_start_is_reported(stream) -> None:
    with pytest.raises(SourceError, match="Topic nowhere does not exist: create it first"):
        stream(subscribe="nowhere").initialOffset()


def test_a_new_partition_that_lost_its_first_records_is_a_data_loss(stream, fill, topic, admin) -> None:
    query, lenient = stream(startingOffsets="earliest"), stream(startingOffsets="earliest", failOnDataLoss="false")
    start = query.initialOffset()
    admin.add_partitions(topic, 3)
    fill(topic, 0, 0, 5)
    admin.delete_records({(topic, 2): 3})
    end = query.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match=f"the new partition {topic}/2 starts at offset 3, not at 0"):
        query.partitions(start, end)
    assert read(lenient, start, end) == {(topic, 2): [3, 4]}


def test_records_that_aged_out_are_a_data_loss(stream, fill, topic, admin) -> None:
    fill(topic, 10)
    query, lenient = stream(startingOffsets="earliest"), stream(startingOffsets="earliest", failOnDataLoss="false")
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    admin.delete_records({(topic, 0): 6})
    with pytest.raises(DataLossError, match=f"{topic}/0 now starts at offset 6: offsets 0 to 5"):
        query.partitions(start, end)
    assert read(lenient, start, end) == {(topic, 0): [6, 7, 8, 9]}


def test_a_topic_that_is_deleted_is_a_data_loss_or_the_query_continues_without_it(stream, fill, topic, admin) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, partitions=1)
    both = {"subscribe": f"{topic},{other}", "startingOffsets": "earliest"}
    query, lenient = stream(**both), stream(**both, failOnDataLoss="false")
    start = query.initialOffset()
    fill(topic, 5)
    fill(other, 3)
    planned = query.latestOffset(start, ALL)
    admin.delete_topic(topic)
    with pytest.raises(DataLossError, match=f"{topic}/0, {topic}/1 are missing: the topic was deleted"):
        query.partitions(start, planned)
    assert read(lenient, start, planned) == {(other, 0): [0, 1, 2]}

    with pytest.raises(DataLossError, match="are missing"):
        query.latestOffset(start, ALL)
    end = lenient.latestOffset(start, ALL)
    assert end == {other: {"0": 3}}
    with pytest.raises(DataLossError, match="are missing"):
        query.partitions(start, end)
    assert read(lenient, start, end) == {(other, 0): [0, 1, 2]}
    # From now on the checkpoint does not know the topic: it stays away, until it is there again.
    assert lenient.latestOffset(end, ALL) == end
    with pytest.raises(SourceError, match=f"Topic {topic} does not exist"):
        query.latestOffset(end, ALL)
    admin.create_topic(topic, partitions=1)
    fill(topic, 2)
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == {(topic, 0): [0, 1]}


def test_available_now_reports_a_topic_that_is_deleted(stream, fill, topic, admin) -> None:
    fill(topic, 5)
    query = stream(startingOffsets="earliest")
    start = query.initialOffset()
    admin.delete_topic(topic)
    query.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=f"{topic}/0, {topic}/1 are missing"):
        query.latestOffset(start, ALL)
    with pytest.raises(SourceError, match=f"Topic {topic} does not exist"):
        query.latestOffset({}, ALL)


def test_a_topic_that_was_created_again_is_a_data_loss_or_is_read_from_its_beginning(
    stream, fill, topic, admin
) -> None:
    fill(topic, 10)
    query, lenient = stream(startingOffsets="earliest"), stream(startingOffsets="earliest", failOnDataLoss="false")
    start = query.latestOffset(query.initialOffset(), ALL)
    admin.delete_topic(topic)
    admin.create_topic(topic, partitions=2)
    fill(topic, 4)
    end = lenient.latestOffset(start, ALL)
    assert end == {topic: {"0": 4, "1": 0}}
    for ask in (lambda: query.latestOffset(start, ALL), lambda: query.partitions(start, end)):
        with pytest.raises(DataLossError, match=f"{topic}/0 ended at offset 10 and now ends at 4: .* created again"):
            ask()
    assert read(lenient, start, end) == {(topic, 0): [0, 1, 2, 3]}


def test_a_topic_that_was_named_by_mistake_gets_into_no_checkpoint(stream, fill, topic, admin) -> None:
    other = f"{topic}-other"
    admin.create_topic(other, partitions=1)
    fill(topic, 5)
    fill(other, 3)
    begun = stream(startingOffsets="earliest")
    known = begun.latestOffset(begun.initialOffset(), ALL)
    # Spark writes down what latestOffset says before it asks for the tasks.
    with pytest.raises(DataLossError, match="the options of the query no longer include it"):
        stream(subscribe=other).latestOffset(known, ALL)
    right = stream()
    fill(topic, 2)
    assert read(right, known, right.latestOffset(known, ALL)) == {(topic, 0): [5, 6]}


def test_the_group_has_read_what_was_processed(stream, fill, topic, cluster) -> None:
    fill(topic, 5)
    group = f"g-{uuid.uuid4().hex}"
    query = stream(startingOffsets="earliest", **{"kafka.group.id": group})
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    committed = GroupAdmin(cluster).offsets(group)
    assert committed[topic, 0].offset == 0
    # Spark asks for the next batch when this one is done: no need to wait for its word, which comes a batch late.
    query.latestOffset(end, ALL)
    assert GroupAdmin(cluster).offsets(group)[topic, 0].offset == 5
    fill(topic, 1)
    query.commit(query.latestOffset(end, ALL))
    assert GroupAdmin(cluster).offsets(group)[topic, 0].offset == 6


def test_a_commit_that_fails_stops_nothing(stream, fill, topic, cluster, caplog) -> None:
    fill(topic, 1)
    group = f"g-{uuid.uuid4().hex}"
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST) as member:
        assert member.poll(5000)
        # A group that others are members of takes no commit from outside.
        query = stream(startingOffsets="earliest", **{"kafka.group.id": group})
        assert query.latestOffset(query.initialOffset(), ALL) == {topic: {"0": 1, "1": 0}}
    assert f"could not commit the offsets of the group {group}" in caplog.text


def test_without_a_group_nothing_is_committed(stream, topic, cluster) -> None:
    before = GroupAdmin(cluster).groups()
    query = stream(startingOffsets="earliest", groupIdPrefix="mine")
    query.commit(query.latestOffset(query.initialOffset(), ALL))
    assert GroupAdmin(cluster).groups() == before
