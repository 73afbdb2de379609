"""IncrementalAlterConfigs (API key 44): set, delete, append to and subtract from configs of topics, brokers and groups. Version 1 is flexible."""

from penstock.gateways.kafka.config_resources import Names, change_each
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.configs import AlterConfigs, ConfigEdit
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.incremental_alter_configs_generated import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
async def handle(request: IncrementalAlterConfigsRequest, context: RequestContext) -> IncrementalAlterConfigsResponse:
    """Each resource by itself: all its changes are made, or none."""

    def operation(asked: IncrementalAlterConfigsRequestResource, names: Names) -> AlterConfigs:
        edits = tuple(ConfigEdit(config.name, config.config_operation, config.value) for config in asked.configs)
        return AlterConfigs(edits, validate_only=request.validate_only, **names)

    refusals = await change_each(request.resources, operation, context)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseResource(
                context.code(refusal),
                None if refusal is None else refusal.text,
                asked.resource_type,
                asked.resource_name,
            )
            for asked, refusal in zip(request.resources, refusals, strict=True)
        ]
    )
