"""Quotas under ``/v1``: list them, and change those of one entity."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall, body_of
from penstock.gateways.http.v1.models import NoFields, StrictRequest
from penstock.gateways.http.v1.requests import read, refuse
from penstock.operations.quotas import AlterQuotas, DescribeQuotas, EntityPart, EntityQuotas

CALLS: Final = ApiCalls("v1: quotas")


class QuotaPart(StrictRequest, frozen=True):
    """One part of what a quota applies to."""

    kind: Annotated[str, Meta(description="user, client-id or ip")]
    name: Annotated[str, Meta(description="its name; null: all that have no quota of their own")] | None = None


class ChangeQuotasRequest(StrictRequest, frozen=True):
    """PUT /v1/quotas."""

    entity: Annotated[
        list[QuotaPart], Meta(description="a user, a client-id, a user and a client-id, or an ip", max_length=3)
    ] = msgspec.field(default_factory=list)
    quotas: Annotated[
        dict[str, float | None],
        Meta(description="by name, for example producer_byte_rate; null removes the quota"),
    ] = msgspec.field(default_factory=dict)


class AllQuotas(msgspec.Struct, frozen=True):
    """GET /v1/quotas."""

    quotas: tuple[EntityQuotas, ...]


@CALLS.get("/v1/quotas", CallDoc("List all quotas", {200: AllQuotas}, errors=(400,)))
async def _list_quotas(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(AllQuotas(await call.do(DescribeQuotas())))


@CALLS.put(
    "/v1/quotas",
    CallDoc(
        "Change quotas of a user, a client id or an address",
        {204: None},
        errors=(400, 429),
        description="Only the quotas that are named change. All of them change, or none.",
        body=ChangeQuotasRequest,
    ),
)
async def _change_quotas(call: HttpCall) -> Answer:
    request = body_of(ChangeQuotasRequest, call)
    if not request.quotas:
        raise refuse("quotas is required: name what changes, for example producer_byte_rate")
    entity = tuple(EntityPart(part.kind, part.name) for part in request.entity)
    await call.do(AlterQuotas(entity, request.quotas))
    return NO_CONTENT
