"""CreatePartitions (API key 37): add partitions to topics. Version 2 is flexible; 3 can be refused because of a quota."""

from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.topics import AddPartitions
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_partitions_generated import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseResult,
)

_QUOTA_FROM: Final = 3


@handles(ApiKey.CREATE_PARTITIONS, versions=(0, 3))
async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    """Each topic by itself."""
    by_name: dict[str, list[CreatePartitionsRequestTopic]] = {}
    for topic in request.topics:
        by_name.setdefault(topic.name, []).append(topic)
    results = await at_a_time(
        list(by_name.values()), lambda asked: _grow(asked, context, validate_only=request.validate_only)
    )
    context.throttle_mutations()
    return CreatePartitionsResponse(results=results)


async def _grow(
    asked: list[CreatePartitionsRequestTopic], context: RequestContext, *, validate_only: bool
) -> CreatePartitionsResponseResult:
    topic = asked[0]
    try:
        context.check(AddPartitions(topic.name, topic.count))
        if len(asked) > 1:
            raise PenstockError(Reason.INVALID_REQUEST, "The topic is listed twice in the request. List it once.")
        assignments = None if topic.assignments is None else tuple(tuple(one.broker_ids) for one in topic.assignments)
        over_quota = context.version < _QUOTA_FROM
        await context.do(AddPartitions(topic.name, topic.count, assignments, validate_only, over_quota))
    except PenstockError as error:
        return CreatePartitionsResponseResult(topic.name, context.code(error), error.text)
    return CreatePartitionsResponseResult(topic.name)
