"""Queues whose nodes come and go: three whole nodes on real sockets, one store in memory."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.core.cluster import replicas as replicas_module
from penstock.core.cluster.follower import Follower
from penstock.core.cluster.observed import observed_id
from penstock.core.cluster.replicas import TopicIdPartition
from penstock.core.coordinators.topic import partition_of
from penstock.core.publish import NewRecord
from penstock.core.queues import upkeep
from penstock.core.queues.envelope import MAX_ATTEMPTS
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.errors import PenstockError, Reason
from penstock.operations.dead_letters import ALL, PlanRedrive, Redrive, ShowDeadLetters
from penstock.operations.groups import OffsetToCommit
from penstock.operations.queues import Consume, WhyState
from penstock.settings import QueueSettings
from penstock.types import GroupId, PartitionKey, TopicName
from tests.support.cluster_nodes import SECONDS_MAX, until
from tests.support.queue_cluster import CALLER, LEASE_MS, QueueCluster, places


def world(path: Path, **settings: int) -> QueueCluster:
    queues = QueueSettings(**{"backoff_ms": 0, "max_attempts": 3, **settings})
    return QueueCluster(path, 1, 2, 3, internal_partitions=6, queues=queues)


async def test_a_queue_is_worked_on_each_node_whoever_leads_the_topic(tmp_path: Path) -> None:
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


async def test_another_node_says_who_works_for_the_group(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3))
        group = cluster.group_of(cluster.nodes[1])
        with pytest.raises(PenstockError, match="Node 1 coordinates group") as refused:
            await cluster.lease(cluster.nodes[2], "t", group)
        assert refused.value.reason is Reason.NOT_COORDINATOR


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_was_acked_is_never_delivered_again_by_the_next_node(tmp_path: Path, is_killed: bool) -> None:
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


async def test_attempts_count_on_with_the_next_node_and_one_dead_letter_is_made(tmp_path: Path) -> None:
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


async def test_workers_are_told_when_another_node_works_for_their_group(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (1, 2, 3))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        gone: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        first.broker.queues.attach(Consume(10, "t", group, "w", LEASE_MS), lambda _: None, gone.set_result)
        await first.node.hand_over()
        async with asyncio.timeout(SECONDS_MAX):
            assert await gone is Reason.NOT_COORDINATOR
        assert first.broker.queues.get("t", group) is None


async def test_a_queue_is_worked_on_a_node_that_has_no_copy_of_the_topic(tmp_path: Path) -> None:
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


async def test_workers_get_what_comes_after_the_topic_changed_its_leader(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        await cluster.create("u", (2, 1, 3))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        for topic in ("t", "u"):
            await cluster.publish(first, topic, [b"before"])
            (taken,) = await cluster.lease(first, topic, group)
            assert taken.value == b"before"
        await cluster.leave(cluster.nodes[2])
        await until(lambda: (cluster.record("t").leader, cluster.record("u").leader) == (3, 1))
        for topic in ("t", "u"):
            places(await cluster.publish(cluster.nodes[3], topic, [b"after"]))
            assert [item.value for item in await cluster.lease(first, topic, group)] == [b"after"]


async def test_nothing_is_decided_on_a_record_before_it_is_copied_to_the_next_node(tmp_path: Path) -> None:
    async with world(tmp_path, max_attempts=3) as cluster:
        await cluster.ready()
        group = cluster.group_on(1, 2, 3)
        first, second = cluster.nodes[1], cluster.nodes[2]
        await cluster.create("t", (3,), min_insync_replicas="1")
        await cluster.create("dlq.t", (3, 2, 1))
        record = NewRecord(None, b"once", headers=((MAX_ATTEMPTS, b"1"),))
        places(await cluster.publish_records(first, "t", [record]))
        taken = await cluster.lease(first, "t", group)
        held: list[Follower] = []
        (copy,) = second.cluster.replicas.on_follow

        def hold(follower: Follower) -> None:
            if follower.topic.name == "t":
                held.append(follower)
            else:
                copy(follower)

        second.cluster.replicas.on_follow[:] = [hold]
        await cluster.leave(first)
        assert await cluster.moved(group, first) is second
        with pytest.raises(PenstockError) as refused:
            await cluster.nack(second, group, taken)
        assert refused.value.reason is Reason.COORDINATOR_LOAD_IN_PROGRESS
        for follower in held:
            copy(follower)
        queue = second.broker.queues.get("t", group)
        assert queue is not None
        await until(lambda: queue.is_here(queue.partitions[0]), "the record is copied")
        await cluster.nack(second, group, taken)
        await until(lambda: cluster.values("dlq.t") == [b"once"], "it had its one attempt")


async def test_a_record_on_its_way_to_the_dead_letters_gets_there_though_the_next_node_has_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, max_attempts=1) as cluster:
        await cluster.ready()
        group = cluster.group_on(1, 2, 3)
        first, second = cluster.nodes[1], cluster.nodes[2]
        await cluster.create("t", (3,), min_insync_replicas="1")
        await cluster.create("dlq.t", (3, 2, 1))
        places(await cluster.publish(first, "t", [b"poison"]))
        held: list[object] = []
        monkeypatch.setattr(first.node.remote, "append_once", lambda *asked: held.append(asked))
        await cluster.nack(first, group, await cluster.lease(first, "t", group))
        await until(lambda: held, "the first node is about to move it")
        await cluster.kill(first)
        assert await cluster.moved(group, first) is second
        await until(lambda: second.broker.queues.status("t", group).partitions[0].moving == 0, "it is moved")
        assert cluster.values("dlq.t") == [b"poison"]


async def test_a_record_with_its_own_policy_keeps_it_with_the_next_node(tmp_path: Path) -> None:
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


async def test_a_dead_letter_is_made_once_though_the_node_died_before_it_noted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, max_attempts=1) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        await cluster.create("dlq.t", (3, 1, 2))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await cluster.publish(first, "t", [b"poison", b"good"])
        taken = await cluster.lease(first, "t", group)
        monkeypatch.setattr(first.broker.queues._context.mover, "_finish", lambda _: None)
        await cluster.nack(first, group, taken)
        await until(lambda: cluster.values("dlq.t") == [b"poison"], "the dead letter is there")
        await cluster.kill(first)
        second = await cluster.moved(group, first)
        await until(lambda: second.broker.queues.status("t", group).partitions[0].moving == 0, "it is finished")
        assert [item.value for item in await cluster.lease(second, "t", group, 2)] == [b"good"]
        assert cluster.values("dlq.t") == [b"poison"]


async def test_a_dead_letter_is_made_once_though_two_nodes_want_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, max_attempts=1) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1))
        await cluster.create("dlq.t", (3, 1, 2))
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await cluster.publish(first, "t", [b"poison"])
        held: list[Any] = []
        real = first.node.remote.append_once
        monkeypatch.setattr(first.node.remote, "append_once", lambda *asked: held.append(asked))
        await cluster.nack(first, group, await cluster.lease(first, "t", group))
        await until(lambda: held, "the first node is about to make it")
        await first.node.hand_over()
        second = await cluster.moved(group, first)
        await until(lambda: cluster.values("dlq.t") == [b"poison"], "the second made it")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        real(*held[0][:-1], answer.set_result)  # type: ignore[call-arg]
        async with asyncio.timeout(SECONDS_MAX):
            assert (await answer).offsets == [0]
        assert cluster.values("dlq.t") == [b"poison"]
        await until(lambda: second.broker.queues.status("t", group).partitions[0].moving == 0, "it is finished")


async def test_dead_letters_are_redriven_once_though_the_node_that_does_it_stops(tmp_path: Path) -> None:
    async with world(tmp_path, max_attempts=1) as cluster:
        await cluster.ready()
        await cluster.create("t", (2, 3, 1), (3, 1, 2))
        await cluster.create("dlq.t", (3, 2, 1), (2, 3, 1))
        worked = cluster.nodes[2]
        group = cluster.group_of(worked)
        count = 40
        await cluster.publish(worked, "t", [b"%d" % n for n in range(count)])
        taken = await cluster.lease(worked, "t", group, count)
        while len(taken) < count:
            taken += await cluster.lease(worked, "t", group, count - len(taken))
        await cluster.nack(worked, group, taken)
        dead = lambda: cluster.values("dlq.t", 0) + cluster.values("dlq.t", 1)  # noqa: E731
        await until(lambda: len(dead()) == count, "all are dead letters")
        first = cluster.coordinator(REDRIVE_GROUP)
        plan = await _told(first.broker.dead_letters.plan, PlanRedrive("t", ALL))
        assert plan.count == count
        first.broker.dead_letters.redrive(CALLER, Redrive(0, "t", ALL, 200.0), lambda _: None, lambda _: None)
        await until(lambda: len(cluster.values("t", 0) + cluster.values("t", 1)) > count + 5, "some are back")
        await cluster.leave(first)
        second = await cluster.moved(REDRIVE_GROUP, first)
        done = asyncio.get_running_loop().create_future()
        second.broker.dead_letters.redrive(CALLER, Redrive(0, "t", ALL), lambda _: None, done.set_result)
        async with asyncio.timeout(SECONDS_MAX):
            await done
        await until(lambda: len(cluster.values("t", 0) + cluster.values("t", 1)) >= 2 * count, "all are back")
        values = sorted(int(value) for value in cluster.values("t", 0) + cluster.values("t", 1))
        assert values == sorted([*range(count), *range(count)])
        assert (await _told(second.broker.dead_letters.plan, PlanRedrive("t", ALL))).count == 0


async def _told(ask: Callable[..., object], *said: object) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(*said, done.set_result)
    async with asyncio.timeout(SECONDS_MAX):
        found = await done
    if isinstance(found, PenstockError):
        raise found
    return found


async def test_dead_letters_are_shown_on_a_node_that_has_no_copy_of_them(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        coordinator = cluster.coordinator(REDRIVE_GROUP)
        elsewhere = cluster.others(coordinator)[0].broker.node_id
        await cluster.create("t", (elsewhere,), min_insync_replicas="1")
        await cluster.create("dlq.t", (elsewhere,), min_insync_replicas="1")
        places(await cluster.publish(coordinator, "dlq.t", [b"a", b"b"]))
        shown = await _told(coordinator.broker.dead_letters.show, ShowDeadLetters("t", ALL, 10))
        assert [letter.value for letter in shown] == [b"a", b"b"]
        with pytest.raises(PenstockError) as refused:
            await _told(cluster.others(coordinator)[0].broker.dead_letters.show, ShowDeadLetters("t", ALL, 10))
        assert refused.value.reason is Reason.NOT_COORDINATOR


async def test_why_is_answered_for_a_topic_that_is_copied_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (2,), min_insync_replicas="1")
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        places(await cluster.publish(first, "t", [b"a"]))

        def why() -> WhyState | None:
            try:
                return first.broker.queues.why("t", 0, 0, group).state
            except PenstockError as error:
                assert error.reason is Reason.LEADER_NOT_AVAILABLE
                return None

        await until(why, "the records are here")
        assert why() is WhyState.NO_SUCH_GROUP
        await cluster.lease(first, "t", group)
        assert why() is WhyState.LEASED


async def test_what_nobody_reads_is_copied_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_module, "OBSERVED_MS", 50)
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.create("t", (2,), min_insync_replicas="1")
        first = cluster.nodes[1]
        group = cluster.group_of(first)
        await cluster.lease(first, "t", group, wait_ms=0)
        place = TopicIdPartition(topic.topic_id, 0)
        for _ in range(20):
            first.cluster.replicas.tick(first.broker.clock.monotonic_ms() + 1_000)
        assert first.cluster.replicas.follower(place) is not None, "its queue reads it"
        first.broker.queues.forget_group(group)
        first.cluster.replicas.tick(first.broker.clock.monotonic_ms() + 2_000)
        assert first.cluster.replicas.follower(place) is None
        assert not first.broker.logs.has_records(observed_id(topic.topic_id), 0)


async def test_only_what_is_still_to_be_worked_is_copied_to_a_node_without_a_replica(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        await cluster.create("t", (3,), min_insync_replicas="1")
        group = cluster.group_on(1, 2, 3)
        first, second = cluster.nodes[1], cluster.nodes[2]
        for n in range(4):
            # A batch of five each, so that the floor lies within one.
            places(await cluster.publish(first, "t", [b"%d" % (5 * n + at) for at in range(5)]))
        taken = await cluster.lease(first, "t", group, 12)
        while len(taken) < 12:
            taken += await cluster.lease(first, "t", group, 12 - len(taken))
        await cluster.ack(first, group, taken)
        await cluster.leave(first)
        assert await cluster.moved(group, first) is second
        rest = await cluster.lease(second, "t", group, 20)
        while len(rest) < 8:
            rest += await cluster.lease(second, "t", group, 20)
        assert [item.value for item in rest] == [b"%d" % n for n in range(12, 20)]
        queue = second.broker.queues.get("t", group)
        assert queue is not None
        source = queue.source(queue.partitions[0])
        assert (source.log.start_offset, source.first_offset) == (10, 0)
        # Somebody sends the group back: what is lacking is copied too, and nothing is taken for expired.
        item = OffsetToCommit(PartitionKey(TopicName("t"), 0), 3)
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        second.broker.groups.commit_offset(GroupId(group), item, done.set_result)
        assert await done is None
        again = await cluster.lease(second, "t", group, 20)
        while len(again) < 9:
            again += await cluster.lease(second, "t", group, 20)
        # What is under way stays with its worker.
        assert [item.value for item in again] == [b"%d" % n for n in range(3, 12)]


async def test_a_replica_that_was_an_observer_has_everything(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.create("t", (3,), min_insync_replicas="1")
        places(await cluster.publish(cluster.nodes[3], "t", [b"a", b"b", b"c"]))
        first = cluster.nodes[1]
        observed = first.broker.observe("t", 0, from_offset=2)
        await until(lambda: observed.high_watermark == 3, "it is copied")
        assert first.broker.logs.has_records(observed_id(topic.topic_id), 0)
        assert not first.broker.logs.has_records(topic.topic_id, 0)
        await first.cluster.reassignments.alter("t", 0, [3, 1])
        await until(lambda: cluster.record("t").in_sync == (3, 1), "it is a replica")
        copy = first.broker.replica("t", 0)
        await until(lambda: copy.high_watermark == 3)
        assert copy.log.start_offset == 0
        assert not first.broker.logs.has_records(observed_id(topic.topic_id), 0)


async def test_nothing_is_handed_out_that_could_not_be_leased_for_good(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        group = cluster.group_on(1, 2, 3)
        first = cluster.nodes[1]
        await cluster.create("t", (1, 2, 3))
        places(await cluster.publish(first, "t", [b"a"]))
        await cluster.kill(cluster.nodes[2])
        await cluster.kill(cluster.nodes[3])
        state = first.broker.partition(QUEUE_STATE_TOPIC, partition_of(group, 6))
        await until(lambda: state.in_sync.count == 1, "it is alone")
        # Told why, and not held up until another node is there: an empty answer would say that there is nothing to do.
        with pytest.raises(PenstockError) as refused:
            await cluster.lease(first, "t", group, wait_ms=200)
        assert refused.value.reason is Reason.NOT_ENOUGH_REPLICAS
        # A lease is nothing that could be sent with other acks.
        assert "penstock cluster status" in refused.value.text
        assert "acks" not in refused.value.text
        await cluster.start(2)
        await until(lambda: state.in_sync.count == 2, "another node is in sync")
        assert [(item.value, item.attempts) for item in await cluster.lease(first, "t", group)] == [(b"a", 1)]


async def test_an_ack_waits_for_replicas_as_those_of_later_records_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        group = cluster.group_on(1, 2, 3)
        first = cluster.nodes[1]
        await cluster.create("t", (1, 2, 3))
        places(await cluster.publish(first, "t", [b"a", b"b"]))
        taken = await cluster.lease(first, "t", group, 2)
        while len(taken) < 2:
            taken += await cluster.lease(first, "t", group)
        await cluster.kill(cluster.nodes[2])
        await cluster.kill(cluster.nodes[3])
        index = partition_of(group, 6)
        state = first.broker.partition(QUEUE_STATE_TOPIC, index)
        offsets = first.broker.partition(OFFSETS_TOPIC, index)
        await until(lambda: state.in_sync.count == offsets.in_sync.count == 1, "it is alone")
        reads: list[object] = []
        monkeypatch.setattr(upkeep, "read_images", lambda *given: reads.append(given))
        acks = [asyncio.create_task(cluster.ack(first, group, [item])) for item in taken]
        key = PartitionKey(TopicName("t"), 0)
        queue = first.broker.queues.get("t", group)
        assert queue is not None
        await until(lambda: queue.partitions[0].floor == 2, "both are acked in memory")
        assert not any(ack.done() for ack in acks)
        await cluster.start(2)
        await asyncio.gather(*acks)
        assert first.broker.groups.fetch_offsets(GroupId(group), [key])[key].offset == 2
        assert reads == [], "nothing failed, so nothing is loaded again"


async def test_a_lease_leaves_once_another_node_has_it(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        group = cluster.group_on(1, 2, 3)
        first = cluster.nodes[1]
        await cluster.create("t", (1, 2, 3))
        places(await cluster.publish(first, "t", [b"a"]))
        await cluster.lease(first, "t", group, wait_ms=0)
        state = first.broker.partition(QUEUE_STATE_TOPIC, partition_of(group, 6))
        assert state.high_watermark == state.log.next_offset


async def test_a_node_that_does_not_know_that_another_took_over_delivers_nothing_and_acks_nothing(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        # Not the first, which is the controller.
        group = cluster.group_on(2, 3, 1)
        first = cluster.nodes[2]
        await cluster.create("t", (3, 1, 2))
        places(await cluster.publish(first, "t", [b"a", b"b"]))
        (held,) = await cluster.lease(first, "t", group)
        assert held.value == b"a"
        await cluster.depose(first)
        second = await cluster.moved(group, first)
        (taken,) = await cluster.lease(second, "t", group)
        assert taken.value == b"b"
        await cluster.ack(second, group, [taken])
        # The first one believes that it works for the group.
        first.broker.queues.check_loaded(group)
        late = asyncio.create_task(cluster.lease(first, "t", group))
        acked = asyncio.create_task(cluster.ack(first, group, [held]))
        await cluster.ack(second, group, [held])
        cluster.news[2].release()
        assert await late == []
        with pytest.raises(PenstockError) as refused:
            await acked
        assert refused.value.reason is Reason.NOT_COORDINATOR
        assert await cluster.lease(second, "t", group, wait_ms=0) == []


async def test_what_was_observed_before_a_restart_is_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await cluster.ready()
        topic = await cluster.create("t", (3,), min_insync_replicas="1")
        places(await cluster.publish(cluster.nodes[3], "t", [b"a"]))
        first = cluster.nodes[1]
        observed = first.broker.observe("t", 0)
        await until(lambda: observed.high_watermark == 1, "it is copied")
        await cluster.kill(first)
        again = await cluster.start(1)
        assert observed_id(topic.topic_id) not in again.broker.logs.topic_ids()
        observed = again.broker.observe("t", 0)
        await until(lambda: observed.high_watermark == 1, "it is copied anew")
