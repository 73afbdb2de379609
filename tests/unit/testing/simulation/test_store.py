"""A node's way to the simulated metadata store, and what gets lost on it."""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Event, Put
from penstock.testing.simulation.loop import Process, SimulatedLoop
from penstock.testing.simulation.network import Network
from penstock.testing.simulation.store import HOST, SimulatedEtcd


class World:
    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.network = Network(self.loop)
        self.etcd = SimulatedEtcd(self.loop, self.network)
        self.process = Process("node", "10.0.0.1")
        self.client = self.etcd.connect(self.process)
        self.events: list[Event] = []
        self.client.subscribe("", self.events.extend)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(self.loop.spawn(self.process, story))
        self.loop.close()


async def put(world: World, value: bytes) -> None:
    done = await world.client.txn([Compare("key", mod_revision=0)], [Put("key", value)])
    assert done.succeeded


async def value_of(world: World) -> bytes | None:
    entry = await world.client.get("key")
    return None if entry is None else entry.value


def test_a_transaction_returns_after_its_own_events() -> None:
    world = World()

    async def story() -> None:
        await put(world, b"one")
        assert [event.key for event in world.events] == ["key"]

    world.run(story())


def test_a_key_named_twice_is_refused_to_the_caller_and_nothing_happens() -> None:
    world = World()

    async def story() -> None:
        with pytest.raises(ValueError, match="'key' is named twice in one transaction"):
            await world.client.txn([], [Put("key", b"one"), Put("key", b"two")])
        assert await value_of(world) is None

    world.run(story())


def test_an_answer_that_is_lost_leaves_the_change_made() -> None:
    world = World()

    async def story() -> None:
        world.etcd.lost_answers = 1.0
        with pytest.raises(PenstockError) as refusal:
            await put(world, b"one")
        assert refusal.value.reason is Reason.METADATA_UNAVAILABLE
        world.etcd.heal()
        assert await value_of(world) == b"one"

    world.run(story())


def test_a_late_request_happens_after_its_caller_was_told_that_nobody_knows() -> None:
    world = World()

    async def story() -> None:
        world.etcd.late_puts[world.process.host, "key"] = 5.0
        with pytest.raises(PenstockError):
            await put(world, b"one")
        assert await value_of(world) is None
        await asyncio.sleep(5)
        assert await value_of(world) == b"one"

    world.run(story())


def test_changes_are_told_in_order_when_the_node_can_be_reached_again() -> None:
    world = World()

    async def story() -> None:
        world.network.cut(HOST, world.process.host)
        for number in range(3):
            await world.etcd.store.txn([], [Put(f"key{number}", b"")])
        await asyncio.sleep(1)
        assert world.events == []
        world.network.mend(HOST, world.process.host)
        await asyncio.sleep(1)
        assert [event.key for event in world.events] == ["key0", "key1", "key2"]

    world.run(story())


def test_leases_end_by_the_simulated_clock_but_not_while_the_store_is_down() -> None:
    world = World()

    async def story() -> None:
        lease = await world.client.grant(1_000)
        await world.client.txn([], [Put("key", b"one", lease)])
        world.etcd.go_down()
        await asyncio.sleep(3)
        world.etcd.come_back()
        assert await value_of(world) == b"one"
        await asyncio.sleep(1.2)
        assert await value_of(world) is None

    world.run(story())
