"""Administration with kafka-python, whose client knows some calls that the others do not."""

import uuid

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    GroupIdNotFoundError,
    InvalidTopicError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from tests.support.clients import PRODUCERS, Record


@pytest.fixture
def client(bootstrap):
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def configs(client: kafka.KafkaAdminClient, topic: str) -> dict[str, str]:
    answer = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: entry["value"] for name, entry in answer["topic"][topic].items()}


def test_topics_are_made_described_grown_and_removed(client, unique) -> None:
    name = unique("kp")
    client.create_topics({name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5000"}}})
    (described,) = client.describe_topics([name])
    assert (described["error_code"], len(described["partitions"])) == (0, 2)
    client.create_partitions({name: 4})
    page = client.describe_topic_partitions([name])
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1, 2, 3]
    with pytest.raises(TopicAlreadyExistsError):
        client.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    client.delete_topics([name])
    assert name not in client.list_topics()
    with pytest.raises(UnknownTopicOrPartitionError):
        client.delete_topics([name])


def test_a_topic_may_take_the_brokers_defaults(client, unique) -> None:
    name = unique("kp")
    client.create_topics([name])
    (described,) = client.describe_topics([name])
    assert len(described["partitions"]) >= 1


def test_a_bad_name_is_refused(client) -> None:
    with pytest.raises(InvalidTopicError):
        client.create_topics({"no/slash": {"num_partitions": 1, "replication_factor": 1}})


def test_a_topic_is_found_by_its_id(client, new_topic) -> None:
    topic = new_topic()
    (described,) = client.describe_topics([topic])
    (by_id,) = client.describe_topics([uuid.UUID(str(described["topic_id"]))])
    assert by_id["name"] == topic


@pytest.mark.parametrize("incremental", [True, False])
def test_configs_are_altered_by_the_new_call_and_the_old(client, new_topic, incremental) -> None:
    topic = new_topic(**{"segment.ms": "600000"})
    change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "4321"})
    client.alter_configs([change], incremental=incremental)
    assert configs(client, topic)["retention.ms"] == "4321"
    client.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=["retention.ms"])])
    assert configs(client, topic)["retention.ms"] == "604800000"


def test_records_are_deleted_and_offsets_listed(bootstrap, client, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 10)
    where = kafka.TopicPartition(topic, 0)
    client.delete_records({where: 4})
    assert client.list_partition_offsets({where: OffsetSpec.EARLIEST})[where].offset == 4
    assert client.list_partition_offsets({where: OffsetSpec.LATEST})[where].offset == 10


def test_groups_and_their_offsets_are_administered(bootstrap, client, new_topic, unique) -> None:
    topic, group = new_topic(), unique("kp-group")
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 10)
    where = kafka.TopicPartition(topic, 0)
    with pytest.raises(GroupIdNotFoundError):
        client.delete_group_offsets(group, [where])

    assert client.alter_group_offsets(group, {where: OffsetAndMetadata(7, "noted", -1)}) == {where: NoError}
    found = client.list_group_offsets({group: None})[group][where]
    assert (found.offset, found.metadata) == (7, "noted")
    assert group in [entry["group_id"] for entry in client.list_groups()]
    assert client.describe_groups([group])[group]["group_state"] == "Empty"

    assert client.reset_group_offsets(group, {where: OffsetSpec.EARLIEST})[where]["offset"] == 0
    assert client.delete_group_offsets(group, [where]) == {where: NoError}
    assert client.list_group_offsets({group: None})[group] == {}


def test_several_groups_are_asked_for_at_once(client, new_topic, unique) -> None:
    topic = new_topic()
    groups = [unique("many") for _ in range(3)]
    where = kafka.TopicPartition(topic, 0)
    for number, group in enumerate(groups):
        client.alter_group_offsets(group, {where: OffsetAndMetadata(number, "", -1)})
    found = client.list_group_offsets(groups)
    assert {group: found[group][where].offset for group in groups} == {g: n for n, g in enumerate(groups)}
    assert set(client.delete_groups(groups)) >= set(groups)


def test_log_dirs_give_the_size_of_a_partition(bootstrap, client, new_topic) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"x" * 10_000)])
    sizes = [
        partition["partition_size"]
        for answer in client.describe_log_dirs([topic])
        for folder in answer["log_dirs"]
        for entry in folder["topics"]
        for partition in entry["partitions"]
    ]
    assert len(sizes) == 1
    assert 10_000 <= sizes[0] < 12_000


def test_what_the_broker_says_it_serves_it_serves(client) -> None:
    """The versions that the design promises; a client picks the newest that both know."""
    served = {int(key): (low, high) for key, (low, high) in client.api_versions().items()}
    for key in (*range(4), *range(8, 16), 16, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 42, 44, 47, 60, 75):
        assert key in served, f"API {key} is not listed"
    assert served[0][0] == 0, "older librdkafka stops compressing when Produce 0 is not listed"
