"""Sinks that nobody uses are forgotten, by what is stored of their use; those in use never are."""

from typing import Never

import pytest

from penstock.core.sinks.uses import GRACE_MS, USE_STEP_MS
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_REMEMBER_MS_MIN
from tests.unit.core.sinks.world import SINK, TOPIC, Told, World

DAY_MS = 24 * 3_600_000
REMEMBER_MS = 30 * DAY_MS
STAGING_MS = 7 * DAY_MS
SWEEP_MS = 60_000


@pytest.fixture
def world() -> World:
    return made()


def made(**settings) -> World:
    world = World(**{"staging_idle_ms": STAGING_MS, "remember_ms": REMEMBER_MS, **settings})
    world.open()
    world.committed(4, (TOPIC, 0, [world.stage(b"1")]))
    # The next sweep sees what was staged, and takes it for a use.
    world.advance(SWEEP_MS)
    return world


def later(world: World, ms: int) -> None:
    """That much later, with a sweep soon and one at the end."""
    world.advance(SWEEP_MS)
    world.advance(ms - SWEEP_MS)


def test_a_sink_that_nobody_used_for_long_is_forgotten_with_its_last_batch(world) -> None:
    later(world, REMEMBER_MS - 2 * SWEEP_MS)
    assert world.sinks.names() == [SINK]
    later(world, 2 * SWEEP_MS)
    assert world.sinks.names() == []
    assert f"__staging.{SINK}" not in world.broker.topics
    assert any(f"they were not used: {SINK}" in line for line in world.reports)
    world.restart()
    assert world.sinks.names() == []
    assert world.open().last_batch_id is None


def test_the_time_that_a_sink_has_is_counted_over_restarts(world) -> None:
    for _ in range(5):
        later(world, 6 * DAY_MS)
        world.restart()
    assert world.sinks.names() == [SINK], "what the last process may not have stored is added"
    later(world, GRACE_MS)
    assert world.sinks.names() == []


def test_the_time_of_a_staging_topic_is_counted_over_restarts(world) -> None:
    world.stage(b"of a task that died")
    later(world, 120_000)
    for _ in range(3):
        later(world, 3 * DAY_MS)
        world.restart()
    later(world, GRACE_MS)
    assert f"__staging.{SINK}" not in world.broker.topics
    assert world.open().last_batch_id == 4


def test_a_broker_that_was_off_for_long_lets_its_users_come_back_first(world) -> None:
    world.clock.wall_ms += 10 * REMEMBER_MS
    world.restart()
    later(world, GRACE_MS - 60_000)
    assert world.open().last_batch_id == 4
    later(world, REMEMBER_MS - 120_000)
    assert world.sinks.names() == [SINK]


def test_opening_is_a_use_that_a_restart_does_not_forget(world) -> None:
    later(world, REMEMBER_MS - DAY_MS)
    assert world.open().last_batch_id == 4
    world.restart()
    later(world, REMEMBER_MS - DAY_MS)
    assert world.open().last_batch_id == 4


def test_aborting_and_staging_are_uses_too(world) -> None:
    for _ in range(3):
        later(world, REMEMBER_MS - DAY_MS)
        world.abort(9)
    world.open()
    for _ in range(12):
        world.stage(b"x")
        later(world, STAGING_MS - DAY_MS)
    world.restart()
    later(world, 2 * GRACE_MS)
    assert world.open().last_batch_id == 4


def test_a_sink_with_staged_records_stays_until_its_staging_topic_goes() -> None:
    world = made(remember_ms=DAY_MS)
    staged = world.stage(b"2")
    later(world, 120_000)
    later(world, STAGING_MS - DAY_MS)
    assert world.committed(5, (TOPIC, 0, [staged])).committed.records == 1
    later(world, DAY_MS)
    assert world.sinks.names() == []


def test_a_sink_that_is_busy_is_not_forgotten(world) -> None:
    told = world.commit(5, (TOPIC, 0, []))
    world.clock.advance(2 * REMEMBER_MS)
    world.sinks.tick(world.clock.monotonic_ms())
    world.settle()
    assert told.committed.records == 0
    assert world.open().last_batch_id == 5


def test_a_sink_is_remembered_from_the_end_of_a_commit_on(world) -> None:
    world.open("slow", SINK_REMEMBER_MS_MIN)
    told = world.commit(0, sink="slow")
    world.clock.advance(SINK_REMEMBER_MS_MIN)
    world.settle()
    assert not told.committed.already
    world.advance(2 * SWEEP_MS)
    assert world.open("slow").last_batch_id == 0


def test_opening_again_and_again_costs_no_writes(world) -> None:
    end = world.broker.partition("__sinks", 0).log.next_offset
    for _ in range(5):
        world.open()
    world.clock.advance(USE_STEP_MS - SWEEP_MS - 1)
    world.open()
    assert world.broker.partition("__sinks", 0).log.next_offset == end
    world.clock.advance(1)
    for _ in range(5):
        world.open()
    assert world.broker.partition("__sinks", 0).log.next_offset == end + 1


def test_an_opener_may_ask_to_be_remembered_for_less_and_not_for_more(world) -> None:
    for name, remember_ms in (("short", DAY_MS), ("long", 10 * REMEMBER_MS)):
        world.open(name, remember_ms)
        world.committed(0, (TOPIC, 0, [world.stage(b"x", sink=name)]), sink=name)
    assert world.status("short").remember_ms == DAY_MS
    assert world.status("long").remember_ms == world.status().remember_ms == REMEMBER_MS
    world.restart()
    later(world, DAY_MS + USE_STEP_MS)
    assert world.sinks.names() == ["long", SINK]
    later(world, REMEMBER_MS)
    assert world.sinks.names() == []


def test_what_an_opener_asks_for_stays_until_another_asks_otherwise(world) -> None:
    world.open(remember_ms=DAY_MS)
    world.open()
    world.restart()
    assert world.status().remember_ms == DAY_MS
    world.open(remember_ms=2 * DAY_MS)
    world.restart()
    assert world.status().remember_ms == 2 * DAY_MS


def test_a_job_that_takes_longer_than_its_sink_is_remembered_can_still_commit(world) -> None:
    opened = world.open("batch", SINK_REMEMBER_MS_MIN)
    later(world, STAGING_MS - DAY_MS)
    staged = world.stage(b"late", sink="batch")
    told = world.committed(0, (TOPIC, 0, [staged]), sink="batch", staging_id=opened.staging_id)
    assert told.committed.records == 1
    later(world, 2 * SINK_REMEMBER_MS_MIN)
    assert world.sinks.names() == [SINK]


def test_a_time_in_which_nobody_could_come_back_is_refused(world) -> None:
    with pytest.raises(PenstockError, match="the minimum is 600000") as refused:
        world.sinks.open(SINK, Told(), remember_ms=SINK_REMEMBER_MS_MIN - 1)
    assert refused.value.reason is Reason.INVALID_REQUEST


def test_a_status_says_when_a_sink_was_last_used(world) -> None:
    used_ms = world.clock.now_ms()
    assert world.status().used_ms == used_ms
    later(world, DAY_MS)
    assert world.status().used_ms == used_ms
    world.restart()
    assert world.status().used_ms == world.status().committed_ms, "which is what was stored"
    world.open()
    assert world.status().used_ms == used_ms + DAY_MS


def test_a_full_disk_keeps_nobody_from_opening(world, monkeypatch) -> None:
    later(world, DAY_MS)

    def full(*_) -> Never:
        raise PenstockError(Reason.STORAGE_ERROR)

    monkeypatch.setattr(world.sinks._commits, "write", full)
    assert world.open().last_batch_id == 4


def test_so_many_sinks_are_looked_at_in_one_go_and_the_rest_soon_after(world, monkeypatch) -> None:
    monkeypatch.setattr("penstock.core.sinks.sinks._SWEEP_SINKS_MAX", 3)
    for number in range(7):
        world.open(f"s{number}", SINK_REMEMBER_MS_MIN)
        world.committed(0, (TOPIC, 0, []), sink=f"s{number}")
    world.clock.advance(SINK_REMEMBER_MS_MIN)
    counts = []
    for _ in range(4):
        world.turn()
        counts.append(len(world.sinks.names()))
        world.clock.advance(100)
    assert counts == [5, 2, 1, 1]


def test_the_time_of_a_use_is_the_same_for_who_asks_twice_and_follows_a_clock_that_was_set(world) -> None:
    world.open()
    used_ms = world.status().used_ms
    # The clocks count a millisecond at different moments: one of them is ahead for a part of each.
    world.clock.wall_ms += 1
    assert world.status().used_ms == used_ms
    world.clock.elapsed_ms += 1
    assert world.status().used_ms == used_ms
    world.clock.wall_ms += DAY_MS
    assert world.status().used_ms == used_ms + DAY_MS, "it was so long ago, by the clock as it is now"
