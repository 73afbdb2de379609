"""Starting elsewhere than where the group stands, and ending after so many."""

import time

import pytest
from grpc import StatusCode

from tests.conformance.mq.client import payloads, refused, take

NOW_MS = int(time.time()) * 1000


@pytest.fixture
def filled(client, topic):
    """Ten records, a minute apart, the last of them now; the group has read eight."""
    client.create_topic(name=topic)
    for number in range(10):
        client.publish(topic=topic, payload=b"%d" % number, timestamp_ms=NOW_MS - (9 - number) * 60_000)
    client.commit(topic=topic, consumer_group="g", offset=8)
    return topic


def read(client, **fields):
    with client.subscribed(consumer_group="g", consumer_id="c", **fields) as stream:
        return payloads(list(stream))


def test_a_replay_starts_at_its_offset_wherever_the_group_stands(client, filled) -> None:
    assert read(client, topic=filled, replay_offset=3, max_messages=3) == [b"3", b"4", b"5"]
    assert read(client, topic=filled, replay_offset=0, max_messages=1) == [b"0"]
    # The group stands where it stood.
    assert read(client, topic=filled, max_messages=2) == [b"8", b"9"]


def test_a_replay_starts_at_the_first_record_of_its_time(client, filled) -> None:
    at_seven = NOW_MS // 1000 - 2 * 60
    assert read(client, topic=filled, replay_timestamp=at_seven, max_messages=2) == [b"7", b"8"]
    assert read(client, topic=filled, replay_timestamp=at_seven - 1, max_messages=1) == [b"7"]
    assert read(client, topic=filled, replay_timestamp=at_seven + 1, max_messages=1) == [b"8"]
    assert read(client, topic=filled, replay_timestamp=1, max_messages=1) == [b"0"]


@pytest.mark.parametrize("start", ["replay_offset", "replay_timestamp"])
def test_a_replay_from_the_end_waits_for_what_comes(client, filled, start) -> None:
    value = 10 if start == "replay_offset" else NOW_MS // 1000 + 3600
    with client.subscribed(topic=filled, consumer_group="g", consumer_id="c", **{start: value}) as stream:
        client.publish(topic=filled, payload=b"live")
        assert next(stream).payload == b"live"


def test_a_replay_without_a_group(client, filled) -> None:
    with client.subscribed(topic=filled, replay_offset=9, max_messages=1) as stream:
        assert payloads(list(stream)) == [b"9"]


def test_a_replay_from_where_nothing_will_be_for_long_is_refused(client, filled) -> None:
    with (
        refused(
            StatusCode.OUT_OF_RANGE,
            f"replay_offset is 11, and {filled}/0 ends at 10; use an offset from 0 to 10",
        ),
        client.subscribed(topic=filled, replay_offset=11) as stream,
    ):
        next(stream)


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"replay_offset": -1}, StatusCode.OUT_OF_RANGE, "replay_offset is -1; the first offset is 0"),
        (
            {"replay_timestamp": -1},
            StatusCode.INVALID_ARGUMENT,
            "replay_timestamp is -1; use seconds since 1970",
        ),
        (
            {"replay_offset": 1, "replay_timestamp": 1},
            StatusCode.INVALID_ARGUMENT,
            "replay_offset and replay_timestamp are both set: set only one of them",
        ),
        (
            {"consumer_group": "g", "partitions": [0]},
            StatusCode.INVALID_ARGUMENT,
            "The members of a group share all partitions: remove partitions, or consumer_group",
        ),
    ],
)
def test_what_a_subscription_cannot_mean_is_refused(client, filled, fields, code, text) -> None:
    with refused(code, text), client.subscribed(topic=filled, **fields) as stream:
        next(stream)


def test_partitions_can_be_chosen_without_a_group(client, topic) -> None:
    client.create_topic(name=topic, partitions=3)
    for partition in range(3):
        client.publish(topic=topic, payload=b"%d" % partition, partition=partition)
    with client.subscribed(topic=topic, partitions=[2, 0], max_messages=2) as stream:
        assert sorted(payloads(list(stream))) == [b"0", b"2"]
    with (
        refused(StatusCode.NOT_FOUND, f"Topic '{topic}' has no partition 3; it has 0 to 2"),
        client.subscribed(topic=topic, partitions=[3]) as stream,
    ):
        next(stream)


def test_frames_end_after_the_last_message_too(client, filled) -> None:
    with client.subscribed(batch=True, topic=filled, replay_offset=0, max_messages=7, max_batch=3) as stream:
        frames = [payloads(frame.messages) for frame in stream]
    assert [len(frame) for frame in frames] == [3, 3, 1]
    assert [payload for frame in frames for payload in frame] == [b"%d" % number for number in range(7)]


def test_a_group_that_shares_replays_each_partition_once(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    for partition in range(2):
        client.publish(topic=topic, payload=b"%d" % partition, partition=partition)
        client.commit(topic=topic, consumer_group="g", partition=partition, offset=1)
    with others[0].subscribed(topic=topic, consumer_group="g", consumer_id="a", replay_offset=0) as stream:
        assert sorted(payloads(take(stream, 2))) == [b"0", b"1"]
        with others[1].subscribed(topic=topic, consumer_group="g", consumer_id="b"):
            pass
        # Partition 1 went and came back: it goes on where the group stands.
        client.publish(topic=topic, payload=b"new", partition=1)
        assert next(stream).payload == b"new"
