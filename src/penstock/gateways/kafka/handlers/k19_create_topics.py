"""CreateTopics (API key 19).

Version 4 accepts -1 for the broker's default numbers; 5 returns the numbers and configs of the topic to clients that may describe its
configs; 6 can be refused because of a quota; 7 returns the id of the topic.
"""

from typing import Final

from penstock.core.topics.config import describe_topic_configs
from penstock.core.topics.topics import UNSET
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.config_resources import SOURCES
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.operation import Action, Resource
from penstock.operations.topics import CreateTopic
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_topics_generated import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
)

_QUOTA_FROM: Final = 6


@handles(ApiKey.CREATE_TOPICS, versions=(2, 7))
async def handle(request: CreateTopicsRequest, context: RequestContext) -> CreateTopicsResponse:
    """Each topic by itself, many at once: together they cost one commit of the metadata store."""
    by_name: dict[str, list[CreateTopicsRequestTopic]] = {}
    for topic in request.topics:
        by_name.setdefault(topic.name, []).append(topic)
    topics = await at_a_time(
        list(by_name.values()), lambda asked: _create(asked, context, validate_only=request.validate_only)
    )
    context.throttle_mutations()
    return CreateTopicsResponse(topics=topics)


async def _create(
    asked: list[CreateTopicsRequestTopic], context: RequestContext, *, validate_only: bool
) -> CreateTopicsResponseTopic:
    name = asked[0].name
    try:
        context.check(CreateTopic(name))
        if len(asked) > 1:
            raise PenstockError(Reason.INVALID_REQUEST, "The topic is listed twice in the request. List it once.")
        topic = await context.do(_operation(asked[0], context, validate_only=validate_only))
    except PenstockError as error:
        return CreateTopicsResponseTopic(name=name, error_code=context.code(error), error_message=error.text)
    if not context.may(Action.DESCRIBE_CONFIGS, Resource.TOPIC, name):
        return CreateTopicsResponseTopic(
            name=name,
            topic_id=topic.topic_id.bytes,
            error_message=None,
            topic_config_error_code=context.code(Reason.TOPIC_AUTHORIZATION_FAILED),
            num_partitions=UNSET,
            replication_factor=UNSET,
            configs=None,
        )
    configs = [
        CreateTopicsResponseConfig(value.name, value.value, value.read_only, SOURCES[value.source])
        for value in describe_topic_configs(topic.configs, context.broker.configs.topic_layers())
    ]
    return CreateTopicsResponseTopic(
        name=name,
        topic_id=topic.topic_id.bytes,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=topic.replication_factor,
        configs=configs,
    )


def _operation(asked: CreateTopicsRequestTopic, context: RequestContext, *, validate_only: bool) -> CreateTopic:
    assignments = {assignment.partition_index: tuple(assignment.broker_ids) for assignment in asked.assignments}
    if len(assignments) < len(asked.assignments):
        raise PenstockError(Reason.INVALID_REPLICA_ASSIGNMENT, "A partition is assigned twice. Assign each one once.")
    configs = {config.name: config.value for config in asked.configs}
    if len(configs) < len(asked.configs):
        raise PenstockError(Reason.INVALID_CONFIG, "A config is listed twice in the request. List each one once.")
    return CreateTopic(
        asked.name,
        None if asked.num_partitions == UNSET else asked.num_partitions,
        None if asked.replication_factor == UNSET else asked.replication_factor,
        configs,
        assignments=assignments,
        must_be_new=True,
        validate_only=validate_only,
        over_quota=context.version < _QUOTA_FROM,
    )
