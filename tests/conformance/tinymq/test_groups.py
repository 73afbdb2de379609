"""Groups whose partitions the broker shares out: the same that Kafka's clients see, with the same offsets."""

import itertools

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewPartitions
from kafka import KafkaAdminClient  # type: ignore[import-untyped]

from penstock.testing.process import BrokerProcess
from tests.conformance.tinymq.client import Tinymq
from tests.support.waiting import eventually

SECONDS = 60
_numbers = itertools.count()


@pytest.fixture
def wide(tinymq: Tinymq) -> str:
    """A topic of five partitions."""
    name = f"wide{next(_numbers)}"
    tinymq.data("createTopic", topic=name, partitions=5)
    return name


@pytest.fixture
def admin(shared_broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": shared_broker.bootstrap})


def described(admin: AdminClient, group: str) -> ConsumerGroupDescription:
    return admin.describe_consumer_groups([group], request_timeout=SECONDS)[group].result()


def assigned(admin: AdminClient, group: str) -> dict[str, list[int]]:
    """Who has what, as Kafka's administrators see it."""
    return {
        member.member_id: sorted(place.partition for place in member.assignment.topic_partitions)
        for member in described(admin, group).members
    }


class TestRebalancing:
    def test_partitions_go_to_the_members_in_the_order_of_their_ids(
        self, tinymq: Tinymq, wide: str, group: str
    ) -> None:
        def join(name: str) -> list[int]:
            partitions: list[int] = tinymq.data("joinGroup", groupId=group, topic=wide, consumerId=name)["partitions"]
            return partitions

        assert join("b") == [0, 1, 2, 3, 4]
        assert join("a") == [0, 2, 4]
        assert join("b") == [1, 3]
        assert join("c") == [2]
        assert (join("a"), join("b")) == ([0, 3], [1, 4])
        assert tinymq.data("leaveGroup", groupId=group, consumerId="a") == {"groupId": group}
        assert (join("b"), join("c")) == ([0, 2, 4], [1, 3])

    def test_members_may_come_over_different_connections_and_outlive_them(
        self, tinymq: Tinymq, other: Tinymq, wide: str, group: str
    ) -> None:
        other.data("joinGroup", groupId=group, topic=wide, consumerId="a")
        other.close()
        assert tinymq.data("heartbeat", groupId=group, consumerId="a") == {"groupId": group}
        assert tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="b")["partitions"] == [1, 3]

    def test_a_silent_members_partitions_go_to_the_others_by_the_clock(
        self, impatient: BrokerProcess, group: str
    ) -> None:
        admin = AdminClient({"bootstrap.servers": impatient.bootstrap})
        with Tinymq(impatient.addresses["tcp"]) as tinymq:
            tinymq.data("createTopic", topic="wide", partitions=5)
            for name in ("quiet", "alive"):
                tinymq.data("joinGroup", groupId=group, topic="wide", consumerId=name)

            def settled() -> bool:
                # A heartbeat keeps one alive; it takes no partitions.
                if not tinymq.ask("heartbeat", groupId=group, consumerId="alive")["ok"]:
                    # It was silent itself, on a machine that is busy.
                    tinymq.data("joinGroup", groupId=group, topic="wide", consumerId="alive")
                return assigned(admin, group) == {"alive": [0, 1, 2, 3, 4]}

            eventually(settled, what="the silent member to be dropped")
            assert "join again" in tinymq.error("heartbeat", groupId=group, consumerId="quiet")

    def test_a_group_without_members_and_offsets_is_not_found(self, tinymq: Tinymq, wide: str, group: str) -> None:
        tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
        tinymq.data("leaveGroup", groupId=group, consumerId="a")
        assert tinymq.error("heartbeat", groupId=group, consumerId="a") == "Group not found"

    def test_who_is_not_there_has_left(self, tinymq: Tinymq, group: str) -> None:
        assert tinymq.data("leaveGroup", groupId=group, consumerId="a") == {"groupId": group}

    def test_a_topic_that_kafka_lets_grow_is_shared_anew(
        self, tinymq: Tinymq, admin: AdminClient, wide: str, group: str
    ) -> None:
        tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
        admin.create_partitions([NewPartitions(wide, 7)])[wide].result(SECONDS)
        joined = tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
        assert joined["partitions"] == [0, 1, 2, 3, 4, 5, 6]


class TestKafkaSeesThem:
    def test_confluents_admin_client_describes_the_group(
        self, tinymq: Tinymq, admin: AdminClient, wide: str, group: str
    ) -> None:
        def seen() -> bool:
            for name in ("a", "b"):
                tinymq.data("joinGroup", groupId=group, topic=wide, consumerId=name)
            found = described(admin, group)
            return (
                found.state is ConsumerGroupState.STABLE
                and not found.is_simple_consumer_group
                and {member.client_id for member in found.members} == {"a", "b"}
                and all("127.0.0.1" in member.host for member in found.members)
                and assigned(admin, group) == {"a": [0, 2, 4], "b": [1, 3]}
            )

        eventually(seen, what="both members to be described")
        listed = admin.list_consumer_groups(request_timeout=SECONDS).result()
        assert group in {each.group_id for each in listed.valid}

    def test_kafka_pythons_admin_client_reads_the_assignment(
        self, shared_broker: BrokerProcess, tinymq: Tinymq, wide: str, group: str
    ) -> None:
        client = KafkaAdminClient(bootstrap_servers=shared_broker.bootstrap)
        try:

            def seen() -> bool:
                tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
                found = client.describe_groups([group])[group]
                texts = [str(member) for member in found["members"]]
                return found["group_state"] == "Stable" and len(texts) == 1 and wide in texts[0]

            eventually(seen, what="the member to be described")
            assert group in [entry["group_id"] for entry in client.list_groups()]
        finally:
            client.close()

    def test_the_group_cannot_be_deleted_while_it_has_members(
        self, tinymq: Tinymq, admin: AdminClient, wide: str, group: str
    ) -> None:
        def refused() -> bool:
            tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
            try:
                admin.delete_consumer_groups([group], request_timeout=SECONDS)[group].result()
            except KafkaException as error:
                return error.args[0].name() == "NON_EMPTY_GROUP"
            return False

        eventually(refused, what="a refusal")

    def test_a_kafka_consumer_is_told_that_it_has_nothing_in_common_with_the_members(
        self, shared_broker: BrokerProcess, tinymq: Tinymq, wide: str, group: str
    ) -> None:
        consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": group})
        try:
            consumer.subscribe([wide])

            def refused() -> bool:
                tinymq.data("joinGroup", groupId=group, topic=wide, consumerId="a")
                message = consumer.poll(0.1)
                error = None if message is None else message.error()
                return error is not None and error.name() == "INCONSISTENT_GROUP_PROTOCOL"

            eventually(refused, what="the consumer to be refused")
        finally:
            consumer.close()

    def test_offsets_are_the_same_on_both_sides(
        self, tinymq: Tinymq, admin: AdminClient, wide: str, group: str
    ) -> None:
        for _ in range(5):
            tinymq.data("produce", topic=wide, value="v", partition=0)
        tinymq.data("commit", groupId=group, topic=wide, partition=0, offset=3)
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(wide, 0)])
        (found,) = admin.list_consumer_group_offsets([asked])[group].result().topic_partitions
        assert found.offset == 3
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(wide, 0, 1)])])[
            group
        ].result()
        assert tinymq.data("metrics", topic=wide, partition=0, groupId=group)["committedOffset"] == 1

    def test_records_are_the_same_on_both_sides(self, shared_broker: BrokerProcess, tinymq: Tinymq, wide: str) -> None:
        place = tinymq.data("produce", topic=wide, value="hello", key="k")
        consumer = Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": "unused"})
        try:
            consumer.assign([TopicPartition(wide, place["partition"], 0)])
            message = eventually(lambda: consumer.poll(0.2), what="the record")
            assert (message.key(), message.value()) == (b"k", b"hello")
        finally:
            consumer.close()
