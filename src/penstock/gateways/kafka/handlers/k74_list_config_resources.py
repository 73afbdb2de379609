"""ListConfigResources (API key 74): the resources that have configs. Version 0 lists only client metrics, of which there are none; 1 the requested types."""

from collections.abc import Iterable
from typing import Final

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.config_resources import ResourceType
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import nodes_of
from penstock.operations.configs import ConfiguredResources, ListConfiguredResources
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.list_config_resources_generated import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseConfigResource,
)

_TYPES_FROM: Final = 1


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
def handle(request: ListConfigResourcesRequest, context: RequestContext) -> ListConfigResourcesResponse:
    """A request without types is for all of them."""
    kinds = {ResourceType.CLIENT_METRICS} if context.version < _TYPES_FROM else set(request.resource_types)
    try:
        found = context.answer(ListConfiguredResources())
        if not kinds <= set(ResourceType):
            raise PenstockError(Reason.UNSUPPORTED_VERSION)
    except PenstockError as error:
        return ListConfigResourcesResponse(error_code=context.code(error))
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponseConfigResource(name, kind)
            for kind in sorted(kinds) or ResourceType
            for name in _names(kind, found, context)
        ]
    )


def _names(kind: int, found: ConfiguredResources, context: RequestContext) -> Iterable[str]:
    if kind == ResourceType.TOPIC:
        return found.topics
    if kind == ResourceType.GROUP:
        return found.groups
    return [str(node.node_id) for node in nodes_of(context)] if kind == ResourceType.BROKER else ()
