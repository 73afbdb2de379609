"""Ack, Nack and Extend: what a worker reports about the records that it holds."""

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.groups import group_in
from penstock.gateways.grpc.leasing import lease_ms_of
from penstock.operations.queues import Ack, AckUpTo, Extend, Nack
from penstock.wire.mq.mq_generated import (
    AckRequest,
    AckResponse,
    ExtendRequest,
    ExtendResponse,
    NackRequest,
    NackResponse,
)


def _names(request: AckRequest | NackRequest | ExtendRequest) -> tuple[str, str, str, int]:
    group = group_in(request)
    if not request.consumer_id:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "consumer_id is empty: use the id of the subscription, which is in its initial metadata",
        )
    return request.topic, group, request.consumer_id, request.partition


def _offsets(request: AckRequest | NackRequest) -> list[int]:
    if not request.offsets:
        raise PenstockError(Reason.INVALID_REQUEST, "offsets is empty: specify the records")
    return list(dict.fromkeys(request.offsets))


async def ack(request: AckRequest, call: Call) -> AckResponse:
    """All of them or, if one is not this consumer's, none."""
    names, offsets = _names(request), _offsets(request)
    if not request.cumulative:
        await call.broker.do(Ack(*names, offsets), call.caller)
    elif len(offsets) == 1:
        await call.broker.do(AckUpTo(*names, offsets[0]), call.caller)
    else:
        raise PenstockError(Reason.INVALID_REQUEST, "a cumulative ack has exactly one offset: the last record to ack")
    return AckResponse(success=True)


async def nack(request: NackRequest, call: Call) -> NackResponse:
    """They are delivered again later, or become dead letters."""
    await call.broker.do(Nack(*_names(request), _offsets(request), request.reason), call.caller)
    return NackResponse(success=True)


async def extend(request: ExtendRequest, call: Call) -> ExtendResponse:
    """The record stays this consumer's."""
    names, lease_ms = _names(request), lease_ms_of(call, request.lease_ms)
    await call.broker.do(Extend(*names, [request.offset], lease_ms), call.caller)
    return ExtendResponse(success=True)
