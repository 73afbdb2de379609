"""A member of a group, as far as the handler tests need one: each call is a request in the version asked for."""

from typing import Any

from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.join_group_generated import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.kafka.offset_commit_generated import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.kafka.sync_group_generated import SyncGroupRequest, SyncGroupRequestAssignment
from tests.support.kafka_node import KafkaNode

SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"


def join_request(group: str = "g", member_id: str = "", **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=fields.pop("session_timeout_ms", 10_000),
        rebalance_timeout_ms=fields.pop("rebalance_timeout_ms", 60_000),
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", SUBSCRIPTION)],
        **fields,
    )


async def join(node: KafkaNode, group: str = "g", version: int = 3) -> JoinGroupResponse:
    """The only member of a generation."""
    answer: JoinGroupResponse = await node.ask(ApiKey.JOIN_GROUP, join_request(group), version)
    assert answer.error_code == 0
    return answer


async def stable(node: KafkaNode, group: str = "g") -> JoinGroupResponse:
    """The only member of a stable generation, assigned ``b"mine"``."""
    joined = await join(node, group)
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(joined.member_id, b"mine")],
    )
    answer = await node.ask(ApiKey.SYNC_GROUP, request, 3)
    assert (answer.error_code, answer.assignment) == (0, b"mine")
    return joined


def commit_request(
    offset: int, group: str = "g", topic: str = "t", partition: int = 0, **fields: Any
) -> OffsetCommitRequest:
    committed = OffsetCommitRequestPartition(partition, offset, 4, "note")
    return OffsetCommitRequest(
        group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[committed])], **fields
    )


async def commit(node: KafkaNode, offset: int, group: str = "g", topic: str = "t", partition: int = 0) -> None:
    answer = await node.ask(ApiKey.OFFSET_COMMIT, commit_request(offset, group, topic, partition), 9)
    assert answer.topics[0].partitions[0].error_code == 0
