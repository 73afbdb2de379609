"""Queues: Ack, Nack and Extend for the records that a worker holds, and DeliveryStatus."""

import re
from typing import Final

from penstock.core.operations.rights import may_describe_topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.groups import group_in
from penstock.gateways.grpc.leasing import lease_ms_of
from penstock.operations.queues import Ack, AckUpTo, ExplainRecord, Extend, Nack, WhyState
from penstock.wire.mq import ids
from penstock.wire.mq.mq_generated import (
    AckRequest,
    AckResponse,
    DeliveryStatusRequest,
    DeliveryStatusResponse,
    ExtendRequest,
    ExtendResponse,
    NackRequest,
    NackResponse,
)

_PLACE: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})@(?P<offset>[0-9]{1,18})", re.ASCII)


def _worker(request: AckRequest | NackRequest | ExtendRequest) -> tuple[str, str, str, int]:
    group = group_in(request)
    if not request.consumer_id:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "The field consumer_id is empty: use the id of the subscription, which is in its initial metadata",
        )
    return request.topic, group, request.consumer_id, request.partition


def _offsets(request: AckRequest | NackRequest) -> list[int]:
    if not request.offsets:
        raise PenstockError(Reason.INVALID_REQUEST, "The field offsets is empty: specify the records")
    return list(dict.fromkeys(request.offsets))


async def ack(request: AckRequest, call: GrpcCall) -> AckResponse:
    """Finish records: all of them or, if the consumer does not hold one of them, none."""
    worker, offsets = _worker(request), _offsets(request)
    if not request.cumulative:
        await call.broker.do(Ack(*worker, offsets), call.caller)
    elif len(offsets) == 1:
        await call.broker.do(AckUpTo(*worker, offsets[0]), call.caller)
    else:
        raise PenstockError(Reason.INVALID_REQUEST, "A cumulative ack has exactly one offset: the last record to ack")
    return AckResponse(success=True)


async def nack(request: NackRequest, call: GrpcCall) -> NackResponse:
    """Return records that failed: they are delivered again after their backoff, or become dead letters."""
    await call.broker.do(Nack(*_worker(request), _offsets(request), request.reason), call.caller)
    return NackResponse(success=True)


async def extend(request: ExtendRequest, call: GrpcCall) -> ExtendResponse:
    """Renew the lease of a record."""
    worker, lease_ms = _worker(request), lease_ms_of(call, request.lease_ms)
    await call.broker.do(Extend(*worker, [request.offset], lease_ms), call.caller)
    return ExtendResponse(success=True)


async def delivery_status(request: DeliveryStatusRequest, call: GrpcCall) -> DeliveryStatusResponse:
    """Explain the state of a record in a group."""
    topic, partition, offset = _place(request, call)
    why = await call.broker.do(ExplainRecord(topic, partition, offset, group_in(request)), call.caller)
    if why.state is WhyState.NO_SUCH_TOPIC:
        raise topic_not_found(topic)
    return DeliveryStatusResponse(
        state=why.state.value,
        sentence=why.sentence,
        owner=why.owner,
        until_ms=why.until_ms,
        attempts=why.attempts,
        last_error=why.last_error,
    )


def _place(request: DeliveryStatusRequest, call: GrpcCall) -> tuple[str, int, int]:
    if not request.message_id:
        return request.topic, request.partition, request.offset
    if request.topic or request.partition or request.offset:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "message_id includes topic, partition and offset: set either message_id or the other three",
        )
    found = _PLACE.fullmatch(request.message_id)
    if found is not None:
        return found["topic"], int(found["partition"]), int(found["offset"])
    parsed = ids.parse(request.message_id)
    if parsed is None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"{request.message_id[:64]!r} is not a message id; use the id of a message, or its position such as orders/0@42",
        )
    for topic in call.broker.topics:
        partition = ids.partition_of(parsed, topic.topic_id, topic.partition_count)
        if partition is not None and may_describe_topic(call.broker, call.caller, topic.name):
            return topic.name, partition, parsed.offset
    raise PenstockError(
        Reason.UNKNOWN_TOPIC_OR_PARTITION,
        f"No topic has a message {request.message_id}: its topic was deleted, or the id is from another cluster",
    )
