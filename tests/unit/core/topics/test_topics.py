"""The rules of topics, on the stores that really keep them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.names import OFFSETS_TOPIC
from penstock.core.topics.records import NO_LEADER, NOBODY, alone, partition_key, topic_key
from penstock.core.topics.topics import NewTopic, Topic, Topics
from penstock.errors import PenstockError, Reason
from penstock.limits import PARTITIONS_PER_TOPIC_MAX
from penstock.metadata.memory import MemoryStore
from penstock.metadata.port import Delete, MetadataStore, Put
from penstock.metadata.sqlite import SqliteStore
from penstock.settings import LimitSettings, ServerSettings, Settings, TopicSettings
from penstock.types import NodeId
from tests.support.worlds import CountingEntropy, ManualClock

NODE = NodeId(7)
SETTINGS = Settings(server=ServerSettings(node_id=NODE))


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    made: MetadataStore = MemoryStore()
    if request.param == "sqlite":
        made = await SqliteStore.open(str(tmp_path / "metadata.sqlite"))
    yield made
    await made.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


async def loaded(store: MetadataStore, clock: ManualClock, settings: Settings = SETTINGS) -> Topics:
    topics = Topics(store, clock, CountingEntropy(), settings)
    await topics.load()
    return topics


@pytest_asyncio.fixture
async def topics(store: MetadataStore, clock: ManualClock) -> Topics:
    return await loaded(store, clock)


async def refused(reason: Reason, call: Awaitable[object]) -> str:
    with pytest.raises(PenstockError) as caught:
        await call
    assert caught.value.reason is reason
    return caught.value.text


async def test_a_created_topic_is_there_under_name_and_id_with_its_partitions(topics: Topics) -> None:
    topic = await topics.create(NewTopic("orders", 3, 1, {"retention.ms": "5000"}))
    assert topics.get("orders") == topic == topics.get_by_id(topic.topic_id)
    assert (topic.partition_count, topic.replication_factor, topic.internal) == (3, 1, False)
    assert (topic.created_ms, topic.updated_ms) == (1000, 1000)
    assert topic.config.retention_ms == 5000
    assert topics.partitions(topic) == [alone(NODE)] * 3
    record = topics.partition(topic, 2)
    assert (record.leader, record.leader_epoch, record.replicas, record.in_sync) == (NODE, 0, (NODE,), (NODE,))


async def test_numbers_left_unset_are_the_brokers(store: MetadataStore, clock: ManualClock) -> None:
    settings = replace(SETTINGS, topics=TopicSettings(partitions=4), topic_defaults={"retention.ms": "9"})
    topics = await loaded(store, clock, settings)
    topic = await topics.create(NewTopic("orders"))
    assert (topic.partition_count, topic.replication_factor, topic.config.retention_ms) == (4, 1, 9)
    assert topic.overrides == {}


async def test_everything_is_there_again_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    path = str(tmp_path / "other.sqlite")
    store = await SqliteStore.open(path)
    topics = await loaded(store, clock)
    made = [await topics.create(NewTopic(name, 12, 1, {"cleanup.policy": "compact"})) for name in ("b", "a")]
    await store.close()
    store = await SqliteStore.open(path)
    again = await loaded(store, clock)
    assert list(again) == [made[1], made[0]]
    assert again.partition_count == 24
    assert again.partitions(made[0]) == [alone(NODE)] * 12
    await store.close()


async def test_topics_come_sorted_by_name_from_anywhere(topics: Topics) -> None:
    for name in ("m", "z", "a", "B", "m-1"):
        await topics.create(NewTopic(name))
    assert [topic.name for topic in topics] == ["B", "a", "m", "m-1", "z"]
    assert [topic.name for topic in topics.iterate_from("b")] == ["m", "m-1", "z"]
    assert [topic.name for topic in topics.iterate_from("m-1")] == ["m-1", "z"]
    assert (len(topics), "m" in topics, "n" in topics) == (5, True, False)


async def test_topics_that_come_and_go_meanwhile_leave_out_no_other_and_none_is_told_twice(topics: Topics) -> None:
    for name in ("b", "c", "d", "e"):
        await topics.create(NewTopic(name))
    walk = topics.iterate_from("")
    assert next(walk).name == "b"
    await topics.delete("b")
    await topics.delete("d")
    await topics.create(NewTopic("a"))
    assert [topic.name for topic in walk] == ["c", "e"]


async def test_a_bad_name_is_refused(topics: Topics) -> None:
    await refused(Reason.INVALID_TOPIC, topics.create(NewTopic("a/b")))


async def test_names_that_metrics_cannot_tell_apart_are_refused_until_the_other_is_gone(topics: Topics) -> None:
    await topics.create(NewTopic("a.b"))
    text = await refused(Reason.INVALID_TOPIC, topics.create(NewTopic("a_b")))
    assert "a.b" in text
    await topics.delete("a.b")
    await topics.create(NewTopic("a_b"))


async def test_of_two_colliding_names_made_at_the_same_time_one_is_made(topics: Topics) -> None:
    results = await asyncio.gather(
        *(topics.create(NewTopic(name)) for name in ("a.b", "a_b", "a.b")), return_exceptions=True
    )
    assert isinstance(results[0], Topic)
    assert isinstance(results[1], PenstockError)
    assert [topic.name for topic in topics] == ["a.b"]


async def test_of_many_who_make_one_topic_at_the_same_time_exactly_one_wins(topics: Topics) -> None:
    created: list[Topic] = []
    topics.on_created.append(created.append)
    results = await asyncio.gather(*(topics.create(NewTopic("t", n + 1)) for n in range(10)), return_exceptions=True)
    winners = [result for result in results if isinstance(result, Topic)]
    losers = [result.reason for result in results if isinstance(result, PenstockError)]
    assert winners == created == [topics.get("t")]
    assert losers == [Reason.TOPIC_ALREADY_EXISTS] * 9
    assert topics.partition_count == winners[0].partition_count


async def test_who_asks_for_the_same_settings_at_the_same_time_gets_the_winners_topic(topics: Topics) -> None:
    results = await asyncio.gather(*(topics.create(NewTopic("t", 2), exist_ok=True) for _ in range(5)))
    assert len({topic.topic_id for topic in results}) == 1


async def test_two_nodes_that_make_one_topic_agree_on_it(store: MetadataStore, clock: ManualClock) -> None:
    nodes = [await loaded(store, clock) for _ in range(2)]
    nodes[1]._entropy.uuid()
    results = await asyncio.gather(*(node.create(NewTopic("t")) for node in nodes), return_exceptions=True)
    assert sum(isinstance(result, Topic) for result in results) == 1
    assert nodes[0].get("t") == nodes[1].get("t")


async def test_an_existing_topic_is_refused_or_given_back_when_it_has_what_is_asked_for(topics: Topics) -> None:
    topic = await topics.create(NewTopic("t", 2, 1, {"retention.ms": "5"}))
    await refused(Reason.TOPIC_ALREADY_EXISTS, topics.create(NewTopic("t", 2, 1, {"retention.ms": "5"})))
    for same in (
        NewTopic("t", 2, 1, {"retention.ms": "5"}),
        NewTopic("t"),
        NewTopic("t", configs={"segment.bytes": "1073741824"}),
    ):
        assert await topics.create(same, exist_ok=True) == topic
    for other in (
        NewTopic("t", 3),
        NewTopic("t", 2, 1, {"retention.ms": "6"}),
        NewTopic("t", 2, 1, {"cleanup.policy": "compact"}),
    ):
        text = await refused(Reason.TOPIC_ALREADY_EXISTS, topics.create(other, exist_ok=True))
        assert "other settings" in text
    assert topics.get("t") == topic


@pytest.mark.parametrize("count", [0, -2, PARTITIONS_PER_TOPIC_MAX + 1])
async def test_impossible_numbers_of_partitions_are_refused(topics: Topics, count: int) -> None:
    await refused(Reason.INVALID_PARTITIONS, topics.create(NewTopic("t", count)))


@pytest.mark.parametrize("factor", [0, 2, 3, -2])
async def test_a_broker_alone_has_one_replica_of_everything(topics: Topics, factor: int) -> None:
    assert "single broker" in await refused(Reason.INVALID_REPLICATION_FACTOR, topics.create(NewTopic("t", 1, factor)))


async def test_partitions_may_be_assigned_by_hand_to_this_node(topics: Topics) -> None:
    topic = await topics.create(NewTopic("t", assignments={1: [NODE], 0: [NODE]}))
    assert topic.partition_count == 2


@pytest.mark.parametrize("assignments", [{1: [NODE]}, {0: [8]}, {0: []}, {0: [NODE, NODE]}, {0: [NODE], 2: [NODE]}])
async def test_impossible_assignments_are_refused(topics: Topics, assignments: dict[int, list[int]]) -> None:
    new = NewTopic("t", assignments=assignments)
    await refused(Reason.INVALID_REPLICA_ASSIGNMENT, topics.create(new))


async def test_assignments_and_numbers_exclude_each_other(topics: Topics) -> None:
    await refused(Reason.INVALID_REQUEST, topics.create(NewTopic("t", 1, assignments={0: [NODE]})))


@pytest.mark.parametrize("configs", [{"nonsense": "1"}, {"retention.ms": "x"}, {"retention.ms": None}])
async def test_impossible_configs_are_refused_and_nothing_is_made(
    topics: Topics, configs: dict[str, str | None]
) -> None:
    await refused(Reason.INVALID_CONFIG, topics.create(NewTopic("t", configs=configs)))
    assert len(topics) == 0


async def test_the_brokers_own_topics_are_made_and_deleted_by_the_broker_alone(topics: Topics) -> None:
    await refused(Reason.INVALID_TOPIC, topics.create(NewTopic(OFFSETS_TOPIC)))
    topic = await topics.create(NewTopic(OFFSETS_TOPIC, 16), internal=True)
    assert topic.internal
    await refused(Reason.INVALID_REQUEST, topics.delete(OFFSETS_TOPIC))
    await refused(Reason.INVALID_REQUEST, topics.add_partitions(OFFSETS_TOPIC, 20))
    await topics.delete(OFFSETS_TOPIC, internal=True)
    assert len(topics) == 0


async def test_validate_only_says_what_would_be_and_changes_nothing(topics: Topics, store: MetadataStore) -> None:
    would_be = await topics.create(NewTopic("t", 5), validate_only=True)
    assert would_be.partition_count == 5
    assert len(topics) == 0
    await topics.create(NewTopic("t", 5))
    before = await store.range("")
    await topics.add_partitions("t", 6, validate_only=True)
    await topics.alter("t", [ConfigChange("retention.ms", ChangeKind.SET, "1")], validate_only=True)
    await topics.replace_configs("t", {"retention.ms": "1"}, validate_only=True)
    await refused(Reason.INVALID_PARTITIONS, topics.add_partitions("t", 5, validate_only=True))
    assert await store.range("") == before


async def test_the_most_topics_are_held_over_calls_at_the_same_time(store: MetadataStore, clock: ManualClock) -> None:
    topics = await loaded(store, clock, replace(SETTINGS, limits=LimitSettings(topics_max=3)))
    results = await asyncio.gather(*(topics.create(NewTopic(f"t{n}")) for n in range(6)), return_exceptions=True)
    assert sum(isinstance(result, Topic) for result in results) == 3
    assert len(topics) == 3
    await refused(Reason.POLICY_VIOLATION, topics.create(NewTopic("more")))
    await topics.delete("t0")
    await topics.create(NewTopic("more"))


async def test_the_most_partitions_are_held_over_calls_at_the_same_time(
    store: MetadataStore, clock: ManualClock
) -> None:
    topics = await loaded(store, clock, replace(SETTINGS, limits=LimitSettings(partitions_max=10)))
    results = await asyncio.gather(*(topics.create(NewTopic(f"t{n}", 4)) for n in range(4)), return_exceptions=True)
    assert sum(isinstance(result, Topic) for result in results) == 2
    assert topics.partition_count == 8
    await refused(Reason.POLICY_VIOLATION, topics.add_partitions("t0", 7))
    await topics.add_partitions("t0", 6)
    assert topics.partition_count == 10


async def test_a_deleted_topic_leaves_nothing_behind(topics: Topics, store: MetadataStore) -> None:
    topic = await topics.create(NewTopic("t", 20))
    assert await topics.delete("t") == topic
    assert topics.get("t") is None
    assert topics.get_by_id(topic.topic_id) is None
    assert (len(topics), topics.partition_count) == (0, 0)
    assert (await store.range("")).entries == ()
    await refused(Reason.UNKNOWN_TOPIC_OR_PARTITION, topics.delete("t"))


async def test_a_topic_made_again_under_its_old_name_is_another_one(topics: Topics) -> None:
    first = await topics.create(NewTopic("t"))
    await topics.delete("t")
    assert (await topics.create(NewTopic("t"))).topic_id != first.topic_id


async def test_of_two_who_delete_at_the_same_time_one_is_told_that_it_is_gone(topics: Topics) -> None:
    await topics.create(NewTopic("t", 3))
    results = await asyncio.gather(topics.delete("t"), topics.delete("t"), return_exceptions=True)
    assert sum(isinstance(result, Topic) for result in results) == 1
    assert [result.reason for result in results if isinstance(result, PenstockError)] == [
        Reason.UNKNOWN_TOPIC_OR_PARTITION
    ]


async def test_a_topic_grows_and_never_shrinks(topics: Topics, clock: ManualClock) -> None:
    await topics.create(NewTopic("t", 2))
    clock.advance(5)
    grown = await topics.add_partitions("t", 12)
    assert topics.get("t") == grown
    assert (grown.partition_count, grown.created_ms, grown.updated_ms) == (12, 1000, 1005)
    assert topics.partitions(grown) == [alone(NODE)] * 12
    for count in (12, 3, 0, -1, PARTITIONS_PER_TOPIC_MAX + 1):
        await refused(Reason.INVALID_PARTITIONS, topics.add_partitions("t", count))
    await refused(Reason.UNKNOWN_TOPIC_OR_PARTITION, topics.add_partitions("nobody", 5))


async def test_assignments_of_new_partitions_are_checked(topics: Topics) -> None:
    await topics.create(NewTopic("t", 2))
    for assignments in ([[NODE]], [[NODE], [8]], []):
        await refused(Reason.INVALID_REPLICA_ASSIGNMENT, topics.add_partitions("t", 4, assignments))
    assert (await topics.add_partitions("t", 4, [[NODE], [NODE]])).partition_count == 4


async def test_growth_from_two_sides_ends_with_one_of_them(topics: Topics, store: MetadataStore) -> None:
    await topics.create(NewTopic("t", 1))
    results = await asyncio.gather(topics.add_partitions("t", 3), topics.add_partitions("t", 3), return_exceptions=True)
    assert [type(result) for result in results] == [Topic, PenstockError]
    assert len((await store.range("p/")).entries) == 3
    assert topics.partition_count == 3


async def test_configs_change_at_once_and_for_good(topics: Topics, clock: ManualClock) -> None:
    await topics.create(NewTopic("t", configs={"segment.ms": "5"}))
    clock.advance(1)
    changed = await topics.alter(
        "t",
        [ConfigChange("retention.ms", ChangeKind.SET, "7"), ConfigChange("segment.ms", ChangeKind.DELETE)],
    )
    assert topics.get("t") == changed
    assert changed.overrides == {"retention.ms": "7"}
    assert (changed.config.retention_ms, changed.updated_ms) == (7, 1001)
    assert (await topics.replace_configs("t", {"segment.ms": "6"})).overrides == {"segment.ms": "6"}


async def test_a_change_that_changes_nothing_is_no_change(topics: Topics, store: MetadataStore) -> None:
    await topics.create(NewTopic("t", configs={"retention.ms": "5"}))
    heard: list[Topic] = []
    topics.on_changed.append(heard.append)
    before = await store.range("")
    await topics.alter("t", [ConfigChange("retention.ms", ChangeKind.SET, "5")])
    await topics.replace_configs("t", {"retention.ms": "5"})
    assert await store.range("") == before
    assert heard == []


async def test_one_bad_change_stops_all(topics: Topics) -> None:
    topic = await topics.create(NewTopic("t"))
    changes = [ConfigChange("retention.ms", ChangeKind.SET, "5"), ConfigChange("segment.ms", ChangeKind.SET, "x")]
    await refused(Reason.INVALID_CONFIG, topics.alter("t", changes))
    await refused(Reason.INVALID_CONFIG, topics.replace_configs("t", {"retention.ms": "5", "x": "y"}))
    assert topics.get("t") == topic


async def test_changes_of_different_configs_at_the_same_time_all_count(topics: Topics) -> None:
    await topics.create(NewTopic("t"))
    names = ("retention.ms", "segment.ms", "delete.retention.ms", "file.delete.delay.ms")
    await asyncio.gather(*(topics.alter("t", [ConfigChange(name, ChangeKind.SET, "5")]) for name in names))
    assert topics.require("t").overrides == dict.fromkeys(names, "5")


async def test_hooks_hear_of_every_change_once_it_is_in_the_image(topics: Topics) -> None:
    heard: list[tuple[str, str, int]] = []

    def hook(what: str):
        return lambda topic: heard.append((what, topic.name, len(topics.partitions(topic))))

    topics.on_created.append(hook("created"))
    topics.on_changed.append(hook("changed"))
    topics.on_deleted.append(hook("deleted"))
    await topics.create(NewTopic("t", 2))
    await topics.add_partitions("t", 5)
    await topics.alter("t", [ConfigChange("retention.ms", ChangeKind.SET, "5")])
    await topics.delete("t")
    assert heard == [("created", "t", 2), ("changed", "t", 5), ("changed", "t", 5), ("deleted", "t", 5)]


async def test_a_closed_image_follows_no_more(topics: Topics) -> None:
    topics.close()
    await topics.create(NewTopic("t"))
    assert topics.get("t") is None


async def test_an_unknown_partition_is_refused_and_an_unknown_record_has_no_leader(
    topics: Topics, store: MetadataStore, clock: ManualClock
) -> None:
    topic = await topics.create(NewTopic("t", 2))
    for index in (-1, 2):
        with pytest.raises(PenstockError) as caught:
            topics.partition(topic, index)
        assert caught.value.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    await store.txn([], [Delete(partition_key(topic.topic_id, 1))])
    again = await loaded(store, clock)
    assert again.partition(topic, 1).leader == NO_LEADER
    assert again.partitions(topic) == [alone(NODE), NOBODY]


@pytest.mark.parametrize("key", [topic_key("t"), "p/xyz/0", "p/" + "0" * 32 + "/x", "p/" + "0" * 32 + "/0"])
async def test_a_damaged_entry_is_told_at_the_start(store: MetadataStore, clock: ManualClock, key: str) -> None:
    await store.txn([], [Put(key, b"{}")])
    text = await refused(Reason.STORAGE_ERROR, loaded(store, clock))
    assert key in text


async def test_an_override_that_this_version_does_not_know_does_not_stop_the_start(
    store: MetadataStore, clock: ManualClock, topics: Topics
) -> None:
    await topics.create(NewTopic("t", configs={"retention.ms": "5"}))
    entry = await store.get(topic_key("t"))
    assert entry is not None
    newer = entry.value.replace(b'"retention.ms"', b'"later.config":"1","retention.ms"')
    assert newer != entry.value
    await store.txn([], [Put(entry.key, newer)])
    assert (await loaded(store, clock)).require("t").config.retention_ms == 5


async def test_ten_thousand_partitions_are_one_transaction(topics: Topics, store: MetadataStore) -> None:
    before = (await store.range("")).revision
    await topics.create(NewTopic("t", PARTITIONS_PER_TOPIC_MAX))
    assert (await store.range("")).revision == before + 1
    assert topics.partition_count == PARTITIONS_PER_TOPIC_MAX


async def test_what_is_made_while_the_image_loads_is_in_it_once(store: MetadataStore, clock: ManualClock) -> None:
    maker = await loaded(store, clock)
    late = Topics(store, clock, CountingEntropy(), SETTINGS)
    created: list[Topic] = []
    changed: list[Topic] = []
    late.on_created.append(created.append)
    late.on_changed.append(changed.append)
    names = [f"t{n}" for n in range(20)]
    await asyncio.gather(
        *(maker.create(NewTopic(name, 2)) for name in names[:10]),
        late.load(),
        *(maker.create(NewTopic(name, 2)) for name in names[10:]),
    )
    assert list(late) == list(maker)
    assert late.partition_count == 40
    assert all(late.partitions(topic) == [alone(NODE)] * 2 for topic in late)
    assert changed == []
    assert len({topic.name for topic in created}) == len(created)
