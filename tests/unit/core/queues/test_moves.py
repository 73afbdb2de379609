"""What could keep a record from getting to another topic, or bring it there for ever."""

import random

import pytest

from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.errors import PenstockError, Reason
from penstock.records.batch import Compression
from penstock.records.builder import BatchBuilder, build_batch
from penstock.records.records import Record
from tests.support.kafka_wire import NOW_MS
from tests.unit.core.queues.world import GROUP, TOPIC, Answers, World, header

ONE_ATTEMPT = (("penstock.max_attempts", b"1"),)
DEAD_LETTERS = f"dlq.{TOPIC}"


def append_unsynced(world: World, topic: str) -> None:
    """Somebody else produces to the topic, and is not answered yet."""
    now_ms = world.clock.now_ms()
    world.broker.partition(topic, 0).append(build_batch([Record(0, now_ms, None, b"foreign", ())]), now_ms)


def intend(world: World) -> None:
    """A record is called moving, for good, and nothing is appended yet."""
    world.lease("a")
    world.nack("a", 0, "bad", turn=False)
    world.flusher.turn()
    assert world.queues.status(TOPIC, GROUP).partitions[0].moving == 1


def reasons(world: World) -> list[str | None]:
    return [header(letter, "last_error") for letter in world.records(DEAD_LETTERS) if letter.value != b"foreign"]


def test_a_move_that_is_looked_for_in_a_busy_topic_is_not_forgotten_while_it_waits(world) -> None:
    world.create(DEAD_LETTERS)
    world.produce(2, headers=ONE_ATTEMPT)
    intend(world)
    world.kill()
    append_unsynced(world, DEAD_LETTERS)
    world.flusher.write()
    # Turns pass before the topic's end is synced.
    for _ in range(2):
        world.queues._context.schedule()
        world.flusher.write()
    world.flusher.sync()
    world.advance(20_000)
    assert reasons(world) == ["bad"]
    assert world.floor() == 1


def test_a_record_that_cannot_be_read_holds_no_other_move_up(world, monkeypatch) -> None:
    world.produce(4, headers=ONE_ATTEMPT)
    world.lease("a", max_records=4)
    read = world.queues._context.mover._read

    def damaged(entry):
        if entry.offset == 2:
            raise PenstockError(Reason.CORRUPT_RECORDS, "record 2 is damaged")
        return read(entry)

    monkeypatch.setattr(world.queues._context.mover, "_read", damaged)
    for offset in range(4):
        world.nack("a", offset, str(offset), turn=False)
    world.advance(20_000)
    assert sorted(reasons(world)) == ["0", "1", "3"]
    monkeypatch.undo()
    world.advance(20_000)
    assert sorted(reasons(world)) == ["0", "1", "2", "3"]


def test_a_record_that_is_only_small_enough_when_compressed_dies_and_comes_back(world) -> None:
    value = b"x" * 3_000_000
    builder = BatchBuilder()
    builder.add(world.clock.now_ms(), b"key", value, ONE_ATTEMPT)
    world.broker.partition(TOPIC, 0).append(builder.build(compression=Compression.GZIP), world.clock.now_ms())
    world.turn()
    world.lease("a")
    world.nack("a", 0, "bad")
    world.advance(1500)
    (letter,) = world.records(DEAD_LETTERS)
    assert letter.value == value
    done = Answers()
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [0], TOPIC, 0, done)
    world.turn()
    assert done.reason is None
    assert [record.value for record in world.records(TOPIC)] == [value, value]


def test_a_move_goes_to_another_partition_when_its_own_is_gone(world) -> None:
    world.run(world.broker.topics.add_partitions(TOPIC, 4))
    world.create(DEAD_LETTERS, partitions=4)
    world.produce(1, partition=3, headers=ONE_ATTEMPT)
    world.lease("a")
    world.nack("a", 0, "bad", partition=3, turn=False)
    world.flusher.turn()
    world.run(world.broker.topics.delete(DEAD_LETTERS))
    world.create(DEAD_LETTERS, partitions=1)
    world.advance(20_000)
    assert reasons(world) == ["bad"]


def test_a_dead_letter_that_fails_again_stays_where_it_is(world) -> None:
    world.produce(1, headers=ONE_ATTEMPT)
    world.lease("a")
    world.nack("a", 0, "bad")
    world.advance(1500)
    assert [d.offset for d in world.lease("fixer", topic=DEAD_LETTERS, group="fixers")] == [0]
    done = world.nack("fixer", 0, "worse", topic=DEAD_LETTERS, group="fixers")
    assert done.reason is None
    world.advance(1500)
    # No copy, which would fail again and again and fill the disk, and would be redriven beside the first.
    assert reasons(world) == ["bad"]
    assert world.floor(topic=DEAD_LETTERS, group="fixers") == 1
    assert not world.queues.is_finished(DEAD_LETTERS, REDRIVE_GROUP, 0, 0)
    world.kill()
    assert world.lease("fixer", topic=DEAD_LETTERS, group="fixers") == []


def test_nothing_is_moved_into_the_brokers_own_topics(world) -> None:
    world.create(DEAD_LETTERS)
    world.produce(1, topic=DEAD_LETTERS)
    with pytest.raises(PenstockError) as refused:
        world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [0], "__queue_state", 0, Answers())
    assert refused.value.reason is Reason.INVALID_TOPIC
    assert not world.queues.is_finished(DEAD_LETTERS, REDRIVE_GROUP, 0, 0)


def test_a_dead_letter_is_open_again_when_the_topic_it_was_on_its_way_to_is_deleted(world) -> None:
    world.create(DEAD_LETTERS)
    world.produce(1, topic=DEAD_LETTERS)
    done = Answers()
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [0], TOPIC, 0, done)
    # The intent is stored, the record is not appended yet.
    world.flusher.turn()
    assert world.queues.is_finished(DEAD_LETTERS, REDRIVE_GROUP, 0, 0)
    world.run(world.broker.topics.delete(TOPIC))
    world.advance(1_000)
    assert done.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    world.kill()
    assert not world.queues.is_finished(DEAD_LETTERS, REDRIVE_GROUP, 0, 0)
    world.create()
    again = Answers()
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [0], TOPIC, 0, again)
    world.turn()
    assert again.reason is None
    assert len(world.records(TOPIC)) == 1


def test_no_topic_is_made_for_dead_letters_of_a_topic_that_is_gone(world) -> None:
    world.produce(1, headers=ONE_ATTEMPT)
    intend(world)
    world.run(world.broker.topics.delete(TOPIC))
    world.advance(1_000)
    assert DEAD_LETTERS not in world.broker.topics


def test_many_moves_take_many_turns_and_one_that_is_stuck_delays_no_other(world, monkeypatch) -> None:
    count = 3_000
    world.create(DEAD_LETTERS)
    world.produce(count, topic=DEAD_LETTERS)
    mover = world.queues._context.mover
    read = mover._read

    def damaged(entry):
        if entry.offset == 100:
            raise PenstockError(Reason.CORRUPT_RECORDS, "record 100 is damaged")
        return read(entry)

    monkeypatch.setattr(mover, "_read", damaged)
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, range(count), TOPIC, 0, Answers())
    world.flusher.turn()
    world.flusher.turn()
    assert 0 < len(world.records(TOPIC)) < 1_000
    # No time passes.
    world.turn()
    assert len(world.records(TOPIC)) == count - 1
    monkeypatch.undo()
    world.advance(20_000)
    assert len(world.records(TOPIC)) == count


@pytest.mark.parametrize(
    ("config", "strict", "lax", "refused"),
    [
        ("max.message.bytes", "2000", "10000", Record(0, NOW_MS, b"key", random.Random(1).randbytes(4_000), ())),
        ("cleanup.policy", "compact", "delete", Record(0, NOW_MS, None, b"without a key", ())),
    ],
)
def test_a_record_that_the_target_refuses_delays_no_other(world, config, strict, lax, refused) -> None:
    world.create(DEAD_LETTERS)
    world.create("strict", **{config: strict})
    world.produce(3, topic=DEAD_LETTERS)
    world.broker.partition(DEAD_LETTERS, 0).append(build_batch([refused]), NOW_MS)
    world.produce(3, topic=DEAD_LETTERS)
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, range(7), "strict", 0, Answers())
    world.advance(10_000)
    assert len(world.records("strict")) == 6
    world.run(world.broker.topics.alter("strict", [ConfigChange(config, ChangeKind.SET, lax)]))
    world.advance(20_000)
    assert len(world.records("strict")) == 7


def test_many_records_that_the_target_refuses_delay_no_later_one(world) -> None:
    world.create(DEAD_LETTERS)
    world.create("strict", **{"cleanup.policy": "compact"})
    for _ in range(30):
        world.broker.partition(DEAD_LETTERS, 0).append(build_batch([Record(0, NOW_MS, None, b"no key", ())]), NOW_MS)
    world.produce(1, topic=DEAD_LETTERS)
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, range(30), "strict", 0, Answers())
    world.advance(20_000)
    world.queues.move(DEAD_LETTERS, REDRIVE_GROUP, 0, [30], "strict", 0, Answers())
    world.advance(15_000)
    assert len(world.records("strict")) == 1


def test_a_target_that_demands_more_replicas_than_it_has_takes_dead_letters(world) -> None:
    world.create(DEAD_LETTERS, min_insync_replicas="2")
    world.produce(1, headers=ONE_ATTEMPT)
    intend(world)
    world.kill()
    world.boot()
    world.produce(1, headers=ONE_ATTEMPT)
    world.lease("a")
    world.nack("a", 1, "bad")
    world.advance(1_000)
    assert len(world.records(DEAD_LETTERS)) == 2


def test_dead_letters_lie_in_the_order_in_which_they_died_also_those_that_waited_for_their_topic(world) -> None:
    world.produce(2, headers=(("penstock.max_attempts", b"1"),))
    world.lease("a", max_records=2, lease_ms=60_000)
    world.nack("a", 0, "first", turn=False)
    while not world.background:
        world.flusher.turn()
    # The second one dies while the topic of the first is being made.
    died = world.nack("a", 1, "second", turn=False)
    while died.waits:
        world.flusher.turn()
    world.run(world.background.pop(0))
    world.turn()
    assert [header(record, "last_error") for record in world.records("dlq.orders")] == ["first", "second"]
