"""Configs of brokers and groups, and what admin tools ask for that does not exist here, with confluent-kafka and kafka-python."""

from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResourceType,
    ResourcePatternFilter,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ResourceType as AclResourceType
from kafka.errors import LogDirNotFoundError, NoError, SecurityDisabledError
from kafka.errors import UnsupportedVersionError as PythonUnsupportedVersionError

SECONDS = 20
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
RETENTION = "log.retention.ms"

pytestmark = pytest.mark.usefixtures("is_penstock")


@pytest.fixture
def python(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    made = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield made
    made.close()


@pytest.fixture
def broker(admin: AdminClient) -> str:
    [node] = admin.describe_cluster().result(SECONDS).nodes
    return str(node.id)


def change(admin: AdminClient, kind: ResourceType, name: str, *changes: tuple[str, str | None]) -> None:
    """Set these configs; those without a value are deleted."""
    entries = [
        ConfigEntry(key, value, incremental_operation=DELETE if value is None else SET) for key, value in changes
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def told(admin: AdminClient, kind: ResourceType, name: str, config: str) -> tuple[str, ConfigSource]:
    """The value of a config, and where it comes from."""
    resource = ConfigResource(kind, name)
    entry = admin.describe_configs([resource])[resource].result(SECONDS)[config]
    return entry.value, ConfigSource(entry.source)


def test_a_brokers_config_is_set_for_one_and_for_all_and_deleted(
    admin: AdminClient, broker: str, unique: Callable[[str], str]
) -> None:
    topic = unique("t")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    change(admin, ResourceType.BROKER, broker, (RETENTION, "5000000"))
    assert told(admin, ResourceType.BROKER, broker, RETENTION) == ("5000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert told(admin, ResourceType.TOPIC, topic, "retention.ms") == ("5000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    change(admin, ResourceType.BROKER, broker, (RETENTION, None))
    assert told(admin, ResourceType.TOPIC, topic, "retention.ms") == ("604800000", ConfigSource.DEFAULT_CONFIG)


@pytest.mark.parametrize(
    ("config", "value", "code", "text"),
    [
        ("num.io.threads", "8", KafkaError.INVALID_REQUEST, "num.io.threads cannot be changed dynamically"),
        ("num.partitions", "8", KafkaError.INVALID_REQUEST, "topics.partitions in the broker's configuration file"),
        ("leader.replication.throttled.rate", "0", KafkaError.INVALID_CONFIG, "an integer from 1"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(
    admin: AdminClient, broker: str, config: str, value: str, code: int, text: str
) -> None:
    with pytest.raises(KafkaException) as refused:
        change(admin, ResourceType.BROKER, broker, (config, value))
    error = refused.value.args[0]
    assert error.code() == code
    assert text in error.str()


def test_a_brokers_address_is_from_its_configuration(admin: AdminClient, broker: str, bootstrap: str) -> None:
    expected = f"PLAINTEXT://{bootstrap}", ConfigSource.STATIC_BROKER_CONFIG
    assert told(admin, ResourceType.BROKER, broker, "advertised.listeners") == expected


def test_a_group_has_configs(python: kafka.KafkaAdminClient, unique: Callable[[str], str]) -> None:
    group = unique("g")

    def resource(configs: object = None) -> PythonResource:
        return PythonResource(ConfigResourceType.GROUP, group, configs)

    python.alter_configs([resource({"consumer.session.timeout.ms": "50000"})])
    described = python.describe_configs([resource()])["group"][group]
    assert {name: entry["value"] for name, entry in described.items()} == {"consumer.session.timeout.ms": "50000"}
    assert group in python.list_config_resources(["GROUP"])["group"]
    refused = python.alter_configs([resource({"consumer.session.timeout.ms": "1"})])["group"][group]
    assert "from 45000 to 60000" in str(refused)
    python.reset_configs([resource(["consumer.session.timeout.ms"])])
    assert group not in python.list_config_resources(["GROUP"]).get("group", [])


def test_resources_with_configs_are_listed(
    python: kafka.KafkaAdminClient, admin: AdminClient, broker: str, unique: Callable[[str], str]
) -> None:
    topic = unique("t")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    listed = python.list_config_resources()
    assert topic in listed["topic"]
    assert listed["broker"] == [broker]


def test_an_empty_cleanup_policy_is_kept(admin: AdminClient, unique: Callable[[str], str]) -> None:
    topic = unique("t")
    admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": ""})])[topic].result(SECONDS)
    assert told(admin, ResourceType.TOPIC, topic, "cleanup.policy") == ("", ConfigSource.DYNAMIC_TOPIC_CONFIG)


def test_acls_are_answered_with_security_disabled(python: kafka.KafkaAdminClient) -> None:
    wanted = ACLFilter(
        principal=None,
        host="*",
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(AclResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    with pytest.raises(SecurityDisabledError):
        python.describe_acls(wanted)


def test_a_quorum_is_refused_with_where_the_metadata_is(python: kafka.KafkaAdminClient) -> None:
    with pytest.raises(PythonUnsupportedVersionError, match="no quorum to describe"):
        python.describe_metadata_quorum()


def test_a_replica_is_in_the_one_log_directory(
    python: kafka.KafkaAdminClient, admin: AdminClient, broker: str, unique: Callable[[str], str]
) -> None:
    topic = unique("t")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    directory = told(admin, ResourceType.BROKER, broker, "log.dirs")[0]
    place = (topic, 0, int(broker))
    assert list(python.alter_replica_log_dirs({place: directory}).values()) == [NoError]
    assert list(python.alter_replica_log_dirs({place: "/elsewhere"}).values()) == [LogDirNotFoundError]


def test_a_consumer_of_the_newer_group_protocol_fails_and_does_not_wait(
    bootstrap: str, unique: Callable[[str], str]
) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("g"), "group.protocol": "consumer"}
    )
    try:
        consumer.subscribe([unique("t")])
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error().code() == KafkaError._FATAL
        assert "ConsumerGroupHeartbeat" in message.error().str()
    finally:
        consumer.close()
