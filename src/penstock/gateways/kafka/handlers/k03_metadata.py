"""Metadata (API key 3): the brokers, the topics and the partitions.

Version 0 requests all topics by an empty list, later ones by null; 4 lets a client forbid the creation of topics;
8 adds the allowed operations (those of the cluster up to 10); 10 adds topic ids, and 12 can request a topic by its id,
when its name may be null; 13 has an error for the whole request.

The answer has a topic that was created by the request, with its leader, so the next request can use it.
"""

from typing import Final
from uuid import UUID

from penstock.core.topics.records import NO_LEADER
from penstock.core.topics.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import OPERATIONS_NOT_REQUESTED, RequestContext
from penstock.gateways.kafka.errors import CODES
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.nodes import controller_of, leader_of, nodes_of, offline_of, topics_from
from penstock.gateways.kafka.portions import at_a_time
from penstock.operations.topics import CreateTopic, FindTopic
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.kafka.primitives import UUID_ZERO

_NULL_NAME_FROM: Final = 12
LEADER_NOT_AVAILABLE: Final = CODES[Reason.LEADER_NOT_AVAILABLE]


@handles(ApiKey.METADATA, versions=(0, 13))
async def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Each topic by itself: an error of one does not affect the others."""
    broker = context.broker
    asked = request.topics
    if asked is None or (context.version == 0 and not asked):
        topics = [_found(topic, request, context) async for topic in topics_from("", context)]
    else:
        wanted = {(topic.name, topic.topic_id): topic for topic in asked}
        topics = await at_a_time(list(wanted.values()), lambda topic: _topic(topic, request, context))
    operations = (
        context.cluster_operations() if request.include_cluster_authorized_operations else OPERATIONS_NOT_REQUESTED
    )
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node.node_id, node.address.host, node.address.port, node.rack)
            for node in nodes_of(context)
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_of(context),
        topics=topics,
        cluster_authorized_operations=operations,
    )


async def _topic(
    asked: MetadataRequestTopic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    try:
        return _found(await _find(asked, request, context), request, context)
    except PenstockError as error:
        name = asked.name
        if name is None and context.version < _NULL_NAME_FROM:
            name = ""
        return MetadataResponseTopic(error_code=context.code(error), name=name, topic_id=asked.topic_id)


async def _find(asked: MetadataRequestTopic, request: MetadataRequest, context: RequestContext) -> Topic:
    broker = context.broker
    if asked.topic_id != UUID_ZERO:
        topic = broker.topics.require_id(UUID(bytes=asked.topic_id))
        context.answer(FindTopic(topic.name))
        return topic
    if asked.name is None:
        raise PenstockError(Reason.INVALID_REQUEST, "Request a topic either by its name or by its id")
    try:
        context.answer(FindTopic(asked.name))
    except PenstockError as error:
        if error.reason not in (Reason.UNKNOWN_TOPIC_OR_PARTITION, Reason.INVALID_TOPIC):
            raise
        if request.allow_auto_topic_creation and broker.settings.topics.auto_create:
            # Another client may be creating it at this moment, which is fine.
            await context.do(CreateTopic(asked.name))
        else:
            # Another node may have created it just before: look in the store, so that clients need not try again.
            await broker.do(FindTopic(asked.name), context.caller)
    return broker.topics.require(asked.name)


def _found(topic: Topic, request: MetadataRequest, context: RequestContext) -> MetadataResponseTopic:
    partitions = []
    for index, record in enumerate(context.broker.topics.partitions(topic)):
        leader = leader_of(context, record)
        code = LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0
        replicas, in_sync = list(record.replicas), list(record.in_sync)
        offline = offline_of(context, record.replicas)
        partitions.append(
            MetadataResponsePartition(code, index, leader, record.leader_epoch, replicas, in_sync, offline)
        )
    operations = OPERATIONS_NOT_REQUESTED
    if request.include_topic_authorized_operations:
        operations = context.topic_operations(topic.name)
    return MetadataResponseTopic(0, topic.name, topic.topic_id.bytes, topic.internal, partitions, operations)
