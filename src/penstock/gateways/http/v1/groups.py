"""Topics and groups in numbers, under ``/v1``."""

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from starlette.routing import Route

from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import Call, CallDoc, route
from penstock.gateways.http.v1.models import NoFields
from penstock.gateways.http.v1.requests import read
from penstock.operations.groups import DescribeGroup, GroupListing, GroupStatus, ListGroups
from penstock.operations.topics import DescribeTopicStats, TopicStats

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

TAG: Final = "v1: numbers"


class GroupNames(Struct, frozen=True):
    """GET /v1/groups."""

    groups: tuple[GroupListing, ...]


async def _topic_stats(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeTopicStats(call.params["topic"])))


async def _groups(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(GroupNames(await call.do(ListGroups())))


async def _group(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeGroup(call.params["group"])))


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/topics/{topic}/stats, /v1/groups and /v1/groups/{group}."""
    return [
        route(
            gateway,
            "GET",
            "/v1/topics/{topic}/stats",
            _topic_stats,
            CallDoc(TAG, "Show the statistics of a topic", {200: TopicStats}, errors=(400, 404)),
        ),
        route(
            gateway,
            "GET",
            "/v1/groups",
            _groups,
            CallDoc(TAG, "List all groups", {200: GroupNames}, errors=(400,)),
        ),
        route(
            gateway,
            "GET",
            "/v1/groups/{group:path}",
            _group,
            CallDoc(
                TAG,
                "Show the state of a group: members, offsets, lag, queues",
                {200: GroupStatus},
                errors=(400, 404),
            ),
        ),
    ]
