"""AlterConfigs (API key 33): replace all configs of a topic, broker or group; the others return to their defaults.

Clients should prefer IncrementalAlterConfigs. Version 2 is flexible; nothing else changed.
"""

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.config_resources import Names, change_each
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.configs import ReplaceConfigs
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

    def operation(asked: AlterConfigsRequestResource, names: Names) -> ReplaceConfigs:
        configs = {config.name: config.value for config in asked.configs}
        if len(configs) < len(asked.configs):
            raise PenstockError(Reason.INVALID_REQUEST, "A config is listed twice in the request. List each one once.")
        return ReplaceConfigs(configs, validate_only=request.validate_only, **names)

    refusals = await change_each(request.resources, operation, context)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponseResource(
                context.code(refusal),
                None if refusal is None else refusal.text,
                asked.resource_type,
                asked.resource_name,
            )
            for asked, refusal in zip(request.resources, refusals, strict=True)
        ]
    )
