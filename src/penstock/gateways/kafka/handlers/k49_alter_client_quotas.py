"""AlterClientQuotas (API key 49). Version 1 is flexible."""

from collections import Counter

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.quotas import AlterQuotas, EntityPart, QuotaEntity
from penstock.wire.kafka.alter_client_quotas_generated import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntity,
    AlterClientQuotasResponseEntry,
)
from penstock.wire.kafka.apis import ApiKey


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions=(0, 1))
async def handle(request: AlterClientQuotasRequest, context: RequestContext) -> AlterClientQuotasResponse:
    """Each entity by itself: all its changes are made, or none."""
    counts = Counter(_entity(entry) for entry in request.entries)

    async def alter(entry: AlterClientQuotasRequestEntry) -> AlterClientQuotasResponseEntry:
        entity = _entity(entry)
        response = AlterClientQuotasResponseEntry(
            error_message=None,
            entity=[AlterClientQuotasResponseEntity(part.kind, part.name) for part in _parts(entry)],
        )
        try:
            context.check(AlterQuotas(entity, {}))
            if counts[entity] > 1:
                raise PenstockError(Reason.INVALID_REQUEST, "The entity is listed twice in the request. List it once.")
            changes = {op.key: None if op.remove else op.value for op in entry.ops}
            if len(changes) < len(entry.ops):
                raise PenstockError(Reason.INVALID_REQUEST, "A quota is listed twice in the request. List it once.")
            await context.do(AlterQuotas(entity, changes, request.validate_only))
        except PenstockError as error:
            response.error_code, response.error_message = context.code(error), error.text
        return response

    return AlterClientQuotasResponse(entries=await at_a_time(request.entries, alter))


def _parts(entry: AlterClientQuotasRequestEntry) -> list[EntityPart]:
    """The parts of an entity, in the order in which they were sent."""
    return [EntityPart(part.entity_type, part.entity_name) for part in entry.entity]


def _entity(entry: AlterClientQuotasRequestEntry) -> QuotaEntity:
    """The same in one order, so that entities can be compared."""
    return tuple(sorted(_parts(entry), key=lambda part: (part.kind, part.name is None, part.name or "")))
