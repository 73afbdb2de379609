"""What is asked again before it is believed."""

import pytest

from penstock.client import Producer
from penstock.spark.options import SparkOptions
from penstock.spark.source.offsets import Edges
from penstock.spark.source.settings import stream_settings

PLACE = ("t", 0)


class Saying(Edges):
    """Edges of a broker that gives these ends, one after the other."""

    def __init__(self, *ends, **options) -> None:
        given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "0", **options}
        super().__init__(None, stream_settings(SparkOptions(given)))
        self.ends = list(ends)

    def latest(self, partitions):
        return {PLACE: self.ends.pop(0)}


@pytest.mark.parametrize(
    ("ends", "options", "found", "left"),
    [
        ([12, 13], {}, 12, [13]),
        ([10], {}, 10, []),
        # A broker that knows late has gone back for a moment.
        ([5, 12, 13], {}, 12, [13]),
        # A topic that was created again stays so: three attempts by default.
        ([5, 5, 6, 7], {}, 6, [7]),
        ([5, 12], {"fetchOffset.numRetries": "1"}, 5, [12]),
    ],
)
def test_an_end_that_went_back_is_asked_for_again(ends, options, found, left) -> None:
    edges = Saying(*ends, **options)
    assert edges.latest_not_before([PLACE], {PLACE: 10}) == {PLACE: found}
    assert edges.ends == left


@pytest.fixture
def old(topic, cluster):
    """Partition 0 begins before 1970, with a late record; partition 1 does not."""
    with Producer(cluster) as producer:
        for partition, times_ms in enumerate([[-5000, -1, -700, 1000, 2000], [3000, -9000]]):
            for time_ms in times_ms:
                producer.send(topic, b"", partition=partition, timestamp_ms=time_ms)
    return topic


@pytest.mark.parametrize(
    ("time_ms", "found"),
    [(-(10**30), 0), (-5000, 0), (-4999, 1), (-3, 1), (-2, 1), (-1, 1), (0, 3), (1001, 4), (2001, None)],
)
def test_a_time_before_1970_is_no_place_of_the_protocol(old, cluster, options, time_ms, found) -> None:
    edges = Edges(cluster, stream_settings(SparkOptions(options)))
    assert edges.first_at_or_after({(old, 0): time_ms}) == {(old, 0): found}


def test_times_before_1970_are_found_beside_others_and_where_all_records_are_so_old(old, cluster, options) -> None:
    edges = Edges(cluster, stream_settings(SparkOptions(options)))
    assert edges.first_at_or_after({(old, 0): -4000, (old, 1): -4000}) == {(old, 0): 1, (old, 1): 0}
    assert edges.first_at_or_after({(old, 0): 1500, (old, 1): -9000}) == {(old, 0): 4, (old, 1): 0}


def test_where_every_record_is_before_1970_a_time_between_them_is_found_and_one_behind_them_is_not(
    topic, cluster, options, fill
) -> None:
    fill(topic, 4, 0, timestamp_ms=-1000)
    edges = Edges(cluster, stream_settings(SparkOptions(options)))
    assert edges.first_at_or_after({(topic, 0): -998, (topic, 1): -998}) == {(topic, 0): 2, (topic, 1): None}
    assert edges.first_at_or_after({(topic, 0): -996}) == {(topic, 0): None}


@pytest.mark.parametrize(
    ("bounds", "offsets"),
    [
        ({"startingTimestamp": "-4999"}, [1, 2, 3, 4]),
        ({"startingTimestamp": "-2"}, [1, 2, 3, 4]),
        ({"endingTimestamp": "-10"}, [0]),
        ({"endingTimestamp": "-1"}, [0]),
        ({"startingTimestamp": "-1000", "endingTimestamp": "0"}, [1, 2]),
    ],
)
def test_a_query_begins_and_ends_at_times_before_1970(old, rows, bounds, offsets) -> None:
    found = rows(**bounds)
    assert [row["offset"] for row in found if row["partition"] == 0] == offsets
