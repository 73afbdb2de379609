"""Consumer groups: register them, commit and fetch their offsets. Groups and offsets are shared with Kafka's clients."""

from typing import Annotated, Final, Literal
from uuid import UUID

from msgspec import Meta, Struct

from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall, Parameter, body_of, required
from penstock.gateways.http.tarantoolmq.topics import TOPIC_NAME, translated_errors
from penstock.operations.groups import CommitOffset, FetchOffsets, RegisterGroup

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
    """The offset is stored."""

    committed: Literal[True]


class OffsetModel(Struct, frozen=True):
    """The offset that a group reads next; ``updated_at`` in unix seconds."""

    topic: str
    partition: int
    offset: int
    updated_at: int


class OffsetList(Struct, frozen=True):
    """Offsets by topic and partition."""

    offsets: list[OffsetModel]


CALLS: Final = ApiCalls("Consumers")


@CALLS.post(
    "/consumers/{group:path}/groups",
    CallDoc(
        "Register a group for a topic",
        {201: GroupModel},
        errors=(400, 429),
        description="The group gets offset 0 in each partition where it has no offset. If the topic does not exist yet, the group gets its offsets when the topic is created. Repeating the call returns the same response.",
        body=required(GroupRequest, topic_name=TOPIC_NAME),
    ),
)
async def _register(call: HttpCall) -> Answer:
    group = call.params["group"]
    asked = body_of(GroupRequest, call)
    if not asked.topic_name:
        raise Refusal(400, "Missing topic_name")
    registered = await call.do(RegisterGroup(group, asked.topic_name))
    return json_answer(GroupModel(registered.group_id, group, asked.topic_name, registered.created_ms // 1000), 201)


@CALLS.get(
    "/consumers/{group:path}/offsets",
    CallDoc(
        "Show the committed offsets of a group",
        {200: OffsetList},
        errors=(400,),
        parameters=(Parameter("topic", str, "show only the offsets of this topic"),),
    ),
)
async def _offsets(call: HttpCall) -> Answer:
    found = await call.do(FetchOffsets(call.params["group"], call.query_fields().get("topic")))
    return json_answer(
        OffsetList([OffsetModel(each.topic, each.partition, each.offset, each.commit_ms // 1000) for each in found])
    )


@CALLS.post(
    "/consumers/{group:path}/offsets",
    CallDoc(
        "Commit the next offset to read",
        {200: Committed},
        errors=(400, 404),
        description="The offset may decrease, and it may be past the end of the partition.",
        body=required(CommitOffsetRequest, topic_name=TOPIC_NAME, partition=NUMBER, offset=NUMBER),
    ),
)
async def _commit(call: HttpCall) -> Answer:
    asked = body_of(CommitOffsetRequest, call)
    if not asked.topic_name or asked.partition is None or asked.offset is None:
        raise Refusal(400, "Missing required params")
    with translated_errors(call, asked.topic_name, no_partition=400):
        await call.do(CommitOffset(call.params["group"], asked.topic_name, asked.partition, asked.offset))
    return json_answer(Committed(committed=True))
