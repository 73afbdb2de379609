"""A subscription with lease_ms works the topic as a queue: leases, Ack, Nack, Extend, and what becomes of a record."""

import time

import pytest
from grpc import StatusCode

from tests.conformance.mq.client import Client, payloads, refused, take
from tests.support.waiting import eventually

LONG_MS = 60_000


@pytest.fixture
def queue(client, topic):
    """A topic with five records."""
    client.create_topic(name=topic)
    for number in range(5):
        client.publish(topic=topic, payload=b"%d" % number)
    return topic


def status(client, topic, offset):
    return client.call("DeliveryStatus", topic=topic, offset=offset, consumer_group="g")


def names(topic, consumer="w"):
    return {"topic": topic, "consumer_group": "g", "consumer_id": consumer}


def test_a_worker_gets_each_record_leased_and_what_is_acked_never_again(client, others, queue) -> None:
    before_ms = int(time.time() * 1000)
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        messages = take(stream, 5)
        assert payloads(messages) == [b"%d" % number for number in range(5)]
        assert {message.attempts for message in messages} == {1}
        assert all(before_ms + LONG_MS <= message.lease_until_ms <= before_ms + 2 * LONG_MS for message in messages)
        assert client.call("Ack", **names(queue), partition=0, offsets=[0, 1, 3]).success
    # What it held when it left is still its own: it comes first, and as the same attempt.
    client.publish(topic=queue, payload=b"5")
    with others[1].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        messages = take(stream, 3)
    assert payloads(messages) == [b"2", b"4", b"5"]
    assert {(message.attempts, message.last_error) for message in messages} == {(1, "")}
    assert client.call("Ack", **names(queue), partition=0, offsets=[2, 4, 5]).success


def test_a_worker_that_releases_hands_its_records_over_at_once_without_counting_the_attempt(others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS, release_on_disconnect=True) as stream:
        take(stream, 5)
    with others[1].subscribed(**names(queue, "other"), lease_ms=LONG_MS) as stream:
        messages = take(stream, 5)
    assert payloads(messages) == [b"%d" % number for number in range(5)]
    assert {(message.attempts, message.last_error) for message in messages} == {(1, "owner_disconnected")}


def test_the_workers_of_a_group_share_the_records_of_one_partition(client, others, topic) -> None:
    client.create_topic(name=topic)
    with (
        others[0].subscribed(**names(topic, "a"), lease_ms=LONG_MS, max_in_flight=2) as first,
        others[1].subscribed(**names(topic, "b"), lease_ms=LONG_MS, max_in_flight=2) as second,
    ):
        for number in range(4):
            client.publish(topic=topic, payload=b"%d" % number)
        got = payloads(take(first, 2)) + payloads(take(second, 2))
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_no_more_than_max_in_flight_are_given_until_some_are_settled(client, others, queue) -> None:
    with (
        others[0].subscribed(**names(queue), lease_ms=LONG_MS, max_in_flight=1) as one_by_one,
        others[1].subscribed(**names(queue, "other"), lease_ms=LONG_MS, max_in_flight=1) as other,
    ):
        mine, theirs = next(one_by_one), next(other)
        assert [mine.offset, theirs.offset] == [0, 1]
        client.call("Ack", **names(queue), partition=0, offsets=[0])
        assert next(one_by_one).offset == 2
        client.call("Nack", **names(queue, "other"), partition=0, offsets=[1], reason="no")
        again = next(other)
        assert again.offset in (1, 3)
        client.call("Ack", **names(queue), partition=0, offsets=[2], cumulative=True)
        assert next(one_by_one).offset in (1, 3, 4)


def test_a_lease_that_runs_out_frees_its_place_too(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=100, max_in_flight=1) as stream:
        first = next(stream)
        # Nothing is settled: only the clock can bring another one.
        second = next(stream)
    assert first.offset == 0
    assert (second.offset, second.attempts, second.last_error) in [(0, 2, "ack_timeout"), (1, 1, "")]


def test_a_nack_brings_the_record_again_with_its_reason(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        take(stream, 5)
        assert client.call("Nack", **names(queue), partition=0, offsets=[2], reason="boom").success
        again = next(stream)
    assert (again.offset, again.attempts, again.last_error) == (2, 2, "boom")


def test_an_extended_lease_outlives_its_first_deadline(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        take(stream, 5)
        extended = client.call("Extend", **names(queue), partition=0, offset=1, lease_ms=2 * LONG_MS)
        assert extended.success
        told = [status(client, queue, offset) for offset in (0, 1)]
    assert told[1].until_ms - told[0].until_ms > LONG_MS // 2


def test_only_the_owner_may_settle_a_record(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        take(stream, 5)
        for call, fields in (
            ("Ack", {"offsets": [0]}),
            ("Nack", {"offsets": [0]}),
            ("Extend", {"offset": 0, "lease_ms": 1000}),
        ):
            with refused(StatusCode.FAILED_PRECONDITION, "not owner"):
                client.call(call, **names(queue, "thief"), partition=0, **fields)
        client.call("Ack", **names(queue), partition=0, offsets=[0])
        with pytest.raises(Exception, match="FAILED_PRECONDITION"):
            client.call("Ack", **names(queue), partition=0, offsets=[0])


def test_a_worker_that_takes_so_many_and_ends_keeps_its_leases(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS, max_messages=2) as stream:
        assert payloads(list(stream)) == [b"0", b"1"]
    with others[1].subscribed(**names(queue, "other"), lease_ms=LONG_MS, max_messages=3, batch=True) as stream:
        assert [message.payload for frame in stream for message in frame.messages] == [b"2", b"3", b"4"]
    assert client.call("Ack", **names(queue), partition=0, offsets=[0, 1]).success
    assert client.call("Ack", **names(queue, "other"), partition=0, offsets=[4], cumulative=True).success


def test_a_worker_waits_for_records_that_come_later(client, others, topic) -> None:
    client.create_topic(name=topic)
    with (
        others[0].subscribed(**names(topic, "a"), lease_ms=LONG_MS, max_messages=1) as polling,
        others[1].subscribed(**names(topic, "b"), lease_ms=LONG_MS, batch=True, max_in_flight=1) as working,
    ):
        for number in range(2):
            client.publish(topic=topic, payload=b"%d" % number)
        got = [next(polling).payload, next(working).messages[0].payload]
    assert sorted(got) == [b"0", b"1"]


def test_a_record_that_failed_too_often_is_a_dead_letter(client, others, topic) -> None:
    client.create_topic(name=topic)
    client.publish(topic=topic, payload=b"bad", key=b"k", headers={"penstock.max_attempts": "2"})
    with others[0].subscribed(**names(topic), lease_ms=LONG_MS) as stream:
        for attempt in (1, 2):
            message = next(stream)
            assert message.attempts == attempt
            client.call("Nack", **names(topic), partition=0, offsets=[0], reason="boom")
        eventually(lambda: status(client, topic, 0).state == "dead_letter")
    with others[1].subscribed(topic=f"dlq.{topic}") as stream:
        dead = next(stream)
    assert (dead.payload, dead.key) == (b"bad", b"k")
    assert dead.headers["original_topic"] == topic
    assert dead.headers["last_error"] == "boom"
    assert dead.headers["attempts"] == "2"


def test_delivery_status_tells_what_became_of_a_record(client, others, queue) -> None:
    with others[0].subscribed(**names(queue), lease_ms=LONG_MS) as stream:
        messages = take(stream, 5)
        client.call("Ack", **names(queue), partition=0, offsets=[0])
        leased = client.call("DeliveryStatus", message_id=messages[1].id, consumer_group="g")
        assert client.call("DeliveryStatus", message_id=f"{queue}/0@1", consumer_group="g") == leased
        finished, beyond = status(client, queue, 0), status(client, queue, 99)
    assert (leased.state, leased.owner, leased.attempts) == ("leased", "w", 1)
    assert "w" in leased.sentence
    assert finished.state == "finished"
    assert beyond.state == "beyond_end"


def test_group_status_shows_the_queue(client, others, queue) -> None:
    group = f"group.{queue}"
    with others[0].subscribed(topic=queue, consumer_group=group, consumer_id="w", lease_ms=LONG_MS) as stream:
        take(stream, 5)
        client.call("Ack", topic=queue, consumer_group=group, consumer_id="w", partition=0, offsets=[0, 2])
        (shown,) = client.call("GroupStatus", consumer_group=group).queues
    (partition,) = shown.partitions
    assert (shown.topic, partition.floor, partition.leased, partition.finished_above_floor) == (queue, 1, 3, 1)
    assert [(owner.consumer_id, owner.leased, owner.streams) for owner in shown.owners] == [("w", 3, 1)]


@pytest.mark.parametrize(
    ("call", "fields", "text"),
    [
        ("Ack", {"consumer_group": "g", "consumer_id": "w"}, "The field offsets is empty: specify the records"),
        ("Ack", {"consumer_id": "w", "offsets": [0]}, "The field consumer_group is empty: specify the group"),
        (
            "Nack",
            {"consumer_group": "g", "offsets": [0]},
            "The field consumer_id is empty: use the id of the subscription, which is in its initial metadata",
        ),
        (
            "Ack",
            {"consumer_group": "g", "consumer_id": "w", "offsets": [0, 1], "cumulative": True},
            "A cumulative ack has exactly one offset: the last record to ack",
        ),
        (
            "Extend",
            {"consumer_group": "g", "consumer_id": "w", "lease_ms": 0},
            "lease_ms is 0; a lease lasts 1 to 43200000 milliseconds. Extend it later.",
        ),
        (
            "DeliveryStatus",
            {"consumer_group": "g", "offset": 1, "message_id": "t/0@1"},
            "message_id includes topic, partition and offset: set either message_id or the other three",
        ),
    ],
)
def test_what_a_worker_cannot_mean_is_refused(client, queue, call, fields, text) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, text):
        client.call(call, topic=queue, **fields)


def test_an_id_that_is_none_is_refused(client) -> None:
    with refused(
        StatusCode.INVALID_ARGUMENT,
        "'42' is not a message id; use the id of a message, or its position such as orders/0@42",
    ):
        client.call("DeliveryStatus", consumer_group="g", message_id="42")


def test_a_worker_cannot_choose_where_to_start(client, queue) -> None:
    with (
        refused(
            StatusCode.INVALID_ARGUMENT,
            "A queue delivers all unfinished records: with lease_ms, remove replay_offset, replay_timestamp and partitions",
        ),
        client.subscribed(**names(queue), lease_ms=LONG_MS, replay_offset=0) as stream,
    ):
        next(stream)


def test_a_topic_that_is_deleted_ends_its_workers(client, others, queue) -> None:
    with (
        others[0].subscribed(**names(queue), lease_ms=LONG_MS) as working,
        others[1].subscribed(**names(queue, "p"), lease_ms=LONG_MS, max_messages=100) as polling,
    ):
        take(working, 1)
        client.call("DeleteTopic", name=queue)
        for stream in (working, polling):
            with refused(StatusCode.NOT_FOUND, f"Topic '{queue}' not found"):
                while True:
                    next(stream)


def test_after_a_kill_what_was_acked_is_not_given_again(own_broker, today_code, topic) -> None:
    client = Client(today_code, own_broker.addresses["grpc"])
    client.create_topic(name=topic)
    for number in range(4):
        client.publish(topic=topic, payload=b"%d" % number)
    with client.subscribed(**names(topic), lease_ms=LONG_MS, max_messages=4) as stream:
        list(stream)
    client.call("Ack", **names(topic), partition=0, offsets=[0, 2])
    client.call("Nack", **names(topic), partition=0, offsets=[1, 3], reason="again")
    client.close()
    own_broker.restart()
    client = Client(today_code, own_broker.addresses["grpc"])
    with client.subscribed(**names(topic), lease_ms=LONG_MS, max_messages=2) as stream:
        messages = list(stream)
    client.close()
    assert [(message.offset, message.attempts, message.last_error) for message in messages] == [
        (1, 2, "again"),
        (3, 2, "again"),
    ]


def test_an_id_of_a_topic_that_is_gone_is_not_found(client, topic) -> None:
    client.create_topic(name=topic)
    message_id = client.publish(topic=topic, payload=b"x").message_id
    client.call("DeleteTopic", name=topic)
    client.create_topic(name=topic)
    assert client.publish(topic=topic, payload=b"x").message_id != message_id
    text = f"No topic has a message {message_id}: its topic was deleted, or the id is from another cluster"
    with refused(StatusCode.NOT_FOUND, text):
        client.call("DeliveryStatus", consumer_group="g", message_id=message_id)


def test_a_record_has_one_id_in_every_stream(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=3)
    sent = {client.publish(topic=topic, payload=b"%d" % number).message_id for number in range(9)}
    assert len(sent) == 9
    with others[0].subscribed(topic=topic, max_messages=9) as stream:
        assert {message.id for message in stream} == sent
    with others[0].subscribed(batch=True, topic=topic, max_messages=9) as stream:
        assert {message.id for frame in stream for message in frame.messages} == sent
    with others[0].subscribed(**names(topic), lease_ms=LONG_MS, max_messages=9) as stream:
        assert {message.id for message in stream} == sent
