"""Handing out: order, fairness, gaps, and the bounds that keep it small."""

import errno

import pytest

from penstock.core.queues.block import FINISHED, UNTOUCHED
from penstock.core.queues.context import Context
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.topics.names import OFFSETS_TOPIC, QUEUE_STATE_TOPIC
from penstock.operations.queues import Lease
from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World


def test_what_is_to_be_delivered_again_goes_first_oldest_first(world) -> None:
    world.produce(10)
    world.lease("a", max_records=5)
    for offset in (3, 1, 4):
        world.nack("a", offset)
    got = world.lease("b", max_records=10)
    assert [delivery.offset for delivery in got] == [1, 3, 4, 5, 6, 7, 8, 9]


def test_an_ack_in_order_is_one_append_in_the_turn_in_which_it_comes(world) -> None:
    world.produce(3)
    world.attach("a")
    # The first commit of the group made the queue known.
    assert world.ack("a", 0).reason is None
    logs = [world.broker.partition(name, 0).log for name in (OFFSETS_TOPIC, QUEUE_STATE_TOPIC)]
    offsets_end, state_end = (log.next_offset for log in logs)
    acked = [world.ack("a", offset, turn=False) for offset in (1, 2)]
    world.flusher.turn()
    assert [answers.reason for answers in acked] == [None, None]
    assert logs[0].next_offset == offsets_end + 1
    assert logs[1].next_offset == state_end


def test_no_worker_starves_beside_a_greedy_one(world) -> None:
    greedy, modest = world.attach("greedy", credit=100_000), world.attach("modest", credit=20)
    world.produce(2000)
    assert len(modest.got) == 20
    assert len(greedy.got) == 1980


def test_every_group_gets_everything(world) -> None:
    world.produce(50)
    first = world.lease("a", group="one", max_records=100)
    second = world.lease("a", group="two", max_records=100)
    assert [d.offset for d in first] == [d.offset for d in second] == list(range(50))


def test_offsets_that_compaction_left_empty_are_passed_over_and_do_not_hold_the_floor() -> None:
    world = World().boot()
    world.create("table", cleanup_policy="compact", segment_bytes="1000", min_cleanable_dirty_ratio="0.01")
    target = world.broker.partition("table", 0)
    for number in range(60):
        batch = build_batch([Record(0, world.clock.now_ms(), b"%d" % (number % 3), b"v%d" % number)])
        target.append(batch, world.clock.now_ms())
        world.turn()
    world.clock.advance(10_000)
    task = target.log.compaction_task(world.clock.now_ms(), target.high_watermark)
    assert task is not None
    task.run()
    target.log.install(task)
    left = [record.offset for record in world.records("table")]
    assert len(left) < 60
    got = world.lease("a", topic="table", max_records=100)
    assert [delivery.offset for delivery in got] == left
    assert world.ack("a", *left, topic="table").reason is None
    assert world.floor(topic="table") == 60
    assert world.committed(topic="table") == 60
    world.close()


def test_a_record_that_retention_took_while_it_was_leased_is_not_missed(world) -> None:
    from penstock.core.partitions.delete_records import delete_records

    world.produce(10)
    world.lease("a", max_records=10)
    delete_records(world.broker.partition(TOPIC, 0), 5)
    world.advance(1000)
    got = world.lease("b", max_records=10)
    assert [delivery.offset for delivery in got] == [5, 6, 7, 8, 9]
    assert world.ack("b", 5, 6, 7, 8, 9).reason is None
    assert world.queues.status(TOPIC, GROUP).in_flight == 0


def test_deadlines_are_kept_beyond_the_first_window_with_nobody_there(world) -> None:
    world.lease("a")
    until = str(world.clock.now_ms() + 500).encode()
    for _ in range(25):
        world.produce(100, headers=(("penstock.deadline_ms", until),))
    world.advance(600)
    assert world.floor() == 2500
    assert world.broker.meters.deadline_exceeded.total == 2500


def test_the_floor_of_a_queue_at_work_does_not_expire(world) -> None:
    world.produce(3)
    owner = world.attach("a", credit=10, lease_ms=1000)
    world.ack("a", 0, 1, 2)
    assert world.committed() == 3
    retention_ms = world.broker.settings.groups.offsets_retention_ms
    committed: list[int] = []
    world.broker.groups.on_committed.append(lambda _group, _key, offset: committed.append(offset))
    for _ in range(4):
        world.clock.advance(retention_ms // 3)
        world.tick()
    assert committed
    assert set(committed) == {3}
    assert [delivery.offset for delivery in owner.got] == [0, 1, 2]


def test_timers_of_leases_that_were_acked_early_do_not_pile_up(world, monkeypatch) -> None:
    monkeypatch.setattr("penstock.core.queues.context._TIMERS_SPARE", 8)
    context: Context = world.queues._context
    context._timers_max = 8
    for _ in range(40):
        world.produce(128)
        got = world.lease("a", max_records=128, lease_ms=10_000_000)
        world.ack("a", *(delivery.offset for delivery in got))
    assert len(context._timers) <= 8


def test_blocks_that_are_done_with_are_forgotten_in_memory_and_in_the_log(world) -> None:
    for _ in range(10):
        world.produce(200)
        got = world.lease("a", max_records=200)
        world.ack("a", *(delivery.offset for delivery in got))
    queue = world.queues.get(TOPIC, GROUP)
    assert queue is not None
    assert len(queue.partitions[0].blocks) <= 1
    world.turn()
    state = {key: value for key, value, _ in world.queues.family.topic.replay(0, written=True)}
    assert sum(value is not None for value in state.values()) <= 3


def test_deadlines_of_records_that_were_handed_out_are_not_kept(world) -> None:
    world.lease("a")
    until = str(world.clock.now_ms() + 10_000_000).encode()
    queue = world.queues.get(TOPIC, GROUP)
    assert queue is not None
    for _ in range(60):
        world.produce(100, headers=(("penstock.deadline_ms", until),))
        world.tick()
        got = world.lease("a", max_records=100)
        world.ack("a", *(delivery.offset for delivery in got))
    assert len(queue.partitions[0].deadlines) <= 2100
    assert len(world.queues._context._timers) < 100


def test_of_two_streams_of_one_owner_only_the_leases_of_the_one_that_ends_are_released(world) -> None:
    first, second = world.attach("a", credit=2, release_on_detach=True), world.attach("a", credit=0)
    world.produce(5)
    second.worker.grant(2)
    world.turn()
    polled = world.lease("a")
    assert (first.offsets, second.offsets, [delivery.offset for delivery in polled]) == ([0, 1], [2, 3], [4])
    first.worker.close()
    world.turn()
    assert [delivery.offset for delivery in world.lease("b", max_records=10)] == [0, 1]
    assert world.ack("a", 2, 3, 4).reason is None


@pytest.mark.parametrize(
    "headers", [(("penstock.not_before_ms", b"99999999999999"),), (("penstock.deadline_ms", b"1"),)]
)
def test_many_records_that_are_not_to_be_handed_out_hold_a_turn_up_for_a_moment_only(world, headers) -> None:
    world.produce(5_000, headers=headers)
    world.produce(1)
    got = []
    world.queues.lease(Lease(TOPIC, GROUP, "a", 1, 1000, 0), got.append)
    world.flusher.gather_all()
    part = world.queues.get(TOPIC, GROUP).partitions[0]
    assert 0 < part.cursor < 1_000
    assert got == []
    # It is answered all the same with what lies behind them.
    world.turn()
    assert [delivery.offset for delivery in got[0]] == [5_000]


def test_a_wide_gap_above_the_floor_is_finished_by_the_block(world) -> None:
    world.produce(3)
    world.lease("a", max_records=3)
    queue = world.queues.get(TOPIC, GROUP)
    part = queue.partitions[0]
    queue.finish_gap(part, 2, 1_000)
    assert part.leased == 2
    assert part.count(FINISHED) == 998
    assert {part.state_at(offset) for offset in range(2, 1_000)} == {FINISHED}
    assert part.state_at(1_000) == UNTOUCHED


def test_a_disk_that_does_not_give_a_record_stops_no_other_queue_and_is_tried_again(world) -> None:
    world.create("other")
    world.produce(2)
    world.produce(2, topic="other")
    world.lease("a", topic="other", lease_ms=60_000)
    stalled = world.attach("b", credit=0)
    world.disk.fail_next("pread", errno.EIO)
    stalled.worker.grant(10)
    done = world.ack("a", 0, topic="other", turn=False)
    world.turn()
    assert stalled.got == []
    assert done.reason is None
    assert sum("cannot continue" in report for report in world.reports) == 1
    world.advance(2_500)
    assert stalled.offsets == [0, 1]


def test_a_redriven_record_is_worked_by_the_group_that_it_failed_in_alone(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    for group in ("pay", "audit"):
        world.lease("a", group=group)
    world.nack("a", 0, "broken", group="pay")
    assert world.ack("a", 0, group="audit").reason is None
    world.advance(1000)
    answers = Answers()
    world.queues.move("dlq.orders", REDRIVE_GROUP, 0, [0], TOPIC, 0, answers)
    world.turn()
    assert answers.reason is None
    assert world.lease("a", group="audit") == []
    assert world.committed(group="audit") == 2
    assert [delivery.offset for delivery in world.lease("a", group="pay")] == [1]
    # It fails again: among the dead letters anyone may work on it.
    world.nack("a", 1, "broken again", group="pay")
    world.advance(1000)
    assert [delivery.offset for delivery in world.lease("a", topic="dlq.orders", group="fixers", max_records=9)] == [
        0,
        1,
    ]


def test_a_group_is_there_for_every_tool_before_its_first_ack(world) -> None:
    world.produce(3)
    world.attach()
    assert world.committed() == 0
    assert [group.group_id for group in world.broker.groups.list_groups()] == [GROUP]


def test_a_lease_is_left_to_the_next_sync_and_an_ack_hurries_it(world, monkeypatch) -> None:
    """The disk is for those who wait: a delivery only needs its lease to be written."""
    world.produce(3)
    spared: list[object] = []
    monkeypatch.setattr(world.broker.partition("__queue_state", 0), "_unhurried", spared.append)
    world.lease("a", max_records=3, lease_ms=60_000)
    assert spared != []
    spared.clear()
    assert world.ack("a", 1).reason is None
    assert spared == []
