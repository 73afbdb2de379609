"""What a commit does when the disk fails under it, when its targets change, and how much of it is done in a turn."""

import errno

import pytest

from penstock.core.coordinators.jobs import TURN_BYTES
from penstock.core.sinks.staging import CUT_BYTES
from penstock.errors import PenstockError, Reason
from penstock.log.producer_state import EXPIRATION_MS_DEFAULT
from penstock.operations.sinks import CommittedBatch
from penstock.records.builder import build_batch
from penstock.records.records import Record
from tests.unit.core.sinks.world import SINK, TOPIC, Told, World

LARGE = b"x" * 100_000
"""Above what is gathered: it is written when it is appended."""


@pytest.fixture
def world() -> World:
    made = World()
    made.open()
    return made


def intended(world: World, batch_id: int, *parts) -> Told:
    """A commit up to its intent: nothing is appended yet."""
    log = world.broker.partition("__sinks", 0)
    before = log.high_watermark
    told = world.commit(batch_id, *parts)
    for _ in range(100):
        world.flusher.sync()
        if log.high_watermark > before:
            return told
    raise AssertionError("the commit was never intended")


# The disk fails.


@pytest.mark.parametrize("value", [b"small", LARGE])
def test_a_target_that_cannot_be_written_to_is_tried_again_until_it_can(world, value) -> None:
    staged = [world.stage(value + b"%d" % number) for number in range(3)]
    told = intended(world, 0, (TOPIC, 0, staged))
    world.disk.fail_next("pwritev", errno.ENOSPC, count=3)
    world.settle()
    assert told.error.reason is Reason.STORAGE_ERROR
    assert "batch 0" in told.error.text
    assert "batch 0" in world.status().problem
    # It is staged: whoever sent it again would have it twice.
    assert "send again" not in told.error.text
    again = world.commit(0, (TOPIC, 0, staged))
    world.disk.clear_faults()
    world.advance(20_000)
    assert again.committed.records == 3
    assert world.values() == [value + b"%d" % number for number in range(3)]
    assert world.status().problem is None


def test_a_write_that_fails_half_way_leaves_nothing_twice(world) -> None:
    # The first batches are on disk, the later ones were gathered or refused.
    staged = [world.stage(LARGE + b"0"), world.stage(b"1"), world.stage(LARGE + b"2"), world.stage(b"3")]
    intended(world, 0, (TOPIC, 0, staged))
    calls = 0

    class Failing(type(world.disk)):
        def meet_fault(self, operation) -> None:
            nonlocal calls
            if operation == "pwritev":
                calls += 1
                if calls == 2:
                    raise OSError(errno.ENOSPC, "no room")
            super().meet_fault(operation)

    world.disk.__class__ = Failing
    world.settle()
    world.advance(20_000)
    assert calls > 2
    assert world.values() == [LARGE + b"0", b"1", LARGE + b"2", b"3"]


def test_the_record_of_the_end_is_tried_again(world) -> None:
    staged = world.stage(b"1")
    told = intended(world, 0, (TOPIC, 0, [staged]))
    world.flusher.sync()
    assert world.values() == [b"1"]
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.settle()
    assert told.error.reason is Reason.STORAGE_ERROR
    world.advance(20_000)
    assert world.open().last_batch_id == 0
    assert world.values() == [b"1"]


def test_an_intent_that_cannot_be_stored_is_a_refusal(world) -> None:
    staged = world.stage(b"1")
    told = world.commit(0, (TOPIC, 0, [staged]))
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.settle()
    assert told.error.reason is Reason.STORAGE_ERROR
    assert world.values() == []
    assert world.committed(0, (TOPIC, 0, [staged])).committed.records == 1


def test_a_target_whose_disk_does_not_sync_is_finished_after_a_restart(world) -> None:
    staged = world.stage(b"1")
    told = intended(world, 0, (TOPIC, 0, [staged]))
    world.disk.fail_next("sync", errno.EIO)
    world.settle()
    assert told.error.reason is Reason.STORAGE_ERROR
    with pytest.raises(PenstockError) as refused:
        world.open()
    assert refused.value.reason is Reason.STORAGE_ERROR
    world.restart(power=True)
    assert world.open().last_batch_id == 0
    assert world.values() == [b"1"]


def test_a_sink_that_is_stuck_can_be_deleted(world) -> None:
    intended(world, 0, (TOPIC, 0, [world.stage(b"1")]))
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.settle()
    world.delete_sink()
    world.advance(20_000)
    assert world.values() == []
    assert world.sinks.names() == []


def test_a_sink_that_is_deleted_under_its_next_try_leaves_nothing_to_the_next_of_its_name(world) -> None:
    staged = [world.stage(LARGE * 3) for _ in range(12)]
    intended(world, 7, (TOPIC, 0, staged))
    world.disk.fail_next("pwritev", errno.ENOSPC, count=3)
    world.settle()
    world.disk.clear_faults()
    target = world.broker.partition(TOPIC, 0)
    end = target.log.next_offset
    world.clock.advance(20_000)
    while target.log.next_offset == end:
        world.turn()
    world.sinks.delete(SINK, Told())
    world.sinks.open(SINK, Told())
    world.settle()
    assert target.log.next_offset < len(staged)
    world.restart()
    assert world.open().last_batch_id is None


# A crash, and what is found after it.


def test_an_intent_is_carried_out_after_a_restart(world) -> None:
    staged = [world.stage(b"1"), world.stage(b"2")]
    intended(world, 0, (TOPIC, 0, staged[:1]), (TOPIC, 1, staged[1:]))
    world.restart(power=True)
    assert world.open().last_batch_id == 0
    assert world.values(0) + world.values(1) == [b"1", b"2"]
    assert world.committed(0, (TOPIC, 0, staged)).committed.already


def test_nobody_is_answered_for_a_sink_before_its_intent_is_carried_out(world) -> None:
    intended(world, 0, (TOPIC, 0, [world.stage(b"1")]))
    world.restart()
    opened, committed = Told(), world.commit(0, (TOPIC, 0, []))
    world.sinks.open(SINK, opened)
    assert opened.result is committed.result is None
    world.settle()
    assert opened.result.last_batch_id == 0  # type: ignore[attr-defined]
    assert not committed.committed.already
    assert committed.committed.records == 1


def appended_but_not_noted(world: World) -> None:
    """The records of an intent are in their topic, and the process dies before that is noted."""
    intended(world, 0, (TOPIC, 0, [world.stage(b"1"), world.stage(b"2")]))
    # The first batch by itself.
    world.flusher.sync()
    world.flusher.sync()
    assert world.values() == [b"1", b"2"]
    assert world.sinks._sinks[SINK].stored.intent is not None


def test_what_was_appended_before_the_crash_is_not_appended_again(world) -> None:
    appended_but_not_noted(world)
    world.restart()
    assert world.open().last_batch_id == 0
    assert world.values() == [b"1", b"2"]


def test_it_is_found_though_the_log_has_forgotten_its_producers(world) -> None:
    appended_but_not_noted(world)
    # A producer idle for a day is forgotten, and a snapshot is made of what is left: nobody.
    world.clock.advance(EXPIRATION_MS_DEFAULT + 1)
    partition = world.broker.partition(TOPIC, 0)
    partition.log.retire(world.clock.now_ms())
    world.broker.logs.prepare_checkpoint().run()
    world.broker.logs.close()
    world.restart()
    assert world.broker.partition(TOPIC, 0).log.producers.get(0) is None
    assert world.open().last_batch_id == 0
    assert world.values() == [b"1", b"2"]


def test_it_is_found_among_the_records_of_others(world) -> None:
    appended_but_not_noted(world)
    partition = world.broker.partition(TOPIC, 0)
    for number in range(3):
        now_ms = world.clock.now_ms()
        partition.append(build_batch([Record(0, now_ms, b"k", b"other%d" % number)]), now_ms)
    # This log alone: the sink is not to get on.
    partition.log.write_pending()
    task = partition.log.begin_sync()
    task.run()
    partition.log.end_sync(task, None)
    partition.log.producers.expire(world.clock.now_ms() + EXPIRATION_MS_DEFAULT + 1)
    world.broker.logs.prepare_checkpoint().run()
    world.broker.logs.close()
    world.restart()
    world.settle()
    assert world.values() == [b"1", b"2", b"other0", b"other1", b"other2"]


def test_settings_that_changed_since_the_intent_refuse_nothing(world) -> None:
    world.create("strict", message_timestamp_before_max_ms=str(EXPIRATION_MS_DEFAULT))
    intended(world, 0, ("strict", 0, [world.stage(LARGE, key=None)]))
    world.alter("strict", "max.message.bytes", "1000")
    world.alter("strict", "cleanup.policy", "compact")
    world.alter("strict", "min.insync.replicas", "2")
    world.clock.advance(2 * EXPIRATION_MS_DEFAULT)
    world.restart()
    assert world.open().last_batch_id == 0
    assert world.values(topic="strict") == [LARGE]


@pytest.mark.parametrize("made_anew", [False, True])
def test_the_part_of_a_topic_that_was_deleted_meanwhile_is_dropped_and_told(world, made_anew) -> None:
    world.create("gone")
    told = intended(world, 0, ("gone", 0, [world.stage(b"1")]), (TOPIC, 0, [world.stage(b"2")]))
    world.delete("gone")
    if made_anew:
        world.create("gone")
    world.settle()
    assert told.committed == CommittedBatch(True, False, 1, 1)
    assert world.values() == [b"2"]
    assert any("gone/0" in line and "dropped" in line for line in world.reports)
    if made_anew:
        assert world.values(topic="gone") == []


def test_a_topic_that_is_deleted_under_its_appends_is_dropped(world) -> None:
    world.create("gone")
    staged = [world.stage(b"1"), world.stage(b"2")]
    told = intended(world, 0, ("gone", 0, staged[:1]), (TOPIC, 0, staged[1:]))
    # Appended, and not on disk yet.
    world.flusher.write()
    world.delete("gone")
    world.settle()
    world.advance(20_000)
    assert world.open().last_batch_id == 0
    assert told.result is not None
    assert world.values() == [b"2"]


def test_staged_records_that_a_loss_of_power_took_are_dropped_and_told(world) -> None:
    intended(world, 0, (TOPIC, 0, [world.stage(b"1"), world.stage(b"2")]))
    topic_id = world.broker.topics.require(f"__staging.{SINK}").topic_id
    # As when acknowledged does not mean synced: the staging log has lost its end.
    world.broker.logs.log(topic_id, 0, world.staging().topic.config.log).truncate_to(1)
    world.restart()
    assert world.open().last_batch_id == 0
    assert world.values() == []
    assert any("2 of 2 records" in line and "lost" in line for line in world.reports)


def test_offsets_that_a_staging_log_gives_again_are_new(world) -> None:
    world.committed(0, (TOPIC, 0, [world.stage(b"1"), world.stage(b"2")]))
    world.staging().log.truncate_to(1)
    world.restart()
    assert world.stage(b"3") == (0, 1, 1)
    assert world.committed(1, (TOPIC, 0, [(0, 1, 1)])).committed.records == 1
    assert world.committed(2, (TOPIC, 0, [(0, 0, 1)])).error.reason is Reason.OFFSET_OUT_OF_RANGE
    assert world.values() == [b"1", b"2", b"3"]


# Bounds.


def test_a_turn_does_a_bounded_piece_of_a_large_commit(world) -> None:
    staged = [world.stage(LARGE * 3) for _ in range(40)]
    target = world.broker.partition(TOPIC, 0)
    told = world.commit(0, (TOPIC, 0, staged))
    sizes, before = [], 0
    while told.result is None:
        world.turn()
        sizes.append(target.log.size_bytes - before)
        before = target.log.size_bytes
        assert len(sizes) < 200
    assert max(sizes) <= TURN_BYTES + len(LARGE) * 3 + 1000
    assert sum(sizes) > 40 * 3 * len(LARGE)


def test_what_waits_for_the_disk_is_bounded(world) -> None:
    staged = [world.stage(LARGE * 3) for _ in range(120)]
    target = world.broker.partition(TOPIC, 0)
    told = intended(world, 0, (TOPIC, 0, staged))
    # The first batch by itself.
    world.flusher.sync()
    for _ in range(40):
        # Written, and no sync comes to an end.
        world.flusher.write()
    assert TURN_BYTES < target.log.size_bytes <= 16 * (TURN_BYTES + 4 * len(LARGE))
    assert told.result is None
    world.settle()
    assert told.committed.records == 120


def test_small_batches_are_counted_for_more_than_their_bytes(world) -> None:
    staged = [world.stage(b"x") for _ in range(400)]
    target = world.broker.partition(TOPIC, 0)
    told = world.commit(0, (TOPIC, 0, [(0, 0, 400)]))
    assert staged[-1] == (0, 399, 1)
    before, most = 0, 0
    for _ in range(40):
        world.turn()
        most = max(most, target.log.next_offset - before)
        before = target.log.next_offset
    assert told.committed.records == 400
    assert 0 < most <= 150


def test_commits_of_two_sinks_share_the_turns(world) -> None:
    world.open("other")
    large = [world.stage(LARGE * 3) for _ in range(40)]
    small = world.stage(b"1", sink="other")
    first = world.commit(0, (TOPIC, 0, large))
    world.turn()
    second = world.commit(0, (TOPIC, 1, [small]), sink="other")
    turns = 0
    while second.result is None:
        world.turn()
        turns += 1
    assert first.result is None
    assert turns <= 10
    world.settle()
    assert first.committed.records == 40


def test_what_is_committed_gives_back_its_room(world) -> None:
    value = b"x" * 1_000_000
    for batch_id in range(2):
        staged = [world.stage(value) for _ in range(CUT_BYTES // len(value) + 1)]
        world.committed(batch_id, (TOPIC, 0, staged))
    assert world.staging().log.size_bytes == 0
    assert world.status().staged_bytes == 0
    world.restart()
    assert world.committed(2, (TOPIC, 0, [world.stage(b"1")])).committed.records == 1


def test_a_little_is_not_worth_a_cut(world) -> None:
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    assert world.status().staged_bytes == 0
    assert world.staging().log.start_offset == 0


def test_a_batch_that_is_staged_meanwhile_survives_the_cut(world) -> None:
    value = b"x" * 1_000_000
    staged = [world.stage(value) for _ in range(CUT_BYTES // len(value) + 1)]
    told = world.commit(0, (TOPIC, 0, staged))
    following = world.stage(b"next")
    world.settle()
    assert told.committed.records == len(staged)
    assert world.committed(1, (TOPIC, 1, [following])).committed.records == 1
    assert world.values(1) == [b"next"]
