"""Of all records sent with one key within its window, one is appended, whatever happens in between."""

from typing import Never

import pytest

from penstock.core.idempotency.idempotency import SWEEP_MS, Idempotency
from penstock.core.idempotency.stored import KEY_HEADER, TENANT_HEADER
from penstock.core.partitions.delete_records import delete_records
from penstock.core.publish import NewRecord
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.topics import NewTopic
from penstock.errors import PenstockError, Reason
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.types import Acks, Flush
from tests.unit.core.idempotency.world import CALLER, TOPIC, WINDOW_MS, World, finish


@pytest.fixture
def world() -> World:
    return World()


def test_a_key_that_is_known_gives_the_first_ones_place_and_nothing_is_appended(world) -> None:
    first, again = world.sent(), world.sent()
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.placed == first.placed
    assert world.values() == [b"v1"]
    assert world.broker.meters.produce_duplicates.get((TOPIC,)) == 1


def test_a_record_keeps_its_headers_and_carries_its_key(world) -> None:
    world.sent("k", tenant="acme")
    ((_, record),) = world.records()
    assert dict(record.headers) == {"colour": b"red", KEY_HEADER: b"k", TENANT_HEADER: b"acme"}


def test_a_key_that_the_record_carries_already_is_there_once(world) -> None:
    sent = NewRecord(None, b"v", ((KEY_HEADER, b"other"), ("x", None)))
    world.keys.publish_once(CALLER, TOPIC, sent, Acks.ALL, "", "k", lambda *_: None)
    world.settle()
    ((_, record),) = world.records()
    assert record.headers == (("x", None), (KEY_HEADER, b"k"))


def test_tenants_topics_and_keys_are_kept_apart(world) -> None:
    finish(world.broker.topics.create(NewTopic("other", 1)))
    sent = [world.sent("bc", tenant="a"), world.sent("c", tenant="ab"), world.sent("bc"), world.sent("abc")]
    sent.append(world.sent("abc", topic="other"))
    assert [each.duplicate for each in sent] == [False] * 5


def test_two_at_the_same_time_the_second_waits_and_is_the_firsts_duplicate(world) -> None:
    first, second = world.send(), world.send()
    world.turn()
    third = world.send()
    assert (first.result, second.result, third.result) == (None, None, None)
    world.settle()
    assert [first.duplicate, second.duplicate, third.duplicate] == [False, True, True]
    assert first.placed == second.placed == third.placed
    assert world.values() == [b"v1"]


def test_nothing_is_appended_before_the_intent_is_committed(world) -> None:
    world.send(partition=0)
    partition = world.broker.partition(TOPIC, 0)
    world.flusher.write()
    world.flusher.write()
    assert partition.log.next_offset == 0
    world.flusher.sync()
    world.flusher.write()
    assert partition.log.next_offset == 1


def test_many_keys_of_one_turn_are_one_batch_of_the_key_log(world) -> None:
    log = world.broker.partition("__idempotency", 0).log
    for number in range(20):
        world.send(f"k{number}")
    world.flusher.write()
    assert log.next_offset == 20
    world.settle()
    assert len(world.records()) == 20
    assert log.next_offset == 40


def test_the_place_of_a_key_is_not_synced_at_once_because_nobody_waits_for_it(world, monkeypatch) -> None:
    partition = world.broker.partition("__idempotency", 0)
    log, unhurried = partition.log, []
    monkeypatch.setattr(partition, "_unhurried", lambda target: unhurried.append((target, target.next_offset)))
    start = log.next_offset
    world.sent()
    assert log.next_offset == start + 2, "the intent and the place"
    assert unhurried == [(log, start + 2)]
    world.send("next"), world.settle()
    assert unhurried == [(log, start + 2), (log, start + 4)]


def test_a_duplicate_that_asks_for_more_safety_than_the_first_waits_for_it(world) -> None:
    first = world.send(acks=Acks.NONE)
    world.flusher.sync()
    world.flusher.write()
    assert first.duplicate is False, "it waits for the intent alone"
    careful, careless = world.send(acks=Acks.ALL), world.send(acks=Acks.LEADER)
    assert careful.result is None
    assert careless.placed == first.placed
    world.settle()
    assert careful.placed == first.placed


def test_a_key_is_over_with_its_window(world) -> None:
    first = world.sent()
    world.advance(WINDOW_MS - 1)
    assert world.sent().placed == first.placed
    world.advance(SWEEP_MS)
    assert world.keys.key_count == 0
    assert world.sent().duplicate is False
    assert len(world.records()) == 2


def test_a_key_that_is_over_counts_as_unknown_before_it_is_swept_away(world) -> None:
    world.sent()
    world.clock.advance(WINDOW_MS)
    sent = world.send()
    for _ in range(3):
        world.flusher.sync()
    assert sent.duplicate is False
    world.settle()
    assert world.sent().placed == sent.placed


def test_keys_survive_a_restart_with_their_place_and_their_window(world) -> None:
    first = world.sent()
    world.clock.advance(WINDOW_MS - 1)
    world.restart()
    again = world.sent()
    assert again.duplicate is True
    assert again.placed == first.placed
    world.clock.advance(1)
    assert world.sent().duplicate is False


def test_keys_that_are_over_leave_the_log_of_keys_for_good(world) -> None:
    for number in range(5):
        world.sent(f"k{number}")
    world.advance(WINDOW_MS)
    world.restart()
    assert world.keys.key_count == 0
    world.settle()
    assert world.keys.next_deadline_ms() is None


def test_a_clock_that_went_back_forgets_nothing_and_keeps_nothing_for_ever(world) -> None:
    world.sent("ahead")
    world.clock.wall_ms -= 10 * WINDOW_MS
    world.sent("now")
    world.advance(2_000)
    assert [world.sent("ahead").duplicate, world.sent("now").duplicate] == [True, True]
    world.advance(WINDOW_MS)
    assert world.keys.key_count == 0


def test_the_keys_of_a_deleted_topic_go_with_it(world) -> None:
    world.sent()
    waiting = world.send("under way")
    finish(world.broker.topics.delete(TOPIC))
    assert waiting.error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert world.keys.key_count == 0
    finish(world.broker.topics.create(NewTopic(TOPIC, 2)))
    world.settle()
    assert world.sent().duplicate is False
    world.restart()
    assert world.keys.key_count == 1
    assert world.sent().duplicate is True


def test_keys_of_a_topic_that_was_deleted_while_their_end_was_not_yet_written_go_at_the_next_start(world) -> None:
    world.sent()
    finish(world.broker.topics.delete(TOPIC))
    world.restart()
    assert world.keys.key_count == 0
    world.settle()
    assert world.keys.next_deadline_ms() is None


def test_a_record_for_a_topic_that_has_the_name_of_a_deleted_one_is_not_put_there(world) -> None:
    waiting = world.send()
    finish(world.broker.topics.delete(TOPIC))
    finish(world.broker.topics.create(NewTopic(TOPIC, 2)))
    world.settle()
    assert waiting.error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert world.records() == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": "nobody"}, Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ({"key": ""}, Reason.INVALID_REQUEST),
        ({"key": "k" * 2000}, Reason.INVALID_REQUEST),
        ({"tenant": "t" * 2000}, Reason.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused_at_once(world, options, reason) -> None:
    with pytest.raises(PenstockError) as refused:
        world.send(**options)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": 9}, Reason.UNKNOWN_TOPIC_OR_PARTITION),
        ({"value": bytes(2_000_000)}, Reason.RECORDS_TOO_LARGE),
    ],
)
def test_a_record_that_is_refused_takes_its_key_back(world, options, reason) -> None:
    assert world.sent(**options).error.reason is reason
    assert world.keys.key_count == 0
    world.restart()
    assert world.keys.key_count == 0
    assert world.sent().duplicate is False


def test_whoever_waits_for_a_record_that_is_refused_is_refused_too(world) -> None:
    first, waiting = world.send(value=bytes(2_000)), world.send()
    finish(world.broker.topics.alter(TOPIC, [ConfigChange("max.message.bytes", ChangeKind.SET, "1000")]))
    world.settle()
    assert first.error.reason is waiting.error.reason is Reason.RECORDS_TOO_LARGE


def test_the_bound_of_a_backlog_is_asked_only_for_what_is_really_appended(world) -> None:
    asked = []

    def refuse(topic, partition) -> Never:
        asked.append((topic, partition))
        raise PenstockError(Reason.BACKLOG_FULL)

    first = world.sent(partition=1, admit=lambda *place: asked.append(place))
    assert asked == [(TOPIC, 1)]
    assert world.sent(admit=refuse).placed == first.placed
    assert asked == [(TOPIC, 1)]
    assert world.sent("new", partition=1, admit=refuse).error.reason is Reason.BACKLOG_FULL
    assert world.sent("new").duplicate is False


def test_when_there_is_no_room_for_a_key_a_new_one_is_refused_and_none_is_forgotten(world) -> None:
    world.keys._keys_max = 2
    first, second = world.sent("a"), world.sent("b")
    refused = world.sent("c").error
    assert refused.reason is Reason.POLICY_VIOLATION
    assert "lower queues.idempotency_ms" in refused.text
    assert (world.sent("a").placed, world.sent("b").placed) == (first.placed, second.placed)
    world.advance(WINDOW_MS)
    assert world.sent("c").duplicate is False


def test_whoever_waits_is_told_that_the_broker_stops(world) -> None:
    waiting = world.send()
    world.broker.close()
    assert waiting.error.reason is Reason.SHUTTING_DOWN
    world.flusher.sync()


def test_a_disk_without_room_for_the_key_refuses_and_the_key_is_free_again(world) -> None:
    sent = world.send(partition=0)
    world.disk.full = range(world.disk.room_calls + 1, world.disk.room_calls + 2)
    world.flusher.sync()
    assert sent.error.reason is Reason.STORAGE_ERROR
    assert world.broker.partition(TOPIC, 0).log.next_offset == 0
    world.disk.heal()
    assert world.sent().duplicate is False
    assert world.values() == [b"v2"]


def test_a_disk_without_room_for_the_record_refuses_and_sending_again_appends_it_once(world) -> None:
    sent = world.send(partition=0)
    world.flusher.sync()
    world.disk.full = range(world.disk.room_calls + 1, world.disk.room_calls + 2)
    world.flusher.sync()
    assert sent.error.reason is Reason.STORAGE_ERROR
    world.disk.heal()
    assert world.sent().duplicate is False
    assert world.sent().duplicate is True
    assert world.values() == [b"v2"]


def test_after_a_failed_sync_the_log_says_whether_the_record_is_there(world) -> None:
    sent = world.send(partition=0)
    world.flusher.sync()
    world.disk.failing_sync = world.disk.syncs + 1
    world.flusher.sync()
    assert sent.error.reason is Reason.STORAGE_ERROR
    assert world.sent(partition=0).error.reason is Reason.STORAGE_ERROR, "nobody can know until the log is read again"
    world.restart()
    again = world.sent()
    assert again.duplicate is True, "it was written, and no power was lost"
    assert world.values() == [b"v1"]


def test_a_place_is_noted_only_once_the_record_is_sure_to_stay(world) -> None:
    sent = world.send(partition=0, acks=Acks.NONE)
    world.flusher.sync()
    keys = world.broker.partition("__idempotency", 0).log
    world.flusher.write()
    assert sent.duplicate is False
    world.flusher.write()
    assert keys.next_offset == 1, "the record is written, and not yet synced"
    world.flusher.sync()
    world.flusher.write()
    assert keys.next_offset == 2
    assert world.values() == [b"v1"]


def test_a_record_that_lands_before_the_end_that_its_intent_saw_is_found_again(world) -> None:
    others = build_batch([Record(0, 1, b"x", b"lost")] * 5)
    world.broker.partition(TOPIC, 0).append(others, 1)
    world.send(partition=0)
    # There is no room for the others, and they are taken back; then there is, for the key and for the record.
    world.disk.full = range(world.disk.room_calls + 1, world.disk.room_calls + 2)
    with pytest.raises(PenstockError):
        world.broker.partition(TOPIC, 0).log.write_pending()
    world.flusher.sync()
    world.flusher.write()
    world.restart()
    assert world.sent().duplicate is True
    assert world.values() == [b"v1"]


def test_an_intent_whose_record_was_never_appended_is_free_after_a_restart(world) -> None:
    world.send()
    for gather in world.flusher._gatherers:
        gather()
    log = world.broker.partition("__idempotency", 0).log
    log.write_pending()
    task = log.begin_sync()
    task.run()
    world.restart()
    assert world.keys.key_count == 1
    assert world.sent().duplicate is False
    world.restart()
    assert world.sent().duplicate is True


def test_a_record_that_a_crash_left_without_its_place_is_found_before_it_is_deleted(world) -> None:
    world.send(partition=1)
    world.flusher.sync()
    world.flusher.write()
    world.restart()
    world.settle()
    delete_records(world.broker.partition(TOPIC, 1), 1)
    assert world.sent().duplicate is True
    assert world.values() == []


def test_an_intent_whose_time_the_topic_does_not_accept_any_more_gets_a_new_time(world) -> None:
    world.send()
    for gather in world.flusher._gatherers:
        gather()
    log = world.broker.partition("__idempotency", 0).log
    log.write_pending()
    log.begin_sync().run()
    finish(world.broker.topics.alter(TOPIC, [ConfigChange("message.timestamp.before.max.ms", ChangeKind.SET, "2000")]))
    world.restart()
    world.clock.advance(5_000)
    assert world.sent().duplicate is False
    assert world.values() == [b"v2"]


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_key_whose_record_a_power_loss_took_is_not_answered_with_one_of_an_earlier_window(is_placed) -> None:
    world = World(partitions=1, flush=Flush.OS)
    world.sent(value=b"A")
    world.sent("other")
    world.advance(WINDOW_MS)
    world.sent("more", value=b"B")
    if is_placed:
        world.sent(value=b"B")
    else:
        world.send(value=b"B")
        for gather in world.flusher._gatherers:
            gather()
    world.broker.partition("__idempotency", 0).log.write_pending()
    # The power loss took the end of one log, and not of the other.
    world.broker.partition(TOPIC, 0).log.truncate_to(1)
    world.restart()
    again = world.sent(value=b"B")
    assert again.duplicate is False
    assert world.values() == [b"A", b"B"]


def test_a_key_that_comes_again_while_its_record_is_looked_for_waits_for_the_answer(world) -> None:
    first = world.send(partition=1)
    world.flusher.sync()
    world.flusher.write()
    world.restart()
    waiting = [world.send(), world.send()]
    assert [each.result for each in waiting] == [None, None]
    world.settle()
    assert first.result is None
    assert [each.duplicate for each in waiting] == [True, True]
    assert [each.placed for each in waiting] == [(1, 0, world.clock.wall_ms)] * 2
    assert world.values() == [b"v1"]


def test_what_the_key_was_used_for_in_an_earlier_window_is_not_taken_for_its_record(world) -> None:
    world.sent("k", partition=0)
    world.advance(WINDOW_MS)
    world.sent("other", partition=0)
    world.send("k", partition=0)
    for gather in world.flusher._gatherers:
        gather()
    log = world.broker.partition("__idempotency", 0).log
    log.write_pending()
    log.begin_sync().run()
    world.restart()
    assert world.sent("k").duplicate is False
    assert world.by_key()[b"", b"k"] == 2


def test_a_search_passes_over_what_is_damaged_and_what_others_wrote(world, monkeypatch) -> None:
    partition = world.broker.partition(TOPIC, 0)
    for number in range(3):
        partition.append(build_batch([Record(0, 1, b"x", b"kafka%d" % number, (("h", b"1"),))]), 1)
    world.flusher.sync()
    first = world.send(partition=0)
    world.flusher.sync()
    world.flusher.write()
    world.restart()
    partition = world.broker.partition(TOPIC, 0)
    read = partition.log.reader.read
    faults = [PenstockError(Reason.CORRUPT_RECORDS)]

    def damaged_once(*arguments):
        if faults:
            raise faults.pop()
        return read(*arguments)

    monkeypatch.setattr(type(partition.log.reader), "read", lambda _, *arguments: damaged_once(*arguments))
    # The offset of the record itself is the damaged one: it is nowhere that anyone could read.
    again = world.sent(partition=0)
    assert first.result is None
    assert again.duplicate is False


def test_a_log_that_cannot_be_read_refuses_the_key_and_keeps_it(world, monkeypatch) -> None:
    world.send(partition=0)
    world.flusher.sync()
    world.flusher.write()
    world.restart()
    reader = type(world.broker.partition(TOPIC, 0).log.reader)

    def fail(*_) -> Never:
        raise PenstockError(Reason.STORAGE_ERROR, "no")

    with monkeypatch.context() as patch:
        patch.setattr(reader, "read", fail)
        waiting = world.sent()
        assert waiting.error.reason is Reason.STORAGE_ERROR
    assert world.sent().duplicate is True


def test_a_record_of_a_later_version_in_the_log_of_keys_is_passed_over(world) -> None:
    keys: Idempotency = world.keys
    keys.family.topic.append(0, [(b"\x63strange", b"v"), (b"\x01" + bytes(36), b"\x63strange")])
    world.sent()
    world.restart()
    assert world.keys.key_count == 1
    assert "2 records of a later version" in world.reports[-1]
