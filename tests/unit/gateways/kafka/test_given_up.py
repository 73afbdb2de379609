"""Requests that wait for a commit which does not come: those that clients have given up are not kept."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.errors import Reason
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from penstock.wire.kafka.produce_generated import ProduceRequest
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE, reason_of
from tests.support.kafka_wire import PRODUCE, WireClient, batch, produce, until

TRIES = 400
KEPT_MAX = 100


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireClusterNode]:
    """A leader whose followers do not fetch."""
    async with WireClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER, THIRD), (NODE, OTHER, THIRD))
        yield node


ONE = batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0)
REQUESTS = {
    # One partition goes through the fast lane, several the general way.
    "lane": produce("t", ONE, timeout_ms=1),
    "general": produce("t", ONE, ONE, timeout_ms=1),
}


def kept(node: WireClusterNode) -> int:
    return sum(len(node.broker.partition("t", index)._awaiting_commit) for index in (0, 1))


def codes(response: object) -> set[Reason | None]:
    partitions = response.responses[0].partition_responses  # type: ignore[attr-defined]
    return {reason_of(each.error_code) for each in partitions}


async def give_up(node: WireClusterNode, client: WireClient, request: ProduceRequest) -> set[Reason | None]:
    """Ask, wait until the broker waits, and let the client's time pass."""
    before = kept(node)
    answer = asyncio.create_task(client.ask(PRODUCE, request, 9))
    await until(lambda: kept(node) > before or answer.done())
    node.clock.advance(10_000)
    for connection in node.connections():
        connection.look_after(node.clock.monotonic_ms())
    return codes(await answer)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_a_batch_that_is_sent_again_and_again_is_not_kept_for_each_time(
    node: WireClusterNode, request_: ProduceRequest
) -> None:
    client = await node.connect()
    for _ in range(TRIES):
        assert await give_up(node, client, request_) == {Reason.REQUEST_TIMED_OUT}
    partitions = {
        index: node.broker.partition("t", index) for index in range(len(request_.topic_data[0].partition_data))
    }
    assert {partition.log.next_offset for partition in partitions.values()} == {1}, "it is there once"
    assert kept(node) <= KEPT_MAX * len(partitions)
    # The last one that waits is told when it is committed, after all those that gave up.
    answer = asyncio.create_task(client.ask(PRODUCE, request_, 9))
    before = kept(node)
    await until(lambda: kept(node) > before)
    for partition in partitions.values():
        node.fetched(partition, OTHER, 1)
        node.fetched(partition, THIRD, 1)
    assert codes(await answer) == {None}
    assert kept(node) == 0


async def test_what_a_client_waits_for_goes_with_its_connection(node: WireClusterNode) -> None:
    for _ in range(TRIES // 4):
        client = await node.connect()
        before = kept(node)
        for request in REQUESTS.values():
            client.send(PRODUCE, request, 9)
        await until(lambda before=before: kept(node) == before + 3)
        # A reset, as when the client's process is killed.
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await until(lambda: not node.connections())
    assert kept(node) <= 2 * KEPT_MAX


async def test_deletions_of_what_is_not_committed_are_not_kept_when_their_time_is_over(node: WireClusterNode) -> None:
    client, partition = await node.connect(), node.broker.partition("t", 0)
    await client.ask(PRODUCE, produce("t", ONE, acks=1), 9)
    topic = DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, 1)])
    for _ in range(TRIES // 4):
        answer = await client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[topic], timeout_ms=1), 2)
        assert reason_of(answer.topics[0].partitions[0].error_code) is Reason.OFFSET_OUT_OF_RANGE
    assert kept(node) == 0
    assert not partition.is_watched
