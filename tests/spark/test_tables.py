"""Dead letters, queues, groups and topics as Spark tables, on a real Spark and a real broker."""

import datetime as dt

import pytest

from penstock.client import Admin, At, GroupAdmin, GroupConsumer, QueueAdmin, QueueClient
from penstock.client.queue_admin import Wanted
from tests.spark.dead_letters import GROUP, Mortuary


@pytest.fixture
def http(broker):
    return broker.address("http")


@pytest.fixture
def table(spark, bootstrap):
    """``table(name, schema, option=value, ...)``."""

    def load(name, schema=None, **options):
        reader = spark.read.format("penstock").option("table", name).option("kafka.bootstrap.servers", bootstrap)
        for option, value in options.items():
            reader = reader.option(option, value)
        return (reader.schema(schema) if schema else reader).load()

    return load


@pytest.fixture
def mortuary(http, topic):
    return Mortuary(http, topic)


def now():
    return dt.datetime.now(dt.UTC).replace(tzinfo=None)


# -- dead letters


def test_a_dead_letter_has_its_story_in_columns(table, mortuary, topic) -> None:
    mortuary.die((b"a", "no stock"), (b"b", "timeout after 3 s"))
    rows = table("dead_letters", topic=topic).orderBy("value").collect()
    assert [(bytes(row.key), bytes(row.value), row.reason) for row in rows] == [
        (b"k-a", b"a", "no stock"),
        (b"k-b", b"b", "timeout after 3 s"),
    ]
    for row in rows:
        assert (row.topic, row.group, row.attempts, row.state) == (topic, GROUP, 1, "open")
        assert (row.dlq_topic, row.dlq_partition) == (f"dlq.{topic}", row.partition)
        assert row.offset == row.dlq_offset
        assert abs(row.died_at - row.timestamp) < dt.timedelta(minutes=1)
        assert {header.key for header in row.headers or ()} == {"penstock.max_attempts"}


def test_what_was_redriven_or_purged_is_finished_and_the_rest_is_open(table, mortuary, topic, http) -> None:
    mortuary.die(*((b"%d" % number, "boom" if number % 2 else "bang") for number in range(6)))

    def states():
        rows = table("dead_letters", "value binary, state string", topic=topic).collect()
        return {int(row.value): row.state for row in rows}

    assert set(states().values()) == {"open"}
    with QueueAdmin(http) as admin:
        assert [*admin.redrive(topic, Wanted(reason="boom"))][-1].finished == 3
        assert states() == {number: "finished" if number % 2 else "open" for number in range(6)}
        assert [*admin.purge(topic)][-1].finished == 3
    assert set(states().values()) == {"finished"}


def test_a_record_of_another_program_has_its_position_as_origin(table, topic, cluster, produce) -> None:
    Admin(cluster).create_topic(f"dlq.{topic}", partitions=1)
    strange = [("attempts", b"many"), ("original_offset", b"\xff"), ("last_error", None)]
    produce(f"dlq.{topic}", [(None, b"plain")])
    produce(f"dlq.{topic}", [(None, None)], headers=strange)
    plain, odd = table("dead_letters", topic=topic).orderBy("dlq_offset").collect()
    assert (plain.topic, plain.partition, plain.offset, plain.group) == (topic, 0, None, None)
    assert (plain.reason, plain.attempts, plain.died_at, plain.headers) == ("unknown", 0, plain.timestamp, None)
    assert (odd.reason, odd.attempts, odd.offset, odd.value, odd.headers) == ("unknown", 0, 0, None, None)


def test_dead_letters_are_chosen_by_the_topics_they_came_from(table, mortuary, topic) -> None:
    mortuary.die((b"a", "boom"))
    for options in ({"subscribe": topic}, {"subscribePattern": f"^{topic}$"}, {"topic": f"dlq.{topic}"}):
        assert table("dead_letters", "reason string", **options).count() == 1
    assert table("dead_letters").where(f"topic = '{topic}'").count() == 1
    assert table("dead_letters", subscribePattern="no-such-topic").count() == 0
    with pytest.raises(Exception, match="Topic 'no-such-topic' does not exist"):
        table("dead_letters", topic="no-such-topic").count()


def test_a_topic_without_dead_letters_is_an_empty_table(table, topic) -> None:
    assert table("dead_letters", topic=topic).collect() == []


def test_sql_works_on_dead_letters(table, mortuary, topic, spark) -> None:
    mortuary.die((b"a", "no stock"), (b"b", "timeout"), (b"c", "timeout"))
    table("dead_letters", topic=topic).createOrReplaceTempView("dead")
    rows = spark.sql(
        "SELECT reason, count(*) AS n FROM dead WHERE died_at > now() - interval 1 day GROUP BY reason ORDER BY n DESC"
    ).collect()
    assert [tuple(row) for row in rows] == [("timeout", 2), ("no stock", 1)]


# -- queues


def test_a_queue_shows_unfinished_records_with_their_state(table, topic, http) -> None:
    with QueueClient(http, owner="worker-7") as client:
        for number in range(6):
            client.produce(topic, b"%d" % number, key=b"same", backoff_ms=600_000)
        leased = client.lease(topic, "g", max_records=4, lease_ms=600_000, wait_ms=10_000)
        client.ack(leased[0], leased[2])
        client.nack(leased[1], "no stock")
    rows = table("queue", topic=topic, group="g").orderBy("offset").collect()
    assert [(bytes(row.value), row.state, row.owner, row.attempts, row.last_error) for row in rows] == [
        (b"1", "waiting", None, 1, "no stock"),
        (b"3", "leased", "worker-7", 1, None),
        (b"4", "untouched", None, 0, None),
        (b"5", "untouched", None, 0, None),
    ]
    assert {(row.topic, row.group, bytes(row.key)) for row in rows} == {(topic, "g", b"same")}
    assert all((row.until is not None and row.until > now()) == (row.state in ("waiting", "leased")) for row in rows)


def test_a_queue_without_work_is_an_empty_table(table, topic, http) -> None:
    with QueueClient(http) as client:
        client.produce(topic, b"x")
        (record,) = client.lease(topic, "g", wait_ms=10_000)
        client.ack(record)
    assert table("queue", "offset long, state string", topic=topic, group="g").collect() == []


def test_a_missing_queue_is_reported(table, topic) -> None:
    with pytest.raises(Exception, match=r"Queue .* of group nobody does not exist"):
        table("queue", topic=topic, group="nobody").count()


def test_a_long_queue_is_read_in_parts_that_are_distinguished_by_their_states(table, topic, http, produce) -> None:
    produce(topic, [(None, b"%d" % number) for number in range(5_000)], partition=0)
    with QueueClient(http, owner="w") as client:
        leased = client.lease(topic, "g", max_records=1_000, lease_ms=600_000, wait_ms=10_000)
        client.ack(*leased[::2])
        held = {record.offset for record in leased[1::2]}
    rows = table("queue", "offset long, state string", topic=topic, group="g", minPartitions=4).collect()
    assert len(rows) == 5_000 - (len(leased) + 1) // 2
    assert {row.offset for row in rows if row.state == "leased"} == held


# -- groups, topics, partitions


def test_groups_show_how_far_they_are_behind(table, topic, cluster, produce) -> None:
    group = f"g-{topic}"
    produce(topic, [(None, b"x")] * 5, partition=0)
    produce(topic, [(None, b"x")] * 2, partition=1)
    GroupAdmin(cluster).commit(group, {(topic, 0): 3})
    (row,) = table("groups", group=group).collect()
    assert (row.group, row.state, row.members, row.topic, row.partition) == (group, "Empty", 0, topic, 0)
    assert (row.committed, row.start, row.end, row.lag, row.member) == (3, 0, 5, 2, None)
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST, auto_commit=False) as consumer:
        while sum(consumer.positions.values()) < 7:
            consumer.poll(1000)
        one, two = table("groups", topic=topic).where(f"group = '{group}'").orderBy("partition").collect()
        assert (one.state, one.members, one.committed, one.lag) == ("Stable", 1, 3, 2)
        assert (two.committed, two.end, two.lag) == (None, 2, 2)
        assert one.member == two.member is not None
    assert table("groups", "group string, lag long", group="no-such-group").collect() == []


def test_topics_and_partitions_show_how_much_there_is(table, topic, produce) -> None:
    produce(topic, [(None, b"x" * 100)] * 5, partition=0, timestamp_ms=1_000_000)
    produce(topic, [(None, b"x" * 100)] * 2, partition=0, timestamp_ms=3_000_000)
    (row,) = table("topics", topic=topic).collect()
    assert (row.topic, row.partitions, row.internal, row.records) == (topic, 2, False, 7)
    assert 700 < row.bytes < 3000
    assert row.segments >= 1
    assert row.records_in_per_second >= 0
    assert (row.last_timestamp - row.first_timestamp).total_seconds() == 2_000
    full, empty = table("partitions", subscribe=topic).orderBy("partition").collect()
    assert (full.start, full.end, full.records, full.bytes) == (0, 7, 7, row.bytes)
    assert (empty.start, empty.end, empty.records, empty.first_timestamp, empty.last_timestamp) == (0, 0, 0, None, None)
    assert (len(full.replicas), full.in_sync) == (1, [full.leader])
    names = [row.topic for row in table("topics", "topic string").collect()]
    assert topic in names
    with pytest.raises(Exception, match="Topic 'no-such-topic' does not exist"):
        table("topics", topic="no-such-topic").count()


def test_tables_cannot_be_streamed(spark, bootstrap) -> None:
    reader = spark.readStream.format("penstock").option("table", "topics").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(Exception, match=r"is a snapshot"):
        reader.load().writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
