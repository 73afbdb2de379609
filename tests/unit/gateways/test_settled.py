"""Read your writes: answers wait for the sync of what was acknowledged, and show nothing before it."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.partitions.partition import Partition
from penstock.limits import SETTLE_MS_MAX
from penstock.types import Flush
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from tests.support.held_disk import HeldDisk
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE
from tests.support.kafka_wire import (
    FETCH,
    NOW_MS,
    PRODUCE,
    WireClient,
    WireNode,
    batch,
    fetch,
    fetched,
    produce,
    until,
    values,
)
from tests.support.settling import after_settling

LATEST, MAX_TIMESTAMP = -1, -3
Asked = tuple[ApiKey, Any, int]


class Held:
    """A node on which the test ends each sync of ``t``."""

    def __init__(self, node: WireNode) -> None:
        self.node = node
        self.partition: Partition = node.broker.partition("t", 0)
        # The node never syncs; so what is committed is left to the test.
        self.partition._sync = True

    def sync(self, error: OSError | None = None) -> None:
        """End the sync of all that is written."""
        task = self.partition.log.begin_sync()
        assert task is not None
        task.run()
        self.partition.log.end_sync(task, error)

    async def acknowledge(self, client: WireClient) -> None:
        """One record, written and not synced."""
        await client.ask(PRODUCE, produce("t", batch(b"v"), acks=1), 9)
        assert (self.partition.high_watermark, self.partition.log.written_offset) == (0, 1)

    async def waits(self, asked: Asked, client: WireClient) -> "asyncio.Task[Any]":
        """Ask, and see that it waits for what is held back."""
        task = asyncio.create_task(client.ask(*asked))
        await until(lambda: task.done() or self.partition.is_watched)
        assert not task.done(), "it answered without the acknowledged record"
        return task


@pytest_asyncio.fixture
async def held(tmp_path: Path) -> AsyncIterator[Held]:
    async with WireNode(tmp_path) as node:
        await node.create("t")
        yield Held(node)


def lookup(timestamp: int) -> Asked:
    asked = ListOffsetsRequestTopic("t", [ListOffsetsRequestPartition(0, -1, timestamp)])
    return ApiKey.LIST_OFFSETS, ListOffsetsRequest(topics=[asked]), 7


def found(response: Any) -> int:
    return int(response.topics[0].partitions[0].offset)


@pytest.mark.parametrize(("timestamp", "offset"), [(LATEST, 1), (MAX_TIMESTAMP, 0), (NOW_MS, 0)])
async def test_a_lookup_waits_for_the_sync_of_what_was_acknowledged(held: Held, timestamp: int, offset: int) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    answer = await held.waits(lookup(timestamp), client)
    held.sync()
    assert found(await answer) == offset
    assert found(await client.ask(*lookup(timestamp))) == offset, "with nothing to wait for it answers at once"


@pytest.mark.parametrize(("timestamp", "offset"), [(LATEST, 0), (MAX_TIMESTAMP, -1), (NOW_MS, -1)])
async def test_a_lookup_whose_sync_fails_answers_without_the_record(held: Held, timestamp: int, offset: int) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    answer = await held.waits(lookup(timestamp), client)
    held.sync(OSError(errno.EIO, "Input/output error"))
    assert found(await answer) == offset
    assert found(await client.ask(*lookup(timestamp))) == offset, "nor does it wait later"


async def test_a_fetch_that_may_not_wait_waits_for_the_sync_of_what_was_acknowledged(held: Held) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    answer = await held.waits((FETCH, fetch("t", 0, max_wait_ms=0), 11), client)
    held.sync()
    assert values(fetched(await answer).records) == [b"v"]


@pytest.mark.parametrize("max_wait_ms", [0, 60_000])
async def test_a_fetch_does_not_return_some_of_the_records_that_were_acknowledged(held: Held, max_wait_ms: int) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    held.sync()
    request = fetch("t", 0, max_wait_ms=max_wait_ms)
    # The second request of a kind is answered by the fast lane when it can be.
    for _ in range(2):
        assert values(fetched(await client.ask(FETCH, request, 12)).records) == [b"v"]
    for value in (b"w", b"x"):
        await client.ask(PRODUCE, produce("t", batch(value), acks=1), 9)
    answer = await held.waits((FETCH, request, 12), client)
    held.sync()
    assert values(fetched(await answer).records) == [b"v", b"w", b"x"]


async def test_a_fetch_that_ends_further_back_does_not_wait_for_what_was_acknowledged(held: Held) -> None:
    client = await held.node.connect()
    for _ in range(2):
        await client.ask(PRODUCE, produce("t", batch(b"v"), acks=1), 9)
    held.sync()
    await client.ask(PRODUCE, produce("t", batch(b"v"), acks=1), 9)
    answer = fetched(await client.ask(FETCH, fetch("t", 0, partition_max_bytes=1), 12))
    assert values(answer.records) == [b"v"]


@pytest.mark.parametrize("max_wait_ms", [0, 1])
async def test_a_partition_that_is_not_synced_does_not_hold_back_the_records_of_another_for_long(
    tmp_path: Path, max_wait_ms: int
) -> None:
    async with WireNode(tmp_path) as node:
        await node.create("t", 2)
        held, client = Held(node), await node.connect()
        await client.ask(PRODUCE, produce("t", batch(b"there"), partition=1), 9)
        await held.acknowledge(client)
        # More bytes are wanted than the other partition has.
        found = await client.ask(FETCH, fetch("t", 0, 0, max_wait_ms=max_wait_ms, min_bytes=10_000), 12)
        records = [partition.records for partition in found.responses[0].partitions]
        assert not records[0]
        assert values(records[1]) == [b"there"]


async def test_a_fetch_whose_sync_fails_answers_empty(held: Held) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    answer = await held.waits((FETCH, fetch("t", 0, max_wait_ms=0), 11), client)
    held.sync(OSError(errno.EIO, "Input/output error"))
    part = fetched(await answer)
    assert (values(part.records), part.high_watermark) == ([], 0)


async def test_deleting_all_records_waits_for_the_sync_of_what_was_acknowledged(held: Held) -> None:
    client = await held.node.connect()
    await held.acknowledge(client)
    topic = DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, -1)])
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=30_000)
    answer = await held.waits((ApiKey.DELETE_RECORDS, request, 2), client)
    held.sync()
    assert (await answer).topics[0].partitions[0].low_watermark == 1


async def test_a_lookup_does_not_wait_for_records_that_nobody_was_promised(held: Held) -> None:
    client, other = await held.node.connect(), await held.node.connect()
    client.send(PRODUCE, produce("t", batch(b"v"), acks=-1), 9)
    await until(lambda: held.partition.log.written_offset == 1)
    assert found(await other.ask(*lookup(LATEST))) == 0
    held.sync()
    await client.answer(PRODUCE, 9)


@pytest.mark.parametrize(
    "asked", [lookup(LATEST), lookup(NOW_MS), (FETCH, fetch("t", 0, max_wait_ms=0), 11)], ids=["end", "time", "fetch"]
)
async def test_what_was_sent_with_acks_0_before_it_counts_too(held: Held, asked: Asked) -> None:
    client = await held.node.connect()
    client.send(PRODUCE, produce("t", batch(b"v"), acks=0), 9)
    answer = await held.waits(asked, client)
    await until(lambda: held.partition.log.written_offset == 1)
    held.sync()
    response = await answer
    if asked[0] is FETCH:
        assert values(fetched(response).records) == [b"v"]
    else:
        assert found(response) == (1 if asked[1].topics[0].partitions[0].timestamp == LATEST else 0)


async def test_the_sync_of_what_is_acknowledged_begins_before_the_answer(tmp_path: Path) -> None:
    disk = HeldDisk()
    async with WireNode(tmp_path, flush=Flush.SYNC, disk=disk) as node:
        await node.create("t")
        client, log = await node.connect(), node.broker.partition("t", 0).log
        with disk.held():
            await client.ask(PRODUCE, produce("t", batch(b"v"), acks=1), 9)
            assert log in node.flusher._running
            answer = asyncio.create_task(client.ask(*lookup(LATEST)))
            await until(lambda: answer.done() or node.broker.partition("t", 0).is_watched)
            assert not answer.done()
            disk.release()
            assert found(await answer) == 1


@pytest_asyncio.fixture
async def replicated(tmp_path: Path) -> AsyncIterator[WireClusterNode]:
    """A leader whose two followers fetch when the test says so."""
    async with WireClusterNode(tmp_path) as node:
        await node.place("t", (NODE, OTHER, THIRD))
        yield node


def delete_all() -> Asked:
    topic = DeleteRecordsRequestTopic("t", [DeleteRecordsRequestPartition(0, -1)])
    # The time is for the followers to delete it, which they do not here.
    return ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[topic], timeout_ms=3 * SETTLE_MS_MAX), 2


async def acknowledged(node: WireClusterNode) -> tuple[WireClient, Partition]:
    """One record that the leader has, and no follower."""
    client, partition = await node.connect(), node.broker.partition("t", 0)
    await client.ask(PRODUCE, produce("t", batch(b"v"), acks=1), 9)
    assert (partition.high_watermark, partition.log.written_offset) == (0, 1)
    return client, partition


async def test_a_lookup_waits_for_the_followers_in_sync(replicated: WireClusterNode) -> None:
    client, partition = await acknowledged(replicated)
    answer = asyncio.create_task(client.ask(*lookup(LATEST)))
    await until(lambda: answer.done() or partition.is_watched)
    replicated.fetched(partition, OTHER, 1)
    assert not answer.done()
    replicated.fetched(partition, THIRD, 1)
    assert found(await answer) == 1


async def test_a_lookup_does_not_wait_for_a_follower_that_is_away(replicated: WireClusterNode) -> None:
    client, partition = await acknowledged(replicated)
    replicated.fetched(partition, OTHER, 1)
    assert found(await after_settling(replicated, client.ask(*lookup(LATEST)))) == 0
    assert partition.in_sync.count == 3, "it is in sync all the same"


async def test_a_fetch_does_not_wait_for_a_follower_that_is_away(replicated: WireClusterNode) -> None:
    client, partition = await acknowledged(replicated)
    replicated.fetched(partition, OTHER, 1)
    part = fetched(await client.ask(FETCH, fetch("t", 0, max_wait_ms=0), 11))
    assert (values(part.records), part.high_watermark, partition.in_sync.count) == ([], 0, 3)


async def test_deleting_all_records_does_not_wait_for_a_follower_that_is_away(replicated: WireClusterNode) -> None:
    client, partition = await acknowledged(replicated)
    replicated.fetched(partition, OTHER, 1)
    answer = (await after_settling(replicated, client.ask(*delete_all()))).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark, partition.in_sync.count) == (0, 0, 3), "none is committed"


async def test_a_lookup_does_not_wait_where_too_few_replicas_are_in_sync(replicated: WireClusterNode) -> None:
    topic = replicated.broker.topics.require("t")
    (leader, *_) = replicated.broker.topics.partition(topic, 0).isr
    await replicated.set_record(topic, 0, isr=(leader,))
    client, partition = await acknowledged(replicated)
    assert partition.in_sync.count == 1
    assert not partition.is_settling(1)
    assert found(await client.ask(*lookup(LATEST))) == 0
