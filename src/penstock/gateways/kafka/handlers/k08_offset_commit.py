"""OffsetCommit (API key 8): where a group goes on reading.

Versions 2 to 4 carry how long to keep the offsets, 6 adds the leader epoch, 7 the instance id of a static member, 8 is
flexible, 9 is for groups of the newer protocol, 10 names topics by id.
"""

from asyncio import Future
from collections.abc import Mapping
from functools import partial
from typing import Final
from uuid import UUID

from penstock.core.groups.requests import CommitRequest, OffsetToCommit, PartitionKey
from penstock.errors import Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import code_for
from penstock.gateways.kafka.waiting import answer_later
from penstock.types import GroupId, MemberId, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

KEY: Final = ApiKey.OFFSET_COMMIT

_Named = list[tuple[OffsetCommitRequestTopic, TopicName | None]]


def handle(request: OffsetCommitRequest, context: RequestContext) -> Future[OffsetCommitResponse]:
    """Answered once the offsets are durable."""
    named: _Named = [(topic, _name(topic, context)) for topic in request.topics]
    commit = CommitRequest(
        group_id=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms,
        offsets=tuple(
            OffsetToCommit(
                key=PartitionKey(name, partition.partition_index),
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
            )
            for topic, name in named
            if name is not None
            for partition in topic.partitions
        ),
    )
    return answer_later(partial(context.broker.groups.commit_offsets, commit), partial(_response, named))


def _name(topic: OffsetCommitRequestTopic, context: RequestContext) -> TopicName | None:
    if context.version < 10:
        return TopicName(topic.name)
    found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
    return None if found is None else found.name


def _response(named: _Named, answers: Mapping[PartitionKey, Reason | None]) -> OffsetCommitResponse:
    topics = []
    for topic, name in named:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            reason = Reason.UNKNOWN_TOPIC_ID if name is None else answers[PartitionKey(name, index)]
            partitions.append(OffsetCommitResponsePartition(index, code_for(reason)))
        topics.append(OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=partitions))
    return OffsetCommitResponse(topics=topics)
