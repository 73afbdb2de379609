"""Every call of the original service, by a client that knows nothing else."""

import time
from uuid import UUID

from grpc import StatusCode

from tests.conformance.mq.client import payloads, refused, take


def test_a_topic_is_made_and_making_it_again_changes_nothing(original, topic) -> None:
    assert original.create_topic(name=topic).success
    original.publish(topic=topic, payload=b"kept")
    assert original.create_topic(name=topic).success
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        assert next(stream).payload == b"kept"


def test_a_topic_that_others_made_is_there_too(original, client, topic) -> None:
    client.create_topic(name=topic, partitions=3)
    assert original.create_topic(name=topic).success


def test_a_name_that_no_topic_may_have_is_refused(original) -> None:
    with refused(
        StatusCode.INVALID_ARGUMENT,
        "The topic name 'no spaces' has a character other than ASCII letters, digits, '.', '_' and '-'. Choose another name.",
    ):
        original.create_topic(name="no spaces")


def test_a_published_record_comes_back_whole(original, topic) -> None:
    original.create_topic(name=topic)
    before = int(time.time())
    answer = original.publish(topic=topic, payload=b"\x00\xffbytes", headers={"trace": "abc", "": "grün"})
    after = int(time.time())
    # The original's client parses it, and does not survive anything but a UUID.
    assert str(UUID(answer.message_id)) == answer.message_id
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        message = next(stream)
    assert (message.id, message.topic, message.payload) == (answer.message_id, topic, b"\x00\xffbytes")
    assert dict(message.headers) == {"trace": "abc", "": "grün"}
    assert before <= message.timestamp <= after


def test_a_topic_that_is_not_there_is_told_as_such_by_every_call(original) -> None:
    text = "Topic 'nowhere' not found"
    with refused(StatusCode.NOT_FOUND, text):
        original.publish(topic="nowhere", payload=b"x")
    with refused(StatusCode.NOT_FOUND, text):
        original.commit(topic="nowhere", consumer_group="g", offset=0)
    with refused(StatusCode.NOT_FOUND, text), original.subscribed(topic="nowhere", consumer_group="g") as stream:
        next(stream)


def test_order_within_a_topic_is_the_order_of_publishing(original, topic) -> None:
    original.create_topic(name=topic)
    sent = [b"%d" % number for number in range(200)]
    for payload in sent:
        original.publish(topic=topic, payload=payload)
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        assert payloads(take(stream, 200)) == sent


def test_a_subscription_starts_at_the_committed_offset_and_stays_live(original, topic) -> None:
    original.create_topic(name=topic)
    for number in range(5):
        original.publish(topic=topic, payload=b"%d" % number)
    assert original.commit(topic=topic, consumer_group="g", offset=3).success
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        assert payloads(take(stream, 2)) == [b"3", b"4"]
        original.publish(topic=topic, payload=b"live")
        assert next(stream).payload == b"live"


def test_what_is_not_committed_is_given_again(original, topic) -> None:
    original.create_topic(name=topic)
    original.publish(topic=topic, payload=b"x")
    for _ in range(2):
        with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
            assert next(stream).payload == b"x"


def test_different_groups_each_get_everything(original, others, topic) -> None:
    original.create_topic(name=topic)
    with (
        others[0].subscribed(topic=topic, consumer_group="a", consumer_id="c") as first,
        others[1].subscribed(topic=topic, consumer_group="b", consumer_id="c") as second,
    ):
        for number in range(20):
            original.publish(topic=topic, payload=b"%d" % number)
        assert payloads(take(first, 20)) == payloads(take(second, 20)) == [b"%d" % number for number in range(20)]


def test_a_commit_of_an_offset_that_cannot_exist_is_refused_and_changes_nothing(original, topic) -> None:
    original.create_topic(name=topic)
    for number in range(3):
        original.publish(topic=topic, payload=b"%d" % number)
    original.commit(topic=topic, consumer_group="g", offset=1)
    for offset in (2**63, 2**64 - 1):
        with refused(
            StatusCode.OUT_OF_RANGE,
            f"Offset {offset} cannot be committed; use an offset from 0 to 9223372036854775807",
        ):
            original.commit(topic=topic, consumer_group="g", offset=offset)
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        assert next(stream).payload == b"1"


def test_a_commit_may_go_back_and_up_to_the_end(original, topic) -> None:
    original.create_topic(name=topic)
    for number in range(3):
        original.publish(topic=topic, payload=b"%d" % number)
    for offset, seen in ((3, b"new"), (0, b"0")):
        original.commit(topic=topic, consumer_group="g", offset=offset)
        with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
            if offset == 3:
                original.publish(topic=topic, payload=b"new")
            assert next(stream).payload == seen


def test_after_a_commit_past_the_end_a_group_reads_from_there(original, topic) -> None:
    original.create_topic(name=topic)
    original.publish(topic=topic, payload=b"0")
    original.commit(topic=topic, consumer_group="g", offset=3)
    with original.subscribed(topic=topic, consumer_group="g", consumer_id="c") as stream:
        for number in range(1, 5):
            original.publish(topic=topic, payload=b"%d" % number)
        assert payloads(take(stream, 2)) == [b"3", b"4"]


def test_a_commit_needs_a_group(original, topic) -> None:
    original.create_topic(name=topic)
    with refused(StatusCode.INVALID_ARGUMENT, "The field consumer_group is empty: specify the group"):
        original.commit(topic=topic, offset=0)


def test_a_subscriber_without_a_group_reads_everything_from_the_beginning(original, topic) -> None:
    original.create_topic(name=topic)
    original.publish(topic=topic, payload=b"old")
    with original.subscribed(topic=topic) as stream:
        assert next(stream).payload == b"old"
        original.publish(topic=topic, payload=b"live")
        assert next(stream).payload == b"live"
