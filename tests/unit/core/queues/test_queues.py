"""Queues through their door, on real logs on a simulated disk."""

from typing import Never

import pytest

from penstock.core.partitions.delete_records import delete_records
from penstock.errors import PenstockError, Reason
from penstock.operations.queues import Ack, AckUpTo, Extend, Lease
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World, header


def reason_of(call, *args, **kwargs):
    with pytest.raises(PenstockError) as refused:
        call(*args, **kwargs)
    return refused.value.reason


# -- handing out


def test_a_worker_gets_what_is_there_and_what_comes(world) -> None:
    world.produce(3)
    owner = world.attach()
    assert owner.offsets == [0, 1, 2]
    world.produce(2)
    assert owner.offsets == [0, 1, 2, 3, 4]
    first = owner.got[0]
    assert (first.topic, first.partition, first.attempts, first.key, first.value) == (TOPIC, 0, 1, b"key", b"work")
    assert first.lease_until_ms == world.clock.now_ms() + 1000
    assert first.last_error is None


def test_a_worker_gets_no_more_than_its_credit_until_it_grants_more(world) -> None:
    world.produce(10)
    owner = world.attach(credit=4)
    assert owner.offsets == [0, 1, 2, 3]
    owner.worker.grant(3)
    world.turn()
    assert owner.offsets == [0, 1, 2, 3, 4, 5, 6]


def test_a_delivery_leaves_only_once_its_lease_is_written(world) -> None:
    owner = world.attach()
    world.produce(1)
    world.queues.forget_group(GROUP)
    owner = world.attach("b")
    got_before = len(owner.got)
    assert got_before == 1
    world.broker.partition(TOPIC, 0)
    fresh = world.attach("c", group="other", credit=0)
    fresh.worker.grant(1)
    world.flusher.gather_all()
    assert fresh.got == []
    world.flusher.write()
    assert fresh.offsets == [0]


def test_two_workers_share_the_records_and_nobody_gets_one_twice(world) -> None:
    first, second = world.attach("a", credit=1000), world.attach("b", credit=1000)
    world.produce(200)
    assert sorted(first.offsets + second.offsets) == list(range(200))
    assert abs(len(first.got) - len(second.got)) <= 32


def test_no_more_records_are_in_flight_than_the_bound() -> None:
    world = World(in_flight_max=5).boot()
    world.create()
    world.produce(20)
    owner = world.attach(credit=100)
    assert owner.offsets == [0, 1, 2, 3, 4]
    world.ack("a", 0, 1)
    assert owner.offsets == [0, 1, 2, 3, 4, 5, 6]
    world.close()


def test_partitions_take_turns(world) -> None:
    world.create("wide", 3)
    for partition in range(3):
        world.produce(100, topic="wide", partition=partition)
    owner = world.attach("a", topic="wide", credit=90)
    by_partition = [sum(delivery.partition == at for delivery in owner.got) for at in range(3)]
    assert sum(by_partition) == 90
    owner.worker.grant(210)
    world.turn()
    assert len(owner.got) == 300


def test_a_call_takes_at_most_what_it_asks_for_and_its_leases_stay(world) -> None:
    world.produce(5)
    got = world.lease(max_records=3)
    assert [delivery.offset for delivery in got] == [0, 1, 2]
    assert [delivery.offset for delivery in world.lease("b", max_records=10)] == [3, 4]
    assert world.lease("c", max_records=10) == []


def test_a_call_waits_for_the_first_record_and_not_longer_than_it_says(world) -> None:
    answers = []
    world.queues.lease(Lease(TOPIC, GROUP, "a", 5, 1000, 500), answers.append)
    world.turn()
    assert answers == []
    world.produce(2)
    assert [[delivery.offset for delivery in answer] for answer in answers] == [[0, 1]]
    world.queues.lease(Lease(TOPIC, GROUP, "b", 5, 1000, 500), answers.append)
    world.advance(499)
    assert len(answers) == 1
    world.advance(1)
    assert answers[1] == []


def test_a_cancelled_call_gets_nothing_and_costs_no_attempt(world) -> None:
    answers = []
    cancel = world.queues.lease(Lease(TOPIC, GROUP, "a", 5, 1000, 500), answers.append)
    world.turn()
    target = world.broker.partition(TOPIC, 0)
    world.flusher.turn()
    cancel()
    world.produce(1)
    assert answers == []
    assert target.high_watermark == 1
    (got,) = world.lease("b")
    assert got.attempts == 1


def test_a_worker_that_goes_before_its_lease_is_written_costs_no_attempt(world) -> None:
    owner = world.attach(credit=0)
    world.produce(1)
    owner.worker.grant(1)
    world.flusher.gather_all()
    owner.worker.close()
    world.turn()
    assert owner.got == []
    (got,) = world.lease("b")
    assert got.attempts == 1


# -- ack, nack, extend


def test_acked_records_are_finished_and_the_floor_is_the_groups_committed_offset(world) -> None:
    world.produce(5)
    world.lease(max_records=5)
    assert world.ack("a", 0, 1).reason is None
    assert world.committed() == 2
    assert world.ack("a", 3).reason is None
    assert world.committed() == 2
    assert world.ack("a", 2).reason is None
    assert world.committed() == 4
    assert world.floor() == 4


def test_an_ack_is_answered_only_once_it_is_committed(world) -> None:
    world.produce(3)
    world.lease(max_records=3)
    contiguous = world.ack("a", 0, turn=False)
    above = world.ack("a", 2, turn=False)
    world.flusher.write()
    assert contiguous.waits
    assert above.waits
    world.flusher.sync()
    assert (contiguous.reason, above.reason) == (None, None)


def test_only_the_owner_may_ack_and_all_or_nothing(world) -> None:
    world.produce(4)
    world.lease("a", max_records=2)
    world.lease("b", max_records=1)
    done = Answers()
    ack = world.queues.ack
    assert reason_of(ack, Ack(TOPIC, GROUP, "b", 0, [0]), done) is Reason.NOT_LEASE_OWNER
    assert reason_of(ack, Ack(TOPIC, GROUP, "a", 0, [0, 1, 2]), done) is Reason.NOT_LEASE_OWNER
    assert reason_of(ack, Ack(TOPIC, GROUP, "a", 0, [0, 3]), done) is Reason.NOT_IN_FLIGHT
    assert reason_of(ack, Ack(TOPIC, GROUP, "a", 0, [9]), done) is Reason.NOT_IN_FLIGHT
    assert reason_of(ack, Ack(TOPIC, GROUP, "a", 7, [0]), done) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert reason_of(ack, Ack(TOPIC, "nobody", "a", 0, [0]), done) is Reason.NOT_IN_FLIGHT
    assert done.waits
    assert world.ack("a", 0, 1).reason is None
    with pytest.raises(PenstockError, match=rf"penstock why {TOPIC}/0@0 --group {GROUP}\b.*GET /v1/why") as refused:
        ack(Ack(TOPIC, GROUP, "a", 0, [0]), done)
    assert refused.value.reason is Reason.NOT_IN_FLIGHT


def test_a_cumulative_ack_takes_what_the_owner_holds_below_and_no_others(world) -> None:
    world.produce(6)
    world.lease("a", max_records=2)
    world.lease("b", max_records=1)
    world.lease("a", max_records=2)
    done = Answers()
    world.queues.ack_up_to(AckUpTo(TOPIC, GROUP, "a", 0, 3), done)
    world.turn()
    assert done.reason is None
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.leased, status.finished_above_floor) == (2, 2, 1)
    refused = reason_of(world.queues.ack_up_to, AckUpTo(TOPIC, GROUP, "a", 0, 2), Answers())
    assert refused is Reason.NOT_LEASE_OWNER


def test_a_nacked_record_comes_again_at_once_with_its_reason(world) -> None:
    world.produce(2)
    world.lease("a", max_records=2)
    assert world.nack("a", 0, "no network").reason is None
    (again,) = world.lease("b")
    assert (again.offset, again.attempts, again.last_error) == (0, 2, "no network")


def test_a_nacked_record_comes_again_after_its_backoff_which_doubles_up_to_its_cap(world) -> None:
    headers = (("penstock.backoff_ms", b"100"), ("penstock.max_backoff_ms", b"300"))
    world.produce(1, headers=headers)
    for attempt, wait_ms in enumerate([100, 200, 300, 300], 1):
        (got,) = world.lease("a", lease_ms=60_000)
        assert got.attempts == attempt
        world.nack("a", 0)
        world.advance(wait_ms - 1)
        assert world.lease("a") == []
        world.advance(1)


def test_an_extended_lease_lasts_longer(world) -> None:
    world.produce(1)
    world.lease("a", lease_ms=1000)
    world.advance(900)
    done = Answers()
    world.queues.extend(Extend(TOPIC, GROUP, "a", 0, [0], 1000), done)
    world.turn()
    assert done.reason is None
    world.advance(999)
    assert world.lease("b") == []
    world.advance(1)
    assert len(world.lease("b")) == 1


# -- time


def test_a_lease_that_runs_out_is_delivered_again_without_anyone_asking(world) -> None:
    owner = world.attach("a")
    other = world.attach("b", credit=0)
    world.produce(1)
    assert owner.offsets == [0]
    other.worker.grant(5)
    world.advance(1000)
    (again,) = other.got
    assert (again.attempts, again.last_error) == (2, "ack_timeout")
    assert owner.offsets == [0]
    assert reason_of(world.queues.ack, Ack(TOPIC, GROUP, "a", 0, [0]), Answers()) is Reason.NOT_LEASE_OWNER


def test_a_lease_that_ran_out_goes_back_to_its_owner_when_nobody_else_is_there(world) -> None:
    owner = world.attach("a")
    world.produce(1)
    world.advance(1000)
    assert [delivery.attempts for delivery in owner.got] == [1, 2]


def test_a_delayed_record_waits_for_its_time_and_others_do_not_wait_for_it(world) -> None:
    until = str(world.clock.now_ms() + 500).encode()
    world.produce(1, headers=(("penstock.not_before_ms", until),))
    world.produce(1)
    owner = world.attach("a", lease_ms=60_000)
    assert owner.offsets == [1]
    world.advance(499)
    assert owner.offsets == [1]
    world.advance(1)
    assert owner.offsets == [1, 0]
    assert owner.got[1].attempts == 1


def test_a_record_past_its_deadline_is_finished_undelivered_with_nobody_there(world) -> None:
    world.lease("a")
    until = str(world.clock.now_ms() + 500).encode()
    world.produce(1, headers=(("penstock.deadline_ms", until),))
    world.advance(499)
    assert world.floor() == 0
    world.advance(1)
    assert world.floor() == 1
    assert world.broker.meters.deadline_exceeded.total == 1
    assert "dlq.orders" not in world.broker.topics


def test_a_ready_record_past_its_deadline_is_finished_too(world) -> None:
    until = str(world.clock.now_ms() + 500).encode()
    world.produce(1, headers=(("penstock.deadline_ms", until),))
    world.lease("a", lease_ms=100)
    world.advance(100)
    assert world.queues.status(TOPIC, GROUP).partitions[0].ready == 1
    world.advance(400)
    assert world.floor() == 1


# -- dead letters


def test_a_record_that_has_had_its_attempts_becomes_a_dead_letter(world) -> None:
    world.produce(1)
    world.produce(1, headers=(("penstock.max_attempts", b"2"), ("mine", b"kept")), value=b"poison")
    owner = world.attach("a", lease_ms=60_000)
    world.nack("a", 1, "first")
    assert owner.got[-1].attempts == 2
    assert world.nack("a", 1, "second").reason is None
    world.advance(200)
    (letter,) = world.records("dlq.orders")
    assert (letter.key, letter.value, header(letter, "mine")) == (b"key", b"poison", "kept")
    assert header(letter, "original_topic") == "orders"
    assert header(letter, "original_partition") == "0"
    assert header(letter, "original_offset") == "1"
    assert header(letter, "original_group") == GROUP
    assert header(letter, "attempts") == "2"
    assert header(letter, "last_error") == "second"
    assert int(header(letter, "routed_at_ms") or 0) > 0
    assert world.broker.topics.require("dlq.orders").partition_count == 1
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.moving, status.finished_above_floor, status.leased) == (0, 1, 1)


def test_a_lease_that_runs_out_for_the_last_time_makes_a_dead_letter_by_the_clock(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a")
    world.advance(1500)
    (letter,) = world.records("dlq.orders")
    assert header(letter, "last_error") == "ack_timeout"
    assert world.floor() == 1
    assert world.committed() == 1


def test_a_redriven_record_is_back_and_finished_where_it_was(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"), ("mine", b"kept")))
    world.lease("a")
    world.nack("a", 0, "bad")
    world.advance(200)
    done = Answers()
    world.queues.move("dlq.orders", "penstock.redrive", 0, [0], TOPIC, 0, done)
    world.turn()
    assert done.reason is None
    first, back = world.records(TOPIC)
    assert back.value == first.value
    assert header(back, "mine") == "kept"
    assert header(back, "original_topic") is None
    assert world.queues.is_finished("dlq.orders", "penstock.redrive", 0, 0)
    assert world.committed(topic="dlq.orders", group="penstock.redrive") == 1


# -- idempotency


def test_a_record_with_a_key_that_was_acked_is_finished_on_sight(world) -> None:
    headers = (("penstock.idempotency_key", b"k1"), ("penstock.tenant_id", b"t"))
    world.produce(1, headers=headers)
    world.lease("a")
    world.ack("a", 0)
    world.produce(1, headers=headers)
    world.produce(1, headers=(("penstock.idempotency_key", b"k1"), ("penstock.tenant_id", b"another")))
    got = world.lease("a", max_records=10)
    assert [delivery.offset for delivery in got] == [2]
    assert world.broker.meters.duplicates_skipped.total == 1
    world.kill()
    world.produce(1, headers=headers)
    assert world.lease("b", max_records=10) == []
    world.advance(600_000)
    world.produce(1, headers=headers)
    assert 4 in [delivery.offset for delivery in world.lease("b", max_records=10)]


# -- retention


def test_retention_takes_the_floor_along(world) -> None:
    world.produce(10)
    world.lease("a", max_records=5)
    delete_records(world.broker.partition(TOPIC, 0), 7)
    got = world.lease("b", max_records=10)
    assert [delivery.offset for delivery in got] == [7, 8, 9]


# -- restarts


@pytest.mark.parametrize("stop", ["kill", "lose_power"])
def test_what_was_answered_survives(world, stop) -> None:
    world.produce(10)
    world.lease("a", max_records=6, lease_ms=5000)
    world.ack("a", 0, 2)
    world.nack("a", 3, "oh")
    getattr(world, stop)()
    got = world.lease("b", max_records=10)
    assert [(delivery.offset, delivery.attempts, delivery.last_error) for delivery in got] == [
        (3, 2, "oh"),
        (6, 1, None),
        (7, 1, None),
        (8, 1, None),
        (9, 1, None),
    ]
    assert world.ack("a", 1, 4, 5).reason is None
    assert world.committed() == 3


def test_a_running_lease_is_honoured_after_a_kill_until_its_deadline(world) -> None:
    world.produce(1)
    world.lease("a", lease_ms=5000)
    world.kill()
    assert world.lease("b") == []
    world.advance(4999)
    assert world.lease("b") == []
    world.advance(1)
    (again,) = world.lease("b")
    assert (again.attempts, again.last_error) == (2, "ack_timeout")


# -- topics and groups that go and grow


def test_a_deleted_topic_takes_its_queues_along(world) -> None:
    owner = world.attach()
    world.produce(3)
    world.run(world.broker.topics.delete(TOPIC))
    world.turn()
    assert owner.gone == [Reason.UNKNOWN_TOPIC_OR_PARTITION]
    assert reason_of(world.attach) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    world.create()
    world.produce(1)
    assert [delivery.attempts for delivery in world.lease("b")] == [1]
    world.kill()
    assert len(world.queues.queues()) == 1


def test_new_partitions_of_a_topic_join_its_queues(world) -> None:
    owner = world.attach()
    world.run(world.broker.topics.add_partitions(TOPIC, 3))
    world.produce(1, partition=2)
    assert [(delivery.partition, delivery.offset) for delivery in owner.got] == [(2, 0)]


def test_a_deleted_group_takes_its_queues_along(world) -> None:
    world.produce(3)
    world.lease("a", max_records=2)
    world.ack("a", 0)
    world.broker.groups.delete_groups([GROUP], lambda _answers: None)
    world.turn()
    assert world.queues.queues() == []
    assert [delivery.offset for delivery in world.lease("b", max_records=5)] == [0, 1, 2]


def test_closing_tells_workers_and_calls(world) -> None:
    owner = world.attach()
    answers = []
    world.queues.lease(Lease(TOPIC, GROUP, "b", 5, 1000, 500), answers.append)
    world.turn()
    world.broker.close()
    assert owner.gone == [Reason.SHUTTING_DOWN]
    assert answers == [[]]


def test_a_topic_for_dead_letters_that_cannot_be_made_is_tried_again_and_the_record_waits(world, monkeypatch) -> None:
    create = world.broker.topics.create
    tried = []

    async def refuse(new, **_options) -> Never:
        tried.append(new.name)
        raise PenstockError(Reason.POLICY_VIOLATION, "no more topics")

    monkeypatch.setattr(world.broker.topics, "create", refuse)
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a")
    assert world.nack("a", 0, "bad").reason is None
    world.advance(5_000)
    assert 3 <= len(tried) <= 10
    assert sum("could not be moved" in report for report in world.reports) == 1
    assert world.queues.status(TOPIC, GROUP).partitions[0].moving == 1
    world.kill()
    world.advance(1_000)
    monkeypatch.setattr(world.broker.topics, "create", create)
    world.kill()
    world.advance(20_000)
    assert [header(letter, "last_error") for letter in world.records("dlq.orders")] == ["bad"]
    assert world.floor() == 1
