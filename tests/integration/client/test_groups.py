"""Groups, on a real broker: as a member and from outside."""

import threading

import confluent_kafka
import pytest

from penstock.client import At, BrokerRefused, Cluster, GroupAdmin, GroupConsumer, Producer
from tests.support.waiting import Deadline, eventually


def fill(cluster, topic, count, partitions=2) -> None:
    with Producer(cluster) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def read(member, count):
    deadline = Deadline(30, f"{count} records")
    records = []
    while len(records) < count:
        assert deadline.left
        records += member.poll(500)
    return records


def test_a_member_goes_on_where_the_group_is(cluster, topic, group) -> None:
    fill(cluster, topic, 10)
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST) as member:
        assert len(read(member, 10)) == 10
        assert member.assignment == [(topic, 0), (topic, 1)]
    assert {place: found.offset for place, found in GroupAdmin(cluster).offsets(group).items()} == {
        (topic, 0): 5,
        (topic, 1): 5,
    }
    fill(cluster, topic, 4)
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST) as member:
        assert sorted(record.offset for record in read(member, 4)) == [5, 5, 6, 6]


def test_a_new_group_may_begin_at_the_end(cluster, topic, group) -> None:
    fill(cluster, topic, 10)
    with GroupConsumer(cluster, group, [topic]) as member:
        assert member.poll(0) == []
        fill(cluster, topic, 2)
        assert sorted(record.offset for record in read(member, 2)) == [5, 5]


def test_what_was_being_worked_on_when_an_error_came_is_not_committed(cluster, topic, group) -> None:
    fill(cluster, topic, 4)
    member = GroupConsumer(cluster, group, [topic], start=At.EARLIEST)
    read(member, 4)
    member.__exit__(ValueError, ValueError(), None)
    assert GroupAdmin(cluster).offsets(group) == {}


def test_only_what_was_taken_is_committed_after_a_seek(cluster, topic, group) -> None:
    fill(cluster, topic, 10, partitions=1)
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST) as member:
        read(member, 10)
        member.seek((topic, 0), 3)
    assert GroupAdmin(cluster).offsets(group)[topic, 0].offset == 3


@pytest.mark.parametrize("topic", [6], indirect=True)
def test_three_members_share_and_take_over(penstock_broker, cluster, topic, group) -> None:
    assignments: dict[int, list] = {}
    leave = [threading.Event() for _ in range(3)]
    seen = []

    def run(number) -> None:
        with Cluster(penstock_broker.bootstrap) as own, GroupConsumer(own, group, [topic], start=At.EARLIEST) as member:
            while not leave[number].is_set():
                seen.extend(record.value for record in member.poll(100))
                assignments[number] = member.assignment
        del assignments[number]

    members = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for member in members:
        member.start()
    eventually(lambda: sorted(map(len, assignments.values())) == [2, 2, 2], what="two partitions each")
    fill(cluster, topic, 600, partitions=6)
    eventually(lambda: len(seen) == 600, what="all records")
    leave[0].set()
    eventually(lambda: sorted(map(len, assignments.values())) == [3, 3], what="the others take over")
    fill(cluster, topic, 600, partitions=6)
    eventually(lambda: len(seen) == 1200, what="all records again")
    for event in leave:
        event.set()
    for member in members:
        member.join(20)
    assert sorted(seen) == sorted([b"%d" % number for number in range(600)] * 2)
    committed = GroupAdmin(cluster).offsets(group)
    assert {place: found.offset for place, found in committed.items()} == {(topic, number): 200 for number in range(6)}


def test_a_group_shared_with_librdkafka(penstock_broker, cluster, topic, group) -> None:
    stop = threading.Event()
    theirs = []

    def run() -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": penstock_broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "range",
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                theirs.append(message.value())
            assigned.update(count=len(consumer.assignment()))
        consumer.close()

    assigned = {"count": 0}
    other = threading.Thread(target=run)
    other.start()
    eventually(lambda: assigned["count"] == 2, what="the other has both partitions")
    ours = []
    with GroupConsumer(cluster, group, [topic], start=At.EARLIEST) as member:

        def shared():
            ours.extend(record.value for record in member.poll(100))
            return len(member.assignment) == 1 and assigned["count"] == 1

        eventually(shared, what="one partition each")
        fill(cluster, topic, 100)

        def all_read():
            ours.extend(record.value for record in member.poll(100))
            return len(ours) + len(theirs) == 100

        eventually(all_read, what="all records")
        described = GroupAdmin(cluster).describe(group)
        assert described.state == "Stable"
        assert sorted(place for each in described.members for place in each.partitions) == [(topic, 0), (topic, 1)]
    stop.set()
    other.join(20)
    assert len(ours) == len(theirs) == 50


def test_groups_from_outside(cluster, topic, group) -> None:
    admin = GroupAdmin(cluster)
    fill(cluster, topic, 4)
    admin.commit(group, {(topic, 0): 1, (topic, 1): 2}, metadata="by hand")
    assert group in [listed.group_id for listed in admin.groups()]
    assert admin.offsets(group, [(topic, 1)])[topic, 1].metadata == "by hand"
    described = admin.describe(group)
    assert (described.state, described.members) == ("Empty", ())
    admin.delete_offsets(group, [(topic, 0)])
    assert list(admin.offsets(group)) == [(topic, 1)]
    admin.delete(group)
    with pytest.raises(BrokerRefused) as caught:
        admin.describe(group)
    assert caught.value.name == "GROUP_ID_NOT_FOUND"


def test_a_group_with_members_is_not_moved_or_removed_from_outside(cluster, topic, group, penstock_broker) -> None:
    with GroupConsumer(cluster, group, [topic]) as member, Cluster(penstock_broker.bootstrap) as outside:
        member.poll(0)
        for call in (
            lambda: GroupAdmin(outside).commit(group, {(topic, 0): 0}),
            lambda: GroupAdmin(outside).delete(group),
        ):
            with pytest.raises(BrokerRefused) as caught:
                call()
            assert caught.value.name in ("UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP")
