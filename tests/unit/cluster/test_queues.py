"""Queues whose nodes come and go: three whole nodes on real sockets, one store in memory."""

import asyncio
from pathlib import Path

import pytest

from penstock.core.publish import NewRecord
from penstock.core.queues.envelope import MAX_ATTEMPTS
from penstock.core.queues.settings import QueueSettings
from penstock.errors import PenstockError, Reason
from tests.support.cluster_nodes import until
from tests.support.queue_cluster import CALLER, LEASE_MS, QueueCluster, places


def world(path: Path, **settings: int) -> QueueCluster:
    queues = QueueSettings(**{"backoff_ms": 0, "max_attempts": 3, **settings})
    return QueueCluster(path, 1, 2, 3, internal_partitions=6, queues=queues)


async def test_a_queue_is_worked_on_each_node_whoever_leads_the_topic(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
        await cluster.publish(cluster.any, "t", [b"%d" % n for n in range(9)])
        for running in cluster.up:
            group = cluster.group_of(running)
            taken = await cluster.lease(running, "t", group, 9)
            while len(taken) < 9:
                taken += await cluster.lease(running, "t", group, 9 - len(taken))
            assert sorted(item.value or b"" for item in taken) == [b"%d" % n for n in range(9)]
            await cluster.ack(running, group, taken)
            assert await cluster.lease(running, "t", group, wait_ms=0) == []


async def test_another_node_says_who_works_for_the_group(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3))
        group = cluster.group_of(cluster.nodes[1])
        with pytest.raises(PenstockError, match="Node 1 works for group") as refused:
            await cluster.lease(cluster.nodes[2], "t", group)
        assert refused.value.reason is Reason.NOT_COORDINATOR


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_was_acked_is_never_delivered_again_by_the_next_node(tmp_path: Path, is_killed: bool):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3), (2, 3, 1))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await cluster.publish(cluster.nodes[2], "t", [b"%d" % n for n in range(20)], partition=1)
        taken = await cluster.lease(first, "t", group, 10)
        # The third and the last: what lies between stays open.
        await cluster.ack(first, group, [taken[2], taken[-1]])
        await (cluster.kill(first) if is_killed else cluster.leave(first))
        second = await cluster.moved(group, first)
        again = await cluster.lease(second, "t", group, 20, owner="other")
        offsets = {item.offset for item in again}
        assert taken[2].offset not in offsets
        assert taken[-1].offset not in offsets
        # Leases that were written are kept, or given to somebody else if they were lost with the node: nothing is lost.
        held = {item.offset for item in taken if item not in (taken[2], taken[-1])} - offsets
        late = [item for item in taken if item.offset in held]
        await cluster.ack(second, group, late)
        await cluster.ack(second, group, again, owner="other")
        rest = await cluster.lease(second, "t", group, 20, owner="other", wait_ms=0)
        await cluster.ack(second, group, rest, owner="other")
        done = {taken[2].offset, taken[-1].offset} | held | offsets | {item.offset for item in rest}
        assert done == set(range(20))


async def test_attempts_count_on_with_the_next_node_and_one_dead_letter_is_made(tmp_path: Path):
    async with world(tmp_path, max_attempts=2) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        await cluster.create("dlq.t", (3, 1, 2))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await cluster.publish(first, "t", [b"poison"])
        await cluster.nack(first, group, await cluster.lease(first, "t", group))
        await cluster.kill(first)
        second = await cluster.moved(group, first)
        again = await cluster.lease(second, "t", group)
        assert [item.attempts for item in again] == [2]
        await cluster.nack(second, group, again)
        await until(lambda: cluster.values("dlq.t") == [b"poison"], "the dead letter is there")
        await until(lambda: second.broker.queues.status("t", group).partitions[0].moving == 0, "it is finished")
        assert await cluster.lease(second, "t", group, wait_ms=0) == []
        assert cluster.values("dlq.t") == [b"poison"]


async def test_workers_are_told_when_another_node_works_for_their_group(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        gone: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        first.broker.queues.attach(
            CALLER, "t", group, "w", lease_ms=LEASE_MS, credit=10, on_deliver=lambda _: None, on_gone=gone.set_result
        )
        await first.node.hand_over()
        async with asyncio.timeout(10):
            assert await gone is Reason.NOT_COORDINATOR
        assert first.broker.queues.get("t", group) is None


async def test_a_queue_is_worked_on_a_node_that_has_no_copy_of_the_topic(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (2,), min_insync_replicas="1")
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        assert first.broker.cluster is not None
        places(await cluster.publish(first, "t", [b"a", b"b"]))
        taken = await cluster.lease(first, "t", group)
        taken += await cluster.lease(first, "t", group)
        assert [item.value for item in taken] == [b"a", b"b"]
        await cluster.ack(first, group, taken)
        places(await cluster.publish(cluster.nodes[3], "t", [b"c"]))
        assert [item.value for item in await cluster.lease(first, "t", group)] == [b"c"]


async def test_a_record_with_its_own_policy_keeps_it_with_the_next_node(tmp_path: Path):
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        await cluster.create("dlq.t", (3, 1, 2))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        record = NewRecord(None, b"once", headers=((MAX_ATTEMPTS, b"1"),))
        places(await cluster.publish_records(first, "t", [record]))
        taken = await cluster.lease(first, "t", group)
        await cluster.stored(group)
        await cluster.leave(first)
        second = await cluster.moved(group, first)
        await cluster.nack(second, group, taken)
        await until(lambda: cluster.values("dlq.t") == [b"once"], "the dead letter is there")
