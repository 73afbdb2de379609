"""Consumer groups over HTTP: register, commit and read offsets. These are the groups and offsets that Kafka's clients see."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.groups.registry import RegisteredGroup
from penstock.core.groups.requests import OffsetToCommit, PartitionKey
from penstock.errors import Reason
from penstock.gateways.http.answers import Answer, Refusal, json_answer, reason_refusal
from penstock.gateways.http.message_models import PARTITION_NOT_FOUND
from penstock.gateways.http.routing import Call, CallDoc, Parameter, decoded, in_time, required, route
from penstock.gateways.http.topics import TOPIC_NAME, find_topic
from penstock.types import GroupId, NodeId, TopicName

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

INT64_MAX: Final = 2**63 - 1
NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": INT64_MAX}


class GroupRequest(Struct, frozen=True):
    """The topic that a group is registered for."""

    topic_name: Annotated[str, Meta(examples=["orders"])] | None = None


class GroupModel(Struct, frozen=True, rename={"group_id": "id"}):
    """A registered group; ``created_at`` in unix seconds."""

    group_id: UUID
    name: str
    topic_name: str
    created_at: int


class CommitOffsetRequest(Struct, frozen=True):
    """The next offset to read of a partition."""

    topic_name: Annotated[str, Meta(examples=["orders"])] | None = None
    partition: Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)] | None = None
    offset: Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)] | None = None


class Committed(Struct, frozen=True):
    """It is durable."""

    committed: Literal[True]


class OffsetModel(Struct, frozen=True):
    """Where a group goes on reading; ``updated_at`` in unix seconds."""

    topic: str
    partition: int
    offset: int
    updated_at: int


class OffsetList(Struct, frozen=True):
    """Offsets by topic and partition."""

    offsets: list[OffsetModel]


_group_decoder = msgspec.json.Decoder(GroupRequest)
_commit_decoder = msgspec.json.Decoder(CommitOffsetRequest)


def group_of(call: Call, action: Action) -> GroupId:
    """The group of the path, for one who may do this to it."""
    name = call.params["group"]
    call.gateway.broker.access.require_group(call.caller, action, name)
    return GroupId(name)


def group_owner(call: Call) -> NodeId | None:
    """The group of the path is looked after by one node of a cluster."""
    carry = call.gateway.carry
    return None if carry is None else carry.whose.group(call.params["group"])


async def _register(call: Call) -> Answer:
    group = group_of(call, Action.READ)
    asked: GroupRequest = decoded(_group_decoder, call.body) if call.body.strip() else GroupRequest()
    if not asked.topic_name:
        raise Refusal(400, "Missing topic_name")
    registered = await _registered(call, TopicName(asked.topic_name), group)
    return json_answer(GroupModel(registered.id, group, asked.topic_name, registered.created_ms // 1000), 201)


async def _registered(call: Call, name: TopicName, group: GroupId) -> RegisteredGroup:
    """The registration, once the group has an offset in each partition; without a topic of that name it has none yet."""
    broker = call.gateway.broker
    broker.access.require_topic(call.caller, Action.READ, name)
    if name not in broker.topics:
        registered = await broker.registry.register_for(name, group)
        if name not in broker.topics:
            return registered
    await _stored(call, partial(broker.groups.start_offsets, group, name))
    return await broker.registry.register(broker.topics.require(name), group)


async def _stored(call: Call, start: Callable[[Callable[[Reason | None], None]], None]) -> None:
    """Begin to store offsets, and wait until they are durable."""
    future: asyncio.Future[Reason | None] = call.gateway.loop.create_future()

    def done(reason: Reason | None) -> None:
        if not future.done():
            future.set_result(reason)

    start(done)
    reason = await in_time(call.gateway, future)
    if reason is not None:
        raise reason_refusal(reason)


async def _offsets(call: Call) -> Answer:
    group = group_of(call, Action.DESCRIBE)
    name = call.query_fields().get("topic")
    keys: list[PartitionKey] | None = None
    if name is not None:
        broker = call.gateway.broker
        broker.access.require_topic(call.caller, Action.DESCRIBE, name)
        # Of a topic that does not exist a group has no offsets.
        keys = [PartitionKey(TopicName(name), index) for index in range(broker.partition_count(TopicName(name)))]
    found = call.gateway.broker.groups.fetch_offsets(group, keys)
    return json_answer(
        OffsetList(
            [
                OffsetModel(key.topic, key.partition, committed.offset, committed.commit_ms // 1000)
                for key, committed in sorted(found.items())
            ]
        )
    )


async def _commit(call: Call) -> Answer:
    group = group_of(call, Action.READ)
    asked: CommitOffsetRequest = decoded(_commit_decoder, call.body) if call.body.strip() else CommitOffsetRequest()
    if not asked.topic_name or asked.partition is None or asked.offset is None:
        raise Refusal(400, "Missing required params")
    topic = find_topic(call, asked.topic_name, Action.READ)
    if not 0 <= asked.partition < topic.partition_count:
        raise Refusal(400, PARTITION_NOT_FOUND)
    item = OffsetToCommit(PartitionKey(topic.name, asked.partition), asked.offset)
    await _stored(call, partial(call.gateway.broker.groups.commit_offset, group, item))
    return json_answer(Committed(committed=True))


def routes(gateway: "HttpGateway") -> list[Route]:
    """POST /consumers/:g/groups, GET and POST /consumers/:g/offsets."""
    return [
        route(
            gateway,
            "POST",
            "/consumers/{group:path}/groups",
            _register,
            CallDoc(
                "Consumers",
                "Register a group for a topic",
                {201: GroupModel},
                errors=(400, 429),
                description="The group gets offset 0 in each partition where it has no offset. If the topic does not exist yet, the group gets its offsets when the topic is created. Repeating the call returns the same response.",
                body=required(GroupRequest, topic_name=TOPIC_NAME),
            ),
            owner=group_owner,
        ),
        route(
            gateway,
            "GET",
            "/consumers/{group:path}/offsets",
            _offsets,
            CallDoc(
                "Consumers",
                "Show the committed offsets of a group",
                {200: OffsetList},
                errors=(400,),
                parameters=(Parameter("topic", str, "only for this topic"),),
            ),
            owner=group_owner,
        ),
        route(
            gateway,
            "POST",
            "/consumers/{group:path}/offsets",
            _commit,
            CallDoc(
                "Consumers",
                "Commit the next offset to read",
                {200: Committed},
                errors=(400, 404),
                description="The offset may decrease, and it may be past the end of the partition.",
                body=required(CommitOffsetRequest, topic_name=TOPIC_NAME, partition=NUMBER, offset=NUMBER),
            ),
            owner=group_owner,
        ),
    ]
