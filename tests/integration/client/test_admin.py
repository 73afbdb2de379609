"""Topics and their configs, on a real broker."""

import pytest

from penstock.client import Admin, BrokerRefused, Producer, watermarks


def refused(name, call, *arguments, **options):
    with pytest.raises(BrokerRefused) as caught:
        call(*arguments, **options)
    assert caught.value.name == name
    return caught.value


def test_a_topic_is_as_it_was_made(cluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("admin-made", partitions=3, configs={"retention.ms": "1000000"})
    topic = admin.topic("admin-made")
    assert (len(topic.partitions), topic.internal) == (3, False)
    assert [(partition.leader, partition.in_sync) for partition in topic.partitions] == [(1, (1,))] * 3
    assert "admin-made" in [each.name for each in admin.topics()]
    assert {entry.name: entry.value for entry in admin.configs("admin-made") if not entry.is_default} == {
        "retention.ms": "1000000"
    }


def test_what_cannot_be_is_refused_with_its_code(cluster, topic) -> None:
    admin = Admin(cluster)
    refused("TOPIC_ALREADY_EXISTS", admin.create_topic, topic)
    refused("INVALID_TOPIC_EXCEPTION", admin.create_topic, "no spaces")
    refused("INVALID_CONFIG", admin.create_topic, "admin-bad", configs={"no.such": "1"})
    refused("INVALID_REPLICATION_FACTOR", admin.create_topic, "admin-bad", replication_factor=3)
    refused("UNKNOWN_TOPIC_OR_PARTITION", admin.topic, "admin-bad")
    refused("UNKNOWN_TOPIC_OR_PARTITION", admin.delete_topic, "admin-bad")
    refused("UNKNOWN_TOPIC_OR_PARTITION", admin.configs, "admin-bad")
    refused("INVALID_CONFIG", admin.alter_configs, topic, {"cleanup.policy": "sometimes"})
    refused("INVALID_PARTITIONS", admin.add_partitions, topic, 1)


def test_a_topic_that_exists_stays_as_it_is_when_that_is_fine(cluster) -> None:
    admin = Admin(cluster)
    for partitions in (1, 2):
        admin.create_topic("admin-twice", partitions=partitions, exists_ok=True)
    assert len(admin.topic("admin-twice").partitions) == 1
    refused("INVALID_TOPIC_EXCEPTION", admin.create_topic, "no spaces", exists_ok=True)


def test_a_dry_run_makes_nothing(cluster) -> None:
    admin = Admin(cluster)
    admin.create_topic("admin-dry", partitions=2, validate_only=True)
    refused("UNKNOWN_TOPIC_OR_PARTITION", admin.topic, "admin-dry")


def test_looking_at_a_topic_does_not_make_it(cluster) -> None:
    for _ in range(2):
        refused("UNKNOWN_TOPIC_OR_PARTITION", Admin(cluster).topic, "admin-looked-at")


def test_a_deleted_topic_is_gone(cluster, topic) -> None:
    Admin(cluster).delete_topic(topic)
    refused("UNKNOWN_TOPIC_OR_PARTITION", Admin(cluster).topic, topic)


def test_configs_are_set_and_taken_back_one_by_one(cluster, topic) -> None:
    admin = Admin(cluster)
    admin.alter_configs(topic, {"retention.ms": "5000", "cleanup.policy": "compact"})
    admin.alter_configs(topic, {"retention.ms": None})
    assert {entry.name: entry.value for entry in admin.configs(topic) if not entry.is_default} == {
        "cleanup.policy": "compact"
    }


def test_partitions_can_be_added(cluster, topic) -> None:
    Admin(cluster).add_partitions(topic, 5)
    assert len(Admin(cluster).topic(topic).partitions) == 5


def test_records_can_be_deleted_from_the_front(cluster, topic) -> None:
    with Producer(cluster) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
    admin = Admin(cluster)
    assert admin.delete_records({(topic, 0): 4}) == {(topic, 0): 4}
    assert watermarks(cluster, [(topic, 0)]) == {(topic, 0): (4, 10)}
    assert admin.delete_records({(topic, 0): -1}) == {(topic, 0): 10}


def test_sizes_grow_with_what_is_written(cluster, topic) -> None:
    admin = Admin(cluster)
    assert admin.sizes([topic]) == {(topic, 0): 0, (topic, 1): 0}
    Producer(cluster).produce(topic, bytes(1000), partition=1)
    sizes = admin.sizes([topic])
    assert sizes[topic, 0] == 0
    assert 1000 < sizes[topic, 1] < 1200


def test_the_broker_lists_its_configs(cluster) -> None:
    assert Admin(cluster).broker_configs(1)
