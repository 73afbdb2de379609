"""OffsetCommit (API key 8): where a group continues to read.

Versions 2 to 4 carry how long to keep the offsets, 6 adds the leader epoch, 7 the instance id of a static member, 8 is
flexible, 9 is for groups of the newer protocol, 10 names topics by id.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.groups import CommitOffsets, OffsetToCommit, PartitionKey
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
    names = [_name(topic, context) for topic in request.topics]
    commit = CommitOffsets(
        group=GroupId(request.group_id),
        member_id=MemberId(request.member_id),
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
        retention_ms=request.retention_time_ms,
        offsets=tuple(
            [
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
        ),
    )
    return context.later(commit, partial(_response, context, request.topics, names))


def _name(topic: OffsetCommitRequestTopic, context: RequestContext) -> TopicName | None:
    if context.version < 10:
        return TopicName(topic.name)
    found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
    return None if found is None else found.name


def _response(
    context: RequestContext,
    topics: list[OffsetCommitRequestTopic],
    names: list[TopicName | None],
    found: tuple[Reason | None, ...] | PenstockError,
) -> OffsetCommitResponse:
    """Each partition has its own answer: there is no place for a refusal of the whole."""
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
