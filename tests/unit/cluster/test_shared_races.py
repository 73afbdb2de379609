"""What two nodes do at once to the same topic, or to the producer ids: each change goes by a revision, so one wins and the other sees it."""

import asyncio
from collections.abc import Sequence

import pytest

from penstock.core.partitions.producer_ids import KEY as PRODUCER_IDS_KEY
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.records import DELETED_PREFIX, PARTITIONS_PREFIX, TOPICS_PREFIX, encode, partition_key
from penstock.core.topics.topics import NewTopic, Topic
from penstock.errors import PenstockError, Reason
from penstock.limits import PRODUCER_ID_BLOCK
from penstock.metadata.port import Compare, Operation, Put, TxnResult, UnknownOutcomeError
from penstock.testing.faulty_store import StoreFault
from tests.unit.cluster.world import CoreWorld

HANGS_SECONDS = 60


@pytest.fixture
async def world() -> CoreWorld:
    made = CoreWorld()
    await made.start(1, 2, 3)
    return made


def change(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ChangeKind.SET, value)


async def reason_of(call: "asyncio.Future[Topic]") -> Reason | None:
    try:
        await call
    except PenstockError as error:
        return error.reason
    return None


async def keys(world: CoreWorld, prefix: str) -> list[str]:
    return [entry.key for entry in (await world.store.range(prefix)).entries]


async def check_whole(world: CoreWorld, name: str, partitions: int) -> None:
    """Every node sees the same topic, and the store has exactly its records."""
    ids = {node.broker.topics.require(name).topic_id for node in world.nodes.values()}
    assert len(ids) == 1
    (topic_id,) = ids
    assert await keys(world, TOPICS_PREFIX) == [f"topics/{name}"]
    assert sorted(await keys(world, PARTITIONS_PREFIX)) == sorted(f"p/{topic_id.hex}/{n}" for n in range(partitions))


@pytest.mark.parametrize("partitions", [3, 300])
async def test_of_two_creators_one_wins_and_nothing_is_left_of_the_other(world: CoreWorld, partitions: int) -> None:
    # The first is slow with the last of its transactions, which is the one that has the topic.
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.create(NewTopic("t", partitions)))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.create(NewTopic("t", partitions))
        await world[1].store.release()
        assert await reason_of(first) is Reason.TOPIC_ALREADY_EXISTS
    await check_whole(world, "t", partitions)


async def test_a_creator_that_does_not_mind_gets_the_winners_topic(world: CoreWorld) -> None:
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.create(NewTopic("t", 2), exist_ok=True))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        winner = await world[2].broker.topics.create(NewTopic("t", 2))
        await world[1].store.release()
        assert (await first).topic_id == winner.topic_id


@pytest.mark.parametrize("partitions", [2, 300])
async def test_a_creation_whose_answer_is_lost_is_told_by_its_id(world: CoreWorld, partitions: int) -> None:
    world[1].store.order(StoreFault.ANSWER_LOST, touching=TOPICS_PREFIX)
    made = await world[1].broker.topics.create(NewTopic("t", partitions))
    assert world[1].broker.topics.require("t").topic_id == made.topic_id
    await check_whole(world, "t", partitions)


async def test_a_creation_whose_request_is_lost_is_asked_for_again(world: CoreWorld) -> None:
    world[1].store.order(StoreFault.REQUEST_LOST, touching=TOPICS_PREFIX)
    await world[1].broker.topics.create(NewTopic("t", 2))
    await check_whole(world, "t", 2)


async def test_who_asks_again_for_what_may_have_been_made_is_not_told_that_it_exists(world: CoreWorld) -> None:
    world[1].store.order(StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST, touching=TOPICS_PREFIX)
    topics = world[1].broker.topics
    assert await reason_of(asyncio.ensure_future(topics.create(NewTopic("t", 2)))) is Reason.METADATA_UNAVAILABLE
    other = asyncio.ensure_future(topics.create(NewTopic("t", 3)))
    assert await reason_of(other) is Reason.TOPIC_ALREADY_EXISTS, "it is not what was asked for"
    assert (await topics.create(NewTopic("t", 2))).topic_id == topics.require("t").topic_id
    once = asyncio.ensure_future(topics.create(NewTopic("t", 2)))
    assert await reason_of(once) is Reason.TOPIC_ALREADY_EXISTS
    await check_whole(world, "t", 2)


async def test_a_creation_that_is_heard_of_late_is_known_as_its_own(world: CoreWorld) -> None:
    topics = world[1].broker.topics
    world[1].store.hold_events()
    assert await reason_of(asyncio.ensure_future(topics.create(NewTopic("t", 2)))) is Reason.METADATA_UNAVAILABLE
    assert topics.get("t") is None
    world[1].store.let_events()
    await topics.create(NewTopic("t", 2))
    await check_whole(world, "t", 2)


async def test_another_ones_topic_is_not_taken_for_what_may_have_been_made(world: CoreWorld) -> None:
    world[1].store.order(StoreFault.REQUEST_LOST, StoreFault.REQUEST_LOST, touching=TOPICS_PREFIX)
    create = world[1].broker.topics.create
    assert await reason_of(asyncio.ensure_future(create(NewTopic("t", 2)))) is Reason.METADATA_UNAVAILABLE
    await world[2].broker.topics.create(NewTopic("t", 2))
    assert await reason_of(asyncio.ensure_future(create(NewTopic("t", 2)))) is Reason.TOPIC_ALREADY_EXISTS


async def test_a_creation_that_is_late_finds_the_name_taken(world: CoreWorld) -> None:
    world[1].store.order(StoreFault.LATE, StoreFault.LATE, touching=TOPICS_PREFIX)
    first = asyncio.ensure_future(world[1].broker.topics.create(NewTopic("t", 2)))
    assert await reason_of(first) is Reason.METADATA_UNAVAILABLE
    await world[2].broker.topics.create(NewTopic("t", 2))
    await world[1].store.release()
    assert [result.succeeded for result in world[1].store.late_results] == [False, False]
    await check_whole(world, "t", 2)


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST])
@pytest.mark.parametrize("partitions", [2, 300])
async def test_a_deletion_whose_answer_is_lost_is_done(world: CoreWorld, fault: StoreFault, partitions: int) -> None:
    await world[1].broker.topics.create(NewTopic("t", partitions))
    world[1].store.order(fault, touching=TOPICS_PREFIX)
    await world[1].broker.topics.delete("t")
    note, *rest = await keys(world, "")
    assert note.startswith(DELETED_PREFIX)
    assert rest == ["nodes/1", "nodes/2", "nodes/3"]


async def test_of_two_that_delete_one_is_told_that_it_was_late(world: CoreWorld) -> None:
    await world[1].broker.topics.create(NewTopic("t", 2))
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.delete("t"))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.delete("t")
        await world[1].store.release()
        assert await reason_of(first) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    note, *rest = await keys(world, "")
    assert note.startswith(DELETED_PREFIX), "for a node that is away"
    assert rest == ["nodes/1", "nodes/2", "nodes/3"]


async def test_a_deletion_that_is_slow_spares_a_topic_that_has_the_name_later(world: CoreWorld) -> None:
    await world[1].broker.topics.create(NewTopic("t", 2))
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.delete("t"))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.delete("t")
        await world[2].broker.topics.create(NewTopic("t", 3))
        await world[1].store.release()
        assert await reason_of(first) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    await check_whole(world, "t", 3)


async def test_two_that_alter_at_once_lose_nothing_of_each_other(world: CoreWorld) -> None:
    await world[1].broker.topics.create(NewTopic("t", 1))
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.alter("t", [change("retention.ms", "1000")]))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.alter("t", [change("retention.bytes", "2000")])
        await world[1].store.release()
        await first
    for node in world.nodes.values():
        assert node.broker.topics.require("t").overrides == {"retention.ms": "1000", "retention.bytes": "2000"}


async def test_an_alteration_of_a_topic_that_is_deleted_meanwhile_does_not_bring_it_back(world: CoreWorld) -> None:
    await world[1].broker.topics.create(NewTopic("t", 1))
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.alter("t", [change("retention.ms", "1000")]))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.delete("t")
        await world[1].store.release()
        assert await reason_of(first) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert await keys(world, TOPICS_PREFIX) == []


@pytest.mark.parametrize(("count", "other"), [(4, 6), (6, 4), (300, 400), (400, 300)])
async def test_of_two_that_add_partitions_the_larger_number_holds_and_no_record_is_lost(
    world: CoreWorld, count: int, other: int
) -> None:
    await world[1].broker.topics.create(NewTopic("t", 2))
    world[1].store.order(StoreFault.SLOW, touching=TOPICS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.add_partitions("t", count))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.add_partitions("t", other)
        await world[1].store.release()
        assert await reason_of(first) is (Reason.INVALID_PARTITIONS if count < other else None)
    topic = world[3].broker.topics.require("t")
    assert topic.partition_count == max(count, other)
    await check_whole(world, "t", max(count, other))
    assert all(record.replicas for record in world[3].broker.topics.partitions(topic))


@pytest.mark.parametrize("fault", [StoreFault.SLOW, StoreFault.LATE])
async def test_a_slow_addition_of_partitions_does_not_touch_those_that_another_one_has_added(
    world: CoreWorld, fault: StoreFault
) -> None:
    topic = await world[1].broker.topics.create(NewTopic("t", 2))
    world[1].store.order(fault, touching=PARTITIONS_PREFIX)
    first = asyncio.create_task(world[1].broker.topics.add_partitions("t", 400))
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[2].broker.topics.add_partitions("t", 300)
        # They have leaders by now, which have agreed on things.
        key = partition_key(topic.topic_id, 2)
        agreed = encode(world.led(2, (2, 3), leader_epoch=7))
        await world.store.txn([], [Put(key, agreed)])
        await world[1].store.release()
        await asyncio.wait({first})
    entry = await world.store.get(key)
    assert entry is not None
    assert entry.value == agreed
    assert await reason_of(first) is (None if fault is StoreFault.SLOW else Reason.METADATA_UNAVAILABLE)


async def test_two_nodes_never_hand_out_the_same_producer_id(world: CoreWorld) -> None:
    ids: list[int] = []
    # Both have read the same number before either has written.
    world[1].store.order(StoreFault.SLOW, touching=PRODUCER_IDS_KEY)
    first = asyncio.create_task(world[1].broker.producer_ids.next_id())
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        ids.append(await world[2].broker.producer_ids.next_id())
        await world[1].store.release()
        ids.append(await first)
        for _ in range(PRODUCER_ID_BLOCK + 10):
            ids.append(await world[1].broker.producer_ids.next_id())
            ids.append(await world[2].broker.producer_ids.next_id())
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST, StoreFault.LATE])
async def test_a_block_of_producer_ids_whose_answer_is_lost_is_nobodys(world: CoreWorld, fault: StoreFault) -> None:
    world[1].store.order(fault, touching=PRODUCER_IDS_KEY)
    with pytest.raises(PenstockError) as caught:
        await world[1].broker.producer_ids.next_id()
    assert caught.value.reason is Reason.METADATA_UNAVAILABLE
    ids = [await world[2].broker.producer_ids.next_id()]
    await world[1].store.release()
    ids += [await world[number].broker.producer_ids.next_id() for number in (1, 2, 3, 1)]
    assert len(ids) == len(set(ids))


async def test_a_topic_that_is_gone_is_told_as_deleted_though_the_store_is_lost_before_all_of_it_is_removed(
    world: CoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world[1]
    await node.broker.topics.create(NewTopic("large", 300, 1))
    store = node.store
    txn, asked = store.txn, 0

    async def lost(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise PenstockError(Reason.METADATA_UNAVAILABLE, "it cannot be reached")
        return await txn(compares, operations)

    monkeypatch.setattr(store, "txn", lost)
    await node.broker.topics.delete("large")
    assert asked == 2
    assert node.broker.topics.get("large") is None


async def test_a_creation_that_happens_late_does_not_bring_a_deleted_topic_back(
    world: CoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = world[1]
    txn, late = node.store.txn, []

    async def unanswered(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
        if not late:
            late.append((compares, operations))
            raise UnknownOutcomeError(Reason.METADATA_UNAVAILABLE, "no answer came")
        return await txn(compares, operations)

    monkeypatch.setattr(node.store, "txn", unanswered)
    await node.broker.topics.create(NewTopic("t", 1, 1))
    await node.broker.topics.delete("t")
    [(compares, operations)] = late
    assert not (await txn(compares, operations)).succeeded
    assert await keys(world, TOPICS_PREFIX) == []
