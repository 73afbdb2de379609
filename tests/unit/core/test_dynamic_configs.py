"""Configs of brokers and groups that change while brokers run."""

from pathlib import Path

import pytest

from penstock.core import dynamic_configs
from penstock.core.dynamic_configs import ALL_BROKERS, ConfigResource, DynamicConfigs, ResourceKind
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.config_table import ConfigSource
from penstock.errors import PenstockError, Reason
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Put
from penstock.types import NodeId
from tests.support.kafka_node import NODE, KafkaNode

FIRST, SECOND = ConfigResource(ResourceKind.BROKER, "1"), ConfigResource(ResourceKind.BROKER, "2")
GROUP = ConfigResource(ResourceKind.GROUP, "g")
RETENTION = "log.retention.ms"


def put(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, ChangeKind.SET, value)


def delete(name: str) -> ConfigChange:
    return ConfigChange(name, ChangeKind.DELETE)


async def configs_of(store: MemoryStore, node: int = 1, **topic_defaults: str) -> DynamicConfigs:
    made = DynamicConfigs(store, NodeId(node), {name.replace("_", "."): text for name, text in topic_defaults.items()})
    await made.load()
    return made


async def test_a_named_broker_outweighs_all_brokers_and_a_delete_reverts_to_them() -> None:
    store = MemoryStore()
    first, second = await configs_of(store, 1), await configs_of(store, 2)
    await second.alter(ALL_BROKERS, [put("max.connections", "10")])
    await second.alter(FIRST, [put("max.connections", "20")])
    assert (first.number("max.connections"), second.number("max.connections")) == (20, 10)
    await first.alter(FIRST, [delete("max.connections")])
    assert first.number("max.connections") == 10
    await first.alter(ALL_BROKERS, [delete("max.connections")])
    assert (first.number("max.connections"), second.number("max.connections")) == (None, None)
    assert (await store.range(dynamic_configs.PREFIX)).entries == ()


async def test_what_was_set_is_there_after_a_restart() -> None:
    store = MemoryStore()
    before = await configs_of(store)
    await before.alter(FIRST, [put(RETENTION, "5")])
    await before.alter(ALL_BROKERS, [put(RETENTION, "6")])
    await before.alter(GROUP, [put("share.delivery.count.limit", "7")])
    after = await configs_of(store)
    assert [values for _, values in after.layers()] == [{RETENTION: "5"}, {RETENTION: "6"}]
    assert (after.group_names(), after.values(GROUP)) == (["g"], {"share.delivery.count.limit": "7"})


async def test_a_broker_hears_only_of_what_it_goes_by() -> None:
    store = MemoryStore()
    first = await configs_of(store, 1)
    heard: list[int | None] = []
    first.on_changed.append(lambda: heard.append(first.number(RETENTION)))
    await first.alter(SECOND, [put(RETENTION, "1")])
    await first.alter(GROUP, [put("share.delivery.count.limit", "7")])
    assert heard == []
    await first.alter(ALL_BROKERS, [put(RETENTION, "2")])
    await first.alter(FIRST, [put(RETENTION, "3")])
    assert heard == [2, 3]


async def test_topics_go_by_the_broker_then_all_brokers_then_the_configuration() -> None:
    configs = await configs_of(MemoryStore(), retention_ms="7", segment_ms="8")
    await configs.alter(ALL_BROKERS, [put(RETENTION, "6"), put("message.max.bytes", "100")])
    await configs.alter(FIRST, [put(RETENTION, "5")])
    assert configs.topic_defaults() == {"retention.ms": "5", "segment.ms": "8", "max.message.bytes": "100"}
    assert [source for source, _ in configs.topic_layers()] == [
        ConfigSource.DYNAMIC_BROKER,
        ConfigSource.DYNAMIC_DEFAULT,
        ConfigSource.STATIC_BROKER,
    ]


@pytest.mark.parametrize(
    ("resource", "change", "reason", "text"),
    [
        (FIRST, put(RETENTION, "-2"), Reason.INVALID_CONFIG, "log.retention.ms cannot be '-2'"),
        (FIRST, put("max.connections", "many"), Reason.INVALID_CONFIG, "an integer from 1"),
        (FIRST, put("num.io.threads", "8"), Reason.INVALID_REQUEST, "num.io.threads cannot be changed dynamically"),
        (FIRST, put("min.insync.replicas", "2"), Reason.INVALID_CONFIG, "can only be set for all brokers"),
        (ALL_BROKERS, put("log.cleaner.min.compaction.lag.ms", "9"), Reason.INVALID_CONFIG, "cannot be above"),
        (GROUP, put("share.delivery.count.limit", "11"), Reason.INVALID_CONFIG, "from 2 to 10"),
        (GROUP, put("retention.ms", "11"), Reason.INVALID_CONFIG, "no group config 'retention.ms'"),
        (
            ConfigResource(ResourceKind.GROUP, "x" * 250),
            put("share.delivery.count.limit", "5"),
            Reason.INVALID_GROUP_ID,
            "1 to 249",
        ),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_changes(
    resource: ConfigResource, change: ConfigChange, reason: Reason, text: str
) -> None:
    configs = await configs_of(MemoryStore(), max_compaction_lag_ms="8")
    good = (
        put("share.isolation.level", "read_committed")
        if resource.kind is ResourceKind.GROUP
        else put("max.connections", "3")
    )
    with pytest.raises(PenstockError, match=text) as refused:
        await configs.alter(resource, [*([] if good.name == change.name else [good]), change])
    assert refused.value.reason is reason
    assert configs.values(resource) == {}


async def test_a_replaced_resource_has_what_is_named_and_nothing_else() -> None:
    configs = await configs_of(MemoryStore())
    await configs.alter(FIRST, [put(RETENTION, "5"), put("max.connections", "6")])
    await configs.replace(FIRST, {"max.connections": "7"})
    assert configs.values(FIRST) == {"max.connections": "7"}
    await configs.replace(FIRST, {}, validate_only=True)
    assert configs.values(FIRST) == {"max.connections": "7"}


async def test_a_change_made_in_between_is_not_lost() -> None:
    store = MemoryStore()
    first, second = await configs_of(store, 1), await configs_of(store, 2)
    inner = store.get

    async def get(key: str):  # type: ignore[no-untyped-def]
        entry = await inner(key)
        store.get = inner  # type: ignore[method-assign]
        await second.alter(ALL_BROKERS, [put(RETENTION, "6")])
        return entry

    store.get = get  # type: ignore[method-assign]
    await first.alter(ALL_BROKERS, [put("max.connections", "7")])
    assert first.values(ALL_BROKERS) == {RETENTION: "6", "max.connections": "7"}


async def test_no_more_groups_have_configs_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_configs, "CONFIGURED_GROUPS_MAX", 2)
    configs = await configs_of(MemoryStore())
    await configs.alter(FIRST, [put("max.connections", "7")])
    for name in ("a", "b"):
        await configs.alter(ConfigResource(ResourceKind.GROUP, name), [put("share.delivery.count.limit", "7")])
    with pytest.raises(PenstockError) as refused:
        await configs.alter(ConfigResource(ResourceKind.GROUP, "c"), [put("share.delivery.count.limit", "7")])
    assert refused.value.reason is Reason.POLICY_VIOLATION
    await configs.alter(ConfigResource(ResourceKind.GROUP, "c"), [delete("share.delivery.count.limit")])
    await configs.alter(ConfigResource(ResourceKind.GROUP, "a"), [put("share.delivery.count.limit", "8")])
    assert configs.group_names() == ["a", "b"]


async def test_a_damaged_entry_is_named() -> None:
    store = MemoryStore()
    await store.txn([], [Put("configs/brokers/1", b"{")])
    with pytest.raises(PenstockError, match="configs/brokers/1"):
        await configs_of(store)


async def test_a_topic_without_its_own_retention_goes_by_the_brokers_at_once_and_after_a_restart(
    tmp_path: Path,
) -> None:
    here = ConfigResource(ResourceKind.BROKER, str(NODE))
    async with KafkaNode(tmp_path) as node:
        await node.create("plain")
        await node.create("own", retention_ms="9")
        await node.broker.configs.alter(here, [put(RETENTION, "5")])
        assert [node.broker.topics.require(name).config.retention_ms for name in ("plain", "own")] == [5, 9]
        assert node.broker.partition("plain", 0).log.config.retention_ms == 5
    async with KafkaNode(tmp_path) as node:
        assert [node.broker.topics.require(name).config.retention_ms for name in ("plain", "own")] == [5, 9]
        await node.broker.configs.alter(here, [delete(RETENTION)])
        assert node.broker.partition("plain", 0).log.config.retention_ms == 604_800_000
