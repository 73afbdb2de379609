"""Which partitions the options name."""

import uuid

import pytest

from penstock.client import Admin, Cluster
from penstock.spark.errors import OptionError
from penstock.spark.options import SparkOptions
from penstock.spark.source.selection import Selection, find, selection_of


def of(**options):
    return selection_of(SparkOptions(options))


def test_subscribe_takes_names_between_commas() -> None:
    assert of(subscribe=" a, b,,c ").topics == {"a", "b", "c"}


def test_assign_takes_partitions() -> None:
    assert of(assign='{"a":[0,2],"b":[1]}').partitions == {("a", 0), ("a", 2), ("b", 1)}


def test_named_groups_may_be_spelt_as_java_does() -> None:
    assert of(subscribePattern="(?<kind>orders|payments)").pattern == "(?P<kind>orders|payments)"
    assert of(subscribePattern="(?<=a)b(?<!c)").pattern == "(?<=a)b(?<!c)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of the options subscribe, subscribePattern, assign .*: none is set"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are set"),
        ({"subscribe": " , "}, "subscribe contains no topic"),
        ({"subscribePattern": " "}, "subscribePattern is empty"),
        ({"subscribePattern": "a("}, "subscribePattern is not a valid pattern"),
        ({"assign": "a"}, r'assign must be JSON such as \{"orders":\[0,1\]'),
        ({"assign": "{}"}, "assign names no partition"),
        ({"assign": '{"a":0}'}, "assign must be JSON such as"),
        ({"assign": '{"a":["0"]}'}, "assign must be JSON such as"),
        ({"assign": '{"a":[true]}'}, "assign must be JSON such as"),
        ({"assign": "[]"}, "assign must be JSON such as"),
    ],
)
def test_invalid_selections_are_refused(options, text) -> None:
    with pytest.raises(OptionError, match=text):
        of(**options)


@pytest.fixture
def cluster(penstock_broker):
    with Cluster(penstock_broker.bootstrap) as cluster:
        yield cluster


def test_partitions_are_those_that_there_are(cluster) -> None:
    stem = uuid.uuid4().hex
    Admin(cluster).create_topic(f"{stem}-a", partitions=2)
    Admin(cluster).create_topic(f"{stem}-b", partitions=1)
    both = {(f"{stem}-a", 0), (f"{stem}-a", 1), (f"{stem}-b", 0)}

    found = find(cluster, Selection(topics=frozenset({f"{stem}-a", f"{stem}-none"})))
    assert found.partitions == {(f"{stem}-a", 0), (f"{stem}-a", 1)}
    assert found.missing == {f"{stem}-none"}

    assert find(cluster, Selection(pattern=f"{stem}-.*")).partitions == both
    assert find(cluster, Selection(pattern=stem[3:])).partitions == both, "found anywhere in the name, as Spark does"
    assert find(cluster, Selection(pattern=f"^{stem[3:]}")).partitions == set()

    assigned = Selection(topics=frozenset({f"{stem}-a"}), partitions=frozenset({(f"{stem}-a", 1), (f"{stem}-a", 7)}))
    assert find(cluster, assigned).partitions == {(f"{stem}-a", 1)}
    assert find(cluster, assigned).missing_partitions == {(f"{stem}-a", 7)}


def test_the_brokers_own_topics_are_not_read(cluster) -> None:
    from penstock.client import GroupAdmin

    Admin(cluster).create_topic(topic := uuid.uuid4().hex, partitions=1)
    GroupAdmin(cluster).commit("g", {(topic, 0): 0})
    assert not [topic for topic, _ in find(cluster, Selection(pattern=".*")).partitions if topic.startswith("__")]
    with pytest.raises(OptionError, match="__consumer_offsets is internal"):
        find(cluster, Selection(topics=frozenset({"__consumer_offsets"})))
