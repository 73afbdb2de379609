"""Every client against three nodes: whichever it asks first, it finds who leads, and who speaks for its group."""

import itertools
import json
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.interop.members import MEMBERS
from tests.support.clients import CONSUMERS, PRODUCERS, Record
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import eventually

PARTITIONS = 3
RECORDS = 60


@pytest.fixture
def topic(three: LocalCluster, unique: Callable[[str], str]) -> str:
    """Three partitions, each led by another node, on all of them."""
    name = unique("three")
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 3)])[name].result(60)
    return name


def node(three: LocalCluster, number: int) -> str:
    return three.addresses[number]["kafka"]


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_what_one_writes_all_read_whichever_node_they_ask_first(three: LocalCluster, topic: str, client: str) -> None:
    sent = [Record(b"%d" % n, key=b"k", partition=n % PARTITIONS) for n in range(RECORDS)]
    PRODUCERS[client](node(three, 1), topic, sent, idempotent=True)
    for (reader, consume), partition in zip(CONSUMERS.items(), itertools.cycle(range(PARTITIONS)), strict=False):
        found = consume(node(three, partition + 1), topic, RECORDS // PARTITIONS, partition)
        assert [record.value for record in found] == [r.value for r in sent if r.partition == partition], reader


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_members_that_ask_different_nodes_share_a_topic(
    three: LocalCluster, topic: str, unique: Callable[[str], str], client: str
) -> None:
    sent = [Record(b"%d" % n, partition=n % PARTITIONS) for n in range(RECORDS)]
    PRODUCERS["confluent"](three.bootstrap, topic, sent)
    group = unique("group")
    members = [MEMBERS[client](node(three, number), topic, group, "range") for number in (1, 2, 3)]
    try:
        eventually(
            lambda: sorted(len(member.partitions) for member in members) == [1, 1, 1],
            what="each member has a partition",
        )
        every = {(n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS)}
        eventually(lambda: set().union(*(member.read for member in members)) >= every, what="all is read")
    finally:
        for member in members:
            member.close()
    admin = AdminClient({"bootstrap.servers": node(three, 2)})
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)

    def committed() -> dict[int, int]:
        found = admin.list_consumer_group_offsets([asked])[group].result(60)
        return {where.partition: where.offset for where in found.topic_partitions}

    assert eventually(lambda: committed() == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS))


@pytest.mark.parametrize("rack", ["b", "c"])
def test_a_consumer_reads_from_the_follower_in_its_rack(
    three: LocalCluster, unique: Callable[[str], str], rack: str
) -> None:
    name = unique("closest")
    admin = AdminClient({"bootstrap.servers": three.bootstrap})
    assigned = NewTopic(name, 1, replica_assignment=[[1, 2, 3]])
    admin.create_topics([assigned])[name].result(60)
    PRODUCERS["confluent"](three.bootstrap, name, [Record(b"%d" % n) for n in range(RECORDS)])
    told: list[int] = []

    def stats(text: str) -> None:
        partition = json.loads(text)["topics"].get(name, {}).get("partitions", {}).get("0", {})
        if "broker" in partition:
            told.append(partition["broker"])

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node(three, 1),
            "group.id": "unused",
            "client.rack": rack,
            "statistics.interval.ms": 100,
            "stats_cb": stats,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    found: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= RECORDS and {"b": 2, "c": 3}[rack] in told

    try:
        eventually(read, what="all is read, from the follower")
        # What is written now comes from there too.
        PRODUCERS["confluent"](three.bootstrap, name, [Record(b"new")])
        eventually(lambda: read() and b"new" in found, what="what is new comes too")
    finally:
        consumer.close()
    assert found == [*(b"%d" % n for n in range(RECORDS)), b"new"]
    assert told[-1] == {"b": 2, "c": 3}[rack]
