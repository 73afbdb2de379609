"""The keys in memory: their order, their number, and what they cost."""

import tracemalloc
from uuid import UUID

from penstock.core.idempotency.keys import Keys
from penstock.core.idempotency.stored import Key, Note

TOPIC = UUID(int=1)


def key(number, topic=TOPIC):
    return Key(topic, number.to_bytes(20, "big"))


def note(noted_ms, offset=0):
    return Note(True, 0, offset, noted_ms)


def filled(count, topic=TOPIC):
    keys = Keys()
    for number in range(count):
        keys.put(key(number, topic), note(number))
    return keys


def test_keys_are_counted_once() -> None:
    keys = filled(3)
    keys.put(key(1), note(1, offset=7))
    assert keys.count == 3
    assert keys.get(key(1)).offset == 7
    keys.drop(key(1))
    keys.drop(key(1))
    assert keys.count == 2
    assert keys.get(key(1)) is None
    assert keys.get(key(1, UUID(int=2))) is None


def test_the_keys_whose_window_is_over_are_taken_oldest_first_and_no_more_than_asked_for() -> None:
    keys = filled(10)
    assert keys.take_over(104, 100, 3, ()) == [key(0), key(1), key(2)]
    assert keys.take_over(104, 100, 3, ()) == [key(3), key(4)]
    assert keys.take_over(104, 100, 3, ()) == []
    assert keys.count == 5


def test_a_key_in_use_is_not_taken() -> None:
    keys = filled(3)
    assert keys.take_over(1000, 100, 10, {key(0), key(2)}) == [key(1)]
    assert keys.take_over(1000, 100, 10, ()) == [key(0), key(2)] or keys.count == 0


def test_all_topics_have_their_turn() -> None:
    keys = Keys()
    for topic in range(1, 1201):
        keys.put(key(0, UUID(int=topic)), note(0))
    taken = []
    for _ in range(4):
        taken += keys.take_over(1000, 100, 1000, ())
    assert len(set(taken)) == 1200
    assert keys.count == 0
    assert keys.take_over(1000, 100, 1000, ()) == []


def test_a_deleted_topic_takes_its_keys_along() -> None:
    keys = filled(2)
    keys.put(key(5, UUID(int=2)), note(0))
    assert keys.drop_topic(TOPIC) == [key(0), key(1)]
    assert keys.drop_topic(TOPIC) == []
    assert [each for each, _ in keys.items()] == [key(5, UUID(int=2))]
    assert keys.count == 1
    keys.put(key(6), note(0))
    assert keys.take_over(1000, 100, 10, ()) == [key(5, UUID(int=2)), key(6)] or keys.count == 0


def test_a_key_costs_what_the_limits_say() -> None:
    tracemalloc.start()
    try:
        keys = filled(20_000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert keys.count == 20_000
    assert size / keys.count < 300
