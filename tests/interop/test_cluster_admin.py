"""Administration of three nodes with confluent-kafka and kafka-python."""

from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.support.clients import PRODUCERS, Record
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import eventually

SECONDS = 60


@pytest.fixture(params=[1, 2, 3])
def client(three: LocalCluster, request: pytest.FixtureRequest) -> AdminClient:
    """One that asks each of the nodes first."""
    return AdminClient({"bootstrap.servers": three.addresses[request.param]["kafka"]})


@pytest.fixture
def python(three: LocalCluster) -> Iterator[kafka.KafkaAdminClient]:
    made = kafka.KafkaAdminClient(bootstrap_servers=three.addresses[2]["kafka"])
    yield made
    made.close()


def test_every_node_tells_all_nodes_and_one_controller(client: AdminClient, three: LocalCluster) -> None:
    found = client.describe_cluster().result(SECONDS)
    assert {each.id: f"{each.host}:{each.port}" for each in found.nodes} == {
        node: addresses["kafka"] for node, addresses in three.addresses.items()
    }
    assert {each.id: each.rack for each in found.nodes} == {1: "a", 2: "b", 3: "c"}
    assert found.controller.id in (1, 2, 3)
    assert {
        other.describe_cluster().result(SECONDS).cluster_id
        for addresses in three.addresses.values()
        for other in [AdminClient({"bootstrap.servers": addresses["kafka"]})]
    } == {found.cluster_id}


def test_topics_are_made_grown_configured_and_removed(client: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("made")
    client.create_topics([NewTopic(name, 2, -1)])[name].result(SECONDS)
    client.create_partitions([NewPartitions(name, 3)])[name].result(SECONDS)

    def described() -> list[int]:
        found = client.describe_topics(TopicCollection([name]))[name].result(SECONDS)
        return [len(partition.replicas) for partition in found.partitions]

    assert eventually(lambda: described() == [3, 3, 3])
    resource = ConfigResource(ResourceType.TOPIC, name)
    for key, value in (("min.insync.replicas", "3"), ("unclean.leader.election.enable", "true")):
        resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    client.incremental_alter_configs([resource])[resource].result(SECONDS)

    def configured() -> tuple[str, str]:
        configs = client.describe_configs([ConfigResource(ResourceType.TOPIC, name)])
        found = next(iter(configs.values())).result(SECONDS)
        return found["min.insync.replicas"].value, found["unclean.leader.election.enable"].value

    assert eventually(lambda: configured() == ("3", "true"))
    client.delete_topics([name])[name].result(SECONDS)


def test_more_replicas_than_nodes_are_refused(client: AdminClient, unique: Callable[[str], str]) -> None:
    name = unique("many")
    with pytest.raises(KafkaException) as raised:
        client.create_topics([NewTopic(name, 1, 4)])[name].result(SECONDS)
    assert raised.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_each_brokers_configs_are_its_own(client: AdminClient) -> None:
    for node in (1, 2, 3):
        resource = ConfigResource(ResourceType.BROKER, str(node))
        found = client.describe_configs([resource])[resource].result(SECONDS)
        assert found["node.id"].value == str(node)
        assert found["broker.rack"].value == "_abc"[node]


def test_offsets_are_told_and_records_deleted_at_the_leaders(
    client: AdminClient, three: LocalCluster, unique: Callable[[str], str]
) -> None:
    name = unique("offsets")
    client.create_topics([NewTopic(name, 3, 3)])[name].result(SECONDS)
    PRODUCERS["confluent"](three.bootstrap, name, [Record(b"v", partition=n % 3) for n in range(30)])
    places = [TopicPartition(name, n) for n in range(3)]
    ends = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
    assert [ends[place].result(SECONDS).offset for place in places] == [10, 10, 10]
    deleted = client.delete_records([TopicPartition(name, n, 4) for n in range(3)])
    assert [future.result(SECONDS).low_watermark for future in deleted.values()] == [4, 4, 4]
    starts = client.list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))
    assert [starts[place].result(SECONDS).offset for place in places] == [4, 4, 4]


def test_groups_are_listed_and_described_wherever_they_are(
    three: LocalCluster, client: AdminClient, unique: Callable[[str], str]
) -> None:
    name = unique("grouped")
    client.create_topics([NewTopic(name, 1, 3)])[name].result(SECONDS)
    groups = {unique("g") for _ in range(6)}
    for group in groups:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": three.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(name, 0, 0)], asynchronous=False)
        consumer.close()
    listed = client.list_consumer_groups().result(SECONDS)
    assert listed.errors == []
    assert groups <= {group.group_id for group in listed.valid}
    described = client.describe_consumer_groups(list(groups))
    assert {future.result(SECONDS).coordinator.id for future in described.values()} <= {1, 2, 3}


def test_replicas_move_and_leaders_are_elected(
    three: LocalCluster, python: kafka.KafkaAdminClient, unique: Callable[[str], str]
) -> None:
    name = unique("moved")
    client = AdminClient({"bootstrap.servers": three.bootstrap})
    client.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]])])[name].result(SECONDS)
    PRODUCERS["confluent"](three.bootstrap, name, [Record(b"%d" % n) for n in range(50)])
    place = kafka.TopicPartition(name, 0)
    python.alter_partition_reassignments({place: [3, 1]})

    def described() -> tuple[list[int], int]:
        [topic] = python.describe_topics([name])
        [partition] = topic["partitions"]
        return list(partition["replica_nodes"]), partition["leader_id"]

    eventually(lambda: described()[0] == [3, 1], what="the replica has moved")
    eventually(lambda: not python.list_partition_reassignments(), what="no move is under way")
    client.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [TopicPartition(name, 0)]).result(SECONDS)
    eventually(lambda: described() == ([3, 1], 3), what="the new one leads")
    sizes = python.describe_log_dirs()
    assert sizes


def test_a_move_is_throttled_until_the_rates_are_deleted(
    three: LocalCluster, python: kafka.KafkaAdminClient, unique: Callable[[str], str]
) -> None:
    name = unique("throttled")
    client = AdminClient({"bootstrap.servers": three.bootstrap})
    listed = {f"{side}.replication.throttled.replicas": "*" for side in ("leader", "follower")}
    client.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]], config=listed)])[name].result(SECONDS)
    for _ in range(3):
        PRODUCERS["confluent"](three.bootstrap, name, [Record(b"v" * 100_000)])
    rates = [f"{side}.replication.throttled.rate" for side in ("leader", "follower")]

    def throttle(operation: AlterConfigOpType) -> None:
        for node in (1, 2, 3):
            entries = [ConfigEntry(rate, "1", incremental_operation=operation) for rate in rates]
            resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=entries)
            client.incremental_alter_configs([resource])[resource].result(SECONDS)

    def set_on(node: int) -> list[str]:
        resource = ConfigResource(ResourceType.BROKER, str(node))
        found = client.describe_configs([resource])[resource].result(SECONDS)
        return [found[rate].value for rate in rates]

    def copied() -> int:
        sizes = python.describe_log_dirs(brokers=[3])[0]["log_dirs"]
        return sum(
            partition["partition_size"]
            for each in sizes
            for topic in each["topics"]
            if topic["name"] == name
            for partition in topic["partitions"]
        )

    throttle(AlterConfigOpType.SET)
    for node in (1, 2, 3):
        eventually(lambda node=node: set_on(node) == ["1", "1"], what=f"node {node} has the rates")
    python.alter_partition_reassignments({kafka.TopicPartition(name, 0): [1, 3]})
    eventually(lambda: copied() >= 100_000, what="the first batch has come, and the rates are used up for a day")
    PRODUCERS["confluent"](three.bootstrap, name, [Record(b"after")])
    assert python.list_partition_reassignments(), "the rest waits; producers do not"
    assert copied() < 200_000
    throttle(AlterConfigOpType.DELETE)
    eventually(lambda: not python.list_partition_reassignments(), what="the move is over")
    [topic] = python.describe_topics([name])
    assert list(topic["partitions"][0]["replica_nodes"]) == [1, 3]
