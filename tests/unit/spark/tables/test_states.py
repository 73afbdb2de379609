"""States beside offsets: looked up for a whole batch, asked for as few times as need be."""

import numpy as np

from penstock.operations.queues import KnownStates, RecordState, TouchedRecord
from penstock.spark.tables.states import QueueStates, Window


class Pages:
    """A broker whose answers about states end where a test says."""

    def __init__(self, *ends) -> None:
        self.ends = ends
        self.asked: list[int] = []

    def states(self, topic, group, partition, from_offset):
        assert (topic, group, partition) == ("orders", "workers", 1)
        self.asked.append(from_offset)
        stop = next((end for end in self.ends if end > from_offset), None)
        upto = 100 if stop is None else stop
        touched = [
            TouchedRecord(at, RecordState.LEASED, 1, "", owner="w") for at in range(from_offset, upto) if at % 10 == 5
        ]
        finished = [(at, at + 3) for at in range(from_offset, upto) if at % 10 == 7]
        return KnownStates(topic, group, partition, 4, 100, touched, finished, stop)


def offsets(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_below_the_floor_and_in_a_run_records_are_finished() -> None:
    window = Window(0, 100, 4, [], [(7, 10), (17, 20)])
    assert window.finished(offsets(0, 3, 4, 6, 7, 9, 10, 16, 17, 19, 20)).tolist() == [
        *(True, True, False, False, True, True, False, False, True, True, False),
    ]
    assert Window(0, 100, 4, [], []).finished(offsets(3, 4)).tolist() == [True, False]


def test_a_record_that_nothing_happened_to_has_no_place() -> None:
    touched = [TouchedRecord(5, RecordState.LEASED, 1, ""), TouchedRecord(9, RecordState.READY, 2, "")]
    window = Window(0, 100, 0, touched, [])
    assert window.places(offsets(4, 5, 6, 9, 10)).to_pylist() == [None, 0, None, 1, None]
    assert Window(0, 100, 0, [], []).places(offsets(4, 5)).to_pylist() == [None, None]


def test_pages_are_asked_for_until_the_batch_is_covered_and_kept_for_the_next() -> None:
    admin = Pages(30, 60)
    states = QueueStates(admin, "orders", "workers")
    window = states.window(1, 0, 40)
    assert admin.asked == [0, 30]
    assert [each.offset for each in window.touched] == [5, 15, 25, 35, 45, 55]
    assert window.finished(offsets(7, 36, 37)).tolist() == [True, False, True]
    assert states.window(1, 41, 59) is window
    assert states.window(1, 58, 70) is not window
    assert admin.asked == [0, 30, 58, 60]


def test_an_answer_to_the_end_covers_all_that_comes() -> None:
    admin = Pages()
    states = QueueStates(admin, "orders", "workers")
    assert states.window(1, 10, 20) is states.window(1, 1_000_000, 2_000_000)
    assert states.window(1, 9, 9) is not None
    assert admin.asked == [10, 9]
