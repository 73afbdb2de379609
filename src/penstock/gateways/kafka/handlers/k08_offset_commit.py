"""OffsetCommit (API key 8): commit the offsets of a group.

Versions 2 to 4 carry how long to retain the offsets, 6 adds the leader epoch, 7 the instance id of a static member, 8 is
flexible, 9 is for groups of the newer protocol, 10 names topics by id.
"""

from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import repeat
from typing import Final
from uuid import UUID

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import CommitOffsets, OffsetToCommit
from penstock.types import GroupId, MemberId, PartitionKey, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

PARTITIONS_A_PIECE: Final = 5000
"""The number of offsets that are committed together, which takes some milliseconds of the event loop."""


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10))
def handle(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Answered once the offsets are durable. If there are very many, the group's generation may end in between."""
    names = [_name(topic, context) for topic in request.topics]
    offsets = [
        OffsetToCommit(
            PartitionKey(name, partition.partition_index),
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
        )
        for topic, name in zip(request.topics, names, strict=True)
        if name is not None
        for partition in topic.partitions
    ]

    def commit(piece: tuple[OffsetToCommit, ...]) -> CommitOffsets:
        return CommitOffsets(
            GroupId(request.group_id),
            piece,
            MemberId(request.member_id),
            request.generation_id_or_member_epoch,
            request.group_instance_id,
            request.retention_time_ms,
        )

    return context.each(offsets, commit, partial(_response, context, request.topics, names), PARTITIONS_A_PIECE)


def _name(topic: OffsetCommitRequestTopic, context: RequestContext) -> TopicName | None:
    if context.version < 10:
        return TopicName(topic.name)
    found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
    return None if found is None else found.name


def _response(
    context: RequestContext,
    topics: list[OffsetCommitRequestTopic],
    names: list[TopicName | None],
    found: Sequence[Reason | None] | PenstockError,
) -> OffsetCommitResponse:
    """A refusal of the whole request is repeated for each partition, because the response has no place for it."""
    results = repeat(found) if isinstance(found, PenstockError) else iter(found)
    unknown = repeat(Reason.UNKNOWN_TOPIC_ID)
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic_id=topic.topic_id,
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition.partition_index, context.code(next(unknown if name is None else results))
                    )
                    for partition in topic.partitions
                ],
            )
            for topic, name in zip(topics, names, strict=True)
        ]
    )
