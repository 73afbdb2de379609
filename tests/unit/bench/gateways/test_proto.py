"""What is packed by hand is what the proto file says, as protobuf's own code reads it."""

import pytest

from penstock.bench.faults import BenchError
from penstock.bench.gateways import proto
from penstock.wire.mq import mq_generated as mq


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 1 << 31, (1 << 63) - 1])
def test_a_varint_is_read_back_by_protobuf(value) -> None:
    assert mq.PublishFrame.FromString(proto.field_int(3, value)).id == value


def test_a_publish_request_is_what_the_proto_says() -> None:
    message = mq.PublishRequest.FromString(proto.publish_request("orders", b"v" * 200))
    assert (message.topic, message.payload) == ("orders", b"v" * 200)
    assert message == mq.PublishRequest(topic="orders", payload=b"v" * 200)


def test_a_publish_frame_is_what_the_proto_says() -> None:
    message = mq.PublishFrame.FromString(proto.publish_frame("orders", [b"a", b"b" * 300], 7))
    records = [mq.PublishRequest(payload=b"a"), mq.PublishRequest(payload=b"b" * 300)]
    assert message == mq.PublishFrame(topic="orders", records=records, id=7)


def test_a_subscribe_request_is_what_the_proto_says() -> None:
    assert mq.SubscribeRequest.FromString(proto.subscribe_request("t")) == mq.SubscribeRequest(topic="t")
    wanted = mq.SubscribeRequest(topic="t", max_messages=500, max_batch=100)
    assert mq.SubscribeRequest.FromString(proto.subscribe_request("t", records_max=500, batch_max=100)) == wanted


def test_a_failure_is_found_behind_the_places_of_a_frame_s_answer() -> None:
    good = mq.PublishFrameResponse(partitions=[0, 1], offsets=[5, 700], id=3)
    assert proto.find_field(good.SerializeToString(), proto.FAILURES_FIELD) is None
    failure = mq.PublishFailure(index=1, code=5, message="no")
    bad = mq.PublishFrameResponse(partitions=[0, -1], offsets=[5, -1], failures=[failure], id=3)
    assert proto.find_field(bad.SerializeToString(), proto.FAILURES_FIELD) == failure.SerializeToString()


@pytest.mark.parametrize("piece", [1, 4, 5, 6, 100])
def test_messages_are_cut_from_a_stream_however_it_is_cut(piece) -> None:
    data = b"".join(proto.enveloped(message) for message in (b"one", b"", b"three" * 10))
    reader = proto.MessageReader()
    messages = []
    for at in range(0, len(data), piece):
        messages += reader.feed(data[at : at + piece])
    assert messages == [b"one", b"", b"three" * 10]


def test_a_compressed_message_is_not_guessed_at() -> None:
    with pytest.raises(BenchError, match="compressed"):
        proto.MessageReader().feed(b"\x01\x00\x00\x00\x00")
