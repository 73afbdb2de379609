"""Which staged batches belong to which partition."""

import pytest

from penstock.client.errors import ClientError
from penstock.client.sending import Delivery
from penstock.client.sinks import StagedPart
from penstock.spark.sink.staging import parts_of


def delivery(base_offset, count):
    return Delivery("__staging.s", 0, base_offset, count)


def test_batches_are_told_by_their_destination_in_order():
    targets = [("t", 0), ("u", 1), ("t", 0)]
    deliveries = [delivery(0, 5), delivery(5, 2), delivery(9, 1)]
    assert parts_of(targets, deliveries) == [
        StagedPart("t", 0, [(0, 0, 5), (0, 9, 1)]),
        StagedPart("u", 1, [(0, 5, 2)]),
    ]


def test_batches_that_touch_are_one_range():
    assert parts_of([("t", 0)] * 3, [delivery(3, 5), delivery(8, 2), delivery(11, 1)]) == [
        StagedPart("t", 0, [(0, 3, 7), (0, 11, 1)])
    ]


def test_a_batch_whose_place_nobody_knows_is_not_committed():
    with pytest.raises(ClientError, match="try again"):
        parts_of([("t", 0)], [delivery(-1, 5)])
