"""Statistics of topics and groups under ``/v1``."""

from typing import Final

from msgspec import Struct

from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import NoFields
from penstock.gateways.http.v1.requests import read
from penstock.operations.groups import DescribeGroup, GroupListing, GroupStatus, ListGroups
from penstock.operations.topics import DescribeTopicStats, TopicStats

CALLS: Final = ApiCalls("v1: numbers")


class GroupNames(Struct, frozen=True):
    """GET /v1/groups."""

    groups: tuple[GroupListing, ...]


@CALLS.get("/v1/topics/{topic}/stats", CallDoc("Show the statistics of a topic", {200: TopicStats}, errors=(400, 404)))
async def _topic_stats(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeTopicStats(call.params["topic"])))


@CALLS.get("/v1/groups", CallDoc("List all groups", {200: GroupNames}, errors=(400,)))
async def _groups(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(GroupNames(await call.do(ListGroups())))


@CALLS.get(
    "/v1/groups/{group:path}",
    CallDoc("Show the state of a group: members, offsets, lag, queues", {200: GroupStatus}, errors=(400, 404)),
)
async def _group(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeGroup(call.params["group"])))
