"""What becomes of leases when a worker's stream ends: they stay, and come back to the owner that comes back."""

import errno

import pytest

from penstock.core.queues import workers
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Ack, Delivery
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World, header


def places(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.offset, delivery.attempts) for delivery in deliveries]


def leave(world: World, owner) -> None:
    owner.worker.close()
    owner.worker.close()
    world.turn()


def test_a_lease_outlives_the_stream_that_it_was_sent_to(world) -> None:
    world.produce(2)
    owner = world.attach("a")
    leave(world, owner)
    assert world.lease("b", max_records=10) == []
    assert world.ack("a", 0).reason is None
    world.advance(1000)
    (again,) = world.lease("b", max_records=10)
    assert (again.offset, again.attempts, again.last_error) == (1, 2, "ack_timeout")


def test_short_connections_do_not_use_up_attempts(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"2"),))
    for _ in range(5):
        owner = world.attach("a")
        assert places(owner.got) == [(0, 1)]
        leave(world, owner)
    assert world.ack("a", 0).reason is None
    assert "dlq.orders" not in world.broker.topics


def test_an_owner_that_comes_back_gets_its_leases_first_with_the_same_attempt_until_the_same_end(world) -> None:
    world.produce(3)
    owner = world.attach("a", credit=2, lease_ms=1000)
    world.nack("a", 0, "broken")
    owner.worker.grant(1)
    world.turn()
    assert places(owner.got) == [(0, 1), (1, 1), (0, 2)]
    leave(world, owner)
    world.advance(900)
    back = world.attach("a", lease_ms=1000)
    assert places(back.got) == [(0, 2), (1, 1), (2, 1)]
    assert [delivery.last_error for delivery in back.got] == ["broken", None, None]
    assert [delivery.lease_until_ms - world.clock.now_ms() for delivery in back.got] == [100, 100, 1000]
    assert world.broker.meters.redeliveries.total == 3
    world.advance(99)
    assert world.ack("a", 0, 1, 2).reason is None


@pytest.mark.parametrize("lease_ms", [1_000, 120_000])
def test_coming_back_neither_shortens_nor_prolongs_a_lease(world, lease_ms) -> None:
    world.produce(1)
    owner = world.attach("a", lease_ms=60_000)
    until_ms = owner.got[0].lease_until_ms
    leave(world, owner)
    world.advance(10)
    assert world.attach("a", lease_ms=lease_ms).got[0].lease_until_ms == until_ms


def test_a_record_that_kills_its_worker_runs_out_of_attempts_though_the_worker_restarts_at_once(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"2"),))
    attempts = []
    for _ in range(20):
        owner = world.attach("crasher", lease_ms=1_000)
        attempts += [delivery.attempts for delivery in owner.got]
        leave(world, owner)
        world.advance(300)
    assert set(attempts) == {1, 2}
    assert len(world.records("dlq.orders")) == 1


def test_a_lease_that_has_ended_is_not_sent_again_as_the_same_attempt(world) -> None:
    world.produce(1)
    leave(world, world.attach("a", lease_ms=1000))
    world.clock.advance(1000)
    back = world.attach("a", turn=False)
    world.turn()
    assert back.got == []
    world.tick()
    assert places(back.got) == [(0, 2)]


def test_a_record_that_an_open_stream_holds_is_not_sent_to_another_stream_of_its_owner(world) -> None:
    world.produce(3)
    first = world.attach("a", credit=2)
    second = world.attach("a")
    assert (first.offsets, second.offsets) == ([0, 1], [2])


def test_two_streams_that_come_back_together_share_nothing(world) -> None:
    world.produce(4)
    leave(world, world.attach("a"))
    first = world.attach("a", turn=False)
    second = world.attach("a", turn=False)
    world.turn()
    assert sorted(first.offsets + second.offsets) == [0, 1, 2, 3]


def test_the_leases_of_a_stream_whose_end_is_noticed_late_go_to_the_one_that_came_after_it(world) -> None:
    world.produce(2)
    half_open = world.attach("a")
    back = world.attach("a")
    assert back.got == []
    world.ack("a", 0)
    leave(world, half_open)
    assert places(back.got) == [(1, 1)]


def test_a_stream_without_room_keeps_only_leases_that_last_of_those_that_its_owners_other_streams_leave(
    world, monkeypatch
) -> None:
    monkeypatch.setattr(workers, "_TAKEN_SPARE", 10)
    world.produce(8)
    busy = world.attach("a", credit=1, lease_ms=60_000)
    assert busy.offsets == [0]
    for _ in range(9):
        other = world.attach("a", lease_ms=1000)
        assert len(other.got) == 7
        leave(world, other)
        # Those that last, as many that have ended, and ten.
        assert len(busy.worker.unsent) <= 2 * 7 + 10
        world.advance(1000)
    busy.worker.grant(10)
    world.turn()
    assert len(set(busy.offsets)) == len(busy.offsets) == 8


def test_a_call_that_takes_records_once_is_not_given_what_its_owner_holds(world) -> None:
    world.produce(2)
    assert places(world.lease("a")) == [(0, 1)]
    assert places(world.lease("a", max_records=10)) == [(1, 1)]


def test_a_stream_gets_what_a_call_of_its_owner_took(world) -> None:
    world.produce(1)
    world.lease("a")
    assert places(world.attach("a").got) == [(0, 1)]


def test_records_that_come_back_count_as_held_and_the_rest_follow_with_each_ack(world) -> None:
    world.produce(6)
    leave(world, world.attach("a", in_flight_max=4))
    back = world.attach("a", in_flight_max=2)
    assert back.offsets == [0, 1]
    world.ack("a", 0)
    assert back.offsets == [0, 1, 2]
    world.ack("a", 1, 2)
    assert back.offsets == [0, 1, 2, 3, 4]


def test_records_come_back_though_the_queue_has_no_room_for_more_in_flight() -> None:
    world = World(in_flight_max=2).boot()
    world.create()
    world.produce(4)
    leave(world, world.attach("a"))
    assert world.attach("a").offsets == [0, 1]
    world.close()


def test_an_owner_gets_its_leases_again_after_the_broker_was_killed(world) -> None:
    world.produce(2)
    world.attach("a", lease_ms=60_000)
    world.kill()
    world.turn()
    assert places(world.attach("a").got) == [(0, 1), (1, 1)]
    assert world.ack("a", 0, 1).reason is None


def test_a_record_past_its_deadline_does_not_come_back(world) -> None:
    until = str(world.clock.now_ms() + 500).encode()
    world.produce(1, headers=(("penstock.deadline_ms", until),))
    leave(world, world.attach("a", lease_ms=60_000))
    world.advance(500)
    assert world.attach("a").got == []
    assert world.floor() == 1


def test_records_that_could_not_be_leased_anew_come_back_later(world) -> None:
    world.produce(2)
    leave(world, world.attach("a", lease_ms=60_000))
    back = world.attach("a", lease_ms=120_000, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert back.got == []
    world.advance(2000)
    assert places(back.got) == [(0, 1), (1, 1)]


def test_a_record_that_never_left_is_free_when_its_stream_ends(world) -> None:
    world.produce(1)
    owner = world.attach("a", credit=0)
    owner.worker.grant(1)
    world.flusher.gather_all()
    assert world.queues.status(TOPIC, GROUP).in_flight == 1
    leave(world, owner)
    assert owner.got == []
    (again,) = world.lease("b")
    assert (again.offset, again.attempts, again.last_error) == (0, 1, None)


@pytest.mark.parametrize("release_on_detach", [False, True])
def test_a_record_on_its_way_to_a_stream_that_ends_goes_to_the_next_stream_of_its_owner_alone(
    world, release_on_detach
) -> None:
    world.produce(1)
    owner = world.attach("a", credit=0, release_on_detach=release_on_detach)
    owner.worker.grant(1)
    world.flusher.gather_all()
    owner.worker.close()
    back = world.attach("a")
    assert (owner.got, places(back.got)) == ([], [(0, 1)])
    assert world.lease("b", max_records=10) == []
    assert world.ack("a", 0).reason is None


# -- release_on_disconnect


def test_a_stream_that_releases_hands_its_leases_over_at_once_and_the_attempt_does_not_count(world) -> None:
    world.produce(3, headers=(("penstock.max_attempts", b"1"),))
    owner = world.attach("a", release_on_detach=True)
    world.ack("a", 1)
    leave(world, owner)
    again = world.lease("b", max_records=10)
    assert [(delivery.offset, delivery.attempts, delivery.last_error) for delivery in again] == [
        (0, 1, "owner_disconnected"),
        (2, 1, "owner_disconnected"),
    ]
    with pytest.raises(PenstockError) as late:
        world.queues.ack(Ack(TOPIC, GROUP, "a", 0, [0]), Answers())
    assert late.value.reason is Reason.NOT_LEASE_OWNER


def test_a_late_ack_of_a_released_record_is_refused_as_not_the_owners(world) -> None:
    world.produce(1)
    leave(world, world.attach("a", release_on_detach=True))
    with pytest.raises(PenstockError) as late:
        world.queues.ack(Ack(TOPIC, GROUP, "a", 0, [0]), Answers())
    assert late.value.reason is Reason.NOT_LEASE_OWNER


def test_a_released_record_keeps_its_earlier_attempts_and_error(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"2"),))
    owner = world.attach("a", release_on_detach=True, lease_ms=60_000)
    world.nack("a", 0, "broken")
    assert places(owner.got) == [(0, 1), (0, 2)]
    leave(world, owner)
    other = world.attach("b", lease_ms=60_000)
    assert (places(other.got), other.got[0].last_error) == ([(0, 2)], "broken")
    world.nack("b", 0, "broken again")
    world.advance(200)
    (letter,) = world.records("dlq.orders")
    assert header(letter, "attempts") == "2"


def test_a_stream_that_releases_does_not_release_what_another_stream_of_its_owner_holds(world) -> None:
    world.produce(2)
    stays = world.attach("a", credit=1)
    leaves = world.attach("a", release_on_detach=True)
    assert (stays.offsets, leaves.offsets) == ([0], [1])
    leave(world, leaves)
    assert places(world.lease("b", max_records=10)) == [(1, 1)]
    assert world.ack("a", 0).reason is None
