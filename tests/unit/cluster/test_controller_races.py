"""The races of elections: won without hearing so, lost with the lease, and a deposed controller's late decisions."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.cluster import controller as controller_module
from penstock.cluster.controller import Controller
from penstock.core.cluster.image import CONTROLLER_KEY, ControllerRecord
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.records import NO_LEADER
from penstock.metadata.port import Put
from penstock.testing.faulty_store import StoreFault
from tests.support.cluster_nodes import until
from tests.unit.cluster.world import CoreNode, CoreWorld

HANGS_SECONDS = 60


class NodeRegistration:
    """What a controller needs of its node's membership."""

    def __init__(self, node: CoreNode) -> None:
        self._node = node

    @property
    def lease(self) -> int:
        return self._node.lease

    @property
    def epoch(self) -> int:
        return self._node.epoch


class ControlledWorld(CoreWorld):
    """Three nodes, each of which may stand for election."""

    def __init__(self) -> None:
        super().__init__()
        self.controllers: dict[int, Controller] = {}

    async def prepare(self) -> None:
        await self.start(1, 2, 3)

    def stand(self, *nodes: int) -> None:
        for number in nodes:
            node = self[number]
            made = Controller(node.broker, node.store, NodeRegistration(node))  # type: ignore[arg-type]
            self.controllers[number] = made
            made.start()
            made._woken.set()

    def elected(self) -> list[int]:
        return [number for number, each in self.controllers.items() if each.is_elected]

    async def one_is_elected(self, *among: int) -> None:
        await until(lambda: len(self.elected()) == 1 and (not among or self.elected()[0] in among), "one is elected")

    async def stop(self) -> None:
        for each in self.controllers.values():
            await each.stop()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControlledWorld]:
    monkeypatch.setattr(controller_module, "_RETRY_SECONDS", 0.01)
    made = ControlledWorld()
    await made.prepare()
    yield made
    with contextlib.suppress(asyncio.CancelledError):
        await made.stop()


async def test_of_three_that_stand_at_once_one_is_elected(world: ControlledWorld) -> None:
    world.stand(1, 2, 3)
    await world.one_is_elected()
    entry = await world.store.get(CONTROLLER_KEY)
    assert entry is not None
    (elected,) = world.elected()
    assert world.controllers[elected].epoch == entry.create_revision
    assert entry.lease == world[elected].lease


@pytest.mark.parametrize("fault", [StoreFault.ANSWER_LOST, StoreFault.REQUEST_LOST])
async def test_an_election_that_was_won_without_hearing_so_is_adopted(
    world: ControlledWorld, fault: StoreFault
) -> None:
    world[1].store.order(fault, touching=CONTROLLER_KEY)
    world.stand(1)
    await world.one_is_elected(1)
    topic = await world.topic(leader=2, isr=(2, 3))
    # And it works: the leader dies.
    await world.store.revoke(world[2].lease)
    await until(lambda: world[1].record(topic).leader == 3, "another leads")


async def test_an_election_that_is_won_after_it_was_given_up_is_adopted(world: ControlledWorld) -> None:
    world[1].store.order(StoreFault.LATE, StoreFault.SLOW, touching=CONTROLLER_KEY)
    world.stand(1)
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
        await world[1].store.release()
    await world.one_is_elected(1)
    assert [result.succeeded for result in world[1].store.late_results] == [True]


async def test_an_entry_of_this_nodes_last_life_is_not_taken_for_an_election(world: ControlledWorld) -> None:
    lease = await world.store.grant(60_000)
    await world.store.txn([], [Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(1)), lease)])
    world.stand(1)
    await until(lambda: world[1].store.txns, "it has tried")
    assert world.elected() == []
    await world.store.revoke(lease)
    await world.one_is_elected(1)


async def test_a_controller_that_lost_its_lease_is_replaced_and_decides_nothing_more(world: ControlledWorld) -> None:
    world.stand(1)
    await world.one_is_elected(1)
    topic = await world.topic(leader=2, isr=(2, 3))
    first = world.controllers[1].epoch
    # It decides on a new leader, and its transaction is long on its way.
    world[1].store.order(StoreFault.SLOW, touching="p/")
    await world.store.revoke(world[2].lease)
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
    # Meanwhile it hears nothing, its lease ends, and another one is elected and decides.
    world[1].store.hold_events()
    await world.store.revoke(world[1].lease)
    world.stand(3)
    await until(lambda: world.controllers[3].is_elected, "the next is elected")
    await until(lambda: world[3].record(topic).leader == 3, "it decides")
    decided = await world.store.range("p/")
    await world[1].store.release()
    world[1].store.let_events()
    await until(lambda: not world.controllers[1].is_elected, "the first one knows")
    assert (await world.store.range("p/")).entries == decided.entries
    assert world.controllers[3].epoch > first


async def test_a_decision_that_happens_late_is_refused_by_the_next_controllers_epoch(world: ControlledWorld) -> None:
    world.stand(1)
    await world.one_is_elected(1)
    topic = await world.topic(leader=2, isr=(2,))
    world[1].store.order(StoreFault.LATE, touching="p/")
    await world.store.revoke(world[2].lease)
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
    world[1].store.is_down = True
    await world.store.revoke(world[1].lease)
    await world.store.txn([], [Put(CONTROLLER_KEY, msgspec.json.encode(ControllerRecord(3)), world[3].lease)])
    await world[1].store.release()
    assert [result.succeeded for result in world[1].store.late_results] == [False]
    assert world[3].record(topic).leader == 2


async def test_a_controller_comes_back_in_a_new_life(world: ControlledWorld) -> None:
    world.stand(1)
    await world.one_is_elected(1)
    first = world.controllers[1].epoch
    await world[1].register()
    await until(lambda: world.elected() == [1] and world.controllers[1].epoch > first, "it is elected anew")
    topic = await world.topic(leader=2, isr=(2,))
    await world.store.revoke(world[2].lease)
    await until(lambda: world[1].record(topic).leader == NO_LEADER, "it works")


async def test_a_decision_on_a_record_that_its_leader_changed_meanwhile_is_made_anew(world: ControlledWorld) -> None:
    world.stand(1)
    await world.one_is_elected(1)
    topic = await world.topic(leader=2, isr=(2, 3))
    world[1].store.order(StoreFault.SLOW, touching="p/")
    await world.store.revoke(world[2].lease)
    async with asyncio.timeout(HANGS_SECONDS):
        await world[1].store.met()
    # The last thing that the dead leader did was to take out node 3: electing it would lose what was committed since.
    await world.put(topic, world.led(2, (2,)))
    await world[1].store.release()
    await until(lambda: world[1].record(topic).leader == NO_LEADER, "nobody may lead")


async def test_a_partition_is_decided_on_once_when_its_topic_changes_after_it(
    world: ControlledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.stand(1)
    await world.one_is_elected(1)
    topic = await world.topic(leader=2, isr=(2, 3))
    # The controller learns in one turn of the loop that the partition has no leader and that the topic has a new config.
    world[1].store.hold_events()
    await world.put(topic, msgspec.structs.replace(world.led(2, (2, 3)), leader=NO_LEADER))
    change = ConfigChange("retention.ms", ChangeKind.SET, "60000")
    await world[2].broker.topics.alter(topic.name, [change])
    world[1].store.let_events()
    await until(lambda: world[1].record(topic).leader == 2, "the partition has a leader")
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
