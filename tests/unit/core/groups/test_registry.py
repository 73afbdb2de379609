"""Registered groups: one id for each topic and group, durable, gone with the topic, and bounded."""

import pytest

from penstock.core.groups import registry
from penstock.core.groups.registry import PREFIX, GroupRegistry
from penstock.core.topics.topics import NewTopic, Topics
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.settings import ServerSettings, Settings
from tests.support.worlds import CountingEntropy, ManualClock


class World:
    def __init__(self, groups_max: int = 100) -> None:
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.entropy = CountingEntropy()
        self.groups_max = groups_max

    async def start(self) -> "World":
        self.topics = Topics(self.store, self.clock, self.entropy, Settings())
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


async def test_topics_that_do_not_exist_do_not_use_up_the_registrations_of_those_that_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_AWAITING_MAX", 3)
    world = await World().start()
    first = await world.registry.register_for("misspelled", "0")
    for group in "12":
        await world.registry.register_for("misspelled", group)
    with pytest.raises(PenstockError, match="Create the topic other first, or check its name") as refused:
        await world.registry.register_for("other", "g")
    assert refused.value.reason is Reason.POLICY_VIOLATION
    assert await world.registry.register_for("misspelled", "0") == first
    topic = await world.topics.create(NewTopic("orders", 1))
    await world.registry.register(topic, "g")
    made = await world.topics.create(NewTopic("misspelled", 1))
    await world.registry.register(made, "0")
    await world.registry.register_for("other", "g")


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


# Several nodes.


async def two_nodes(groups_max: int = 100) -> tuple[World, World]:
    """On one store, which takes no more at once than etcd does."""
    one, two = World(groups_max), World(groups_max)
    one.store = two.store = MemoryStore(operations_max=128)
    two.entropy = one.entropy
    return await one.start(), await two.start()


async def test_both_nodes_give_a_group_the_same_registration() -> None:
    one, two = await two_nodes()
    topic = await one.topics.create(NewTopic("orders", 1))
    assert await one.registry.register(topic, "g") == await two.registry.register(topic, "g")


async def test_what_another_node_registered_counts_here() -> None:
    one, two = await two_nodes(groups_max=2)
    topic = await one.topics.create(NewTopic("orders", 1))
    await one.registry.register(topic, "a")
    assert two.registry.has_any(topic)
    await two.registry.register(topic, "b")
    for world in (one, two):
        with pytest.raises(PenstockError) as refused:
            await world.registry.register(topic, "c")
        assert refused.value.reason is Reason.POLICY_VIOLATION


async def test_a_topic_that_goes_takes_along_what_another_node_registered() -> None:
    one, two = await two_nodes(groups_max=1000)
    topic = await one.topics.create(NewTopic("orders", 1))
    for n in range(300):
        await one.registry.register(topic, f"g{n}")
    await one.topics.delete("orders")
    assert two.registry.has_any(topic)
    await two.registry.forget_topic(topic)
    await one.registry.forget_topic(topic)
    assert await two.keys() == []
    assert not one.registry.has_any(topic)
    assert not two.registry.has_any(topic)


async def test_a_node_that_starts_keeps_the_registrations_of_a_topic_that_it_does_not_know_yet() -> None:
    one, _ = await two_nodes()
    late = World()
    late.store, late.entropy = one.store, one.entropy
    late.topics = Topics(late.store, late.clock, late.entropy, Settings(server=ServerSettings(node_id=3)))
    await late.topics.load()
    late.topics.close()
    topic = await one.topics.create(NewTopic("orders", 1))
    registered = await one.registry.register(topic, "g")
    late.registry = GroupRegistry(late.store, late.clock, late.entropy)
    await late.registry.load(late.topics)
    assert await one.registry.register(topic, "g") == registered


# Before the topic.


async def test_a_group_that_is_registered_before_its_topic_keeps_its_registration() -> None:
    world = await World().start()
    first = await world.registry.register_for("orders", "g")
    assert await world.registry.register_for("orders", "g") == first
    await world.start()
    assert world.registry.awaiting("orders") == ["g"]
    assert world.registry.awaited_topics() == ["orders"]
    topic = await world.topics.create(NewTopic("orders", 1))
    assert await world.registry.register(topic, "g") == first
    assert world.registry.awaiting("orders") == []
    assert world.registry.awaited_topics() == []
    assert await world.keys() == [f"registered/{topic.topic_id.hex}/g"]
    assert await world.registry.register(topic, "g") == first
    await world.start()
    assert world.registry.has_any(topic)


async def test_groups_that_wait_for_a_topic_count_towards_the_limit() -> None:
    world = await World(groups_max=1).start()
    await world.registry.register_for("orders", "a")
    with pytest.raises(PenstockError) as refused:
        await world.registry.register_for("orders", "b")
    assert refused.value.reason is Reason.POLICY_VIOLATION
    topic = await world.topics.create(NewTopic("orders", 1))
    await world.registry.register(topic, "a")


async def test_a_group_cannot_wait_for_a_topic_that_cannot_be() -> None:
    world = await World().start()
    with pytest.raises(PenstockError) as refused:
        await world.registry.register_for("a/b", "g")
    assert refused.value.reason is Reason.INVALID_TOPIC


async def test_a_group_that_is_registered_twice_at_the_moment_its_topic_is_made_waits_no_more() -> None:
    one, two = await two_nodes()
    topic = await one.topics.create(NewTopic("orders", 1))
    registered = await one.registry.register(topic, "g")
    await two.registry.register_for("orders", "g")
    assert one.registry.awaiting("orders") == ["g"]
    assert await two.registry.register(topic, "g") == registered
    assert one.registry.awaited_topics() == two.registry.awaited_topics() == []
