"""Changes of in-sync sets, and every race of one: lost answers, late ones, and what others change meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine

import pytest
from msgspec.structs import replace

from penstock.cluster import in_sync_changes
from penstock.cluster.in_sync_changes import InSyncChanges
from penstock.core.partitions.partition import Partition
from penstock.core.topics.records import partition_key
from penstock.core.topics.topics import Topic
from penstock.metadata.port import Compare
from penstock.testing.faulty_store import StoreFault
from tests.support.cluster_nodes import until
from tests.unit.cluster.world import CoreWorld

HANGS_SECONDS = 60


class LeaderWorld(CoreWorld):
    """Node 1 leads ``t`` and has records; 2 is in sync, 3 is not yet."""

    topic_: Topic
    partition: Partition
    changes: InSyncChanges

    async def prepare(self) -> None:
        await self.start(1, 2, 3)
        self.topic_ = await self.topic(isr=(1, 2))
        self.partition = self[1].broker.partition("t", 0)
        self[1].append(self.partition, 10)
        self.changes = InSyncChanges(self[1].broker, self[1].store)
        self.fetched(2, 10)
        assert self.partition.high_watermark == 10
        self[1].store.txns.clear()

    @property
    def prefix(self) -> str:
        return partition_key(self.topic_.topic_id, 0)

    def fetched(self, node: int, offset: int) -> None:
        """A follower asks for what comes at ``offset``."""
        in_sync = self.partition.in_sync
        assert in_sync is not None
        end = self.partition.log.next_offset
        in_sync.fetched(node, self[node].epoch, offset, end, self[1].clock.monotonic_ms())
        self.partition.recount()
        self.changes.consider(self.partition)

    @property
    def is_changing(self) -> bool:
        assert self.partition.in_sync is not None
        return self.partition.in_sync.is_changing

    async def settled(self) -> None:
        await until(lambda: not self.is_changing, "the change is settled")

    @property
    def agreed(self) -> tuple[int, ...]:
        return self[1].record(self.topic_).in_sync


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaderWorld]:
    monkeypatch.setattr(in_sync_changes, "_RETRY_SECONDS", 0.01)
    made = LeaderWorld()
    await made.prepare()
    yield made
    with contextlib.suppress(asyncio.CancelledError):
        await made.changes.stop()


async def test_a_follower_that_caught_up_joins_by_one_transaction_that_names_all_it_goes_by(world: LeaderWorld) -> None:
    epoch = world[1].broker.topics.partition_epoch(world.topic_, 0)
    world.fetched(3, 10)
    await world.settled()
    assert world.agreed == (1, 2, 3)
    ((compares, _),) = [txn for txn in world[1].store.txns if txn[1][0].key == world.prefix]
    assert set(compares) == {
        Compare(world.prefix, mod_revision=epoch),
        Compare("nodes/1", create_revision=world[1].epoch),
        Compare("nodes/3", create_revision=world[3].epoch),
    }


async def test_who_is_about_to_join_counts_while_the_answer_is_out(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.SLOW, touching=world.prefix)
    world.fetched(3, 10)
    await world[1].store.met()
    world[1].append(world.partition)
    world.fetched(2, 11)
    assert world.partition.high_watermark == 10
    await world[1].store.release()
    await world.settled()
    assert world.partition.high_watermark == 10
    world.fetched(3, 11)
    assert world.partition.high_watermark == 11


async def test_a_join_whose_answer_is_lost_is_found_in_the_image(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.ANSWER_LOST, touching=world.prefix)
    world.fetched(3, 10)
    await world.settled()
    assert world.agreed == (1, 2, 3)
    assert len([txn for txn in world[1].store.txns if txn[1][0].key == world.prefix]) == 1


async def test_a_join_whose_request_is_lost_is_asked_again(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.REQUEST_LOST, touching=world.prefix)
    world.fetched(3, 10)
    await world.settled()
    assert world.agreed == (1, 2, 3)


async def test_a_joiner_counts_until_the_image_has_it_though_the_second_try_is_refused(world: LeaderWorld) -> None:
    """The change happened, its answer was lost, and the watch is late: the record in the image is the old one still."""
    store = world[1].store
    store.hold_events()
    world.fetched(3, 10)
    await until(lambda: len([txn for txn in store.txns if txn[1][0].key == world.prefix]) > 3, "it is asked again")
    assert world.is_changing
    world[1].append(world.partition)
    world.fetched(2, 11)
    # Node 3 is a member as all others see it, and lacks the last record.
    assert world.partition.high_watermark == 10
    store.let_events()
    await world.settled()
    assert world.agreed == (1, 2, 3)
    assert world.partition.high_watermark == 10


async def test_a_change_that_is_late_cannot_happen_after_another_one(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.LATE, touching=world.prefix)
    world.fetched(3, 10)
    await world[1].store.met()
    # The controller takes out node 2 meanwhile: the record is another.
    await world.put(world.topic_, world.led(1, (1,)))
    await world.settled()
    await world[1].store.release()
    assert [result.succeeded for result in world[1].store.late_results] == [False]
    assert world.agreed == (1,)


async def test_a_joiner_that_registered_again_meanwhile_does_not_join_in_its_old_life(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.SLOW, touching=world.prefix)
    world.fetched(3, 10)
    await world[1].store.met()
    await world[3].register()
    await world[1].store.release()
    await world.settled()
    assert world.agreed == (1, 2)
    # In its new incarnation it asks, and joins in that.
    world.fetched(3, 10)
    await world.settled()
    assert dict(world[1].record(world.topic_).isr)[3] == world[3].epoch


async def test_a_leader_whose_life_is_over_changes_nothing_more(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.SLOW, touching=world.prefix)
    world.fetched(3, 10)
    await world[1].store.met()
    # Its lease has ended, and it does not know yet.
    await world.store.revoke(world[1].lease)
    await world[1].store.release()
    await world.settled()
    assert world.agreed == (1, 2)


async def test_a_leader_that_was_replaced_changes_nothing_more(world: LeaderWorld) -> None:
    store = world[1].store
    store.order(StoreFault.SLOW, touching=world.prefix)
    world.fetched(3, 10)
    await store.met()
    # Node 2 leads now; node 1 has not heard of it.
    store.hold_events()
    await world.put(world.topic_, world.led(2, (2,), leader_epoch=2))
    await store.release()
    await until(lambda: len([txn for txn in store.txns if txn[1][0].key == world.prefix]) > 1, "it is asked again")
    assert world[2].record(world.topic_).in_sync == (2,)
    store.let_events()
    await world.settled()
    assert world.partition.gone
    assert world[2].record(world.topic_).in_sync == (2,)


async def test_who_leaves_counts_until_it_is_agreed_and_no_longer(world: LeaderWorld) -> None:
    world.fetched(3, 10)
    await world.settled()
    world[1].append(world.partition)
    world[1].store.order(StoreFault.REQUEST_LOST, StoreFault.SLOW, touching=world.prefix)
    world[1].clock.advance(10_001)
    world.fetched(2, 11)
    await world[1].store.met()
    assert world.partition.high_watermark == 10
    await world[1].store.release()
    await world.settled()
    assert world.agreed == (1, 2)
    assert world.partition.high_watermark == 11


async def test_a_deleted_topic_ends_the_wait(world: LeaderWorld) -> None:
    world[1].store.order(StoreFault.SLOW, touching=world.prefix)
    world.fetched(3, 10)
    await world[1].store.met()
    await world[2].broker.topics.delete("t")
    await world[1].store.release()
    await world.settled()
    assert await world.store.get(world.prefix) is None


async def test_a_change_is_for_the_record_that_it_was_decided_for(world: LeaderWorld) -> None:
    """The move that made node 3 a replica is taken back before the change has had its first turn."""
    begun: list[Coroutine[object, object, None]] = []
    run, world.changes._run = world.changes._run, begun.append  # type: ignore[method-assign]
    world.fetched(3, 10)
    [change] = begun
    await world.put(world.topic_, replace(world[1].record(world.topic_), replicas=(1, 2)))
    await until(lambda: world[1].record(world.topic_).replicas == (1, 2), "it is taken back")
    run(change)
    await world.settled()
    assert world.agreed == (1, 2)
    assert [txn for txn in world[1].store.txns if txn[1][0].key == world.prefix] == []
