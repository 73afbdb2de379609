"""Administration with confluent-kafka's and aiokafka's clients; kafka-python's is in test_admin_kafka_python.py."""

import json

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.new_partitions import NewPartitions as AioNewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.clients import CONSUMERS, PRODUCERS, Record, run_kcat
from tests.support.waiting import eventually

SECONDS = 20


def refusal(future) -> int:
    """The error code with which the broker refused."""
    with pytest.raises(KafkaException) as refused:
        future.result(SECONDS)
    return refused.value.args[0].code()


def config_of(admin, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return admin.describe_configs([resource])[resource].result(SECONDS)


def change(admin, topic: str, name: str, value: str | None, operation: AlterConfigOpType) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def ends(admin, topic: str, spec: OffsetSpec, partition: int = 0) -> int:
    where = TopicPartition(topic, partition)
    return admin.list_offsets({where: spec})[where].result(SECONDS).offset


# Topics.


def test_a_topic_is_made_described_and_removed(admin, unique) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "1000"})])[name].result(SECONDS)

    listed = admin.list_topics(timeout=SECONDS).topics[name]
    assert sorted(listed.partitions) == [0, 1, 2]
    described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(SECONDS)
    assert (described.name, len(described.partitions), described.is_internal) == (name, 3, False)
    (node,) = admin.describe_cluster().result(SECONDS).nodes
    for partition in described.partitions:
        assert partition.leader.id == node.id
        assert [replica.id for replica in partition.replicas] == [replica.id for replica in partition.isr] == [node.id]

    admin.delete_topics([name])[name].result(SECONDS)
    assert name not in admin.list_topics(timeout=SECONDS).topics


def test_a_topic_may_be_made_again_and_is_empty_then(bootstrap, admin, unique) -> None:
    name = unique("topic")
    for round_number in range(3):
        made = admin.create_topics([NewTopic(name, 1, 1)])[name]
        made.result(SECONDS)
        PRODUCERS["confluent"](bootstrap, name, [Record(b"%d" % round_number)])
        assert [r.value for r in CONSUMERS["confluent"](bootstrap, name, 1)] == [b"%d" % round_number]
        assert ends(admin, name, OffsetSpec.latest()) == 1
        admin.delete_topics([name])[name].result(SECONDS)


@pytest.mark.parametrize(
    ("name", "partitions", "replication", "config", "code"),
    [
        ("", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("..", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("no spaces", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("good", 0, 1, {}, KafkaError.INVALID_PARTITIONS),
        ("good", 1, 2, {}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("good", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("good", 1, 1, {"no.such.config": "1"}, KafkaError.INVALID_CONFIG),
        ("good", 1, 1, {"cleanup.policy": "burn"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_right_code(
    admin, unique, name, partitions, replication, config, code
) -> None:
    full = unique("good") if name == "good" else name
    made = admin.create_topics([NewTopic(full, partitions, replication, config=config)])
    assert refusal(made[full]) == code
    assert full not in admin.list_topics(timeout=SECONDS).topics


def test_a_topic_that_exists_is_not_made_again(admin, new_topic) -> None:
    name = new_topic()
    assert refusal(admin.create_topics([NewTopic(name, 1, 1)])[name]) == KafkaError.TOPIC_ALREADY_EXISTS


def test_a_check_alone_makes_nothing(admin, unique) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(SECONDS)
    assert name not in admin.list_topics(timeout=SECONDS).topics


def test_a_topic_that_is_not_there_is_not_removed(admin, unique) -> None:
    name = unique("absent")
    assert refusal(admin.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_are_added_and_used(bootstrap, admin, new_topic) -> None:
    topic = new_topic(partitions=2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(SECONDS)
    assert len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions) == 5
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v", partition=4)])
    assert [r.value for r in CONSUMERS["kafka-python"](bootstrap, topic, 1, partition=4)] == [b"v"]
    assert refusal(admin.create_partitions([NewPartitions(topic, 3)])[topic]) == KafkaError.INVALID_PARTITIONS


# Configs.


def test_every_config_is_listed_with_its_value_and_its_source(admin, new_topic) -> None:
    topic = new_topic(**{"retention.ms": "12345", "cleanup.policy": "compact"})
    entries = config_of(admin, topic)
    assert (entries["retention.ms"].value, entries["cleanup.policy"].value) == ("12345", "compact")
    assert entries["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    for name in (
        "segment.bytes",
        "retention.bytes",
        "compression.type",
        "max.message.bytes",
        "message.timestamp.type",
        "delete.retention.ms",
        "segment.ms",
    ):
        assert entries[name].value not in (None, ""), name
        assert entries[name].is_default, name
    assert entries["min.insync.replicas"].value == "1"


def test_configs_are_set_added_to_taken_from_and_put_back(admin, new_topic) -> None:
    topic = new_topic()
    default = config_of(admin, topic)["retention.ms"].value

    change(admin, topic, "retention.ms", "777", AlterConfigOpType.SET)
    assert config_of(admin, topic)["retention.ms"].value == "777"
    change(admin, topic, "retention.ms", None, AlterConfigOpType.DELETE)
    assert config_of(admin, topic)["retention.ms"].value == default

    change(admin, topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert set(config_of(admin, topic)["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    change(admin, topic, "cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert config_of(admin, topic)["cleanup.policy"].value == "compact"


def test_a_config_change_that_cannot_be_is_refused(admin, new_topic) -> None:
    topic = new_topic()
    entry = ConfigEntry("segment.bytes", "-5", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    assert refusal(admin.incremental_alter_configs([resource])[resource]) == KafkaError.INVALID_CONFIG


def test_a_smaller_limit_holds_from_the_next_record_on(bootstrap, admin, new_topic) -> None:
    topic = new_topic()
    change(admin, topic, "max.message.bytes", "1000", AlterConfigOpType.SET)
    refused: list[int] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x" * 2000, on_delivery=lambda error, _: refused.append(error.code() if error else 0))
    producer.produce(topic, b"x" * 200, partition=0, on_delivery=lambda error, _: refused.append(0 if error else -1))
    assert producer.flush(SECONDS) == 0
    assert KafkaError.MSG_SIZE_TOO_LARGE in refused


def test_the_brokers_own_configs_are_listed(admin) -> None:
    (node,) = admin.describe_cluster().result(SECONDS).nodes
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    assert entries, "the broker lists no config of its own"


# Records.


def test_records_are_deleted_up_to_an_offset(bootstrap, admin, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"%d" % n) for n in range(100)])

    where = TopicPartition(topic, 0, 40)
    result = admin.delete_records([where])[where].result(SECONDS)
    assert result.low_watermark == 40
    assert ends(admin, topic, OffsetSpec.earliest()) == 40
    assert ends(admin, topic, OffsetSpec.latest()) == 100
    assert [r.value for r in CONSUMERS["confluent"](bootstrap, topic, 1, offset=40)] == [b"40"]

    everything = TopicPartition(topic, 0, -1)
    assert admin.delete_records([everything])[everything].result(SECONDS).low_watermark == 100
    beyond = TopicPartition(topic, 0, 101)
    assert refusal(admin.delete_records([beyond])[beyond]) == KafkaError.OFFSET_OUT_OF_RANGE


# Groups.


@pytest.fixture
def empty_group(bootstrap, new_topic, unique):
    """A group without members that committed offset 3 of 5."""
    topic, group = new_topic(), unique("group")
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 5)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.05) or consumer.assignment())
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    consumer.close()
    return topic, group


def offsets_of(admin, group: str) -> dict[tuple[str, int], int]:
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(SECONDS)
    return {(where.topic, where.partition): where.offset for where in found.topic_partitions}


def test_groups_are_listed_described_and_removed(admin, empty_group) -> None:
    _, group = empty_group
    listed = {entry.group_id: entry for entry in admin.list_consumer_groups().result(SECONDS).valid}
    assert listed[group].state == confluent_kafka.ConsumerGroupState.EMPTY
    described = admin.describe_consumer_groups([group])[group].result(SECONDS)
    assert (described.state, described.members) == (confluent_kafka.ConsumerGroupState.EMPTY, [])

    admin.delete_consumer_groups([group])[group].result(SECONDS)
    assert group not in {entry.group_id for entry in admin.list_consumer_groups().result(SECONDS).valid}
    assert refusal(admin.delete_consumer_groups([group])[group]) == KafkaError.GROUP_ID_NOT_FOUND


def test_the_offsets_of_a_group_are_listed_and_moved(bootstrap, admin, empty_group) -> None:
    topic, group = empty_group
    assert offsets_of(admin, group) == {(topic, 0): 3}
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    admin.alter_consumer_group_offsets([wanted])[group].result(SECONDS)
    assert offsets_of(admin, group) == {(topic, 0): 1}

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    try:
        assert eventually(lambda: consumer.poll(0.1)).offset() == 1
    finally:
        consumer.close()


def test_a_group_with_members_is_not_removed(bootstrap, admin, new_topic, unique) -> None:
    topic, group = new_topic(), unique("group")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    try:
        eventually(lambda: consumer.poll(0.05) or consumer.assignment())
        assert refusal(admin.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP
    finally:
        consumer.close()


def test_the_offsets_of_a_deleted_topic_go_with_it(admin, empty_group) -> None:
    topic, group = empty_group
    admin.delete_topics([topic])[topic].result(SECONDS)
    eventually(lambda: offsets_of(admin, group) == {}, what="the group forgets the offsets of a topic that is gone")


# The cluster.


def test_the_cluster_names_itself_and_its_node(bootstrap, admin) -> None:
    described = admin.describe_cluster().result(SECONDS)
    assert described.cluster_id
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [bootstrap]
    assert described.controller is not None


def test_kcat_lists_the_metadata(kcat, bootstrap, new_topic) -> None:
    topic = new_topic(partitions=2)
    listed = json.loads(run_kcat("-L", "-J", "-b", bootstrap))
    assert [broker["name"] for broker in listed["brokers"]] == [bootstrap]
    (entry,) = [entry for entry in listed["topics"] if entry["topic"] == topic]
    assert [p["partition"] for p in entry["partitions"]] == [0, 1]


# aiokafka.


async def test_aiokafka_administers_topics_configs_and_records(bootstrap, unique) -> None:
    name = unique("aio")
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([AioNewTopic(name, 1, 1, topic_configs={"retention.ms": "5000"})])
        await admin.create_partitions({name: AioNewPartitions(total_count=2)})
        assert name in await admin.list_topics()
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 2

        resource = AioConfigResource(AioConfigResourceType.TOPIC, name)
        (answer,) = await admin.describe_configs([resource])
        entries = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert entries["retention.ms"] == "5000"
        changed = AioConfigResource(AioConfigResourceType.TOPIC, name, configs={"retention.ms": "6000"})
        await admin.alter_configs([changed])
        (answer,) = await admin.describe_configs([resource])
        assert {entry[0]: entry[1] for entry in answer.resources[0][4]}["retention.ms"] == "6000"

        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
            for _ in range(5):
                await producer.send_and_wait(name, b"v", partition=0)
        where = aiokafka.TopicPartition(name, 0)
        assert await admin.delete_records({where: RecordsToDelete(before_offset=3)}) == {where: 3}

        assert (await admin.describe_cluster())["brokers"]
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()
    finally:
        await admin.close()


async def test_aiokafka_administers_groups(bootstrap, empty_group) -> None:
    topic, group = empty_group
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        assert group in [entry[0] for entry in await admin.list_consumer_groups()]
        (answer,) = await admin.describe_consumer_groups([group])
        assert (answer.groups[0][1], answer.groups[0][2]) == (group, "Empty")
        offsets = await admin.list_consumer_group_offsets(group)
        assert offsets[aiokafka.TopicPartition(topic, 0)].offset == 3
    finally:
        await admin.close()
