"""What a history holds a cluster to: each thing that must not be is found."""

from uuid import UUID

import pytest

from penstock.testing.simulation.history import MORTAL, History, TopicPartition, label

PLACE = TopicPartition("t", 0)


def new_history() -> History:
    history = History(lambda: 1.0)
    history.sends("a", PLACE, [b"a-1"])
    history.sends("a", PLACE, [b"a-2"])
    history.sends("b", PLACE, [b"b-1"])
    history.was_acknowledged("a", PLACE, 0, [b"a-1"])
    return history


@pytest.mark.parametrize(
    "log",
    [
        {0: b"a-1"},
        {0: b"a-1", 1: b"b-1", 2: b"a-2"},
        {0: b"a-1", 7: b"a-2"},
    ],
)
def test_what_was_promised_may_be_kept_in_many_ways(log: dict[int, bytes]) -> None:
    history = new_history()
    history.check({PLACE: log})
    assert history.violation is None


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ({}, "is lost"),
        ({1: b"a-1"}, "is at 1"),
        ({0: b"a-1", 1: b"b-1", 2: b"b-1"}, "twice"),
        ({0: b"a-1", 1: b"c-1"}, "nobody sent it"),
    ],
)
def test_a_log_that_breaks_a_promise_is_found(log: dict[int, bytes], words: str) -> None:
    history = new_history()
    history.check({PLACE: log})
    assert history.violation is not None
    assert words in history.violation


def test_records_out_of_their_producers_order_are_found() -> None:
    history = History(lambda: 1.0)
    history.sends("a", PLACE, [b"a-1"])
    history.sends("a", PLACE, [b"a-2"])
    history.check({PLACE: {0: b"a-2", 1: b"a-1"}})
    assert "behind what" in str(history.violation)


def test_two_records_at_one_offset_are_found_at_once() -> None:
    history = new_history()
    history.reads("reader", PLACE, 0, b"a-1")
    assert history.violation is None
    history.was_acknowledged("b", PLACE, 0, [b"b-1"])
    assert "two records" in str(history.violation)


def test_what_was_read_must_stay() -> None:
    history = new_history()
    history.reads("reader", PLACE, 1, b"b-1")
    history.check({PLACE: {0: b"a-1"}})
    assert "was read" in str(history.violation)


def test_a_high_watermark_that_goes_back_is_found_for_the_viewer_who_saw_it() -> None:
    history = new_history()
    history.sees_high_watermark("one", PLACE, 5)
    history.sees_high_watermark("another", PLACE, 3)
    assert history.violation is None
    history.sees_high_watermark("one", PLACE, 4)
    assert "went back" in str(history.violation)


def taken() -> History:
    history = History(lambda: 1.0)
    history.sends("one.1", PLACE, [b"one.1-1", b"one.1-2"])
    history.was_taken("one.1", PLACE, 4, [b"one.1-1", b"one.1-2"])
    return history


@pytest.mark.parametrize("log", [{}, {4: b"one.1-1"}, {4: b"one.1-1", 5: b"one.1-2"}])
def test_what_a_leader_has_only_written_may_be_lost(log: dict[int, bytes]) -> None:
    history = taken()
    history.check({PLACE: log})
    assert history.violation is None


@pytest.mark.parametrize(
    ("log", "words"),
    [({5: b"one.1-1"}, "and is at 5"), ({4: b"one.1-1", 6: b"one.1-1"}, "twice")],
)
def test_what_a_leader_has_only_written_is_nowhere_else(log: dict[int, bytes], words: str) -> None:
    history = taken()
    history.check({PLACE: log})
    assert words in str(history.violation)


def test_nothing_is_expected_of_what_was_deleted() -> None:
    history = new_history()
    history.excused.add(PLACE)
    history.check({})
    assert history.violation is None


def test_a_topic_that_can_be_made_again_is_called_by_its_life() -> None:
    one, other = UUID(int=1 << 100), UUID(int=2 << 100)
    assert label("t", one) == label("t", other) == "t"
    assert label(MORTAL, one) != label(MORTAL, other)


def test_the_digest_tells_histories_apart() -> None:
    one, same, other = new_history(), new_history(), new_history()
    other.note("something else")
    assert one.digest == same.digest != other.digest
