"""DescribeClientQuotas (API key 48). Version 1 is flexible."""

from collections.abc import Mapping
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.quotas import DescribeQuotas, Match, PartFilter
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_client_quotas_generated import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntity,
    DescribeClientQuotasResponseEntry,
    DescribeClientQuotasResponseValue,
)

_MATCHES: Final[Mapping[int, Match]] = {0: Match.EXACT, 1: Match.DEFAULT, 2: Match.ANY}


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions=(0, 1))
def handle(request: DescribeClientQuotasRequest, context: RequestContext) -> DescribeClientQuotasResponse:
    """The quotas of all entities that match."""
    try:
        context.check(DescribeQuotas())
        parts = tuple(_part(component) for component in request.components)
        found = context.answer(DescribeQuotas(parts, request.strict))
    except PenstockError as error:
        return DescribeClientQuotasResponse(error_code=context.code(error), error_message=error.text, entries=None)
    entries = [
        DescribeClientQuotasResponseEntry(
            [DescribeClientQuotasResponseEntity(part.kind, part.name) for part in each.entity],
            [DescribeClientQuotasResponseValue(key, value) for key, value in sorted(each.quotas.items())],
        )
        for each in found
    ]
    return DescribeClientQuotasResponse(error_message=None, entries=entries)


def _part(component: DescribeClientQuotasRequestComponent) -> PartFilter:
    match = _MATCHES.get(component.match_type)
    if match is None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"There is no match type {component.match_type}. Use 0 for a name, 1 for the default, 2 for any.",
        )
    if match is not Match.EXACT and component.match is not None:
        raise PenstockError(Reason.INVALID_REQUEST, "A part of the filter has a name, but does not match exactly")
    return PartFilter(component.entity_type, match, component.match)
