"""OffsetCommit (API key 8): where a group continues to read.

Versions 2 to 4 carry how long to keep the offsets, 6 adds the leader epoch, 7 the instance id of a static member, 8 is
flexible, 9 is for groups of the newer protocol, 10 names topics by id.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from penstock.core.groups.requests import CommitRequest, OffsetToCommit, PartitionKey
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.answers import answer_later, answered
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.operation import Action
from penstock.types import GroupId, MemberId, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

PARTITIONS_A_PIECE: Final = 5000
"""Committed together: some milliseconds of the event loop."""

_Named = list[tuple[OffsetCommitRequestTopic, TopicName | Reason]]
"""Each topic with its name, or why nothing is committed for it."""


@handles(ApiKey.OFFSET_COMMIT, versions=(2, 10))
def handle(request: OffsetCommitRequest, context: RequestContext) -> Awaitable[OffsetCommitResponse]:
    """Answered once the offsets are durable."""
    if sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_A_PIECE:
        return _commit_much(request, context)
    return _commit(request, context)


async def _commit_much(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    """One piece after the other. Each offset has its own answer, so a group that goes on to its next generation in between is told so."""
    topics: list[OffsetCommitResponseTopic] = []
    for piece in _pieces(request.topics):
        topics += (await _commit(replace(request, topics=piece), context)).topics
        await asyncio.sleep(0)
    return OffsetCommitResponse(topics=topics)


def _pieces(topics: Iterable[OffsetCommitRequestTopic]) -> Iterator[list[OffsetCommitRequestTopic]]:
    piece: list[OffsetCommitRequestTopic] = []
    room = PARTITIONS_A_PIECE
    for topic in topics:
        partitions = topic.partitions
        while partitions:
            piece.append(replace(topic, partitions=partitions[:room]))
            partitions, room = partitions[room:], room - len(partitions[:room])
            if not room:
                yield piece
                piece, room = [], PARTITIONS_A_PIECE
    if piece:
        yield piece


def _commit(request: OffsetCommitRequest, context: RequestContext) -> Future[OffsetCommitResponse]:
    try:
        context.require_group(Action.READ, request.group_id)
    except PenstockError as error:
        return answered(_response(context, [(topic, error.reason) for topic in request.topics], {}))
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
            if not isinstance(name, Reason)
            for partition in topic.partitions
        ),
    )
    return answer_later(partial(context.broker.groups.commit_offsets, commit), partial(_response, context, named))


def _name(topic: OffsetCommitRequestTopic, context: RequestContext) -> TopicName | Reason:
    name = TopicName(topic.name)
    if context.version >= 10:
        found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
        if found is None:
            return Reason.UNKNOWN_TOPIC_ID
        name = found.name
    try:
        context.require_topic(Action.READ, name)
    except PenstockError as error:
        return error.reason
    return name


def _response(
    context: RequestContext, named: _Named, answers: Mapping[PartitionKey, Reason | None]
) -> OffsetCommitResponse:
    topics = []
    for topic, name in named:
        partitions = []
        for partition in topic.partitions:
            index = partition.partition_index
            reason = name if isinstance(name, Reason) else answers[PartitionKey(name, index)]
            partitions.append(OffsetCommitResponsePartition(index, context.code(reason)))
        topics.append(OffsetCommitResponseTopic(topic_id=topic.topic_id, name=topic.name, partitions=partitions))
    return OffsetCommitResponse(topics=topics)
