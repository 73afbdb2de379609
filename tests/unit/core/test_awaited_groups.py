"""Groups that are registered before their topic: they start at offset 0 when it is made, also when a crash comes in between."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from penstock.core.coordinators.topic import StoredDone
from penstock.errors import Reason
from penstock.types import GroupId, TopicName
from tests.support.kafka_node import KafkaNode

GROUP = GroupId("g")


class Background:
    """Runs what nobody waits for, as the server does."""

    def __init__(self, node: KafkaNode) -> None:
        self._tasks: asyncio.Queue[asyncio.Task[object]] = asyncio.Queue()
        node.broker.background = self._start

    def _start(self, coroutine: Coroutine[object, None, object]) -> None:
        self._tasks.put_nowait(asyncio.ensure_future(coroutine))

    async def ended(self) -> None:
        """One task was started and has ended."""
        async with asyncio.timeout(60):
            await (await self._tasks.get())


def offsets(node: KafkaNode) -> dict[int, int]:
    found = node.broker.groups.fetch_offsets(GROUP, None)
    return {key.partition: committed.offset for key, committed in found.items()}


async def test_a_group_starts_when_its_topic_is_made(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        background, registry = Background(node), node.broker.registry
        registered = await registry.register_for("orders", GROUP)
        await node.create("other")
        assert offsets(node) == {}
        topic = await node.create("orders", 3)
        await background.ended()
        assert offsets(node) == {0: 0, 1: 0, 2: 0}
        assert registry.awaited_topics() == []
        assert await registry.register(topic, GROUP) == registered


async def test_a_group_starts_after_a_crash_between_its_topic_and_its_offsets(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        registered = await node.broker.registry.register_for("orders", GROUP)
        node.broker.topics.on_created.remove(node.broker._created)
        await node.create("orders", 2)
    async with KafkaNode(tmp_path) as node:
        await Background(node).ended()
        assert offsets(node) == {0: 0, 1: 0}
        assert await node.broker.registry.register(node.broker.topics.require("orders"), GROUP) == registered
        assert node.broker.registry.awaited_topics() == []


async def test_groups_of_a_large_topic_start_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with KafkaNode(tmp_path) as node:
        background, groups = Background(node), node.broker.groups
        start_offsets, under_way = groups.start_offsets, [0]

        def counted(group: GroupId, topic: TopicName, done: StoredDone) -> None:
            def noted(reason: Reason | None) -> None:
                under_way.append(under_way[-1] - 1)
                done(reason)

            under_way.append(under_way[-1] + 1)
            start_offsets(group, topic, noted)

        monkeypatch.setattr(groups, "start_offsets", counted)
        names = [GroupId(f"g{number}") for number in range(7)]
        for name in names:
            await node.broker.registry.register_for("orders", name)
        await node.create("orders", 1000)
        for _ in names:
            await background.ended()
        assert max(under_way) == 2
        assert {len(groups.fetch_offsets(name, None)) for name in names} == {1000}
        assert node.broker.registry.awaited_topics() == []
