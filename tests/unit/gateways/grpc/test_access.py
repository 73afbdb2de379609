"""Whatever a call asks of the broker is authorised before anything is done."""

import grpc
import pytest

from penstock.gateways.grpc.service import CALLS, Streaming
from penstock.operations.operation import Action
from penstock.types import Gateway
from penstock.wire.mq import mq_generated as mq
from tests.support.access import Guard

FIELDS = {"topic": "t", "name": "t", "consumer_group": "g", "consumer_id": "c", "offsets": [0], "lease_ms": 1000}


def request_of(name):
    known = CALLS[name].request.DESCRIPTOR.fields_by_name
    fields = {field: value for field, value in FIELDS.items() if field in known and name != "PublishStream"}
    if fields.get("offsets") and name not in ("Ack", "Nack"):
        del fields["offsets"]
    return CALLS[name].request(**fields)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("PublishStream", "ListTopics")])
async def test_every_call_is_refused_where_the_caller_may_do_nothing(name, gateways, channel, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    access = gateways[0].broker.access = Guard()
    request = request_of(name)
    if isinstance(CALLS[name], Streaming):
        answer = channel.unary_stream(f"/mq.MessageQueueService/{name}")(request.SerializeToString(), timeout=20).read()
    else:
        answer = unary(name, request)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    [caller] = access.callers
    assert caller.gateway is Gateway.GRPC
    assert caller.client


async def test_a_list_leaves_out_what_the_caller_may_not_describe(gateways, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    access = gateways[0].broker.access = Guard()
    assert list((await unary("ListTopics", mq.ListTopicsRequest())).topics) == []
    assert access.asked == [(Action.DESCRIBE, "topic t")]


async def test_a_subscription_without_a_group_is_refused_too(gateways, channel, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    access = gateways[0].broker.access = Guard()
    for topic in ("t", "nowhere"):
        request = mq.SubscribeRequest(topic=topic).SerializeToString()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_stream("/mq.MessageQueueService/Subscribe")(request, timeout=20).read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert {action for action, _ in access.asked} == {Action.READ}


async def test_records_of_a_stream_are_refused_each(gateways, channel, unary) -> None:
    await unary("CreateTopic", mq.CreateTopicRequest(name="t"))
    gateways[0].broker.access = Guard()
    method = channel.stream_stream(
        "/mq.MessageQueueService/PublishStream", response_deserializer=mq.PublishFrameResponse.FromString
    )
    frame = mq.PublishFrame(topic="t", records=[mq.PublishRequest(payload=b"x")] * 2)
    answers = [answer async for answer in method(iter([frame.SerializeToString()]), timeout=20)]
    code = grpc.StatusCode.PERMISSION_DENIED.value[0]
    assert [[failure.code for failure in answer.failures] for answer in answers] == [[code, code]]
