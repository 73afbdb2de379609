"""IncrementalAlterConfigs (API key 44): set, delete, append to and subtract from configs of topics, brokers and groups. Version 1 is flexible."""

from collections.abc import Mapping
from typing import Final

from penstock.core.topics.config import ChangeKind, ConfigChange
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
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.incremental_alter_configs_generated import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)

_CHANGES: Final[Mapping[int, ChangeKind]] = {
    0: ChangeKind.SET,
    1: ChangeKind.DELETE,
    2: ChangeKind.APPEND,
    3: ChangeKind.SUBTRACT,
}


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Each resource by itself: all its changes are made, or none."""
    twice = named_twice((asked.resource_type, asked.resource_name) for asked in request.resources)

    async def alter(asked: IncrementalAlterConfigsRequestResource) -> IncrementalAlterConfigsResponseResource:
        answer = IncrementalAlterConfigsResponseResource(0, None, asked.resource_type, asked.resource_name)
        try:
            if (asked.resource_type, asked.resource_name) in twice:
                raise refuse_twice(asked.resource_name)
            await _alter(asked, context, validate_only=request.validate_only)
        except PenstockError as error:
            answer.error_code, answer.error_message = context.code(error), error.text
        return answer

    return IncrementalAlterConfigsResponse(responses=await at_a_time(request.resources, alter))


async def _alter(
    asked: IncrementalAlterConfigsRequestResource, context: RequestContext, *, validate_only: bool
) -> None:
    if asked.resource_type == ResourceType.TOPIC:
        check_topic_alterable(asked.resource_name, context)
        changes = [_change(config) for config in asked.configs]
        await context.broker.topics.alter(asked.resource_name, changes, validate_only=validate_only)
    else:
        resource = alterable(asked.resource_type, asked.resource_name, context)
        changes = [_change(config) for config in asked.configs]
        await context.broker.configs.alter(resource, changes, validate_only=validate_only)


def _change(asked: IncrementalAlterConfigsRequestConfig) -> ConfigChange:
    kind = _CHANGES.get(asked.config_operation)
    if kind is None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            f"There is no operation {asked.config_operation}. Use 0 to set, 1 to delete, 2 to append, 3 to subtract.",
        )
    return ConfigChange(asked.name, kind, asked.value)
