"""Topics and records with what Penstock adds to the original."""

import base64

import pytest
from grpc import StatusCode

from penstock.client import Admin, Cluster
from tests.conformance.mq.client import refused


def read_one(client, topic, **fields):
    with client.subscribed(topic=topic, max_messages=1, **fields) as stream:
        return next(stream)


def test_a_topic_has_one_partition_unless_told(client, topic) -> None:
    client.create_topic(name=topic)
    assert len(client.call("TopicStats", topic=topic).partitions) == 1
    client.create_topic(name=f"{topic}.3", partitions=3)
    assert len(client.call("TopicStats", topic=f"{topic}.3").partitions) == 3


def test_making_a_topic_with_other_settings_is_a_conflict(client, topic) -> None:
    client.create_topic(name=topic, partitions=2, retention_ms=60_000)
    assert client.create_topic(name=topic, partitions=2, retention_ms=60_000).success
    with refused(
        StatusCode.ALREADY_EXISTS,
        f"Topic {topic} already exists with other settings: 3 partitions were requested and it has 2. Nothing was changed.",
    ):
        client.create_topic(name=topic, partitions=3)
    with refused(
        StatusCode.ALREADY_EXISTS,
        f"Topic {topic} already exists with other settings: its configs differ. Nothing was changed.",
    ):
        client.create_topic(name=topic, retention_ms=1)


def test_settings_of_a_topic_are_those_of_kafka(client, broker, topic) -> None:
    client.create_topic(
        name=topic, retention_ms=60_000, retention_bytes=1_000_000, configs={"cleanup.policy": "compact,delete"}
    )
    with Cluster(broker.bootstrap) as cluster:
        configs = {entry.name: entry.value for entry in Admin(cluster).configs(topic)}
    assert configs["retention.ms"] == "60000"
    assert configs["retention.bytes"] == "1000000"
    assert configs["cleanup.policy"] == "compact,delete"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"partitions": -1}, "A topic cannot have -1 partitions; omit the field for one partition"),
        (
            {"retention_ms": 1, "configs": {"retention.ms": "1"}},
            "retention.ms is set twice, also as retention_ms; set it once",
        ),
    ],
)
def test_a_topic_that_cannot_be_is_refused(client, topic, fields, text) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, text):
        client.create_topic(name=topic, **fields)


def test_topics_are_listed_without_the_brokers_own(client, topic) -> None:
    client.create_topic(name=topic)
    listed = list(client.call("ListTopics").topics)
    assert topic in listed
    assert listed == sorted(listed)
    assert not [name for name in listed if name.startswith("__")]


def test_a_deleted_topic_is_gone(client, topic) -> None:
    client.create_topic(name=topic)
    assert client.call("DeleteTopic", name=topic).success
    with refused(StatusCode.NOT_FOUND, f"Topic '{topic}' not found"):
        client.call("DeleteTopic", name=topic)
    assert topic not in client.call("ListTopics").topics


def test_key_partition_time_and_tombstone_come_back(client, topic) -> None:
    client.create_topic(name=topic, partitions=3)
    answer = client.publish(topic=topic, key=b"", partition=2, timestamp_ms=1_700_000_000_123, tombstone=True)
    assert (answer.partition, answer.offset, answer.timestamp_ms) == (2, 0, 1_700_000_000_123)
    message = read_one(client, topic)
    assert message.HasField("key")
    assert (message.key, message.partition, message.offset) == (b"", 2, 0)
    assert (message.timestamp, message.timestamp_ms, message.tombstone) == (1_700_000_000, 1_700_000_000_123, True)


def test_headers_that_are_no_text_go_both_ways_as_base64(client, topic) -> None:
    client.create_topic(name=topic)
    blob = base64.b64encode(b"\xff\x00").decode()
    client.publish(topic=topic, payload=b"x", headers={"blob": blob, "text": blob}, base64_headers=["blob"])
    message = read_one(client, topic)
    assert dict(message.headers) == {"blob": blob, "text": blob}
    assert list(message.base64_headers) == ["blob"]


def test_what_a_publisher_cannot_mean_is_refused(client, topic) -> None:
    client.create_topic(name=topic)
    with refused(StatusCode.NOT_FOUND, f"Topic {topic} has no partition 1; it has 0 to 0"):
        client.publish(topic=topic, payload=b"x", partition=1)
    with refused(StatusCode.INVALID_ARGUMENT, "base64_headers names 'b', which is not among the headers"):
        client.publish(topic=topic, payload=b"x", headers={"a": ""}, base64_headers=["b"])


def test_a_name_of_any_length_gets_a_short_answer(client) -> None:
    name = "ü" * 100_000
    with refused(StatusCode.NOT_FOUND, f"Topic '{'ü' * 249}...' not found"):
        client.publish(topic=name, payload=b"x")


def test_a_commit_names_its_partition(client, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    client.publish(topic=topic, payload=b"x", partition=1)
    assert client.commit(topic=topic, consumer_group="g", partition=1, offset=1).success
    with refused(StatusCode.NOT_FOUND, f"Topic '{topic}' has no partition 2; it has 0 to 1"):
        client.commit(topic=topic, consumer_group="g", partition=2, offset=0)


def test_topic_stats_count_what_is_there(client, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    for number in range(5):
        client.publish(topic=topic, payload=b"x" * 100, partition=number % 2)
    stats = client.call("TopicStats", topic=topic)
    assert (stats.topic, stats.records) == (topic, 5)
    assert [(each.partition, each.start_offset, each.end_offset) for each in stats.partitions] == [(0, 0, 3), (1, 0, 2)]
    assert stats.size_bytes == sum(each.size_bytes for each in stats.partitions) > 500
    with refused(StatusCode.NOT_FOUND, "Topic 'nowhere' not found"):
        client.call("TopicStats", topic="nowhere")


def test_group_status_tells_members_offsets_and_lag(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    for number in range(4):
        client.publish(topic=topic, payload=b"x", partition=number % 2)
    client.commit(topic=topic, consumer_group=topic, partition=1, offset=1)
    with others[0].subscribed(topic=topic, consumer_group=topic, consumer_id="anna"):
        status = client.call("GroupStatus", consumer_group=topic)
    assert (status.consumer_group, status.state) == (topic, "Stable")
    (member,) = status.members
    assert (member.consumer_id, member.client) == ("anna", "127.0.0.1")
    assert [(each.topic, list(each.partitions)) for each in member.assigned] == [(topic, [0, 1])]
    zero, one = status.partitions
    assert not zero.HasField("committed_offset")
    assert (zero.end_offset, zero.lag, zero.consumer_id) == (2, 2, "anna")
    assert (one.committed_offset, one.end_offset, one.lag) == (1, 2, 1)


def test_a_group_that_is_not_there_is_told_as_such(client) -> None:
    with refused(StatusCode.NOT_FOUND, "There is no group 'nobody'. A group exists once it has a commit or a member."):
        client.call("GroupStatus", consumer_group="nobody")
