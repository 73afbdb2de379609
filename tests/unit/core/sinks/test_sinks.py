"""Staging, committing, aborting: what is appended, what is refused, and that it is there once."""

import pytest

from penstock.core.security.access import Access
from penstock.errors import PenstockError, Reason
from penstock.limits import SINK_STAGED_MAX, SINK_TARGETS_MAX, SINK_WAITING_MAX
from penstock.operations.operation import Action
from penstock.operations.sinks import CommittedBatch, SinkPart
from penstock.records.batch import Compression
from penstock.types import NO_TIMESTAMP, Flush
from tests.support.access import all_but
from tests.unit.core.idempotency.world import finish
from tests.unit.core.sinks.world import IDLE_MS, SINK, TOPIC, Told, World


@pytest.fixture
def world() -> World:
    made = World()
    made.open()
    return made


def test_a_commit_appends_what_is_staged_in_the_order_of_its_parts(world) -> None:
    first, second, third = world.stage(b"1"), world.stage(b"2", b"3"), world.stage(b"4")
    told = world.committed(0, (TOPIC, 0, [third, first]), (TOPIC, 1, [second]))
    assert told.committed == CommittedBatch(True, False, 3 + 1, 0)
    assert world.values(0) == [b"4", b"1"]
    assert world.values(1) == [b"2", b"3"]


def test_parts_of_one_partition_may_come_in_pieces(world) -> None:
    staged = [world.stage(b"%d" % number) for number in range(4)]
    world.committed(0, *[(TOPIC, 0, [each]) for each in staged])
    assert world.values() == [b"0", b"1", b"2", b"3"]


def test_one_range_may_hold_several_batches(world) -> None:
    world.stage(b"a", b"b"), world.stage(b"c")
    assert world.committed(0, (TOPIC, 0, [(0, 0, 3)])).committed.records == 3
    assert world.values() == [b"a", b"b", b"c"]


def test_nothing_staged_is_shown_to_anybody(world) -> None:
    world.stage(b"secret")
    with pytest.raises(PenstockError) as refused:
        world.staging().read(0, 1000)
    assert refused.value.reason is Reason.INVALID_TOPIC
    assert world.values() == []


def test_a_batch_that_was_committed_appends_nothing_again(world) -> None:
    staged = world.stage(b"1")
    world.committed(7, (TOPIC, 0, [staged]))
    assert world.committed(7, (TOPIC, 0, [staged])).committed == CommittedBatch(True, True, 0, 0)
    # Another run of the same batch staged it anew.
    assert world.committed(7, (TOPIC, 0, [world.stage(b"1")])).committed.already
    assert world.committed(3, (TOPIC, 0, [world.stage(b"1")])).committed.already
    assert world.values() == [b"1"]
    assert world.open().last_batch_id == 7


def test_a_staged_batch_is_committed_once_whatever_the_batch_id(world) -> None:
    staged = world.stage(b"1")
    world.committed(0, (TOPIC, 0, [staged]))
    assert world.committed(1, (TOPIC, 0, [staged])).error.reason is Reason.OFFSET_OUT_OF_RANGE
    assert world.values() == [b"1"]


def test_an_empty_batch_counts(world) -> None:
    assert world.committed(0).committed == CommittedBatch(True, False, 0, 0)
    assert world.committed(1, (TOPIC, 0, [])).committed == CommittedBatch(True, False, 0, 0)
    assert world.open().last_batch_id == 1


def test_what_dead_and_doubled_tasks_staged_goes_with_the_commit(world) -> None:
    world.stage(b"half of a task that died")
    taken = world.stage(b"1")
    world.committed(0, (TOPIC, 0, [taken]))
    assert world.status().staged_bytes == 0
    world.stage(b"late double")
    second = world.stage(b"2")
    world.committed(1, (TOPIC, 0, [second]))
    assert world.values() == [b"1", b"2"]
    assert world.status().staged_bytes == 0


def test_the_last_batch_is_remembered_over_a_restart(world) -> None:
    world.committed(5, (TOPIC, 0, [world.stage(b"1")]))
    world.restart()
    assert world.open().last_batch_id == 5
    world.committed(6, (TOPIC, 0, [world.stage(b"2")]))
    assert world.values() == [b"1", b"2"]


def test_sinks_do_not_see_each_other(world) -> None:
    world.open("other")
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    assert world.open("other").last_batch_id is None
    world.committed(0, (TOPIC, 0, [world.stage(b"2", sink="other")]), sink="other")
    assert world.values() == [b"1", b"2"]
    assert world.sinks.names() == ["other", SINK]


# Refusals.


def untouched(world: World, epoch: int = -1) -> None:
    """Nothing was appended, intended or remembered, and the sink goes on."""
    stored = world.sinks._sinks[SINK].stored
    assert (stored.intent, stored.last_batch_id, stored.producer_epoch) == (None, None, epoch)
    assert world.values(0) == world.values(1) == []
    assert world.committed(0, (TOPIC, 0, [world.stage(b"fine")])).committed.records == 1


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([("nowhere", 0, [(0, 0, 1)])], Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ([(TOPIC, 9, [(0, 0, 1)])], Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ([("__consumer_offsets", 0, [(0, 0, 1)])], Reason.INVALID_TOPIC),
        ([(f"__staging.{SINK}", 0, [(0, 0, 1)])], Reason.INVALID_TOPIC),
        ([(TOPIC, 0, [(0, 0, 2)])], Reason.INVALID_REQUEST),
        ([(TOPIC, 0, [(0, 2, 1)])], Reason.INVALID_REQUEST),
        ([(TOPIC, 0, [(0, 4, 1)])], Reason.OFFSET_OUT_OF_RANGE),
        ([(TOPIC, 0, [(0, 3, 5)])], Reason.OFFSET_OUT_OF_RANGE),
        ([(TOPIC, 0, [(0, 0, 1)]), ("nowhere", 0, [(0, 3, 1)])], Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ([(TOPIC, 0, [(0, 0, 1), (0, 1, 1)])], Reason.INVALID_REQUEST),
    ],
)
def test_a_refusal_leaves_nothing_behind(world, parts, reason) -> None:
    assert [world.stage(b"1"), world.stage(b"2", b"3"), world.stage(b"4")] == [(0, 0, 1), (0, 1, 2), (0, 3, 1)]
    assert world.committed(0, *parts).error.reason is reason
    untouched(world)


@pytest.mark.parametrize(
    "parts",
    [
        [(TOPIC, 0, [(1, 0, 1)])],
        [(TOPIC, 0, [(0, -1, 1)])],
        [(TOPIC, 0, [(0, 0, 0)])],
        [(TOPIC, 0, [(0, 0, 2)]), (TOPIC, 1, [(0, 1, 1)])],
        [(TOPIC, 0, [(0, 0, 1), (0, 0, 1)])],
    ],
)
def test_what_cannot_be_staged_is_refused_at_once(world, parts) -> None:
    with pytest.raises(PenstockError) as refused:
        world.commit(0, *parts)
    assert refused.value.reason is Reason.INVALID_REQUEST
    untouched(world)


def test_a_commit_is_bounded(world) -> None:
    for parts in (
        [SinkPart(TOPIC, 0, [(0, number, 1) for number in range(SINK_STAGED_MAX + 1)])],
        [SinkPart(TOPIC, number, []) for number in range(SINK_TARGETS_MAX + 1)],
    ):
        with pytest.raises(PenstockError, match="but the limit is ") as refused:
            world.commit(0, *parts)
        assert refused.value.reason is Reason.POLICY_VIOLATION


def test_a_target_with_smaller_batches_refuses_before_anything_is_appended(world) -> None:
    world.create("small", max_message_bytes="1000")
    staged = world.stage(b"x"), world.stage(b"x" * 2000)
    told = world.committed(0, (TOPIC, 0, [staged[0]]), ("small", 0, [staged[1]]))
    assert told.error.reason is Reason.RECORDS_TOO_LARGE
    untouched(world)


def test_a_target_with_a_codec_of_its_own_refuses_what_that_makes_too_large(world) -> None:
    world.create("plain", max_message_bytes="1000", compression_type="uncompressed")
    staged = world.stage(b"x" * 5000, compression=Compression.ZSTD)
    assert world.committed(0, ("plain", 0, [staged])).error.reason is Reason.RECORDS_TOO_LARGE
    untouched(world)


def test_a_compacted_target_refuses_records_without_a_key(world) -> None:
    world.create("compacted", cleanup_policy="compact")
    told = world.committed(0, (TOPIC, 0, [world.stage(b"x")]), ("compacted", 0, [world.stage(b"y", key=None)]))
    assert told.error.reason is Reason.INVALID_RECORD
    untouched(world)
    assert world.committed(1, ("compacted", 0, [world.stage(b"y")])).committed.records == 1


def test_a_batch_larger_than_a_segment_of_its_target_is_refused(world) -> None:
    world.create("segments", segment_bytes="1000")
    assert world.committed(0, ("segments", 0, [world.stage(b"x" * 2000)])).error.reason is Reason.RECORD_LIST_TOO_LARGE
    untouched(world)


def test_a_timestamp_that_the_target_does_not_take_is_refused(world) -> None:
    world.create("now", message_timestamp_before_max_ms="1000")
    staged = world.stage(b"old", timestamp_ms=world.clock.now_ms() - 5000)
    assert world.committed(0, ("now", 0, [staged])).error.reason is Reason.INVALID_TIMESTAMP
    untouched(world)


def test_which_times_records_may_have_is_for_their_target_to_say(world) -> None:
    far_ms = 10 * 365 * 24 * 3_600_000
    staged = [world.stage(b"x", timestamp_ms=world.clock.now_ms() + way * far_ms) for way in (1, -1)]
    assert world.committed(0, (TOPIC, 0, staged[:1])).error.reason is Reason.INVALID_TIMESTAMP
    world.create("any", message_timestamp_after_max_ms=str(2 * far_ms))
    assert world.committed(0, ("any", 0, staged)).committed.records == 2


def test_records_without_a_time_are_taken(world) -> None:
    world.create("now", message_timestamp_before_max_ms="1000")
    assert world.committed(0, ("now", 0, [world.stage(b"x", timestamp_ms=NO_TIMESTAMP)])).committed.records == 1


def test_a_target_that_wants_more_replicas_is_refused(world) -> None:
    world.create("replicated", min_insync_replicas="2")
    assert world.committed(0, ("replicated", 0, [world.stage(b"x")])).error.reason is Reason.NOT_ENOUGH_REPLICAS
    untouched(world)


def test_whoever_may_not_write_to_a_target_may_not_commit_to_it(world) -> None:
    staged = world.stage(b"x")
    world.broker.access = all_but((Action.WRITE, f"topic {TOPIC}"))
    assert world.committed(0, (TOPIC, 0, [staged])).error.reason is Reason.TOPIC_AUTHORIZATION_FAILED
    world.broker.access = Access()
    untouched(world)


def test_a_damaged_staged_batch_is_refused(world) -> None:
    staged = world.stage(b"sound and well")
    segment = world.staging().log.segments[-1]
    file = segment.opened()
    file.pwritev([b"!"], segment.size - 3)
    assert world.committed(0, (TOPIC, 0, [staged])).error.reason is Reason.CORRUPT_RECORDS
    untouched(world)


def test_a_sink_that_nobody_opened_is_unknown(world) -> None:
    for call in (
        lambda: world.commit(0, sink="nobody"),
        lambda: world.abort(0, sink="nobody"),
        lambda: world.status("nobody"),
        lambda: world.sinks.delete("nobody", Told()),
    ):
        with pytest.raises(PenstockError) as refused:
            call()
        assert refused.value.reason is Reason.UNKNOWN_SINK


@pytest.mark.parametrize("name", ["", "..", "a/b", "ä", "x" * 201])
def test_a_sink_is_named_as_a_topic_is(world, name) -> None:
    with pytest.raises(PenstockError) as refused:
        world.open(name)
    assert refused.value.reason is Reason.INVALID_REQUEST


# What targets make of it.


def test_the_topics_own_codec_is_used(world) -> None:
    world.create("zstd", compression_type="zstd")
    world.committed(0, ("zstd", 0, [world.stage(b"x" * 500, compression=Compression.GZIP), world.stage(b"y" * 500)]))
    assert [header.compression for header in world.headers(topic="zstd")] == [Compression.ZSTD] * 2
    assert world.values(topic="zstd") == [b"x" * 500, b"y" * 500]


def test_the_time_of_append_is_set_where_the_topic_wants_it(world) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    staged = world.stage(b"x", timestamp_ms=1)
    world.clock.advance(1000)
    world.committed(0, ("stamped", 0, [staged]))
    (header,) = world.headers(topic="stamped")
    assert header.is_log_append_time
    assert header.max_timestamp == world.clock.now_ms()


def test_each_commit_is_told_by_its_epoch_and_numbered_from_0_in_each_target(world) -> None:
    for batch_id in range(2):
        staged = [world.stage(b"1", b"2"), world.stage(b"3"), world.stage(b"4")]
        world.committed(batch_id, (TOPIC, 0, staged[:2]), (TOPIC, 1, staged[2:]))
    told = [(header.producer_epoch, header.base_sequence) for header in world.headers(0)]
    assert told == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert [(header.producer_epoch, header.base_sequence) for header in world.headers(1)] == [(0, 0), (1, 0)]
    assert len({header.producer_id for header in world.headers(0) + world.headers(1)}) == 1


def test_a_used_up_producer_is_replaced(world) -> None:
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    sink = world.sinks._sinks[SINK]
    sink.stored = type(sink.stored)(**{**_fields(sink.stored), "producer_epoch": 2**15 - 1})
    world.committed(1, (TOPIC, 0, [world.stage(b"2")]))
    first, second = world.headers()
    assert first.producer_id != second.producer_id
    assert second.producer_epoch == 0


def test_a_producer_of_which_a_target_knows_a_later_epoch_is_replaced(world) -> None:
    # Records of __sinks that were lost must not make the log refuse what is intended.
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    sink = world.sinks._sinks[SINK]
    sink.stored = type(sink.stored)(**{**_fields(sink.stored), "producer_epoch": -1})
    # As after a load.
    sink.has_own_producer = False
    world.committed(1, (TOPIC, 0, [world.stage(b"2")]))
    assert world.values() == [b"1", b"2"]


def _fields(stored) -> dict:
    return {name: getattr(stored, name) for name in stored.__struct_fields__}


# Several at once.


def test_of_two_commits_of_one_batch_one_appends(world) -> None:
    first, second = world.stage(b"1"), world.stage(b"1")
    told = world.commit(0, (TOPIC, 0, [first])), world.commit(0, (TOPIC, 0, [second]))
    world.settle()
    assert [each.committed.already for each in told] == [False, True]
    assert world.values() == [b"1"]


def test_a_commit_waits_for_the_one_before_it(world) -> None:
    staged = [world.stage(b"1"), world.stage(b"2")]
    told = world.commit(0, (TOPIC, 0, staged[:1])), world.commit(1, (TOPIC, 0, staged[1:]))
    world.settle()
    assert [each.committed.already for each in told] == [False, False]
    assert world.values() == [b"1", b"2"]


def test_a_second_commit_is_judged_by_itself_when_the_first_is_refused(world) -> None:
    told = world.commit(0, (TOPIC, 9, [world.stage(b"1")])), world.commit(0, (TOPIC, 0, [world.stage(b"2")]))
    world.settle()
    assert told[0].error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert told[1].committed.records == 1


def test_too_many_that_wait_are_refused(world) -> None:
    for _ in range(SINK_WAITING_MAX + 1):
        world.commit(0, (TOPIC, 0, []))
    with pytest.raises(PenstockError) as refused:
        world.commit(0, (TOPIC, 0, []))
    assert refused.value.reason is Reason.SINK_BUSY


def test_opening_waits_for_the_commit_under_way(world) -> None:
    told, opened = world.commit(0, (TOPIC, 0, [world.stage(b"1")])), Told()
    world.sinks.open(SINK, opened)
    world.settle()
    assert told.committed.records == 1
    assert opened.result.last_batch_id == 0


def test_the_answer_waits_for_the_sync(world) -> None:
    staged = world.stage(b"1")
    told = world.commit(0, (TOPIC, 0, [staged]))
    for _ in range(20):
        world.flusher.write()
    assert told.result is None
    world.settle()
    assert told.committed.records == 1


def test_without_syncs_a_commit_counts_when_it_is_written() -> None:
    world = World(flush=Flush.OS)
    world.open()
    told = world.commit(0, (TOPIC, 0, [world.stage(b"1")]))
    for _ in range(10):
        world.flusher.write()
    assert told.committed.records == 1


# Aborting, deleting, idling.


def test_an_abort_drops_what_is_staged(world) -> None:
    staged = world.stage(b"1")
    assert world.abort(0).aborted
    assert world.status().staged_bytes == 0
    assert world.committed(0, (TOPIC, 0, [staged])).error.reason is Reason.OFFSET_OUT_OF_RANGE
    world.restart()
    assert world.committed(0, (TOPIC, 0, [staged])).error.reason is Reason.OFFSET_OUT_OF_RANGE
    assert world.committed(0, (TOPIC, 0, [world.stage(b"2")])).committed.records == 1
    assert world.values() == [b"2"]


def test_an_abort_after_the_commit_does_nothing_and_says_so(world) -> None:
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    world.stage(b"next batch")
    aborted = world.abort(0)
    assert not aborted.aborted
    assert "committed" in aborted.why
    assert world.status().staged_bytes > 0


def test_an_abort_while_the_batch_is_being_committed_does_nothing(world) -> None:
    told, aborted = world.commit(0, (TOPIC, 0, [world.stage(b"1")])), Told()
    world.sinks.abort(SINK, 0, aborted)
    assert not aborted.result.aborted
    with pytest.raises(PenstockError) as refused:
        world.sinks.abort(SINK, 1, Told())
    assert refused.value.reason is Reason.SINK_BUSY
    world.settle()
    assert told.committed.records == 1


def test_a_deleted_sink_is_gone_with_what_was_staged(world) -> None:
    world.committed(0, (TOPIC, 0, [world.stage(b"1")]))
    world.stage(b"2")
    world.delete_sink()
    assert f"__staging.{SINK}" not in world.broker.topics
    world.restart()
    assert world.sinks.names() == []
    assert world.open().last_batch_id is None
    assert world.status().staged_bytes == 0
    assert world.committed(0, (TOPIC, 0, [world.stage(b"3")])).committed.records == 1
    assert world.values() == [b"1", b"3"]


def test_a_sink_is_not_deleted_under_a_commit(world) -> None:
    told = world.commit(0, (TOPIC, 0, [world.stage(b"1")]))
    with pytest.raises(PenstockError) as refused:
        world.sinks.delete(SINK, Told())
    assert refused.value.reason is Reason.SINK_BUSY
    world.settle()
    assert told.committed.records == 1


def test_the_staging_topic_goes_when_nobody_uses_it_and_the_last_batch_stays(world) -> None:
    world.committed(4, (TOPIC, 0, [world.stage(b"1")]))
    world.settle()
    world.advance(IDLE_MS - 1)
    assert f"__staging.{SINK}" in world.broker.topics
    world.stage(b"still used")
    world.advance(60_000)
    world.advance(IDLE_MS - 60_000)
    assert f"__staging.{SINK}" in world.broker.topics
    world.advance(IDLE_MS)
    assert f"__staging.{SINK}" not in world.broker.topics
    assert world.committed(5, (TOPIC, 0, [(0, 0, 1)])).error.reason is Reason.OFFSET_OUT_OF_RANGE
    world.restart()
    assert world.open().last_batch_id == 4
    assert world.committed(5, (TOPIC, 0, [world.stage(b"2")])).committed.records == 1
    assert world.values() == [b"1", b"2"]


def test_a_sink_that_never_committed_is_forgotten_when_it_idles(world) -> None:
    world.stage(b"1")
    world.settle()
    world.advance(IDLE_MS)
    world.advance(IDLE_MS)
    assert world.sinks.names() == []
    world.restart()
    assert world.sinks.names() == []
    assert not [topic for topic in world.broker.topics if topic.name.startswith("__staging")]


def test_a_sink_that_is_opened_while_it_is_deleted_is_opened_a_moment_later_with_a_staging_topic_of_its_own(
    world,
) -> None:
    """With the old one, a driver of the deleted sink could commit what it staged as a batch of the new one."""
    old = world.open().staging_id
    opened = Told()
    deleted: list[PenstockError | None] = []
    world.sinks.delete(SINK, deleted.append)
    world.sinks.open(SINK, opened)
    assert opened.error.reason is Reason.REQUEST_TIMED_OUT
    world.settle()
    assert deleted == [None]
    new = world.open()
    assert new.last_batch_id is None
    assert new.staging_id != old
    world.restart()
    assert world.committed(0, (TOPIC, 0, [world.stage(b"1")])).committed.records == 1


def test_a_sink_whose_staging_topic_is_just_removed_is_opened_a_moment_later(world) -> None:
    started = []
    world.broker.background = started.append
    world.sinks._drop_staging(f"__staging.{SINK}")
    world.broker.background, told = finish, Told()
    world.sinks.open(SINK, told)
    assert told.error.reason is Reason.REQUEST_TIMED_OUT
    finish(started.pop())
    assert world.open().last_batch_id is None


def test_the_number_of_sinks_is_bounded() -> None:
    world = World(sinks_max=2)
    world.open("a"), world.open("b")
    with pytest.raises(PenstockError) as refused:
        world.open("c")
    assert refused.value.reason is Reason.POLICY_VIOLATION
    for way_out in ("penstock sink delete NAME", "DELETE /v1/sinks/NAME", "raise sinks.sinks_max"):
        assert way_out in refused.value.text
    assert world.open("b").last_batch_id is None
    world.delete_sink("a")
    assert world.open("c").last_batch_id is None


def test_nobody_is_told_to_raise_a_bound_that_cannot_be(monkeypatch) -> None:
    monkeypatch.setattr("penstock.core.sinks.refusals.SINKS_MAX", 1)
    world = World(sinks_max=1)
    world.open("a")
    with pytest.raises(PenstockError) as refused:
        world.open("b")
    assert "sinks_max" not in refused.value.text


def test_a_staging_topic_without_a_sink_is_removed_at_the_start(world) -> None:
    world.sinks._commits.write(SINK, None, lambda _reason: None)
    world.settle()
    world.restart()
    assert f"__staging.{SINK}" not in world.broker.topics


def test_users_neither_make_nor_delete_staging_topics(world) -> None:
    for call in (lambda: world.create("__staging.mine"), lambda: world.delete(f"__staging.{SINK}")):
        with pytest.raises(PenstockError):
            call()


def test_records_of_another_version_are_passed_over(world) -> None:
    world.committed(1, (TOPIC, 0, [world.stage(b"1")]))
    log = world.sinks.family.topic
    log.append(0, [(b"later", b'{"version": 2, "since_ms": 1}'), (b"odd", b"not json")])
    world.settle()
    world.restart()
    assert world.sinks.names() == [SINK]
    assert any("2 records of a later version" in line for line in world.reports)


def test_stopping_tells_whoever_waits(world) -> None:
    told, opened = world.commit(0, (TOPIC, 0, [world.stage(b"1")])), Told()
    world.sinks.open(SINK, opened)
    world.broker.close()
    assert told.error.reason is Reason.SHUTTING_DOWN
    assert opened.error.reason is Reason.SHUTTING_DOWN
    assert world.sinks.next_deadline_ms() is not None
