"""DeleteTopics (API key 20). Version 5 says why one was refused; 6 takes ids as well as names."""

from typing import Final
from uuid import UUID

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.operation import Action
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_topics_generated import (
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from penstock.wire.kafka.primitives import UUID_ZERO

_IDS_FROM: Final = 6


@handles(ApiKey.DELETE_TOPICS, versions=(1, 6))
async def handle(request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
    """Each topic by itself; one that is named twice is deleted once, and its second answer says that it is gone."""
    asked = request.topics
    if context.version < _IDS_FROM:
        asked = [DeleteTopicsRequestTopic(name) for name in request.topic_names]
    return DeleteTopicsResponse(responses=await at_a_time(asked, lambda topic: _delete(topic, context)))


async def _delete(asked: DeleteTopicsRequestTopic, context: RequestContext) -> DeleteTopicsResponseTopic:
    topics = context.broker.topics
    name, topic_id = asked.name, asked.topic_id
    try:
        if (name is None) == (topic_id == UUID_ZERO):
            raise PenstockError(Reason.INVALID_REQUEST, "Name a topic either by its name or by its id.")
        if name is not None:
            context.require_topic(Action.DELETE, name)
        found = topics.require_id(UUID(bytes=topic_id)) if name is None else topics.require_named(name)
        if name is None:
            context.require_topic(Action.DELETE, found.name)
        name, topic_id = found.name, found.topic_id.bytes
        await topics.delete(name)
    except PenstockError as error:
        return DeleteTopicsResponseTopic(name, topic_id, context.code(error), error.text)
    return DeleteTopicsResponseTopic(name, topic_id)
