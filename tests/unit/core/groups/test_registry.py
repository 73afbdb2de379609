"""Registered groups: one id for each topic and group, durable, gone with the topic, and bounded."""

import pytest

from penstock.core.groups.registry import PREFIX, GroupRegistry
from penstock.core.topics import NewTopic, Topics
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.types import NodeId
from tests.support.worlds import CountingEntropy, ManualClock


class World:
    def __init__(self, groups_max: int = 100) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.entropy = CountingEntropy()
        self.groups_max = groups_max

    async def start(self) -> "World":
        self.topics = Topics(self.store, self.clock, self.entropy, NodeId(1))
        await self.topics.load()
        self.registry = GroupRegistry(self.store, self.clock, self.entropy, self.groups_max)
        await self.registry.load(self.topics)
        return self

    async def keys(self) -> list[str]:
        return [entry.key for entry in (await self.store.range(PREFIX)).entries]


async def test_registering_again_gives_the_same_also_after_a_restart() -> None:
    world = await World().start()
    topic = await world.topics.create(NewTopic("orders", 1))
    first = await world.registry.register(topic, "g")
    world.clock.advance(5000)
    assert await world.registry.register(topic, "g") == first
    await world.start()
    assert await world.registry.register(world.topics.require("orders"), "g") == first


async def test_each_group_and_each_topic_has_its_own() -> None:
    world = await World().start()
    one = await world.topics.create(NewTopic("one", 1))
    two = await world.topics.create(NewTopic("two", 1))
    ids = {(await world.registry.register(topic, group)).id for topic in (one, two) for group in ("a", "a/b", "é")}
    assert len(ids) == 6


async def test_a_deleted_topic_takes_its_registrations_along() -> None:
    world = await World().start()
    topic = await world.topics.create(NewTopic("orders", 1))
    kept = await world.topics.create(NewTopic("kept", 1))
    for group in "abc":
        await world.registry.register(topic, group)
    await world.registry.register(kept, "a")
    assert world.registry.has_any(topic)
    await world.topics.delete("orders")
    await world.registry.forget_topic(topic)
    assert not world.registry.has_any(topic)
    assert world.registry.has_any(kept)
    assert await world.keys() == [f"registered/{kept.topic_id.hex}/a"]


async def test_what_a_crash_left_of_a_deleted_topic_is_removed_at_the_start() -> None:
    world = await World().start()
    topic = await world.topics.create(NewTopic("orders", 1))
    await world.registry.register(topic, "g")
    await world.topics.delete("orders")
    await world.start()
    assert await world.keys() == []
    assert not world.registry.has_any(topic)


async def test_there_are_at_the_most_so_many() -> None:
    world = await World(groups_max=2).start()
    topic = await world.topics.create(NewTopic("orders", 1))
    for group in "ab":
        await world.registry.register(topic, group)
    with pytest.raises(PenstockError) as refused:
        await world.registry.register(topic, "c")
    assert refused.value.reason is Reason.POLICY_VIOLATION
    await world.registry.register(topic, "a")
    await world.registry.forget_topic(topic)
    await world.registry.register(topic, "c")


@pytest.mark.parametrize("group", ["", "x" * 250, "\U0001f600" * 249])
async def test_a_name_that_cannot_be_kept_is_refused(group: str) -> None:
    world = await World().start()
    topic = await world.topics.create(NewTopic("orders", 1))
    with pytest.raises(PenstockError) as refused:
        await world.registry.register(topic, group)
    assert refused.value.reason is Reason.INVALID_GROUP_ID
