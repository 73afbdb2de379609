"""Consumer groups as the clients run them: three members, every assignor, joins, leaves, deaths, static members."""

import itertools
import signal
import subprocess
import sys

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.interop.members import CLIENTS_AND_ASSIGNORS, MEMBERS, Member
from tests.support.clients import PRODUCERS, Record, run_kcat
from tests.support.waiting import eventually

PARTITIONS = 6
RECORDS_PER_PARTITION = 50
EVERY = {(p, o) for p in range(PARTITIONS) for o in range(RECORDS_PER_PARTITION)}


def settled(members: list[Member], *, partitions: int = PARTITIONS) -> bool:
    """Every partition is held by one member, and every member holds one."""
    for member in members:
        if member.error is not None:
            raise member.error
    held = list(itertools.chain.from_iterable(member.partitions for member in members))
    return sorted(held) == list(range(partitions)) and all(member.partitions for member in members)


def produce_everywhere(bootstrap: str, topic: str) -> None:
    sent = [Record(b"%d" % o, partition=p) for p in range(PARTITIONS) for o in range(RECORDS_PER_PARTITION)]
    PRODUCERS["confluent"](bootstrap, topic, sent)


def committed(admin: AdminClient, group: str) -> dict[int, int]:
    asked = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])
    return {where.partition: where.offset for where in asked[group].result(20).topic_partitions}


@pytest.fixture
def start_member(bootstrap):
    """Start members that are closed at the end of the test, whatever happened."""
    members: list[Member] = []

    def start(client: str, topic: str, group: str, assignor: str, **options: object) -> Member:
        member = MEMBERS[client](bootstrap, topic, group, assignor, options)
        members.append(member)
        return member

    yield start
    for member in members:
        member.close()


@pytest.mark.parametrize(("client", "assignor"), CLIENTS_AND_ASSIGNORS)
def test_three_members_share_a_topic_and_take_over_from_each_other(
    bootstrap, admin, new_topic, unique, start_member, client, assignor
) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique("group")
    members = [start_member(client, topic, group, assignor) for _ in range(3)]
    eventually(lambda: settled(members), what=f"three {client} members share the partitions by {assignor}")
    assert [len(member.partitions) for member in members] == [2, 2, 2]

    produce_everywhere(bootstrap, topic)
    eventually(lambda: set().union(*(m.read for m in members)) == EVERY, what="every record is read")
    everything = dict.fromkeys(range(PARTITIONS), RECORDS_PER_PARTITION)
    eventually(lambda: committed(admin, group) == everything, what="every member commits what it read")

    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert described.partition_assignor == assignor
    assert len(described.members) == 3

    members[0].close()
    rest = members[1:]
    eventually(lambda: settled(rest), what="two members take over from the third")

    members.append(start_member(client, topic, group, assignor))
    eventually(lambda: settled(members[1:]), what="a fourth member joins the two")

    for member in members:
        member.close()
        assert member.error is None
    assert committed(admin, group) == everything


def test_members_of_three_clients_share_one_group(bootstrap, new_topic, unique, start_member) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique("group")
    members = [start_member(client, topic, group, "range") for client in MEMBERS]
    eventually(lambda: settled(members), what="members of three clients share the partitions")
    produce_everywhere(bootstrap, topic)
    eventually(lambda: set().union(*(m.read for m in members)) == EVERY, what="every record is read")


def test_kcat_takes_part_in_a_group(kcat, bootstrap, new_topic, unique) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique("group")
    produce_everywhere(bootstrap, topic)
    count = len(EVERY)
    out = run_kcat("-b", bootstrap, "-q", "-X", "auto.offset.reset=earliest", "-c", str(count), "-G", group, topic)
    assert len(out.splitlines()) == count


MEMBER_THAT_DIES = """
import sys, confluent_kafka
bootstrap, topic, group = sys.argv[1:]
consumer = confluent_kafka.Consumer({
    "bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 2000, "heartbeat.interval.ms": 200,
    "partition.assignment.strategy": "range",
})
consumer.subscribe([topic])
said = 0
while True:
    consumer.poll(0.1)
    if len(consumer.assignment()) != said:
        said = len(consumer.assignment())
        print(said, flush=True)
"""


def test_the_partitions_of_a_member_that_died_are_taken_over(bootstrap, new_topic, unique, start_member) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique("group")
    dying = subprocess.Popen(
        [sys.executable, "-c", MEMBER_THAT_DIES, bootstrap, topic, group], stdout=subprocess.PIPE, text=True
    )
    try:
        assert dying.stdout is not None
        assert dying.stdout.readline().strip() == str(PARTITIONS)
        survivor = start_member("confluent", topic, group, "range")
        eventually(lambda: len(survivor.partitions) == PARTITIONS // 2, what="two members share the partitions")
    finally:
        dying.send_signal(signal.SIGKILL)
        dying.wait(20)
        dying.stdout.close()
    eventually(lambda: len(survivor.partitions) == PARTITIONS, what="the survivor takes over when the session ends")


@pytest.mark.parametrize("client", MEMBERS)
def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(
    bootstrap, admin, new_topic, unique, start_member, client
) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique("group")
    first = start_member(client, topic, group, "range", instance_id="one")
    second = start_member(client, topic, group, "range", instance_id="two")
    eventually(lambda: settled([first, second]), what="two static members share the partitions")
    held, rebalances = first.partitions, second.rebalances

    first.close()
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert sorted(member.group_instance_id for member in described.members) == ["one", "two"]

    again = start_member(client, topic, group, "range", instance_id="one")
    eventually(lambda: again.partitions == held, what="the static member has its partitions again")
    assert second.rebalances == rebalances
    assert second.error is None


def test_the_older_of_two_static_members_with_one_name_is_fenced(new_topic, unique, start_member) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    older = start_member("confluent", topic, group, "range", instance_id="same")
    eventually(lambda: len(older.partitions) == 2)
    newer = start_member("confluent", topic, group, "range", instance_id="same")
    eventually(lambda: len(newer.partitions) == 2)
    eventually(lambda: older.error is not None, what="the older member is told that it is fenced")
    assert isinstance(older.error, confluent_kafka.KafkaException)
    code = older.error.args[0].code()
    assert code in {confluent_kafka.KafkaError._FATAL, confluent_kafka.KafkaError.FENCED_INSTANCE_ID}


def test_members_without_an_assignor_in_common_do_not_share_a_group(bootstrap, new_topic, unique, start_member) -> None:
    topic, group = new_topic(partitions=2), unique("group")
    member = start_member("confluent", topic, group, "range")
    eventually(lambda: len(member.partitions) == 2)
    other = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "partition.assignment.strategy": "roundrobin"}
    )
    other.subscribe([topic])
    try:
        message = other.poll(20)
        assert message is not None
        assert message.error().code() == confluent_kafka.KafkaError.INCONSISTENT_GROUP_PROTOCOL
    finally:
        other.close()


def committing_consumer(bootstrap: str, group: str, **settings: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


def test_a_group_goes_on_where_it_committed(bootstrap, new_topic, unique) -> None:
    topic, group = new_topic(), unique("group")
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"%d" % n) for n in range(100)])

    consumer = committing_consumer(bootstrap, group)
    consumer.subscribe([topic])
    read = consumer.consume(60, timeout=20)
    assert [message.offset() for message in read] == list(range(60))
    consumer.commit(message=read[-1], asynchronous=False)
    consumer.close()

    consumer = committing_consumer(bootstrap, group)
    consumer.subscribe([topic])
    read = consumer.consume(40, timeout=20)
    assert [message.offset() for message in read] == list(range(60, 100))
    consumer.close()


def test_a_commit_keeps_its_metadata_and_its_epoch(bootstrap, new_topic, unique) -> None:
    topic, group = new_topic(), unique("group")
    consumer = committing_consumer(bootstrap, group)
    wanted = confluent_kafka.TopicPartition(topic, 0, 7, metadata="checked by läufer 3", leader_epoch=0)
    consumer.commit(offsets=[wanted], asynchronous=False)
    (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], timeout=20)
    consumer.close()
    assert (found.offset, found.metadata, found.leader_epoch) == (7, "checked by läufer 3", 0)


def test_a_group_that_never_committed_has_no_offset(bootstrap, new_topic, unique) -> None:
    topic = new_topic()
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=unique("group"))
    try:
        assert consumer.committed(kafka.TopicPartition(topic, 0)) is None
    finally:
        consumer.close()


@pytest.mark.parametrize(("reset", "offset"), [("earliest", 0), ("latest", 5)])
def test_a_group_without_an_offset_starts_where_it_is_told(bootstrap, new_topic, unique, reset, offset) -> None:
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")] * 5)
    consumer = committing_consumer(bootstrap, unique("group"), **{"auto.offset.reset": reset})
    consumer.subscribe([topic])
    try:
        if reset == "earliest":
            assert eventually(lambda: consumer.poll(0.1)).offset() == offset
        else:
            # Nothing says from outside that "latest" was looked up but the first record that arrives after it.
            eventually(lambda: consumer.poll(0.05) is None and bool(consumer.assignment()))
            sent = 0

            def reads_a_new_one() -> confluent_kafka.Message | None:
                nonlocal sent
                PRODUCERS["confluent"](bootstrap, topic, [Record(b"new")])
                sent += 1
                return consumer.poll(0.2)

            message = eventually(reads_a_new_one)
            assert message.value() == b"new"
            assert message.offset() >= offset
    finally:
        consumer.close()


def next_record(consumer: confluent_kafka.Consumer) -> confluent_kafka.Message | None:
    message = consumer.poll(0.1)
    return message if message is not None and message.error() is None else None


def test_a_pattern_subscription_follows_new_topics(bootstrap, admin, unique) -> None:
    prefix, group = unique("pattern"), unique("group")
    topics = [f"{prefix}.{n}" for n in range(2)]
    consumer = committing_consumer(bootstrap, group, **{"topic.metadata.refresh.interval.ms": 200})
    consumer.subscribe([f"^{prefix}.*"])
    try:
        for count, topic in enumerate(topics, start=1):
            PRODUCERS["confluent"](bootstrap, topic, [Record(topic.encode())])
            # Until a topic matches, librdkafka may say that there is none.
            message = eventually(lambda: next_record(consumer), what=f"the first record of topic {count}")
            assert message is not None
            assert message.value() == topic.encode()
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def test_a_member_may_join_with_an_older_protocol_version(bootstrap, new_topic, unique) -> None:
    """kafka-python speaks as to an old broker: no member id of its own at the first join, no flexible versions."""
    topic, group = new_topic(), unique("group")
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"v")])
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, api_version=(2, 1), auto_offset_reset="earliest"
    )
    try:
        polled = eventually(lambda: consumer.poll(timeout_ms=200))
        assert [m.value for m in next(iter(polled.values()))] == [b"v"]
        consumer.commit()
        assert consumer.committed(kafka.TopicPartition(topic, 0)) == 1
    finally:
        consumer.close()
