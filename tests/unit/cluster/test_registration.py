"""A node's registration, and every race of it: what a lost answer, an old incarnation, another node or another directory make of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
import pytest

from penstock.cluster.directories import directory_key
from penstock.cluster.registration import NodeIdTakenError, NodeRegistration
from penstock.core.cluster.election import elected
from penstock.core.cluster.image import NodeRecord, node_key
from penstock.core.topics.records import NO_LEADER, PartitionRecord, decode_partition, encode
from penstock.errors import Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, Entry, Put, SharedStore
from penstock.testing.faulty_store import FaultyStore, StoreFault
from penstock.types import NodeId
from tests.support.cluster_nodes import until

KEY = node_key(1)
TTL_MS = 60_000
SHORT_TTL_MS = 60
HANGS_SECONDS = 60


@dataclass
class Incarnation:
    """A registration, and the epochs that it told."""

    registration: NodeRegistration
    epochs: list[int] = field(default_factory=list)


def incarnation(
    store: SharedStore, *, process: int = 1, directory: int = 1, ttl_ms: int = TTL_MS, address: str = "host:1"
) -> Incarnation:
    record = NodeRecord(UUID(int=process), UUID(int=directory), {"peer": address})
    epochs: list[int] = []
    return Incarnation(NodeRegistration(store, NodeId(1), record, ttl_ms=ttl_ms, on_registered=epochs.append), epochs)


@contextlib.asynccontextmanager
async def started(each: Incarnation) -> AsyncIterator[Incarnation]:
    async with asyncio.timeout(HANGS_SECONDS):
        await each.registration.start()
    try:
        yield each
    finally:
        await each.registration.leave()


async def the_entry(store: SharedStore) -> Entry:
    entry = await store.get(KEY)
    assert entry is not None
    return entry


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(operations_max=128)


async def test_a_nodes_epoch_is_its_entrys_create_revision_and_it_leaves_with_its_lease(store: MemoryStore) -> None:
    async with started(incarnation(store)) as one:
        entry = await the_entry(store)
        assert one.epochs == [entry.create_revision] == [one.registration.epoch]
        assert entry.lease == one.registration.lease
    assert await store.get(KEY) is None


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST])
async def test_a_registration_whose_answer_is_lost_is_found_again_and_made_once(
    store: MemoryStore, fault: StoreFault
) -> None:
    faulty = FaultyStore(store)
    faulty.order(fault, touching=KEY)
    async with started(incarnation(faulty)) as one:
        entry = await the_entry(store)
        assert one.epochs == [entry.create_revision]
        assert entry.lease == one.registration.lease
        assert entry.mod_revision == entry.create_revision
    assert len(faulty.txns) == (1 if fault is StoreFault.ANSWER_LOST else 2)


async def test_a_registration_that_happens_after_it_was_given_up_does_not_stay(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    faulty.order(StoreFault.LATE, StoreFault.SLOW, touching=KEY)
    one = incarnation(faulty)
    starting = asyncio.create_task(one.registration.start())
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        # The first try is done now, on the lease of the first; the second one fails because of it.
        await faulty.release()
        await starting
    entry = await the_entry(store)
    assert [result.succeeded for result in faulty.late_results] == [True]
    assert one.epochs == [entry.create_revision]
    assert entry.lease == one.registration.lease
    assert await store.keep_alive(entry.lease) > 0
    await one.registration.leave()


async def test_an_entry_of_this_directorys_last_process_is_not_waited_for(store: MemoryStore) -> None:
    before = incarnation(store, process=1)
    async with asyncio.timeout(HANGS_SECONDS):
        await before.registration.start()
        # It is killed: its lease has a minute to go.
        assert before.registration._task is not None
        before.registration._task.cancel()
        async with started(incarnation(store, process=2)) as after:
            entry = await the_entry(store)
            assert after.epochs == [entry.create_revision]
            assert entry.create_revision > before.registration.epoch
            assert await store.keep_alive(before.registration.lease) == 0


async def test_another_node_with_the_same_id_is_a_clear_error_and_is_left_alone(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(incarnation(store, process=1, directory=1, address="there:7")) as first:
        second = incarnation(store, process=2, directory=2, ttl_ms=SHORT_TTL_MS)
        with pytest.raises(NodeIdTakenError, match=r"there:7.*--node-id") as caught:
            async with asyncio.timeout(HANGS_SECONDS):
                await second.registration.start()
        assert caught.value.reason is Reason.INVALID_CONFIG
        assert (await the_entry(store)).create_revision == first.registration.epoch
        assert second.epochs == []
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert "waiting" in warned[0]
    assert caught.value.text not in warned[0]


async def test_a_dead_node_with_the_same_id_is_waited_for(store: MemoryStore) -> None:
    dead = incarnation(store, process=1, directory=1)
    await dead.registration.start()
    assert dead.registration._task is not None
    dead.registration._task.cancel()
    successor = incarnation(store, process=2, directory=2)
    starting = asyncio.create_task(successor.registration.start())
    await until(lambda: successor.registration.problem, "it says what it waits for")
    store.expire(TTL_MS)
    async with asyncio.timeout(HANGS_SECONDS):
        await starting
    assert successor.epochs == [(await the_entry(store)).create_revision]
    await successor.registration.leave()


async def test_a_node_whose_lease_ended_registers_in_a_new_life(store: MemoryStore) -> None:
    async with started(incarnation(store, ttl_ms=SHORT_TTL_MS)) as one:
        await store.revoke(one.registration.lease)
        await until(lambda: len(one.epochs) == 2, "it registers again")
        entry = await the_entry(store)
        assert one.epochs[0] < one.epochs[1] == entry.create_revision == one.registration.epoch


async def test_a_node_whose_entry_was_removed_while_its_lease_lives_registers_in_a_new_life_at_once(
    store: MemoryStore,
) -> None:
    # Its next renewal is further away than this test waits.
    async with started(incarnation(store, ttl_ms=600_000)) as one:
        await store.txn([], [Put("nodes/10", b"another's")])
        await store.txn([], [Delete("nodes/10")])
        await store.txn([], [Delete(KEY)])
        await until(lambda: len(one.epochs) == 2, "it registers again")
        assert one.epochs[1] == (await the_entry(store)).create_revision


async def test_a_node_whose_lease_ended_and_whose_id_was_taken_says_so_and_comes_back_after_that_one(
    store: MemoryStore,
) -> None:
    async with started(incarnation(store, ttl_ms=SHORT_TTL_MS)) as one:
        faulty = FaultyStore(store)
        await store.revoke(one.registration.lease)
        async with started(incarnation(faulty, process=2, directory=2, address="there:7")) as other:
            await until(
                lambda: "there:7" in (one.registration.problem or ""), "the first says why it is not registered"
            )
            assert (await the_entry(store)).create_revision == other.registration.epoch
        await until(lambda: len(one.epochs) == 2, "it is registered again")


async def test_a_store_that_cannot_be_reached_ends_no_life(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with started(incarnation(faulty, ttl_ms=SHORT_TTL_MS)) as one:
        faulty.is_down = True
        await until(lambda: one.registration.problem, "it is noticed")
        faulty.is_down = False
        await until(lambda: one.registration.problem is None, "it is well again")
        assert one.epochs == [one.registration.epoch]


async def test_an_announcement_of_a_stop_is_in_the_entry_and_leaves_the_life_as_it_is(store: MemoryStore) -> None:
    async with started(incarnation(store)) as one:
        before = await the_entry(store)
        assert await one.registration.announce_stop()
        entry = await the_entry(store)
        assert msgspec.json.decode(entry.value, type=NodeRecord).shutting_down
        assert (entry.create_revision, entry.lease) == (before.create_revision, before.lease)


async def test_a_stop_that_cannot_be_announced_is_told_to_whoever_would_wait(store: MemoryStore) -> None:
    faulty = FaultyStore(store)
    async with started(incarnation(faulty)) as one:
        faulty.is_down = True
        assert not await one.registration.announce_stop()


async def test_an_announcement_of_a_stop_is_this_lifes_alone(store: MemoryStore) -> None:
    one = incarnation(store, process=1)
    await one.registration.start()
    assert one.registration._task is not None
    one.registration._task.cancel()
    async with started(incarnation(store, process=2)):
        assert not await one.registration.announce_stop()
        found = msgspec.json.decode((await the_entry(store)).value, type=NodeRecord)
        assert not found.shutting_down


async def test_a_damaged_entry_is_told_and_waited_out(store: MemoryStore) -> None:
    await store.txn([], [Put(KEY, b"{")])
    one = incarnation(store)
    starting = asyncio.create_task(one.registration.start())
    await until(lambda: "cannot be read" in (one.registration.problem or ""), "it is said")
    await store.txn([], [Delete(KEY)])
    async with asyncio.timeout(HANGS_SECONDS):
        await starting
    await one.registration.leave()


# Directories.


def partition(isr: tuple[int, ...], elr: tuple[int, ...] = (), leader: int = 2) -> PartitionRecord:
    return PartitionRecord(
        leader=leader,
        leader_epoch=3,
        leader_node_epoch=leader * 10,
        replicas=(1, 2, 3),
        isr=tuple((node, node * 10) for node in isr),
        elr=elr,
    )


async def record_of(store: SharedStore, key: str) -> PartitionRecord:
    entry = await store.get(key)
    assert entry is not None
    return decode_partition(key, entry.value)


def p(number: int) -> str:
    return f"p/{UUID(int=7).hex}/{number}"


async def with_partitions(store: SharedStore, count: int = 0) -> None:
    records = [partition((1, 2, 3)), partition((2,), elr=(3, 1)), partition((1,), leader=1), partition((2, 3))]
    records += [partition((1, 2))] * count
    for number, record in enumerate(records):
        await store.txn([], [Put(p(number), encode(record))])


async def test_the_same_directory_keeps_its_place_in_every_in_sync_set(store: MemoryStore) -> None:
    await with_partitions(store)
    before = (await store.range("p/")).entries
    for process in (1, 2, 3):
        async with started(incarnation(store, process=process)):
            pass
    assert (await store.range("p/")).entries == before


async def test_a_node_with_another_directory_leaves_every_in_sync_set_before_it_registers(store: MemoryStore) -> None:
    async with started(incarnation(store, directory=1)):
        pass
    await with_partitions(store, count=300)
    seen: list[bool] = []

    def look(_events: object) -> None:
        entries = store._entries
        counted = [decode_partition(key, entry.value) for key, entry in entries.items() if key.startswith("p/")]
        seen.append(any(1 in record.in_sync or 1 in record.elr for record in counted))

    store.subscribe("nodes/", look)
    async with started(incarnation(store, process=2, directory=2)):
        assert (await record_of(store, p(0))).in_sync == (2, 3)
        assert (await record_of(store, p(1))).elr == (3,)
        assert (await record_of(store, p(2))).in_sync == ()
        assert (await record_of(store, p(3))) == partition((2, 3))
        assert {(await record_of(store, p(4 + n))).in_sync for n in range(300)} == {(2,)}
        remembered = await store.get(directory_key(1))
        assert remembered is not None
        assert remembered.value == UUID(int=2).hex.encode()
    assert seen[0] is False


async def test_a_partition_that_was_in_sync_on_a_replaced_directory_alone_is_led_by_nobody(store: MemoryStore) -> None:
    async with started(incarnation(store, directory=1)):
        pass
    await with_partitions(store)
    async with started(incarnation(store, process=2, directory=2)) as one:
        offline = elected(await record_of(store, p(2)), {1: one.registration.epoch, 2: 20, 3: 30}, 2)
        assert offline.leader == NO_LEADER


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST, StoreFault.LATE])
async def test_leaving_the_in_sync_sets_survives_lost_answers(store: MemoryStore, fault: StoreFault) -> None:
    async with started(incarnation(store, directory=1)):
        pass
    await with_partitions(store)
    faulty = FaultyStore(store)
    faulty.order(fault, touching="p/")
    async with started(incarnation(faulty, process=2, directory=2)):
        assert (await record_of(store, p(0))).in_sync == (2, 3)
        await faulty.release()
        assert (await record_of(store, p(0))).in_sync == (2, 3)


async def test_a_record_that_changes_meanwhile_is_looked_at_again(store: MemoryStore) -> None:
    async with started(incarnation(store, directory=1)):
        pass
    await with_partitions(store)
    faulty = FaultyStore(store)
    faulty.order(StoreFault.SLOW, touching="p/")
    one = incarnation(faulty, process=2, directory=2)
    starting = asyncio.create_task(one.registration.start())
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        # Its leader takes somebody out.
        await store.txn([], [Put(p(0), encode(partition((1, 2))))])
        await faulty.release()
        await starting
    assert (await record_of(store, p(0))).in_sync == (2,)
    assert (await record_of(store, p(1))).elr == (3,)
    await one.registration.leave()


async def test_of_two_directories_that_come_at_once_under_one_id_only_one_is_registered(store: MemoryStore) -> None:
    async with started(incarnation(store, directory=1)):
        pass
    await with_partitions(store)
    faulty = FaultyStore(store)
    # The second one has settled everything, and its registration is on its way when the first one comes back and goes again.
    faulty.order(StoreFault.SLOW, touching=KEY)
    second = incarnation(faulty, process=2, directory=2)
    starting = asyncio.create_task(second.registration.start())
    async with asyncio.timeout(HANGS_SECONDS):
        await faulty.met()
        async with started(incarnation(store, process=3, directory=1)) as first:
            joined = PartitionRecord(2, 3, (1, 2, 3), ((1, first.registration.epoch), (2, 20)))
            await store.txn([], [Put(p(0), encode(joined))])
        await faulty.release()
        await starting
    # What it had settled was not true any more, and it settled it again.
    assert 1 not in (await record_of(store, p(0))).in_sync
    await second.registration.leave()
