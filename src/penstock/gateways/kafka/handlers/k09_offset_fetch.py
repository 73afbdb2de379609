"""OffsetFetch (API key 9): the committed offsets of groups. An offset that was never committed is -1, without an error; so are all offsets of an unknown group.

Version 2 adds the form without topics (all of them) and an error for the whole group, 5 the leader epoch, 6 is flexible, 7 requests
offsets that no open transaction may change (there are none), 8 can name several groups, 9 is for groups of the newer
protocol, 10 names topics by id.
"""

from collections.abc import Awaitable, Iterable, Iterator
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.portions import AT_ONCE_MAX, Turns, in_portions
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

PARTITIONS_A_PIECE: Final = 1000
"""Partitions of one group that are looked up without a pause, which takes some milliseconds."""


@handles(ApiKey.OFFSET_FETCH, versions=(1, 10))
def handle(
    request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Each group by itself, and once, however often it is named, because all its offsets may be a large answer."""
    if context.version < 8:
        return _one_group(request, context)
    groups = _merged(request.groups)
    if len(groups) > AT_ONCE_MAX or any(_is_large(group) for group in groups):
        return _much(groups, context)
    return OffsetFetchResponse(groups=[_group(group, context) for group in groups])


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


def _is_large(group: OffsetFetchRequestGroup) -> bool:
    return sum(len(topic.partition_indexes) for topic in group.topics or ()) > PARTITIONS_A_PIECE


async def _much(groups: list[OffsetFetchRequestGroup], context: RequestContext) -> OffsetFetchResponse:
    turns = Turns()
    answers: list[OffsetFetchResponseGroup] = []
    for group in groups:
        pieces = _pieces(group) if _is_large(group) else iter((group,))
        found = await in_portions(pieces, lambda piece: _group(piece, context), turns)
        # A refusal of the group is the same for every piece.
        answer = next((each for each in found if each.error_code), found[0])
        if not answer.error_code:
            answer.topics = [topic for each in found for topic in each.topics]
        answers.append(answer)
    return OffsetFetchResponse(groups=answers)


def _pieces(group: OffsetFetchRequestGroup) -> Iterator[OffsetFetchRequestGroup]:
    """The same request in several pieces. A topic with very many partitions appears more than once in the answer."""
    for topic in group.topics or ():
        for first in range(0, max(len(topic.partition_indexes), 1), PARTITIONS_A_PIECE):
            indexes = topic.partition_indexes[first : first + PARTITIONS_A_PIECE]
            yield replace(group, topics=[replace(topic, partition_indexes=indexes)])


def _one_group(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    topics = request.topics
    asked = None if topics is None else [(TopicName(topic.name), topic.partition_indexes) for topic in topics]
    try:
        found = _fetch(request.group_id, asked, context)
    except PenstockError as error:
        code = context.code(error)
        if context.version >= 2:
            return OffsetFetchResponse(error_code=code)
        # The first version has no place for an error of the whole group.
        return OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name=name,
                    partitions=[OffsetFetchResponsePartition(index, -1, error_code=code) for index in indexes],
                )
                for name, indexes in asked or ()
            ]
        )
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponsePartition(index, -1, error_code=context.code(each))
                    if isinstance(each, Reason)
                    else OffsetFetchResponsePartition(index, each.offset, each.leader_epoch, each.metadata)
                    for index, each in partitions
                ],
            )
            for name, partitions in found
        ]
    )


_Asked = Iterable[tuple[TopicName, list[int]]]
_Found = list[tuple[TopicName, list[tuple[int, GroupOffset | Reason]]]]


def _fetch(group_id: str, asked: _Asked | None, context: RequestContext) -> _Found:
    if asked is None:
        by_topic: dict[TopicName, list[tuple[int, GroupOffset | Reason]]] = {}
        for offset in context.answer(FetchOffsets(group_id)):
            by_topic.setdefault(TopicName(offset.topic), []).append((offset.partition, offset))
        return list(by_topic.items())
    keys = tuple([PartitionKey(name, index) for name, indexes in asked for index in indexes])
    offsets = context.answer(FetchOffsetsOf(group_id, keys))
    found = iter(offsets)
    return [(name, [(index, next(found)) for index in indexes]) for name, indexes in asked]


def _group(group: OffsetFetchRequestGroup, context: RequestContext) -> OffsetFetchResponseGroup:
    by_id = context.version >= 10
    unknown: list[OffsetFetchResponseGroupTopic] = []
    asked: list[tuple[TopicName, list[int]]] | None = None
    if group.topics is not None:
        asked = []
        for topic in group.topics:
            name = _name_of(topic, context) if by_id else TopicName(topic.name)
            if name is None:
                unknown.append(_unknown(topic, context))
            else:
                asked.append((name, topic.partition_indexes))
    try:
        found = _fetch(group.group_id, asked, context)
    except PenstockError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=context.code(error))
    topics = []
    for name, partitions in found:
        topic_id = _id_of(name, context) if by_id else None
        if by_id and topic_id is None:
            continue
        answered = OffsetFetchResponseGroupTopic(
            name=name,
            partitions=[
                OffsetFetchResponseGroupPartition(index, -1, error_code=context.code(each))
                if isinstance(each, Reason)
                else OffsetFetchResponseGroupPartition(index, each.offset, each.leader_epoch, each.metadata)
                for index, each in partitions
            ],
        )
        if topic_id is not None:
            answered.topic_id = topic_id
        topics.append(answered)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics + unknown)


def _name_of(topic: OffsetFetchRequestGroupTopic, context: RequestContext) -> TopicName | None:
    found = context.broker.topics.get_by_id(UUID(bytes=topic.topic_id))
    return None if found is None else found.name


def _id_of(name: TopicName, context: RequestContext) -> bytes | None:
    found = context.broker.topics.get(name)
    return None if found is None else found.topic_id.bytes


def _unknown(topic: OffsetFetchRequestGroupTopic, context: RequestContext) -> OffsetFetchResponseGroupTopic:
    code = context.code(Reason.UNKNOWN_TOPIC_ID)
    return OffsetFetchResponseGroupTopic(
        topic_id=topic.topic_id,
        partitions=[OffsetFetchResponseGroupPartition(index, -1, error_code=code) for index in topic.partition_indexes],
    )
