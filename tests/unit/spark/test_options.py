"""The values of options."""

import pickle

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions, options_of


def test_case_does_not_count() -> None:
    options = SparkOptions({"StartingOffsets": "earliest", "kafka.bootstrap.servers": "a:1"})
    assert options["startingoffsets"] == options["STARTINGOFFSETS"] == "earliest"
    assert "startingOffsets" in options
    assert "endingOffsets" not in options
    assert len(options) == 2


def test_options_survive_the_way_to_a_task() -> None:
    assert pickle.loads(pickle.dumps(SparkOptions({"A": "1"})))["a"] == "1"


def test_options_are_made_once() -> None:
    options = SparkOptions({"a": "1"})
    assert options_of(options) is options
    assert options_of({"A": "1"})["a"] == "1"


@pytest.mark.parametrize("name", ["kafka.bootstrap.servers", "bootstrap.servers"])
def test_brokers_are_named_in_either_of_two_ways(name) -> None:
    assert SparkOptions({name: " 127.0.0.1:9092 "}).bootstrap == "127.0.0.1:9092"


@pytest.mark.parametrize("options", [{}, {"kafka.bootstrap.servers": " "}])
def test_without_brokers_the_text_says_what_to_set(options) -> None:
    with pytest.raises(OptionError, match=r'Set the option kafka\.bootstrap\.servers .* "127'):
        _ = SparkOptions(options).bootstrap


def test_numbers() -> None:
    options = SparkOptions({"n": " 7 ", "low": "0", "bad": "x"})
    assert options.integer("n") == 7
    assert options.integer("other") is None
    assert options.integer("other", 3) == 3
    with pytest.raises(OptionError, match="low must be 1 or more, not 0"):
        options.integer("low", at_least=1)
    with pytest.raises(OptionError, match="bad must be an integer, not 'x'"):
        options.integer("bad")


def test_flags() -> None:
    options = SparkOptions({"yes": "TRUE", "no": " false", "bad": "1"})
    assert options.flag("yes", default=False)
    assert not options.flag("no", default=True)
    assert options.flag("other", default=True)
    with pytest.raises(OptionError, match="bad must be true or false, not '1'"):
        options.flag("bad", default=True)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("30s", 30_000), ("1 h", 3_600_000), ("250", 250), ("2d", 172_800_000), ("5min", 300_000)],
)
def test_times(text, ms) -> None:
    assert SparkOptions({"t": text}).duration_ms("t", 1) == ms


def test_times_that_are_none() -> None:
    assert SparkOptions({}).duration_ms("t", 5) == 5
    with pytest.raises(OptionError, match="a duration such as 30s"):
        SparkOptions({"t": "soon"}).duration_ms("t", 1)
    with pytest.raises(OptionError, match="a duration such as 30s"):
        SparkOptions({"t": "3 fortnights"}).duration_ms("t", 1)
