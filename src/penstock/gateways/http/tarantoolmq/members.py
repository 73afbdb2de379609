"""Members of a group: a reader joins, gets its partitions, and stays a member by sending heartbeats.

The broker assigns the partitions at once. Groups are shared with all other APIs. A member that sends nothing for longer than its
session timeout is removed; its next heartbeat is a 404, and it must join again.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall, Parameter, body_of, required
from penstock.gateways.http.tarantoolmq.topics import TOPIC_NAME, translated_errors
from penstock.limits import GROUP_ID_CHARS_MAX
from penstock.operations.groups import Heartbeat, JoinGroup, LeaveGroup

CONSUMER_ID: Final = {"type": "string", "minLength": 1, "maxLength": GROUP_ID_CHARS_MAX}


class JoinRequest(Struct, frozen=True):
    """The topic and the id of a reader. The default of ``session_timeout_ms`` is configured."""

    topic_name: Annotated[str, Meta(examples=["orders"])] | None = None
    consumer_id: Annotated[str, Meta(examples=["reader-1"])] | None = None
    session_timeout_ms: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class Member(Struct, frozen=True):
    """A member, and its partitions of the topic in the request."""

    consumer_id: str
    partitions: list[int] | UnsetType = UNSET


class Left(Struct, frozen=True):
    """The member's partitions went to the others."""

    left: Literal[True]


CALLS: Final = ApiCalls("Consumers")


@CALLS.post(
    "/consumers/{group:path}/members",
    CallDoc(
        "Join a group and get partitions",
        {200: Member},
        errors=(400, 404, 409, 429),
        description="Joining again renews the session and returns the partitions. A group with Kafka consumers is a conflict.",
        body=required(JoinRequest, topic_name=TOPIC_NAME, consumer_id=CONSUMER_ID),
    ),
)
async def _join(call: HttpCall) -> Answer:
    asked = body_of(JoinRequest, call)
    if not asked.topic_name or not asked.consumer_id:
        raise Refusal(400, "Missing topic_name or consumer_id")
    session_ms = asked.session_timeout_ms or call.gateway.settings.session_timeout_ms
    with translated_errors(call, asked.topic_name):
        partitions = await call.do(JoinGroup(call.params["group"], asked.topic_name, asked.consumer_id, session_ms))
    return json_answer(Member(asked.consumer_id, list(partitions)))


@CALLS.put(
    "/consumers/{group:path}/members/{consumer}",
    CallDoc(
        "Renew the session of a member",
        {200: Member},
        errors=(400, 404),
        description="404 means that the member must join again.",
        parameters=(Parameter("topic", str, "return the member's partitions of this topic"),),
    ),
)
async def _heartbeat(call: HttpCall) -> Answer:
    consumer_id, name = call.params["consumer"], call.query_fields().get("topic")
    with translated_errors(call, name or ""):
        partitions = await call.do(Heartbeat(call.params["group"], consumer_id, name))
    return json_answer(Member(consumer_id, UNSET if partitions is None else list(partitions)))


@CALLS.delete("/consumers/{group:path}/members/{consumer}", CallDoc("Leave a group", {200: Left}, errors=(400, 404)))
async def _leave(call: HttpCall) -> Answer:
    await call.do(LeaveGroup(call.params["group"], call.params["consumer"]))
    return json_answer(Left(left=True))
