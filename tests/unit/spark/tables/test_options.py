"""The options of tables: a misspelt one is reported, and names select topics."""

import pytest

from penstock.spark.errors import OptionError
from penstock.spark.tables.options import SELECTS_TOPICS, TableOptions


def options(**given):
    return TableOptions("topics", {"table": "topics", **given}, SELECTS_TOPICS)


def test_a_name_that_a_table_does_not_know_is_refused_with_those_that_it_knows() -> None:
    with pytest.raises(OptionError, match=r"Unknown option 'topc': .* .*topic"):
        options(topc="orders")
    assert options(**{"kafka.request.timeout.ms": "5", "Bootstrap.Servers": "x:1"}).get("topic") is None


def test_only_one_way_to_choose_topics_is_taken() -> None:
    with pytest.raises(OptionError, match="Give one of"):
        options(topic="a", subscribePattern="b")


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, ["orders", "payments", "shipments"]),
        ({"topic": "payments"}, ["payments"]),
        ({"subscribe": " orders , shipments"}, ["orders", "shipments"]),
        ({"subscribePattern": "ments$"}, ["payments", "shipments"]),
        ({"subscribePattern": "^orders$"}, ["orders"]),
    ],
)
def test_topics_are_chosen_by_name_by_pattern_or_all(given, chosen) -> None:
    assert options(**given).selects(["orders", "payments", "shipments"]) == chosen


def test_an_invalid_pattern_is_reported() -> None:
    with pytest.raises(OptionError, match="not a regular expression"):
        options(subscribePattern="(").selects(["orders"])


def test_an_option_that_a_table_needs_is_asked_for() -> None:
    with pytest.raises(OptionError, match=r'\.option\("topic"'):
        options(topic="  ").require("topic")
