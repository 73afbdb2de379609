"""Where reading starts and ends, as options say it."""

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.source.bounds import EARLIEST, LATEST, BoundKind, check_batch, ending, starting


def start(**options):
    return starting(SparkOptions(options), BoundKind.LATEST)


def end(**options):
    return ending(SparkOptions(options))


def test_the_default_is_the_callers_for_the_start_and_latest_for_the_end() -> None:
    assert start().kind is BoundKind.LATEST
    assert starting(SparkOptions({}), BoundKind.EARLIEST).kind is BoundKind.EARLIEST
    assert end().kind is BoundKind.LATEST


def test_a_time_for_all_goes_before_times_and_times_before_offsets() -> None:
    everything = {
        "startingTimestamp": " 5 ",
        "startingOffsetsByTimestamp": '{"a":{"0":7}}',
        "startingOffsets": "earliest",
    }
    bound = start(**everything)
    assert (bound.kind, bound.timestamp_ms) == (BoundKind.TIMESTAMP, 5)
    del everything["startingTimestamp"]
    bound = start(**everything)
    assert (bound.kind, bound.by_partition) == (BoundKind.TIMESTAMPS, {("a", 0): 7})
    del everything["startingOffsetsByTimestamp"]
    assert start(**everything).kind is BoundKind.EARLIEST


def test_the_same_holds_for_the_end() -> None:
    everything = {"endingTimestamp": "5", "endingOffsetsByTimestamp": '{"a":{"0":7}}', "endingOffsets": '{"a":{"0":9}}'}
    assert end(**everything).kind is BoundKind.TIMESTAMP
    del everything["endingTimestamp"]
    assert end(**everything).kind is BoundKind.TIMESTAMPS
    del everything["endingOffsetsByTimestamp"]
    assert end(**everything).by_partition == {("a", 0): 9}


def test_words_may_be_written_in_any_case() -> None:
    assert start(startingOffsets=" Earliest ").kind is BoundKind.EARLIEST
    assert start(startingOffsets="LATEST").kind is BoundKind.LATEST


def test_offsets_by_partition() -> None:
    bound = start(startingOffsets='{"a":{"0":23,"1":-1},"b":{"0":-2}}')
    assert bound.by_partition == {("a", 0): 23, ("a", 1): LATEST, ("b", 0): EARLIEST}
    assert bound.mentions(LATEST)
    assert bound.mentions(EARLIEST)


def test_a_time_without_a_record_is_an_error_by_default() -> None:
    assert not start(startingTimestamp="5").no_match_is_latest
    assert start(startingTimestamp="5", startingOffsetsByTimestampStrategy="Latest").no_match_is_latest
    assert end(endingTimestamp="5").no_match_is_latest


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "newest"}, r'startingOffsets must be JSON such as \{"orders"'),
        ({"startingOffsets": "[]"}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"a":5}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"a":{"0":"5"}}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"a":{"0":true}}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"a":{"x":5}}'}, "startingOffsets must be JSON"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "a/0 is -3: use -1 for latest"),
        ({"startingTimestamp": str(2**63)}, "startingTimestamp has a time above"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":99999999999999999999}}'}, "ByTimestamp has a time above"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970, not 'yesterday'"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp must be JSON"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest, not 'guess'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(options, text) -> None:
    with pytest.raises(OptionError, match=text):
        start(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets cannot be earliest"),
        (
            {"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"1":1}}'},
            "must name the same partitions: a/0 and a/1",
        ),
        ({"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'}, "startingOffsets of a/0 is 5, after"),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "endingOffsetsByTimestamp": '{"a":{"0":4}}'},
            "startingOffsetsByTimestamp of a/0 is 5, after",
        ),
    ],
)
def test_a_query_that_ends_cannot_start_or_end_so(options, text) -> None:
    bounds = starting(SparkOptions(options), BoundKind.EARLIEST), ending(SparkOptions(options))
    with pytest.raises(OptionError, match=text):
        check_batch(*bounds)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":-1}}'},
        {"startingOffsets": '{"a":{"0":-2}}', "endingOffsets": '{"a":{"0":0}}'},
        {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":5}}'},
        {"startingOffsets": '{"a":{"0":5}}', "endingTimestamp": "1"},
    ],
)
def test_a_query_that_ends_may_start_and_end_so(options) -> None:
    check_batch(starting(SparkOptions(options), BoundKind.EARLIEST), ending(SparkOptions(options)))


def test_offsets_are_read_as_the_kafka_connector_writes_them() -> None:
    assert start(startingOffsets='{"a":{"0":1,"11":2}}').by_partition == {("a", 0): 1, ("a", 11): 2}
