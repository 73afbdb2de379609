"""A node that works for a group no more: whoever waits is told, nothing happens here any more, and what comes next is what the log says."""

from penstock.core.coordinators import runtime
from penstock.core.topics.names import QUEUE_STATE_TOPIC
from penstock.errors import Reason
from penstock.operations.queues import Ack, Delivery, Lease
from tests.unit.core.queues.world import GROUP, TOPIC, Answers


def state_end(world):
    return world.broker.partition(QUEUE_STATE_TOPIC, 0).log.next_offset


def test_workers_and_calls_that_wait_are_told(world) -> None:
    owner = world.attach("a")
    answers: list[list[Delivery]] = []
    world.queues.lease(Lease(TOPIC, GROUP, "b", 1, 1000, 60_000), answers.append)
    world.turn()
    assert answers == []
    world.queues.family.unload(0)
    assert owner.gone == [Reason.NOT_COORDINATOR]
    assert answers == [[]]


def test_what_waits_for_the_disk_is_told_and_not_written(world) -> None:
    world.produce(3)
    world.attach("a")
    end = state_end(world)
    acked = world.ack("a", 1, turn=False)
    nacked = world.nack("a", 2, turn=False)
    world.queues.family.unload(0)
    assert (acked.reason, nacked.reason) == (Reason.NOT_COORDINATOR, Reason.NOT_COORDINATOR)
    world.turn()
    assert state_end(world) == end


def test_an_ack_that_is_committed_after_all_is_told_so_and_counts_for_the_next(world) -> None:
    world.produce(3)
    world.attach("a")
    acked = world.ack("a", 1, turn=False)
    world.flusher.write()
    world.queues.family.unload(0)
    world.flusher.sync()
    assert acked.reason is None
    world.queues.family.load(0)
    world.advance(2000)
    assert [delivery.offset for delivery in world.lease("b", max_records=10)] == [0, 2]


def test_no_timer_fires_and_nothing_is_delivered_any_more(world) -> None:
    world.produce(5)
    owner = world.attach("a", lease_ms=1000)
    world.nack("a", 3)
    owner.take()
    end = state_end(world)
    world.queues.family.unload(0)
    world.produce(2)
    world.advance(60_000)
    assert owner.got == []
    assert state_end(world) == end


def test_a_move_under_way_is_left_to_the_next_and_made_once(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    world.create("dlq.orders")
    world.attach("a")
    world.nack("a", 0, turn=False)
    # The intent is stored, the dead letter is appended, and nobody has noted that.
    world.flusher.turn()
    world.flusher.write()
    world.queues.family.unload(0)
    world.advance(60_000)
    assert world.queues.get(TOPIC, GROUP) is None
    world.queues.family.load(0)
    world.advance(60_000)
    assert len(world.records("dlq.orders")) == 1
    assert world.queues.status(TOPIC, GROUP).partitions[0].moving == 0
    assert world.lease("b") == []


def test_attempts_and_leases_go_on_after_it_is_loaded_again(world) -> None:
    world.produce(2)
    world.lease("a", max_records=2, lease_ms=5000)
    world.nack("a", 1)
    world.queues.family.unload(0)
    world.queues.family.load(0)
    again = world.lease("b", max_records=10)
    assert [(delivery.offset, delivery.attempts) for delivery in again] == [(1, 2)]
    assert world.ack("a", 0).reason is None
    assert world.floor() == 1


def test_memory_is_given_back(world) -> None:
    world.produce(1000)
    world.attach("a", credit=1000)
    world.attach("b", topic=TOPIC, group="others", credit=1000)
    context = world.queues._context
    assert context._timers
    world.queues.family.unload(0)
    assert not context._timers
    assert not context.to_look
    assert not context.to_dispatch
    assert not context.cache._pieces
    assert not context.mover._targets
    assert not world.queues._queues
    assert not world.queues._upkeep._by_partition
    assert context.next_due_ms() > world.clock.now_ms() + 10**12


def test_a_queue_may_be_worked_again_after_it_was_unloaded(world) -> None:
    world.produce(2)
    world.attach("a")
    assert world.ack("a", 0).reason is None
    world.queues.family.unload(0)
    world.queues.family.load(0)
    acked = Answers()
    world.queues.ack(Ack(TOPIC, GROUP, "a", 0, [1]), acked)
    world.turn()
    assert acked.reason is None
    assert world.floor() == 2


def test_a_load_goes_on_in_pieces_and_serves_nobody_before_it_is_done(world, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "PIECE_BYTES", 1)
    world.produce(3)
    for group in ("g1", "g2", "g3"):
        world.lease("a", group=group, max_records=2)
        assert world.ack("a", 1, group=group).reason is None
    world.queues.family.unload(0)
    world.queues.family.begin_load(0)
    pieces = 1
    while not world.queues.family.load_some(0):
        pieces += 1
        assert not world.queues.family.serves(0)
    assert pieces > 5
    world.advance(2000)
    for group in ("g1", "g2", "g3"):
        assert [delivery.offset for delivery in world.lease("b", group=group, max_records=10)] == [0, 2]


def test_a_load_that_nobody_wants_any_more_leaves_nothing(world, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "PIECE_BYTES", 1)
    world.produce(1)
    world.lease("a")
    world.queues.family.unload(0)
    world.queues.family.begin_load(0)
    assert not world.queues.family.load_some(0)
    world.queues.family.unload(0)
    assert world.queues.family.load_some(0)
    assert world.queues.get(TOPIC, GROUP) is None
    assert not world.queues.family.serves(0)
