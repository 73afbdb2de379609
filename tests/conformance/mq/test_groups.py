"""Members of a group share the partitions of a topic."""

import queue
import threading

import grpc
from grpc import StatusCode

from penstock.client import Admin, Cluster
from tests.conformance.mq.client import CALL_SECONDS, payloads, refused, take


class Collected:
    """Reads a stream in a thread of its own, until the stream ends."""

    def __init__(self, stream) -> None:
        self.stream = stream
        self.messages = queue.Queue()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for message in self.stream:
                self.messages.put(message)
        except grpc.RpcError as error:
            self.messages.put(error)

    def take(self, count):
        return [self.messages.get(timeout=CALL_SECONDS) for _ in range(count)]


def publish_to_each(client, topic, partitions, payload) -> None:
    for partition in range(partitions):
        client.publish(topic=topic, payload=payload, partition=partition)


def test_two_consumers_share_the_partitions_and_one_takes_over_when_the_other_goes(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=4)
    with others[0].subscribed(topic=topic, consumer_group="g", consumer_id="a") as first:
        with others[1].subscribed(topic=topic, consumer_group="g", consumer_id="b") as second:
            publish_to_each(client, topic, 4, b"shared")
            assert sorted(message.partition for message in take(first, 2)) == [0, 2]
            assert sorted(message.partition for message in take(second, 2)) == [1, 3]
            for partition in (1, 3):
                client.commit(topic=topic, consumer_group="g", partition=partition, offset=1)
        publish_to_each(client, topic, 4, b"alone")
        alone = take(first, 4)
        assert sorted(message.partition for message in alone) == [0, 1, 2, 3]
        assert set(payloads(alone)) == {b"alone"}


def test_a_new_consumer_gets_its_share_from_where_the_group_stands(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    with others[0].subscribed(topic=topic, consumer_group="g", consumer_id="a") as first:
        publish_to_each(client, topic, 2, b"0")
        assert len(take(first, 2)) == 2
        client.commit(topic=topic, consumer_group="g", partition=1, offset=1)
        publish_to_each(client, topic, 2, b"1")
        take(first, 2)
        with others[1].subscribed(topic=topic, consumer_group="g", consumer_id="b") as second:
            message = next(second)
            assert (message.partition, message.offset) == (1, 1)


def test_a_consumer_that_gets_no_partition_waits_for_one(client, others, topic) -> None:
    client.create_topic(name=topic)
    with others[0].subscribed(topic=topic, consumer_group="g", consumer_id="b") as idle:
        with others[1].subscribed(topic=topic, consumer_group="g", consumer_id="a") as first:
            client.publish(topic=topic, payload=b"x")
            assert next(first).payload == b"x"
        # Nothing was committed, so whoever has the partition next is given it again.
        assert next(idle).payload == b"x"


def test_a_dead_connection_gives_its_partitions_away(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    with (
        others[0].subscribed(topic=topic, consumer_group="g", consumer_id="a") as first,
        others[1].subscribed(topic=topic, consumer_group="g", consumer_id="b"),
    ):
        publish_to_each(client, topic, 2, b"x")
        assert next(first).partition == 0
        others[1].close()
        assert next(first).partition == 1


def test_consumers_without_an_id_are_different_consumers(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=2)
    with (
        others[0].subscribed(topic=topic, consumer_group="g") as first,
        others[1].subscribed(topic=topic, consumer_group="g") as second,
    ):
        ids = [dict(stream.initial_metadata())["consumer-id"] for stream in (first, second)]
        assert len(set(ids)) == 2
        publish_to_each(client, topic, 2, b"x")
        assert {next(first).partition, next(second).partition} == {0, 1}


def test_a_second_subscription_of_the_same_consumer_replaces_the_first(client, others, topic) -> None:
    client.create_topic(name=topic)
    with (
        others[0].subscribed(topic=topic, consumer_group="g", consumer_id="c") as first,
        others[1].subscribed(topic=topic, consumer_group="g", consumer_id="c") as second,
    ):
        with refused(
            StatusCode.ABORTED,
            "Another subscription of 'c' replaced this one. Use a unique id for each consumer of a group.",
        ):
            next(first)
        client.publish(topic=topic, payload=b"x")
        assert next(second).payload == b"x"


def test_one_consumer_may_read_two_topics_of_a_group_and_end_with_one_of_them(client, others, topic) -> None:
    for name in (f"{topic}.1", f"{topic}.2"):
        client.create_topic(name=name)
    with others[0].subscribed(topic=f"{topic}.1", consumer_group=topic, consumer_id="c") as first:
        with others[1].subscribed(topic=f"{topic}.2", consumer_group=topic, consumer_id="c") as second:
            client.publish(topic=f"{topic}.2", payload=b"2")
            assert next(second).payload == b"2"
        client.publish(topic=f"{topic}.1", payload=b"1")
        assert next(first).payload == b"1"


def test_partitions_that_are_added_are_read_too(client, broker, others, topic) -> None:
    client.create_topic(name=topic)
    with (
        others[0].subscribed(topic=topic, consumer_group="g", consumer_id="c") as grouped,
        others[1].subscribed(topic=topic) as alone,
    ):
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).add_partitions(topic, 2)
        client.publish(topic=topic, payload=b"x", partition=1)
        assert next(grouped).partition == next(alone).partition == 1


def test_a_topic_that_is_deleted_ends_its_subscriptions(client, others, topic) -> None:
    client.create_topic(name=topic)
    with (
        others[0].subscribed(topic=topic, consumer_group="g", consumer_id="a") as reading,
        others[1].subscribed(topic=topic, consumer_group="g", consumer_id="b") as idle,
        others[1].subscribed(topic=topic) as alone,
    ):
        assert client.call("DeleteTopic", name=topic).success
        for stream in (reading, idle, alone):
            with refused(StatusCode.NOT_FOUND, f"Topic '{topic}' not found"):
                next(stream)


def test_a_topic_made_again_starts_afresh(client, topic) -> None:
    client.create_topic(name=topic)
    client.publish(topic=topic, payload=b"old")
    client.commit(topic=topic, consumer_group="g", offset=1)
    client.call("DeleteTopic", name=topic)
    client.create_topic(name=topic)
    client.publish(topic=topic, payload=b"new")
    with client.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        message = next(stream)
        assert (message.offset, message.payload) == (0, b"new")


def test_records_arrive_live_while_others_publish(client, others, topic) -> None:
    client.create_topic(name=topic, partitions=3)
    with others[0].subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        collected = Collected(stream)
        for number in range(300):
            client.publish(topic=topic, payload=b"%d" % number, key=b"%d" % (number % 7))
        messages = collected.take(300)
    assert sorted(int(message.payload) for message in messages) == list(range(300))
    for key in range(7):
        of_key = [int(message.payload) for message in messages if message.key == b"%d" % key]
        assert of_key == sorted(of_key)
        assert len({message.partition for message in messages if message.key == b"%d" % key}) == 1
