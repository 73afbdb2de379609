"""Frames of many records in, and answers in their order."""

import itertools
import threading

import grpc
import pytest
from grpc import StatusCode

from tests.conformance.mq.client import CALL_SECONDS, payloads

NOT_FOUND = StatusCode.NOT_FOUND.value[0]
INVALID = StatusCode.INVALID_ARGUMENT.value[0]


def frame(client, topic, sent, frame_id=0):
    return client.pb2.PublishFrame(
        topic=topic, id=frame_id, records=[client.pb2.PublishRequest(payload=payload) for payload in sent]
    )


def stream(client, frames):
    return list(client.stub.PublishStream(iter(frames), timeout=CALL_SECONDS))


def read(client, topic, count, **fields):
    with client.subscribed(batch=True, topic=topic, max_messages=count, **fields) as frames:
        return list(itertools.chain.from_iterable(one.messages for one in frames))


def test_a_thousand_frames_are_answered_and_stored_in_order(client, topic) -> None:
    client.create_topic(name=topic)
    frames = [frame(client, topic, [b"%d.%d" % (at, n) for n in range(20)], at) for at in range(1000)]
    answers = stream(client, frames)
    assert [answer.id for answer in answers] == list(range(1000))
    assert list(itertools.chain.from_iterable(answer.offsets for answer in answers)) == list(range(20_000))
    assert not any(answer.failures for answer in answers)
    sent = [record.payload for one in frames for record in one.records]
    assert payloads(read(client, topic, 20_000)) == sent


def test_each_record_says_where_it_is(client, topic) -> None:
    client.create_topic(name=topic, partitions=4)
    records = [
        client.pb2.PublishRequest(payload=b"explicit", partition=3),
        client.pb2.PublishRequest(payload=b"keyed", key=b"anna"),
        client.pb2.PublishRequest(payload=b"keyed too", key=b"anna"),
        client.pb2.PublishRequest(payload=b"headed", partition=0, headers={"a": "1"}),
    ]
    (answer,) = stream(client, [client.pb2.PublishFrame(topic=topic, records=records)])
    by_place = {(message.partition, message.offset): message for message in read(client, topic, 4)}
    for record, place in zip(records, zip(answer.partitions, answer.offsets, strict=True), strict=True):
        assert by_place[place].payload == record.payload
        assert by_place[place].key == record.key
        assert dict(by_place[place].headers) == dict(record.headers)
    assert answer.partitions[0] == 3
    assert answer.partitions[1] == answer.partitions[2]


def test_a_record_may_name_its_own_topic(client, topic) -> None:
    for name in (f"{topic}.1", f"{topic}.2"):
        client.create_topic(name=name)
    records = [
        client.pb2.PublishRequest(payload=b"1", topic=f"{topic}.1"),
        client.pb2.PublishRequest(payload=b"2"),
        client.pb2.PublishRequest(payload=b"1 too", topic=f"{topic}.1"),
        client.pb2.PublishRequest(payload=b"nowhere", topic="nowhere"),
    ]
    (answer,) = stream(client, [client.pb2.PublishFrame(topic=f"{topic}.2", records=records)])
    assert list(answer.offsets) == [0, 0, 1, -1]
    assert [(failure.index, failure.code, failure.message) for failure in answer.failures] == [
        (3, NOT_FOUND, "Topic 'nowhere' not found")
    ]
    assert payloads(read(client, f"{topic}.1", 2)) == [b"1", b"1 too"]
    assert payloads(read(client, f"{topic}.2", 1)) == [b"2"]


def test_a_bad_record_is_refused_alone(client, topic) -> None:
    client.create_topic(name=topic)
    good = client.pb2.PublishRequest(payload=b"good")
    records = [
        good,
        client.pb2.PublishRequest(payload=b"x", partition=7),
        client.pb2.PublishRequest(payload=b"x", headers={"h": "?"}, base64_headers=["h"]),
        client.pb2.PublishRequest(payload=b"x" * 2_000_000),
        good,
    ]
    (answer,) = stream(client, [client.pb2.PublishFrame(topic=topic, records=records)])
    assert list(answer.offsets) == [0, -1, -1, -1, 1]
    assert list(answer.partitions) == [0, -1, -1, -1, 0]
    assert [failure.index for failure in answer.failures] == [1, 2, 3]
    assert [failure.code for failure in answer.failures] == [NOT_FOUND, INVALID, INVALID]
    assert answer.failures[1].message == "Header 'h' is listed in base64_headers, but is not base64"


def test_the_stream_goes_on_after_a_frame_that_is_refused_whole(client, topic) -> None:
    client.create_topic(name=topic)
    answers = stream(
        client,
        [frame(client, "nowhere", [b"a", b"b"], 1), frame(client, topic, [b"c"], 2), frame(client, topic, [], 3)],
    )
    assert [(answer.id, list(answer.offsets), len(answer.failures)) for answer in answers] == [
        (1, [-1, -1], 2),
        (2, [0], 0),
        (3, [], 0),
    ]


def test_a_topic_that_is_deleted_meanwhile_is_told_as_not_found(client, others, topic) -> None:
    client.create_topic(name=topic)
    deleted = threading.Event()

    def frames():
        yield frame(client, topic, [b"x"])
        assert deleted.wait(CALL_SECONDS)
        yield frame(client, topic, [b"y"])

    call = client.stub.PublishStream(frames(), timeout=CALL_SECONDS)
    assert list(next(call).offsets) == [0]
    others[0].call("DeleteTopic", name=topic)
    deleted.set()
    (second,) = call
    assert [failure.message for failure in second.failures] == [f"Topic '{topic}' not found"]


def test_a_frame_over_the_limit_ends_the_stream_and_not_the_broker(client, topic) -> None:
    client.create_topic(name=topic)
    with pytest.raises(grpc.RpcError) as caught:
        stream(client, [frame(client, topic, [b"x" * 1_000_000] * 34)])
    assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
    assert client.publish(topic=topic, payload=b"x").offset == 0


def test_a_client_that_leaves_in_the_middle_leaves_whole_frames(client, others, topic) -> None:
    client.create_topic(name=topic)
    endless = (frame(client, topic, [b"%d.%d" % (at, n) for n in range(10)], at) for at in itertools.count())
    call = client.stub.PublishStream(endless, timeout=CALL_SECONDS)
    answered = [next(call) for _ in range(5)]
    client.close()
    end = others[0].publish(topic=topic, payload=b"last").offset
    messages = read(others[0], topic, end + 1)
    assert end >= answered[-1].offsets[-1]
    frames_there = [message.payload.partition(b".")[0] for message in messages[:-1]]
    assert all(frames_there.count(number) == 10 for number in set(frames_there))
