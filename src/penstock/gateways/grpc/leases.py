"""Ack, Nack and Extend: what a worker says of the records that it was given."""

from functools import partial
from typing import NamedTuple

from penstock.core.access import Action
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call, stored
from penstock.gateways.grpc.groups import no_partition
from penstock.gateways.grpc.leasing import lease_ms_of
from penstock.types import GroupId, TopicName
from penstock.wire.mq.mq_generated import (
    AckRequest,
    AckResponse,
    ExtendRequest,
    ExtendResponse,
    NackRequest,
    NackResponse,
)


class _Names(NamedTuple):
    topic: TopicName
    group: GroupId
    owner: str


def _names(request: AckRequest | NackRequest | ExtendRequest, call: Call) -> _Names:
    topic = call.topic(request.topic, Action.READ)
    group = call.group(request.consumer_group, Action.READ)
    if not request.consumer_id:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "consumer_id is empty: use the id of the subscription, which is in its initial metadata",
        )
    if not 0 <= request.partition < topic.partition_count:
        raise no_partition(topic.name, request.partition, topic.partition_count)
    return _Names(topic.name, GroupId(group), request.consumer_id)


def _offsets(request: AckRequest | NackRequest) -> list[int]:
    if not request.offsets:
        raise PenstockError(Reason.INVALID_REQUEST, "offsets is empty: specify the records")
    return list(dict.fromkeys(request.offsets))


async def ack(request: AckRequest, call: Call) -> AckResponse:
    """All of them or, when one is not this consumer's, none."""
    names, partition, offsets = _names(request, call), request.partition, _offsets(request)
    queues, caller = call.broker.queues, call.caller
    if request.cumulative:
        if len(offsets) > 1:
            raise PenstockError(
                Reason.INVALID_REQUEST, "a cumulative ack has exactly one offset: the last record to ack"
            )
        await stored(partial(queues.ack_cumulative, caller, *names, partition, offsets[0]))
    else:
        await stored(partial(queues.ack, caller, *names, partition, offsets))
    return AckResponse(success=True)


async def nack(request: NackRequest, call: Call) -> NackResponse:
    """They are delivered again, later, or go to the dead letters."""
    names, partition, offsets = _names(request, call), request.partition, _offsets(request)
    await stored(partial(call.broker.queues.nack, call.caller, *names, partition, offsets, request.reason))
    return NackResponse(success=True)


async def extend(request: ExtendRequest, call: Call) -> ExtendResponse:
    """The record stays this consumer's."""
    names, lease_ms = _names(request, call), lease_ms_of(call, request.lease_ms)
    await stored(partial(call.broker.queues.extend, call.caller, *names, request.partition, request.offset, lease_ms))
    return ExtendResponse(success=True)
