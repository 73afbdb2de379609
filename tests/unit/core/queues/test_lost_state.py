"""When the state cannot be stored: whoever waits is refused, and what was refused left nothing behind."""

import errno

import pytest

from penstock.core.queues import upkeep
from penstock.errors import PenstockError, Reason
from penstock.operations.groups import OffsetToCommit
from penstock.operations.queues import Ack, Lease
from penstock.types import PartitionKey
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, header


def test_a_lease_that_cannot_be_written_is_not_delivered_and_not_counted(world) -> None:
    world.produce(3)
    world.lease("a", max_records=1)
    owner = world.attach("b", credit=0)
    owner.worker.grant(5)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert owner.got == []
    world.advance(2000)
    assert {delivery.offset: delivery.attempts for delivery in reversed(owner.got)} == {0: 2, 1: 1, 2: 1}


def test_a_call_whose_lease_cannot_be_written_gets_nothing(world) -> None:
    assert world.lease("x") == []
    world.produce(1)
    answers = []
    world.queues.lease(Lease(TOPIC, GROUP, "a", 1, 1000, 0), answers.append)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert answers == [[]]
    world.advance(1000)
    assert [delivery.attempts for delivery in world.lease("a")] == [1]


@pytest.mark.parametrize("offset", [0, 1])
def test_an_ack_that_cannot_be_stored_is_refused_and_the_lease_goes_on(world, offset) -> None:
    world.produce(2)
    world.lease("a", max_records=2, lease_ms=5000)
    done = world.ack("a", offset, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert done.reason is Reason.STORAGE_ERROR
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.leased, status.finished_above_floor) == (0, 2, 0)
    assert world.ack("a", 0, 1).reason is None
    assert world.committed() == 2


def test_a_nack_that_cannot_be_stored_is_refused_and_the_record_is_still_leased(world) -> None:
    world.produce(1, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a", lease_ms=5000)
    done = world.nack("a", 0, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert done.reason is Reason.STORAGE_ERROR
    assert "dlq.orders" not in world.broker.topics
    assert world.nack("a", 0, "again").reason is None
    world.advance(500)
    assert [header(letter, "last_error") for letter in world.records("dlq.orders")] == ["again"]


def test_what_was_written_before_a_failure_stays_though_it_is_not_synced(world) -> None:
    world.produce(4)
    world.lease("a", max_records=2, lease_ms=5000)
    done = world.ack("a", 1, turn=False)
    world.flusher.write()
    assert done.waits
    refused = world.nack("a", 0, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert done.reason is None
    assert refused.reason is Reason.STORAGE_ERROR
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.leased, status.finished_above_floor) == (0, 1, 1)


def test_a_disk_that_fails_to_sync_refuses_everything_until_the_restart_and_keeps_what_was_answered(world) -> None:
    world.produce(4)
    world.lease("a", max_records=3, lease_ms=5000)
    assert world.ack("a", 1).reason is None
    done = world.ack("a", 2, turn=False)
    world.disk.fail_next("sync", errno.EIO)
    world.turn()
    assert done.reason is Reason.STORAGE_ERROR
    world.kill()
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert status.finished_above_floor >= 1
    answers = Answers()
    world.queues.ack(Ack(TOPIC, GROUP, "a", 0, [0]), answers)
    world.turn()
    assert answers.reason is None


def test_an_ack_whose_commit_is_lost_while_the_block_is_not_resets_no_attempts(world) -> None:
    world.produce(3)
    world.lease("a", max_records=3, lease_ms=5000)
    world.nack("a", 0)
    world.lease("a", lease_ms=5000)
    acked = world.ack("a", 0, 1, turn=False)
    world.nack("a", 2, turn=False)
    # The log of commits comes first, the log of states last: the process dies when only the latter is written.
    world.flusher.write(slice(-1, None))
    assert acked.waits
    world.kill()
    assert world.committed() in (0, 2)
    got = {delivery.offset: delivery.attempts for delivery in world.lease("b", max_records=10)}
    assert got == {2: 2}


def test_a_group_that_went_back_just_before_the_end_works_everything_again(world) -> None:
    world.produce(300)
    world.lease("a", max_records=300, lease_ms=5000)
    world.ack("a", *range(200))
    world.ack("a", 250)
    answers = Answers()
    item = OffsetToCommit(PartitionKey(TOPIC, 0), 150)
    world.broker.groups.commit_offset(GROUP, item, answers)
    world.flusher.write()
    world.flusher.sync()
    assert answers.reason is None
    # What the queue makes of it is not written yet.
    world.kill()
    world.advance(6000)
    got = world.lease("b", max_records=1000)
    assert sorted(delivery.offset for delivery in got) == list(range(150, 300))
    assert {delivery.attempts for delivery in got if delivery.offset < 200} == {1}


def test_a_disk_that_stays_full_does_not_have_the_state_read_in_every_turn(world) -> None:
    world.produce(300)
    world.lease("a", max_records=300, lease_ms=60_000)
    world.ack("a", *range(2, 200))
    world.ack("a", 0, 1, turn=False)
    # The floor is stored; that the first block is of no use any more cannot be.
    world.flusher.write()
    world.flusher.sync()
    world.disk.fail_next("pwritev", errno.ENOSPC, 1000)
    world.turn()
    before = len(world.reports)
    world.advance(5_000)
    assert len(world.reports) - before <= 10
    world.disk.clear_faults()
    world.advance(2_000)
    assert world.ack("a", *range(200, 300)).reason is None
    assert world.floor() == 300


def test_deadlines_ahead_are_kept_by_the_clock_after_the_state_was_read_again(world) -> None:
    deadline_ms = world.clock.now_ms() + 3_000
    world.produce(2)
    world.produce(1, headers=(("penstock.deadline_ms", b"%d" % deadline_ms),))
    world.lease("a", lease_ms=60_000)
    world.advance(100)
    world.ack("a", 0, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    world.advance(4_000)
    assert world.queues.status(TOPIC, GROUP).partitions[0].finished_above_floor == 1


def test_a_lease_that_ends_while_floors_cannot_be_stored_does_not_have_the_state_read_over_and_over(
    world, monkeypatch
) -> None:
    under_way = []

    def fail(_group, _item, done) -> None:
        if under_way:
            raise PenstockError(Reason.STORAGE_ERROR)
        under_way.append(done)

    world.produce(4)
    world.lease("a", max_records=4, lease_ms=500)
    world.ack("a", 0)
    monkeypatch.setattr(world.broker.groups, "commit_offset", fail)
    below = world.ack("a", 1, turn=False)
    # It has the block written, in which what is below the floor is finished.
    assert world.ack("a", 3).reason is None
    under_way[0](Reason.STORAGE_ERROR)
    assert below.reason is Reason.STORAGE_ERROR
    reads = count_reads(monkeypatch)
    world.advance(5_000)
    assert 1 <= len(reads) <= 6, "at most once a second"
    monkeypatch.undo()
    world.advance(2_000)
    assert [delivery.offset for delivery in world.lease("b", max_records=4)] == [2]
    assert world.committed() == 2


def test_calls_while_the_state_cannot_be_stored_are_refused_without_reading_it_again(world, monkeypatch) -> None:
    world.produce(3)
    world.lease("a", max_records=3, lease_ms=60_000)
    world.disk.fail_next("pwritev", errno.ENOSPC, 1000)
    assert world.ack("a", 1).reason is Reason.STORAGE_ERROR
    world.advance(200)
    reads = count_reads(monkeypatch)
    assert world.ack("a", 1).reason is Reason.STORAGE_ERROR
    for offset in (0, 1, 2):
        with pytest.raises(PenstockError, match="Try again in a second") as refused:
            world.ack("a", offset)
        assert refused.value.reason is Reason.STORAGE_ERROR
    assert reads == []
    world.disk.clear_faults()
    world.advance(1_000)
    assert len(reads) == 1
    assert world.ack("a", 0, 1, 2).reason is None
    assert world.committed() == 3


def test_nothing_that_was_refused_is_stored_when_the_disk_has_room_again(world) -> None:
    world.produce(3)
    world.lease("a", max_records=3, lease_ms=400)
    world.disk.fail_next("pwritev", errno.ENOSPC, 1000)
    assert world.ack("a", 1).reason is Reason.STORAGE_ERROR
    world.ack("a", 1)
    # The leases end in memory, which does not count until the state is loaded again.
    world.advance(600)
    world.disk.clear_faults()
    world.turn()
    world.kill()
    status = world.queues.status(TOPIC, GROUP).partitions[0]
    assert (status.floor, status.finished_above_floor) == (0, 0)


def test_whoever_waits_after_the_state_was_read_again_waits_for_what_was_appended_before(world) -> None:
    world.produce(3)
    world.lease("a", max_records=3, lease_ms=60_000)
    world.flusher.syncs = False
    first = world.ack("a", 1, turn=False)
    world.turn()
    assert first.waits
    refused = world.ack("a", 2, turn=False)
    world.disk.fail_next("pwritev", errno.ENOSPC)
    world.turn()
    assert refused.reason is Reason.STORAGE_ERROR
    later = Answers()
    log = world.queues._context.state_log
    log.when_committed(log.partition_for(GROUP), later)
    world.turn()
    assert later.waits, "the ack before is not synced"
    world.flusher.syncs = True
    world.turn()
    assert (first.reason, later.reason) == (None, None)


def count_reads(monkeypatch):
    """Notes each time that the state is read to be loaded again."""
    reads = []
    read = upkeep.read_images  # type: ignore[attr-defined]
    monkeypatch.setattr(upkeep, "read_images", lambda *given: reads.append(given) or read(*given))
    return reads
