"""OffsetFetch (API key 9): the committed offsets of groups. An offset that was never committed is -1, without an error; so are all offsets of an unknown group.

Version 2 adds the form without topics (all of them) and an error for the whole group, 5 the leader epoch, 6 is flexible, 7 requests
offsets that no open transaction may change (there are none), 8 can name several groups, 9 is for groups of the newer
protocol, 10 names topics by id.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import Turns
from penstock.operations.groups import FetchOffsets, FetchOffsetsOf, GroupOffset
from penstock.types import PartitionKey, TopicName
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.offset_fetch_generated import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseGroupPartition,
    OffsetFetchResponseGroupTopic,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from penstock.wire.kafka.primitives import UUID_ZERO

_BY_ID_FROM: Final = 10
PARTITIONS_A_PIECE: Final = 1000
"""Partitions of one group that are looked up without a pause, which takes some milliseconds."""

Answer = TypeVar("Answer")
Partition = TypeVar("Partition", OffsetFetchResponsePartition, OffsetFetchResponseGroupPartition)
_Found = list[tuple[TopicName, list[tuple[int, GroupOffset | Reason]]]]


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10))
def handle(
    request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Each group by itself, and once, however often it is named, because all its offsets may be a large answer."""
    if context.version < 8:
        topics = request.topics
        asked = None if topics is None else [(TopicName(topic.name), topic.partition_indexes) for topic in topics]
        return _fetch(request.group_id, asked, context, partial(_response, request, context))
    return _answers(_merged(request.groups), context)


async def _answers(groups: list[OffsetFetchRequestGroup], context: RequestContext) -> OffsetFetchResponse:
    turns = Turns()
    answers: list[OffsetFetchResponseGroup] = []
    for group in groups:
        await turns.pause_if_long()
        answer = _group(group, context)
        answers.append(answer if isinstance(answer, OffsetFetchResponseGroup) else await answer)
    return OffsetFetchResponse(groups=answers)


def _merged(groups: list[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """Each group once, with all its topics in the request."""
    merged: dict[str, OffsetFetchRequestGroup] = {}
    for group in groups:
        known = merged.get(group.group_id)
        if known is None:
            merged[group.group_id] = group
        elif known.topics is None or group.topics is None:
            known.topics = None
        else:
            known.topics += group.topics
    return list(merged.values())


def _fetch(
    group_id: str,
    asked: list[tuple[TopicName, list[int]]] | None,
    context: RequestContext,
    answer: Callable[[_Found | PenstockError], Answer],
) -> Answer | Awaitable[Answer]:
    """The answer for one group: about these partitions, or about all."""
    if asked is None:
        by_topic: dict[TopicName, list[tuple[int, GroupOffset | Reason]]] = {}
        try:
            for offset in context.answer(FetchOffsets(group_id)):
                by_topic.setdefault(TopicName(offset.topic), []).append((offset.partition, offset))
        except PenstockError as error:
            return answer(error)
        return answer(list(by_topic.items()))

    def by_topics(found: Sequence[GroupOffset | Reason] | PenstockError) -> Answer:
        if isinstance(found, PenstockError):
            return answer(found)
        offsets = iter(found)
        return answer([(name, [(index, next(offsets)) for index in indexes]) for name, indexes in asked])

    keys = [PartitionKey(name, index) for name, indexes in asked for index in indexes]
    return context.each(keys, partial(FetchOffsetsOf, group_id), by_topics, PARTITIONS_A_PIECE)


def _partitions(
    kind: Callable[..., Partition], found: Sequence[tuple[int, GroupOffset | Reason]], context: RequestContext
) -> list[Partition]:
    return [
        kind(index, -1, error_code=context.code(each))
        if isinstance(each, Reason)
        else kind(index, each.offset, each.leader_epoch, each.metadata)
        for index, each in found
    ]


def _response(
    request: OffsetFetchRequest, context: RequestContext, found: _Found | PenstockError
) -> OffsetFetchResponse:
    """Of one group, before version 8."""
    if isinstance(found, PenstockError):
        if context.version >= 2:
            return OffsetFetchResponse(error_code=context.code(found))
        # The first version has no place for an error of the whole group.
        found = [
            (TopicName(topic.name), [(index, found.reason) for index in topic.partition_indexes])
            for topic in request.topics or ()
        ]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(name, _partitions(OffsetFetchResponsePartition, partitions, context))
            for name, partitions in found
        ]
    )


def _group(
    group: OffsetFetchRequestGroup, context: RequestContext
) -> OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup]:
    unknown: list[OffsetFetchResponseGroupTopic] = []
    asked: list[tuple[TopicName, list[int]]] | None = None
    if group.topics is not None:
        asked = []
        for topic in group.topics:
            name = _name_of(topic, context)
            if name is None:
                partitions = [(index, Reason.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
                refused = _partitions(OffsetFetchResponseGroupPartition, partitions, context)
                unknown.append(OffsetFetchResponseGroupTopic(topic.topic_id, partitions=refused))
            else:
                asked.append((name, topic.partition_indexes))

    def answer(found: _Found | PenstockError) -> OffsetFetchResponseGroup:
        if isinstance(found, PenstockError):
            return OffsetFetchResponseGroup(group_id=group.group_id, error_code=context.code(found))
        topics = []
        for name, partitions in found:
            known = context.broker.topics.get(name)
            if known is not None or context.version < _BY_ID_FROM:
                topic_id = UUID_ZERO if known is None else known.topic_id.bytes
                offsets = _partitions(OffsetFetchResponseGroupPartition, partitions, context)
                topics.append(OffsetFetchResponseGroupTopic(topic_id, name, offsets))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics + unknown)

    return _fetch(group.group_id, asked, context, answer)


def _name_of(topic: OffsetFetchRequestGroupTopic, context: RequestContext) -> TopicName | None:
    if context.version < _BY_ID_FROM:
        return TopicName(topic.name)
    found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
    return None if found is None else found.name
