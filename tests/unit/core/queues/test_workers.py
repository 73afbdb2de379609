"""How many records a connected worker holds at a time."""

import errno

from tests.unit.core.queues.world import GROUP, TOPIC, World


def test_a_worker_gets_no_more_than_it_may_hold_and_the_next_with_each_ack(world) -> None:
    world.produce(6)
    owner = world.attach(in_flight_max=2)
    assert owner.offsets == [0, 1]
    world.ack("a", 0)
    assert owner.offsets == [0, 1, 2]
    world.ack("a", 1, 2)
    assert owner.offsets == [0, 1, 2, 3, 4]


def test_a_nack_a_lease_that_ends_and_a_commit_from_outside_make_room_too(world) -> None:
    world.produce(8, headers=(("penstock.backoff_ms", b"60000"),))
    owner = world.attach(in_flight_max=2, lease_ms=1000)
    world.nack("a", 0)
    assert owner.offsets == [0, 1, 2]
    world.commit(3)
    assert owner.offsets == [0, 1, 2, 3, 4]
    world.advance(1000)
    again = owner.offsets[5:]
    assert again[:2] == [3, 4]
    assert world.queues.status(TOPIC, GROUP).in_flight == 2


def test_what_it_does_not_say_is_the_setting() -> None:
    world = World(worker_in_flight=3).boot()
    world.create()
    world.produce(10)
    assert world.attach(in_flight_max=0).offsets == [0, 1, 2]
    world.close()


def test_what_one_may_not_hold_another_gets(world) -> None:
    world.produce(10)
    first, second = world.attach("a", in_flight_max=1), world.attach("b", in_flight_max=4)
    assert (len(first.offsets), len(second.offsets)) == (1, 4)
    assert sorted(first.offsets + second.offsets) == [0, 1, 2, 3, 4]


def test_a_worker_at_its_bound_does_not_keep_a_timed_out_record_from_its_last_owner(world) -> None:
    world.produce(3)
    slow = world.attach("slow", in_flight_max=1, lease_ms=1000)
    full = world.attach("full", in_flight_max=1, lease_ms=60_000)
    assert (slow.offsets, full.offsets) == ([0], [1])
    world.advance(1000)
    assert slow.offsets == [0, 0]


def test_records_that_could_not_be_leased_do_not_count_as_held(world) -> None:
    world.produce(4)
    world.lease("x", group="another")
    owner = world.attach("b", credit=0, in_flight_max=2, lease_ms=60_000)
    owner.worker.grant(9)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert owner.got == []
    world.advance(2000)
    assert owner.offsets == [0, 1]
