"""DescribeConfigs (API key 32): all configs of topics, groups and this broker, with their values and sources.

Version 0 has whether a value is the default; 1 the source instead, and the synonyms; 3 the type and, on request, the documentation.
Before version 4 a text is limited to 32,767 bytes: a longer list has the value null.
"""

from collections.abc import Awaitable
from typing import Final

from penstock.core.groups.configs import describe_group_configs
from penstock.core.topics.config import ConfigValue, describe_topic_configs
from penstock.core.topics.config_table import ConfigSource
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.broker_configs import describe_all_brokers, describe_broker_configs
from penstock.gateways.kafka.config_resources import (
    KINDS,
    SOURCES,
    ResourceType,
    check_broker_name,
    refuse_resource,
    values_of,
)
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import respond
from penstock.limits import DESCRIBED_RESOURCES_MAX
from penstock.operations.configs import ALL_NODES, DescribeConfigs
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_configs_generated import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeConfigsResponseSynonym,
)

_LONG_TEXTS_FROM: Final = 4
_SHORT_TEXT_BYTES_MAX: Final = 2**15 - 1


@handles(ApiKey.DESCRIBE_CONFIGS, versions=(0, 4))
def handle(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    """Each resource by itself, up to a bound."""
    count = len(request.resources)
    too_many = f"{count} resources are too many for one request; request at most {DESCRIBED_RESOURCES_MAX} at a time."

    def describe(at: int) -> DescribeConfigsResponseResult:
        asked = request.resources[at]
        result = DescribeConfigsResponseResult(0, None, asked.resource_type, asked.resource_name)
        if at >= DESCRIBED_RESOURCES_MAX:
            result.error_code, result.error_message = context.code(Reason.INVALID_REQUEST), too_many
            return result
        try:
            values = values_of(_values(asked, context), asked.configuration_keys)
        except PenstockError as error:
            result.error_code, result.error_message = context.code(error), error.text
        else:
            result.configs = [_config(value, request, context.version) for value in values]
        return result

    return respond(range(count), describe, lambda found: DescribeConfigsResponse(results=found))


def _values(asked: DescribeConfigsRequestResource, context: RequestContext) -> list[ConfigValue]:
    kind, name = asked.resource_type, asked.resource_name
    if kind == ResourceType.TOPIC:
        return describe_topic_configs(
            context.answer(DescribeConfigs(topic=name)), context.broker.configs.topic_layers()
        )
    if kind == ResourceType.GROUP:
        return describe_group_configs(context.answer(DescribeConfigs(group=name)))
    of_all = context.answer(DescribeConfigs(node=ALL_NODES))
    if kind != ResourceType.BROKER:
        raise refuse_resource(kind)
    if not name:
        return describe_all_brokers(of_all)
    check_broker_name(name, context)
    return describe_broker_configs(context, context.answer(DescribeConfigs(node=name)), of_all)


def _config(value: ConfigValue, request: DescribeConfigsRequest, version: int) -> DescribeConfigsResponseConfig:
    synonyms: list[DescribeConfigsResponseSynonym] = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsResponseSynonym(one.name, _as_text(one.value, version), SOURCES[one.source])
            for one in value.synonyms
        ]
    return DescribeConfigsResponseConfig(
        name=value.name,
        value=_as_text(value.value, version),
        read_only=value.read_only,
        config_source=SOURCES[value.source],
        is_default=value.source is ConfigSource.DEFAULT,
        synonyms=synonyms,
        config_type=KINDS[value.kind],
        documentation=value.documentation if request.include_documentation else None,
    )


def _as_text(value: str, version: int) -> str | None:
    if version >= _LONG_TEXTS_FROM or len(value.encode()) <= _SHORT_TEXT_BYTES_MAX:
        return value
    return None
