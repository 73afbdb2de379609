"""The HTTP/2 client: frame by frame against bytes made by hand, and as a whole against a real gRPC server."""

import socket
import struct
from concurrent import futures

import grpc
import pytest

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http2
from penstock.bench.gateways.grpc import FrameStream, UnaryCalls
from penstock.bench.gateways.http2 import Http2Client, MessageReader, enveloped, frame
from penstock.bench.kafka import connect
from penstock.bench.pump import Pump
from penstock.wire.mq import mq_generated as mq

HERE = Address("127.0.0.1", 1)
MESSAGE = enveloped(b"answer")


def frames_of(data: bytes) -> list[tuple[int, int, int, bytes]]:
    out = []
    while data:
        size, kind, flags, stream = int.from_bytes(data[:3], "big"), data[3], data[4], int.from_bytes(data[5:9], "big")
        out.append((kind, flags, stream, data[9 : 9 + size]))
        data = data[9 + size :]
    return out


def opened(**options) -> Http2Client:
    client = Http2Client("Publish", HERE, **options)
    client.outbox.clear()
    return client


def taken(client: Http2Client) -> list[tuple[int, int, int, bytes]]:
    out = frames_of(bytes(client.outbox))
    client.outbox.clear()
    return out


def test_a_connection_opens_with_the_preface_and_room_for_all_that_comes() -> None:
    client = Http2Client("Publish", HERE)
    assert client.outbox.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    kinds = [kind for kind, _, _, _ in frames_of(bytes(client.outbox[24:]))]
    assert kinds == [http2.SETTINGS, http2.WINDOW_UPDATE]


def test_only_the_first_call_spells_its_headers_out() -> None:
    client = opened()
    assert (client.call(b"m"), client.call(b"m")) == (1, 3)
    first, data, second, _ = taken(client)
    assert b"/mq.MessageQueueService/Publish" in first[3]
    assert len(second[3]) == 6
    assert data == (http2.DATA, http2.END_STREAM, 1, enveloped(b"m"))


def test_settings_and_pings_are_answered_and_answers_to_them_are_not() -> None:
    client = opened()
    client.receive(memoryview(frame(http2.SETTINGS, 0, 0, b"") + frame(http2.PING, 0, 0, b"12345678")))
    assert taken(client) == [(http2.SETTINGS, http2.ACK, 0, b""), (http2.PING, http2.ACK, 0, b"12345678")]
    client.receive(memoryview(frame(http2.SETTINGS, http2.ACK, 0, b"") + frame(http2.PING, http2.ACK, 0, b"12345678")))
    assert taken(client) == []


def test_no_more_is_sent_than_the_server_has_room_for() -> None:
    client = opened()
    client.receive(memoryview(frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 20))))
    stream = client.call(b"v" * 10, ends=False)
    client.send(stream, b"w" * 10)
    assert [kind for kind, _, _, _ in taken(client)] == [http2.SETTINGS, http2.HEADERS, http2.DATA]
    client.receive(memoryview(frame(http2.WINDOW_UPDATE, 0, stream, struct.pack(">I", 10))))
    assert taken(client) == [(http2.DATA, 0, stream, enveloped(b"w" * 10))]


def test_room_of_the_whole_connection_bounds_all_calls() -> None:
    client = opened()
    client.receive(memoryview(frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20))))
    client.outbox.clear()
    for _ in range(5):
        client.call(b"v" * 16_000)
    assert len([kind for kind, _, _, _ in taken(client) if kind == http2.DATA]) == 4
    client.receive(memoryview(frame(http2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 16_005))))
    assert [(kind, flags) for kind, flags, _, _ in taken(client)] == [(http2.DATA, http2.END_STREAM)]


def test_a_message_longer_than_a_frame_is_sent_in_pieces_and_ends_with_the_last() -> None:
    client = opened()
    client.call(b"v" * 40_000)
    pieces = taken(client)[1:]
    assert [flags for _, flags, _, _ in pieces] == [0, 0, http2.END_STREAM]
    assert b"".join(payload for _, _, _, payload in pieces) == enveloped(b"v" * 40_000)


def test_a_call_beyond_what_the_server_takes_at_once_waits_for_another_to_end() -> None:
    client = opened()
    client.receive(memoryview(frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 3, 2))))
    client.outbox.clear()
    assert [client.call(b"m") for _ in range(4)] == [1, 3, 5, 7]
    assert [stream for kind, _, stream, _ in taken(client) if kind == http2.HEADERS] == [1, 3]
    end = frame(http2.DATA, 0, 3, MESSAGE) + frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 3, b"")
    client.receive(memoryview(end))
    assert [stream for kind, _, stream, _ in taken(client) if kind == http2.HEADERS] == [5]


@pytest.mark.parametrize("piece", [1, 8, 9, 10, 1000])
def test_answers_are_counted_however_they_are_cut(piece) -> None:
    got = []
    client = opened(on_data=got.append)
    client.call(b"m")
    client.call(b"m")
    data = b"".join(
        frame(http2.HEADERS, http2.END_HEADERS, stream, b"head")
        + frame(http2.DATA, 0, stream, MESSAGE)
        + frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, b"tail")
        for stream in (1, 3)
    )
    ended = []
    for at in range(0, len(data), piece):
        ended += client.receive(memoryview(data)[at : at + piece])
    assert ended == [1, 3]
    assert b"".join(got) == MESSAGE * 2


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, b"grpc-message no such topic"), "no such topic"),
        (frame(http2.RST_STREAM, 0, 1, b"\x00\x00\x00\x07"), "ended a call"),
        (frame(http2.GOAWAY, 0, 0, bytes(8) + b"too many"), "too many"),
        (frame(http2.DATA, http2.END_STREAM, 1, MESSAGE), "without a status"),
        (frame(http2.DATA, http2.PADDED, 1, MESSAGE), "padded"),
    ],
)
def test_what_ends_a_call_badly_ends_the_measurement(answer, says) -> None:
    client = opened()
    client.call(b"m")
    with pytest.raises(BenchError, match=says):
        client.receive(memoryview(answer))


class Service:
    """What a server of the two calls does, in memory."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def publish(self, request, context):
        if request.topic != "orders":
            context.abort(grpc.StatusCode.NOT_FOUND, "no such topic")
        self.records.append(request.payload)
        return mq.PublishResponse(message_id="orders/0@0")

    def publish_stream(self, frames, context):
        for one in frames:
            self.records += [record.payload for record in one.records]
            count = len(one.records)
            refused = [mq.PublishFailure(index=0, code=5, message="refused")] if one.topic != "orders" else []
            yield mq.PublishFrameResponse(partitions=[0] * count, offsets=range(count), failures=refused, id=one.id)


@pytest.fixture
def grpc_server():
    service = Service()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    handlers = {
        "Publish": grpc.unary_unary_rpc_method_handler(
            service.publish, mq.PublishRequest.FromString, mq.PublishResponse.SerializeToString
        ),
        "PublishStream": grpc.stream_stream_rpc_method_handler(
            service.publish_stream, mq.PublishFrame.FromString, mq.PublishFrameResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("mq.MessageQueueService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Address("127.0.0.1", port), service
    finally:
        server.stop(None).wait(10)


def test_calls_reach_a_real_server_and_its_answers_are_counted(grpc_server) -> None:
    address, service = grpc_server
    message = mq.PublishRequest(topic="orders", payload=b"v" * 100).SerializeToString()
    with Pump([UnaryCalls(address, message, 4) for _ in range(2)]) as pump:
        sample = pump.run(30.0, 300)
    assert 300 <= sample.answers <= len(service.records)
    assert set(service.records) == {b"v" * 100}
    assert sample.latency_ns.count == sample.answers


def test_frames_pass_a_real_server_s_flow_control_many_times_over(grpc_server) -> None:
    address, service = grpc_server
    with Pump([FrameStream(address, "orders", [b"v" * 300] * 100, 8)]) as pump:
        sample = pump.run(30.0, 100)
    assert 10_000 <= sample.answers * 100 <= len(service.records)


def test_a_refused_call_and_a_refused_record_of_a_frame_end_the_measurement(grpc_server) -> None:
    address, _ = grpc_server
    message = mq.PublishRequest(topic="nowhere", payload=b"v").SerializeToString()
    with Pump([UnaryCalls(address, message, 1)]) as pump, pytest.raises(BenchError, match="refused a call"):
        pump.run(30.0, 10)
    with Pump([FrameStream(address, "nowhere", [b"v"], 1)]) as pump, pytest.raises(BenchError, match="refused"):
        pump.run(30.0, 10)


@pytest.mark.parametrize("piece", [1, 4, 5, 6, 100])
def test_messages_are_cut_from_a_stream_however_it_is_cut(piece) -> None:
    data = b"".join(enveloped(message) for message in (b"one", b"", b"three" * 10))
    reader = MessageReader()
    messages = []
    for at in range(0, len(data), piece):
        messages += reader.feed(data[at : at + piece])
    assert messages == [b"one", b"", b"three" * 10]


def test_a_compressed_message_is_not_guessed_at() -> None:
    with pytest.raises(BenchError, match="compressed"):
        MessageReader().feed(b"\x01\x00\x00\x00\x00")


def test_a_server_that_is_not_there_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address(*free.getsockname())
    with pytest.raises(BenchError, match="is the broker running there"):
        connect(address)
