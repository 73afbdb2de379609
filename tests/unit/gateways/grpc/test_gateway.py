import asyncio
import socket
import subprocess
import sys

import grpc
import pytest

from penstock.address import Address
from penstock.gateways.grpc import service
from penstock.gateways.grpc.gateway import GrpcGateway
from penstock.settings import GrpcSettings, LimitSettings
from penstock.wire.mq import mq_generated as mq
from tests.support.kafka_wire import until

ANY_PORT = Address("127.0.0.1", 0)


async def test_port_zero_gives_a_real_port_that_nobody_else_can_have() -> None:
    gateway = GrpcGateway(GrpcSettings(), LimitSettings())
    address = gateway.bind(ANY_PORT)
    assert address.port > 0
    other = GrpcGateway(GrpcSettings(), LimitSettings())
    with pytest.raises(OSError, match="in use"):
        other.bind(address)
    with socket.socket() as sharing:
        # Whoever is ready to share a port must not get ours.
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            sharing.bind(address)
    await gateway.stop(0)
    await other.stop(0)


async def test_a_port_that_another_program_has_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gateway = GrpcGateway(GrpcSettings(), LimitSettings())
        with pytest.raises(OSError, match="in use"):
            gateway.bind(Address(*taken.getsockname()))
        await gateway.stop(0)


async def test_a_port_that_was_let_go_can_be_had_again() -> None:
    gateway = GrpcGateway(GrpcSettings(), LimitSettings())
    address = gateway.bind(ANY_PORT)
    await gateway.stop(0)
    again = GrpcGateway(GrpcSettings(), LimitSettings())
    assert again.bind(address) == address
    await again.stop(0)


async def test_a_mistake_of_ours_is_told_as_internal_logged_and_survived(channel, unary, monkeypatch, caplog) -> None:
    monkeypatch.setattr("penstock.core.topics.topics.Topics.require", lambda *_: 1 / 0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary("Publish", mq.PublishRequest(topic="t"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "The broker had an internal error. See its log."
    assert "ZeroDivisionError" in caplog.text
    subscribe = channel.unary_stream("/mq.MessageQueueService/Subscribe", response_deserializer=mq.Message.FromString)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await subscribe(mq.SubscribeRequest(topic="t").SerializeToString(), timeout=20).read()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert (await unary("ListTopics", mq.ListTopicsRequest())).topics == []


async def test_every_call_of_the_proto_is_served() -> None:
    declared = mq.DESCRIPTOR.services_by_name["MessageQueueService"].methods_by_name
    assert set(service.CALLS) == set(declared)
    for name, call in service.CALLS.items():
        assert call.request.DESCRIPTOR is declared[name].input_type, name
        assert isinstance(call, service.Streaming) == declared[name].server_streaming, name
        assert getattr(call, "requests", False) == declared[name].client_streaming, name


async def test_calls_and_refusals_are_counted(gateways, channel, unary) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await unary("Publish", mq.PublishRequest(topic="nowhere"))
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    await unary("Publish", mq.PublishRequest(topic="t", payload=b"x"))
    subscribe = channel.unary_stream("/mq.MessageQueueService/Subscribe", response_deserializer=mq.Message.FromString)
    stream = subscribe(mq.SubscribeRequest(topic="t", max_messages=1).SerializeToString(), timeout=20)
    assert [message.payload async for message in stream] == [b"x"]
    meters = gateways[0].broker.meters
    flow = dict(meters.flows())["t", "grpc"]
    assert meters.request_seconds["grpc", "Publish"].count == 2
    assert dict(meters.request_errors.items()) == {("grpc", "UNKNOWN_TOPIC_OR_PARTITION"): 1}
    assert (flow.records_in, flow.records_out) == (1, 1)


async def test_what_a_stop_lets_through_is_answered(server, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    calls = [asyncio.ensure_future(unary("Publish", mq.PublishRequest(topic="t"))) for _ in range(20)]
    await calls[0]
    await server.stop()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    offsets = [outcome.offset for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert offsets[0] == 0
    assert offsets == list(range(len(offsets)))


def test_a_broker_without_the_listener_does_not_import_grpc() -> None:
    program = "import sys, penstock.server; print(sorted(name for name in sys.modules if name.startswith('grpc')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


GARBAGE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize("name", sorted(service.CALLS))
async def test_bytes_that_are_no_request_are_an_invalid_argument_that_names_the_message(channel, name, caplog) -> None:
    declared = service.CALLS[name]
    path = f"/{service.SERVICE}/{name}"
    if isinstance(declared, service.Unary):
        answer = channel.unary_unary(path)(GARBAGE, timeout=20)
    elif declared.requests:
        answer = channel.stream_stream(path)(iter([GARBAGE]), timeout=20).read()
    else:
        answer = channel.unary_stream(path)(GARBAGE, timeout=20).read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert declared.request.DESCRIPTOR.full_name in caught.value.details()
    assert not caplog.records


async def test_frames_before_garbage_are_answered(channel, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    frame = mq.PublishFrame(id=7, topic="t", records=[mq.PublishRequest(payload=b"x")]).SerializeToString()
    stream = channel.stream_stream(
        "/mq.MessageQueueService/PublishStream", response_deserializer=mq.PublishFrameResponse.FromString
    )(iter([frame, GARBAGE]), timeout=20)
    assert (await stream.read()).id == 7
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_no_more_frames_are_taken_while_those_that_wait_have_many_records(
    gateways, channel, unary, monkeypatch
) -> None:
    monkeypatch.setattr("penstock.gateways.grpc.publish.GRPC_PENDING_RECORDS_MAX", 10)
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    broker = gateways[0].broker
    waiting = []
    publish = broker.publisher.publish

    def hold(*given) -> None:
        # Appended, and not told: as on a disk whose sync does not end.
        waiting.append(given[-1])
        publish(*given[:-1], results.append)

    results = []
    monkeypatch.setattr(broker.publisher, "publish", hold)
    records = [mq.PublishRequest(payload=b"x")] * 6
    frames = [mq.PublishFrame(id=n, topic="t", records=records).SerializeToString() for n in range(5)]
    stream = channel.stream_stream(
        "/mq.MessageQueueService/PublishStream", response_deserializer=mq.PublishFrameResponse.FromString
    )(iter(frames), timeout=60)
    for answered in range(5):
        await until(lambda answered=answered: len(waiting) > answered and len(results) > answered)
        # Whatever was sent before these calls has come.
        for _ in range(5):
            await unary("ListTopics", mq.ListTopicsRequest())
        assert len(waiting) - answered <= 2
        waiting[answered](results[answered])
        assert (await stream.read()).id == answered
    assert await stream.read() is grpc.aio.EOF
