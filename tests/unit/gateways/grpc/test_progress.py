"""What another node is asked for when a subscription goes on there."""

from penstock.gateways.grpc.progress import PLACES_CHARS_MAX, Progress, read_places, relayed_places
from penstock.wire.mq import mq_generated as mq


def test_it_stands_behind_what_was_given() -> None:
    progress = Progress(mq.SubscribeRequest(topic="t", consumer_group="g"))
    progress.gave([(0, 4), (2, 7), (0, 5)])
    assert read_places(progress.places()) == {0: 6, 2: 8}
    assert progress.can_go_on


def test_one_that_was_given_nothing_stands_nowhere() -> None:
    assert read_places(Progress(mq.SubscribeRequest(topic="t")).places()) == {}


def test_what_is_asked_for_next_is_what_is_left() -> None:
    asked = mq.SubscribeRequest(topic="t", consumer_group="g", max_messages=5, replay_offset=3)
    progress = Progress(asked)
    progress.consumer_id = "made"
    progress.gave([(0, 3), (0, 4)])
    request = progress.request()
    assert (request.max_messages, request.consumer_id, request.replay_offset) == (3, "made", 3)
    assert (asked.max_messages, asked.consumer_id) == (5, "")


def test_one_that_stays_is_not_counted_down() -> None:
    progress = Progress(mq.SubscribeRequest(topic="t"))
    progress.gave([(0, 0)])
    assert progress.request().max_messages == 0


def test_a_connected_worker_goes_on_only_if_it_was_given_nothing() -> None:
    progress = Progress(mq.SubscribeRequest(topic="t", consumer_group="g", lease_ms=1000))
    assert progress.can_go_on
    progress.gave([(0, 0)])
    assert not progress.can_go_on


def test_a_worker_that_takes_a_number_takes_the_rest_and_stands_nowhere() -> None:
    progress = Progress(mq.SubscribeRequest(topic="t", consumer_group="g", lease_ms=1000, max_messages=2))
    progress.gave([(0, 0)])
    assert progress.can_go_on
    assert progress.places() == ""
    assert progress.request().max_messages == 1


def test_one_that_stands_in_more_partitions_than_can_be_told_does_not_go_on() -> None:
    progress = Progress(mq.SubscribeRequest(topic="t"))
    progress.gave((partition, 10**12) for partition in range(PLACES_CHARS_MAX // 14))
    assert not progress.can_go_on


def test_places_are_read_from_messages_and_from_frames() -> None:
    messages = [mq.Message(partition=1, offset=5), mq.Message(offset=0)]
    assert relayed_places("Subscribe")(messages[0].SerializeToString()) == [(1, 5)]
    frame = mq.MessageFrame(messages=messages)
    assert relayed_places("SubscribeBatch")(frame.SerializeToString()) == [(1, 5), (0, 0)]
