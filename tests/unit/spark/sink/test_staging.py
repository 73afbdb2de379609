"""Which staged batches belong to which partition."""

import pytest

from penstock.client.cluster import Cluster
from penstock.client.errors import BatchTooLarge, ClientError
from penstock.client.sending import DeliveredBatch
from penstock.operations.sinks import OpenedSink, SinkPart
from penstock.spark.sink.staging import Staged, StagingWriter, parts_of
from tests.unit.client.test_batches import too_large


def delivery(base_offset, count):
    return DeliveredBatch("__staging.s", 0, base_offset, count)


def test_batches_are_listed_by_destination_in_order() -> None:
    targets = [("t", 0), ("u", 1), ("t", 0)]
    deliveries = [delivery(0, 5), delivery(5, 2), delivery(9, 1)]
    assert parts_of(targets, deliveries) == [
        SinkPart("t", 0, [(0, 0, 5), (0, 9, 1)]),
        SinkPart("u", 1, [(0, 5, 2)]),
    ]


def test_batches_that_touch_are_one_range() -> None:
    assert parts_of([("t", 0)] * 3, [delivery(3, 5), delivery(8, 2), delivery(11, 1)]) == [
        SinkPart("t", 0, [(0, 3, 7), (0, 11, 1)])
    ]


def test_a_batch_with_unknown_position_is_not_committed() -> None:
    with pytest.raises(ClientError, match="try again"):
        parts_of([("t", 0)], [delivery(-1, 5)])


def test_a_batch_that_is_too_large_is_reported_with_its_target() -> None:
    opened = OpenedSink("s", "t", "an id", 1, None)
    with Cluster("127.0.0.1:1") as cluster:
        staging = StagingWriter(cluster, opened, 0, 3)
        with pytest.raises(BatchTooLarge, match=r"^orders/2: a record of 104,8.* write smaller records"):
            staging.send("orders", 2, too_large(), 1)
        assert staging.finish() == Staged("s", 3, "an id")
