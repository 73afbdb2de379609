"""Reading from the closest replica: whom the leader sends to a follower, and what a follower gives."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.core.cluster.follower import Follower
from penstock.core.cluster.image import drain_key
from penstock.errors import Reason
from penstock.metadata.port import Put
from penstock.wire.kafka.apis import ApiKey
from tests.support.kafka_cluster import OTHER, THIRD, WireClusterNode
from tests.support.kafka_node import NODE, reason_of
from tests.support.kafka_wire import batch, fetch, fetched, until, values

FETCH = ApiKey.FETCH
RACK_FROM = 11
LONG_MS = 100_000
SOON_SECONDS = 10.0
"""Much less than any wait that is not cut short."""


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[WireClusterNode]:
    async with WireClusterNode(tmp_path) as started:
        yield started


async def led(node: WireClusterNode) -> None:
    """A partition with three committed records, led here."""
    await node.place("t", (NODE, OTHER, THIRD))
    partition = await node.append_written("t", 0, 3)
    for follower in (OTHER, THIRD):
        node.fetched(partition, follower, 3)


async def followed(node: WireClusterNode) -> Follower:
    """One with two records, led elsewhere, of which the first is known to be committed."""
    topic = await node.place("t", (OTHER, NODE, THIRD))
    follower = node.broker.replica(topic.name, 0)
    assert isinstance(follower, Follower)
    # What the checksum covers begins behind the base offset.
    follower.take(batch(b"a") + (1).to_bytes(8, "big") + batch(b"b")[8:], 1, 0)
    await until(lambda: follower.high_watermark == 1)
    return follower


async def ask(node: WireClusterNode, offset: int = 0, rack: str = "b", version: int = 12, **fields: Any) -> Any:
    return fetched(await node.ask(FETCH, fetch("t", offset, rack_id=rack, **fields), version))


# The leader.


async def test_a_client_in_a_followers_rack_is_sent_to_it_at_once_and_gets_nothing_here(node: WireClusterNode) -> None:
    await led(node)
    # At the end of the log there is nothing to send, and all the time to wait.
    async with asyncio.timeout(SOON_SECONDS):
        answer = await ask(node, 3, max_wait_ms=LONG_MS)
    assert (answer.error_code, answer.preferred_read_replica, bytes(answer.records)) == (0, OTHER, b"")
    assert (answer.high_watermark, answer.log_start_offset) == (3, 0)
    assert (await ask(node, 0, "c")).preferred_read_replica == THIRD


@pytest.mark.parametrize("rack", ["a", "", "elsewhere"])
async def test_whoever_has_no_follower_closer_by_is_served_by_the_leader(node: WireClusterNode, rack: str) -> None:
    await led(node)
    answer = await ask(node, 0, rack)
    assert answer.preferred_read_replica == -1
    assert len(values(answer.records)) == 3


async def test_clients_too_old_to_say_where_they_are_are_served_by_the_leader(node: WireClusterNode) -> None:
    await led(node)
    assert len(values((await ask(node, version=RACK_FROM - 1)).records)) == 3


async def test_a_follower_that_lacks_what_is_asked_for_is_not_chosen(node: WireClusterNode) -> None:
    await led(node)
    await node.append_written("t", 0, 1)
    assert (await ask(node, 3)).preferred_read_replica == OTHER
    assert (await ask(node, 4)).preferred_read_replica == -1


async def test_a_follower_that_is_gone_or_to_be_emptied_or_not_in_sync_is_not_chosen(node: WireClusterNode) -> None:
    await led(node)
    topic = node.broker.topics.require("t")
    whole = node.broker.topics.partition(topic, 0).isr
    await node.set_record(topic, 0, isr=tuple(member for member in whole if member[0] != OTHER))
    assert (await ask(node)).preferred_read_replica == -1
    await node.set_record(topic, 0, isr=whole)
    assert (await ask(node)).preferred_read_replica == OTHER
    await node.store.txn([], [Put(drain_key(OTHER), b"{}")])
    assert (await ask(node)).preferred_read_replica == -1
    await node.leave(THIRD)
    assert (await ask(node, 0, "c")).preferred_read_replica == -1
    # Back in another life: it has to be in sync in that one.
    await node.join(THIRD)
    assert (await ask(node, 0, "c")).preferred_read_replica == -1


async def test_a_session_tells_the_choice_each_time(node: WireClusterNode) -> None:
    await led(node)
    first = await node.ask(FETCH, fetch("t", 0, rack_id="b", session_epoch=0), 12)
    assert (first.session_id > 0, fetched(first).preferred_read_replica) == (True, OTHER)
    again = await node.ask(FETCH, fetch("t", rack_id="b", session_id=first.session_id, session_epoch=1), 12)
    assert fetched(again).preferred_read_replica == OTHER


async def test_the_fast_lane_leaves_such_clients_alone(node: WireClusterNode) -> None:
    await led(node)
    client = await node.connect()
    for _ in range(3):
        assert fetched(await client.ask(FETCH, fetch("t", 0, rack_id="b"), 12)).preferred_read_replica == OTHER


# A follower.


async def test_a_follower_gives_what_is_committed_to_who_says_where_it_is(node: WireClusterNode) -> None:
    await followed(node)
    answer = await ask(node, 0, "a")
    assert (answer.error_code, values(answer.records), answer.high_watermark) == (0, [b"a"], 1)
    # What it has and does not know to be committed is not out of range: it comes in a moment.
    assert ((await ask(node, 2, "a")).error_code, bytes((await ask(node, 2, "a")).records)) == (0, b"")
    assert reason_of((await ask(node, 3, "a")).error_code) is Reason.OFFSET_OUT_OF_RANGE


async def test_a_wait_at_a_follower_ends_when_it_learns_of_more(node: WireClusterNode) -> None:
    follower = await followed(node)
    waiting = asyncio.create_task(ask(node, 1, "a", max_wait_ms=LONG_MS))
    await until(lambda: follower._readers)
    follower.take(b"", 2, 0)
    assert values((await waiting).records) == [b"b"]


async def test_a_wait_at_a_follower_ends_when_it_follows_no_more(node: WireClusterNode) -> None:
    follower = await followed(node)
    waiting = asyncio.create_task(ask(node, 1, "a", max_wait_ms=LONG_MS))
    await until(lambda: follower._readers)
    await node.set_record(follower.topic, 0, leader=-1, leader_epoch=1)
    assert reason_of((await waiting).error_code) is Reason.NOT_LEADER_OR_FOLLOWER


async def test_who_does_not_say_where_it_is_is_told_the_leader(node: WireClusterNode) -> None:
    await followed(node)
    response = await node.ask(FETCH, fetch("t", 0), 12)
    answer = fetched(response)
    assert reason_of(answer.error_code) is Reason.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (OTHER, 0)
    topic_id = node.broker.topics.require("t").topic_id.bytes
    response = await node.ask(FETCH, fetch(topic_id, 0), 16)
    assert fetched(response).current_leader.leader_id == OTHER
    assert [(each.node_id, each.port, each.rack) for each in response.node_endpoints] == [(OTHER, 9008, "b")]


async def test_a_follower_that_fell_behind_sends_readers_back_to_the_leader(node: WireClusterNode) -> None:
    follower = await followed(node)
    live = node.cluster.nodes.live()
    await node.set_record(follower.topic, 0, isr=((OTHER, live[OTHER]),))
    answer = await ask(node, 0, "a")
    assert reason_of(answer.error_code) is Reason.NOT_LEADER_OR_FOLLOWER
    assert answer.current_leader.leader_id == OTHER


@pytest.mark.parametrize(("epoch", "reason"), [(0, None), (1, Reason.UNKNOWN_LEADER_EPOCH)])
async def test_a_follower_of_an_older_leader_than_the_clients_says_so(
    node: WireClusterNode, epoch: int, reason: Reason | None
) -> None:
    await followed(node)
    assert reason_of((await ask(node, 0, "a", leader_epoch=epoch)).error_code) is reason
