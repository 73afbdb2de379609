"""What workers report about the records that they hold (ack, nack, extend), and ``/v1/lease``, for workers that poll.

ack, nack and extend name one record by ``offset``, or several of one partition by ``offsets``; they apply to all of them or to none.
They are answered once their effect is committed. All of them are hot calls.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import ClientDisconnect

from penstock.core.security.lanes import authorise_lane
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Done, HttpCall, refused
from penstock.gateways.http.server.streams import disconnected
from penstock.gateways.http.v1.models import (
    AckCumulativeRequest,
    AckRequest,
    ExtendRequest,
    LeasedRecords,
    LeaseRequest,
    NackRequest,
    RecordRequest,
    RecordsRequest,
    WorkerRequest,
)
from penstock.gateways.http.v1.records import consumed
from penstock.gateways.http.v1.requests import Names, names_of, parameters_of, read, refuse, require_topic
from penstock.operations.operation import Action
from penstock.operations.queues import Ack, AckUpTo, Delivery, Extend, Lease, Nack

CALLS: Final = ApiCalls("v1: queues")
OFFSETS_MAX: Final = 10_000
"""Records in one request: as many as a queue has in flight by default."""
LEASE_RECORDS_MAX: Final = 1_000
"""Records in one answer of /v1/lease, which is one body."""
WAIT_MS_MAX: Final = 60_000
"""The longest wait of /v1/lease: proxies between the broker and the client have timeouts, too."""

_BOTH_WAYS: Final = "The fields go in the query string or in a body."


def _doc(summary: str, model: type[WorkerRequest]) -> CallDoc:
    """The documentation of a call that settles or extends leases."""
    return CallDoc(
        summary,
        {204: None},
        errors=(400, 409),
        description=_BOTH_WAYS,
        parameters=parameters_of(model),
        body=model,
        body_required=False,
    )


@CALLS.hot("/v1/ack", _doc("Ack records that you hold", AckRequest))
def ack(call: HttpCall, done: Done) -> None:
    """POST /v1/ack."""
    request = read(AckRequest, call.query, call.body)
    names, partition, offsets = _records_of(call, request)
    call.gateway.broker.begin(Ack(*names, partition, offsets), call.caller, partial(_settled, call, done))


@CALLS.hot("/v1/nack", _doc("Nack records that failed", NackRequest))
def nack(call: HttpCall, done: Done) -> None:
    """POST /v1/nack."""
    request = read(NackRequest, call.query, call.body)
    names, partition, offsets = _records_of(call, request)
    reason = (request.reason or request.error or "").strip()
    call.gateway.broker.begin(Nack(*names, partition, offsets, reason), call.caller, partial(_settled, call, done))


@CALLS.hot(
    "/v1/ack-cumulative", _doc("Ack all records of a partition that you hold, up to this one", AckCumulativeRequest)
)
def ack_cumulative(call: HttpCall, done: Done) -> None:
    """POST /v1/ack-cumulative."""
    request = read(AckCumulativeRequest, call.query, call.body)
    names, partition, (offset,) = _records_of(call, request)
    call.gateway.broker.begin(AckUpTo(*names, partition, offset), call.caller, partial(_settled, call, done))


@CALLS.hot("/v1/extend", _doc("Renew a lease for lease_ms from now", ExtendRequest))
def extend(call: HttpCall, done: Done) -> None:
    """POST /v1/extend."""
    request = read(ExtendRequest, call.query, call.body)
    names, partition, offsets = _records_of(call, request)
    lease_ms = lease_ms_of(call, request.lease_ms)
    call.gateway.broker.begin(Extend(*names, partition, offsets, lease_ms), call.caller, partial(_settled, call, done))


async def _lease_through_asgi(call: HttpCall) -> Answer:
    assert call.request is not None
    answered: asyncio.Future[Answer] = call.gateway.loop.create_future()
    lease(call, lambda answer: None if answered.done() else answered.set_result(answer))
    if not answered.done():
        leaving: asyncio.Future[Any] = asyncio.ensure_future(disconnected(call.request.receive))
        try:
            await asyncio.wait((answered, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
        if not answered.done():
            if call.cancel is not None:
                call.cancel()
            raise ClientDisconnect
    return answered.result()


@CALLS.hot(
    "/v1/lease",
    CallDoc(
        "Lease some records, once",
        {200: LeasedRecords},
        errors=(400,),
        description=f"{_BOTH_WAYS} The leases do not depend on the connection.",
        parameters=parameters_of(LeaseRequest),
        body=LeaseRequest,
        body_required=False,
    ),
    asgi=_lease_through_asgi,
    is_large=True,
)
def lease(call: HttpCall, done: Done) -> None:
    """POST /v1/lease."""
    request = read(LeaseRequest, call.query, call.body)
    names = names_of(request)
    require_topic(call, names.topic, Action.READ)
    if not 1 <= request.max_records <= LEASE_RECORDS_MAX:
        raise refuse(f"max_records must be from 1 to {LEASE_RECORDS_MAX}")
    if request.wait_ms > WAIT_MS_MAX:
        raise refuse(f"wait_ms must be at most {WAIT_MS_MAX}; to wait longer, repeat the request")

    def leased(found: Sequence[Delivery] | PenstockError) -> None:
        try:
            call.require_current()
        except PenstockError as error:
            # The records that were leased meanwhile are not sent; their leases expire.
            found = error
        if isinstance(found, PenstockError):
            done(refused(call.gateway, call.path, found))
            return
        answer = json_answer(LeasedRecords([consumed(each, until=True) for each in found]))
        if found:
            call.gateway.broker.meters.gave_out(names.topic, call.caller.gateway, len(found), len(answer.body))
            if call.gateway.broker.quotas.is_on:
                call.gateway.broker.quotas.consumed(call.caller, len(answer.body))
        done(answer)

    if call.gateway.broker.quotas.is_on:
        call.gateway.broker.quotas.check_consume(call.caller)
    asked = Lease(*names, request.max_records, lease_ms_of(call, request.lease_ms), request.wait_ms)
    # Nothing must be leased to a client that has disconnected.
    call.cancel = call.gateway.broker.begin(asked, call.caller, leased)


def lease_ms_of(call: HttpCall, lease_ms: int) -> int:
    """The duration of a lease; the default is configured."""
    settings = call.gateway.broker.queues.settings
    if lease_ms > settings.lease_ms_max:
        raise refuse(f"invalid lease_ms: {settings.lease_ms_max} is the limit; extend the lease while you work")
    return lease_ms or settings.lease_ms


def _records_of(call: HttpCall, request: RecordRequest) -> tuple[Names, int, list[int]]:
    """The worker, and the partition and the offsets of its records."""
    names = names_of(request)
    partition, offset = request.partition, request.offset
    several = request.offsets if isinstance(request, RecordsRequest) else None
    if partition is None or (offset is None and not several):
        raise refuse("partition and offset are required")
    if several is not None:
        if offset is not None:
            raise refuse("specify offset or offsets, not both")
        if len(several) > OFFSETS_MAX:
            raise refuse(f"a request can have at most {OFFSETS_MAX} offsets; send the rest in another request")
        offsets = sorted(set(several))
    else:
        assert offset is not None
        offsets = [offset]
    if partition >= require_topic(call, names.topic, Action.READ).partition_count:
        authorise_lane(call.gateway.broker, call.caller, Action.READ, names.topic)
        raise refuse("partition out of range")
    return names, partition, offsets


def _settled(call: HttpCall, done: Done, error: PenstockError | None) -> None:
    done(NO_CONTENT if error is None else refused(call.gateway, call.path, error))
