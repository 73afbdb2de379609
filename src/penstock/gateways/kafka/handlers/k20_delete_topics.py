"""DeleteTopics (API key 20). Version 5 adds an error text and can be refused because of a quota; 6 accepts ids as well as names."""

from typing import Final
from uuid import UUID

from penstock.core.topics.names import check_topic_name
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.operation import Action, Resource
from penstock.operations.topics import DeleteTopic
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_topics_generated import (
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from penstock.wire.kafka.primitives import UUID_ZERO

_QUOTA_FROM: Final = 5
_IDS_FROM: Final = 6


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6))
async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Each topic by itself; one that is named twice is deleted once, and its second answer is an error."""
    asked = request.topics
    if context.version < _IDS_FROM:
        asked = [DeleteTopicsRequestTopic(name) for name in request.topic_names]
    responses = await at_a_time(asked, lambda topic: _delete(topic, context))
    context.throttle_mutations()
    return DeleteTopicsResponse(responses=responses)


async def _delete(asked: DeleteTopicsRequestTopic, context: RequestContext) -> DeleteTopicsResponseTopic:
    topics = context.broker.topics
    name, topic_id = asked.name, asked.topic_id
    found: Topic | None = None
    try:
        if (name is None) == (topic_id == UUID_ZERO):
            raise PenstockError(Reason.INVALID_REQUEST, "Request the topic either by its name or by its id")
        found = topics.require_id(UUID(bytes=topic_id)) if name is None else topics.get(name)
        deleted = await _delete_named(name or "" if found is None else found.name, context)
    except PenstockError as error:
        text = error.text
        if name is None and error.reason is Reason.TOPIC_AUTHORIZATION_FAILED and found is not None:
            # Only a client that may describe the topic gets its name.
            name = found.name if context.may(Action.DESCRIBE, Resource.TOPIC, found.name) else None
            text = text if name else error.reason.value
        return DeleteTopicsResponseTopic(name, topic_id, context.code(error), text)
    return DeleteTopicsResponseTopic(deleted, topic_id if found is None else found.topic_id.bytes)


async def _delete_named(name: str, context: RequestContext) -> str:
    try:
        return await context.do(DeleteTopic(name, over_quota=context.version < _QUOTA_FROM))
    except PenstockError as error:
        if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
            check_topic_name(name)
        raise
