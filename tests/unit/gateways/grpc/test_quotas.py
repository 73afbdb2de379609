"""Quotas over gRPC: a call over a quota is refused before anything is done, and streams are slowed down."""

import grpc
import pytest

from penstock.core.quotas.names import Place
from penstock.wire.mq import mq_generated as mq

USER = Place("ANONYMOUS")


async def test_a_call_over_the_quota_is_refused_and_can_be_repeated(gateways, unary):
    [serving] = gateways
    await unary("CreateTopic", mq.CreateTopicRequest(name="t", partitions=1))
    await serving.broker.quotas.store.alter(USER, {"producer_byte_rate": 1000.0})
    await unary("Publish", mq.PublishRequest(topic="t", payload=b"v" * 1_000_000))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await unary("Publish", mq.PublishRequest(topic="t", payload=b"v"))
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "producer_byte_rate is exceeded; try again in" in refusal.value.details()
    assert serving.broker.partition("t", 0).log.next_offset == 1


async def test_a_subscription_is_slowed_down_and_ends_with_its_client(gateways, unary, channel):
    [serving] = gateways
    await unary("CreateTopic", mq.CreateTopicRequest(name="t", partitions=1))
    for _ in range(2):
        await unary("Publish", mq.PublishRequest(topic="t", payload=b"v" * 500_000))
    await serving.broker.quotas.store.alter(USER, {"consumer_byte_rate": 1000.0})
    method = channel.unary_stream(
        "/mq.MessageQueueService/SubscribeBatch", response_deserializer=mq.MessageFrame.FromString
    )
    call = method(mq.SubscribeRequest(topic="t", replay_offset=0, max_batch=1).SerializeToString(), timeout=20)
    assert len((await call.read()).messages) == 1
    caller = serving.broker.quotas._allowances
    [allowance] = [each for each in caller.values() if each.consume is not None]
    assert allowance.consume.total > 500_000
    call.cancel()
