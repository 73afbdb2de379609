"""AlterConfigs (API key 33): all configs of a topic, broker or group anew; what is not named goes back to its default.

Clients should prefer IncrementalAlterConfigs. Version 2 is flexible; nothing else changed.
"""

from penstock.core.topics.topics import without_nulls
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.config_resources import (
    ResourceType,
    alterable,
    check_topic_alterable,
    named_twice,
    refuse_twice,
)
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.wire.kafka.alter_configs_generated import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResponse,
    AlterConfigsResponseResource,
)
from penstock.wire.kafka.apis import ApiKey


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2))
async def handle(request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
    """Each resource by itself: all its changes are made, or none."""
    twice = named_twice((asked.resource_type, asked.resource_name) for asked in request.resources)

    async def alter(asked: AlterConfigsRequestResource) -> AlterConfigsResponseResource:
        answer = AlterConfigsResponseResource(0, None, asked.resource_type, asked.resource_name)
        try:
            if (asked.resource_type, asked.resource_name) in twice:
                raise refuse_twice(asked.resource_name)
            await _alter(asked, context, validate_only=request.validate_only)
        except PenstockError as error:
            answer.error_code, answer.error_message = context.code(error), error.text
        return answer

    return AlterConfigsResponse(responses=await at_a_time(request.resources, alter))


async def _alter(asked: AlterConfigsRequestResource, context: RequestContext, *, validate_only: bool) -> None:
    configs = {config.name: config.value for config in asked.configs}
    if len(configs) < len(asked.configs):
        raise PenstockError(Reason.INVALID_REQUEST, "A config is listed twice in the request. List each one once.")
    if asked.resource_type == ResourceType.TOPIC:
        check_topic_alterable(asked.resource_name, context)
        await context.broker.topics.replace_configs(asked.resource_name, configs, validate_only=validate_only)
    else:
        resource = alterable(asked.resource_type, asked.resource_name, context)
        await context.broker.configs.replace(resource, without_nulls(configs), validate_only=validate_only)
