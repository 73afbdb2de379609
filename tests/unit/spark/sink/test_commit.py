"""What the driver makes of what the tasks told."""

from penstock.client.sinks import StagedPart
from penstock.spark.sink.commit import merged, staged_by
from penstock.spark.sink.staging import Delivered, Staged


def test_a_partition_gets_what_the_tasks_staged_task_by_task():
    first = Staged("s", 1, (StagedPart("t", 0, [(0, 0, 5), (0, 9, 1)]), StagedPart("u", 1, [(0, 5, 4)])))
    second = Staged("s", 1, (StagedPart("u", 1, [(0, 10, 2)]), StagedPart("t", 0, [(0, 12, 3)])))
    assert merged([first, Staged("s", 1), second]) == [
        StagedPart("t", 0, [(0, 0, 5), (0, 9, 1), (0, 12, 3)]),
        StagedPart("u", 1, [(0, 5, 4), (0, 10, 2)]),
    ]


def test_a_task_that_failed_or_produced_by_itself_staged_nothing():
    assert staged_by([None, Delivered(3), Staged("s", 1)]) == [Staged("s", 1)]
