"""Topics and groups in numbers, under ``/v1``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.stats import (
    FlowStats,
    GroupPartitionStatus,
    GroupStatus,
    MemberStatus,
    TopicStats,
    group_status,
    topic_stats,
)
from penstock.gateways.http.answers import Answer, json_answer
from penstock.gateways.http.carry import here
from penstock.gateways.http.consumers import group_owner
from penstock.gateways.http.routing import Call, CallDoc, route
from penstock.gateways.http.v1_models import NoFields
from penstock.gateways.http.v1_queues import Queue, queue_of
from penstock.gateways.http.v1_requests import read
from penstock.types import Gateway, NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TAG: Final = "v1: numbers"


class PartitionNumbers(Struct, frozen=True):
    """One partition. What is null was not looked at, because its log was not opened yet."""

    partition: int
    leader: int
    start_offset: int | None
    end_offset: int | None
    records: int | None
    size_bytes: int | None
    segments: int | None
    failed: bool


class TopicNumbers(Struct, frozen=True):
    """GET /v1/topics/{topic}/stats. Sums are over the partitions that are known; flows since the broker's start."""

    topic: str
    topic_id: str
    records: int
    size_bytes: int
    segments: int
    partitions_unknown: int
    records_in_per_second: float
    bytes_in_per_second: float
    records_out_per_second: float
    bytes_out_per_second: float
    partitions: list[PartitionNumbers]
    flows: tuple[FlowStats, ...]


class GroupName(Struct, frozen=True):
    """A group in a list."""

    group: str
    state: str
    protocol_type: str


class GroupNames(Struct, frozen=True):
    """GET /v1/groups."""

    groups: list[GroupName]


class GroupNumbers(Struct, frozen=True):
    """GET /v1/groups/{group}. ``lag_ms`` is the age of the oldest record that the group has not finished."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    lag: int
    lag_ms: int | None
    members: tuple[MemberStatus, ...]
    members_left_out: int
    partitions: tuple[GroupPartitionStatus, ...]
    queues: list[Queue]


async def _topic_stats(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    topic = call.params["topic"]
    broker = call.gateway.broker
    broker.access.require_topic(call.caller, Action.DESCRIBE, topic)
    numbers = _numbers_of(topic_stats(broker, topic))
    if call.gateway.carry is not None:
        told = await call.gateway.carry.ask_all(call, TopicNumbers)
        if told:
            numbers = _together(broker.node_id, numbers, told)
    return json_answer(numbers)


def _together(node_id: NodeId, own: TopicNumbers, others: Mapping[NodeId, TopicNumbers]) -> TopicNumbers:
    """What all nodes say: of each partition what its leader does, and of what flowed the sum."""
    by_node = {node_id: own, **others}

    def by_leader(known: PartitionNumbers) -> PartitionNumbers:
        told = by_node.get(NodeId(known.leader), own).partitions
        return told[known.partition] if known.partition < len(told) else known

    partitions = [by_leader(known) for known in own.partitions]
    flows: dict[Gateway, FlowStats] = {}
    for told in by_node.values():
        for flow in told.flows:
            flows[flow.gateway] = _sum(flows.get(flow.gateway, FlowStats(flow.gateway, 0, 0, 0, 0)), flow)
    return TopicNumbers(
        topic=own.topic,
        topic_id=own.topic_id,
        records=sum(found.records or 0 for found in partitions),
        size_bytes=sum(found.size_bytes or 0 for found in partitions),
        segments=sum(found.segments or 0 for found in partitions),
        partitions_unknown=sum(found.end_offset is None for found in partitions),
        records_in_per_second=sum(told.records_in_per_second for told in by_node.values()),
        bytes_in_per_second=sum(told.bytes_in_per_second for told in by_node.values()),
        records_out_per_second=sum(told.records_out_per_second for told in by_node.values()),
        bytes_out_per_second=sum(told.bytes_out_per_second for told in by_node.values()),
        partitions=partitions,
        flows=tuple(flows[gateway] for gateway in Gateway if gateway in flows),
    )


def _sum(one: FlowStats, other: FlowStats) -> FlowStats:
    return FlowStats(
        one.gateway,
        one.records_in + other.records_in,
        one.bytes_in + other.bytes_in,
        one.records_out + other.records_out,
        one.bytes_out + other.bytes_out,
    )


def _numbers_of(stats: TopicStats) -> TopicNumbers:
    return TopicNumbers(
        topic=stats.topic.name,
        topic_id=str(stats.topic.topic_id),
        records=stats.records,
        size_bytes=stats.size_bytes,
        segments=stats.segments,
        partitions_unknown=stats.partitions_unknown,
        records_in_per_second=stats.records_in_per_second,
        bytes_in_per_second=stats.bytes_in_per_second,
        records_out_per_second=stats.records_out_per_second,
        bytes_out_per_second=stats.bytes_out_per_second,
        partitions=[
            PartitionNumbers(
                found.index,
                found.leader,
                found.start_offset,
                found.end_offset,
                found.records,
                found.size_bytes,
                found.segments,
                found.failed,
            )
            for found in stats.partitions
        ],
        flows=stats.flows,
    )


async def _groups(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.DESCRIBE)
    found = [GroupName(group.group_id, group.state.value, group.protocol_type) for group in broker.groups.list_groups()]
    if call.gateway.carry is not None:
        for told in (await call.gateway.carry.ask_all(call, GroupNames)).values():
            found += told.groups
    return json_answer(GroupNames(sorted(found, key=lambda group: group.group)))


async def _group(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    group = call.params["group"]
    broker = call.gateway.broker
    broker.access.require_group(call.caller, Action.DESCRIBE, group)
    return json_answer(_group_numbers(group_status(broker, group)))


def _group_numbers(status: GroupStatus) -> GroupNumbers:
    return GroupNumbers(
        group=status.group,
        state=status.state.value,
        protocol_type=status.protocol_type,
        protocol=status.protocol,
        lag=status.lag,
        lag_ms=status.lag_ms,
        members=status.members,
        members_left_out=status.members_left_out,
        partitions=status.partitions,
        queues=[queue_of(queue) for queue in status.queues],
    )


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/topics/{topic}/stats, /v1/groups and /v1/groups/{group}."""
    return [
        route(
            gateway,
            "GET",
            "/v1/topics/{topic}/stats",
            _topic_stats,
            CallDoc(TAG, "Show the statistics of a topic", {200: TopicNumbers}, errors=(400, 404)),
            owner=here,
        ),
        route(
            gateway,
            "GET",
            "/v1/groups",
            _groups,
            CallDoc(TAG, "List all groups", {200: GroupNames}, errors=(400,)),
            owner=here,
        ),
        route(
            gateway,
            "GET",
            "/v1/groups/{group:path}",
            _group,
            CallDoc(
                TAG,
                "Show the state of a group: members, offsets, lag, queues",
                {200: GroupNumbers},
                errors=(400, 404),
            ),
            owner=group_owner,
        ),
    ]
