"""Where replicas are to go: the plan that people see first."""

from uuid import UUID

import pytest

from penstock.address import Address
from penstock.cli.cluster_plan import chosen, parse_nodes, parse_place, plan_count, plan_to
from penstock.cli.failures import Exit, Failure
from penstock.client import ClusterInfo, Node, PartitionInfo, TopicInfo


def info(*partitions, racks=(None, None, None), in_sync=None):
    """Nodes 1 to N, and the topic ``t`` with these replicas."""
    nodes = {n: Node(n, Address("127.0.0.1", 9000 + n), rack) for n, rack in enumerate(racks, 1)}
    parts = tuple(
        PartitionInfo(n, replicas[0], 0, replicas, in_sync or replicas) for n, replicas in enumerate(partitions)
    )
    topics = {"t": TopicInfo("t", UUID(int=1), False, parts)}
    return ClusterInfo("c", 1, nodes, topics, {})


def then(planned):
    return [each.then for each in planned]


@pytest.mark.parametrize(("text", "place"), [("orders", ("orders", None)), ("a.b/12", ("a.b", 12))])
def test_a_topic_or_one_partition_of_it_is_named(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "/1", "t/", "t/x", "t/-1", "t/1/2"])
def test_what_names_no_partition_is_wrong_usage(text):
    with pytest.raises(Failure) as raised:
        parse_place(text)
    assert raised.value.code is Exit.USAGE


@pytest.mark.parametrize("text", ["", "1,", "1,x", "1,1", "-1"])
def test_what_names_no_nodes_is_wrong_usage(text):
    with pytest.raises(Failure) as raised:
        parse_nodes(text, "--to")
    assert raised.value.code is Exit.USAGE


def test_what_is_not_there_is_not_found():
    there = info((1,), (2,))
    for text in ("u", "t/2"):
        with pytest.raises(Failure) as raised:
            chosen(there, [text])
        assert raised.value.code is Exit.NOT_FOUND
    assert list(chosen(there, ["t/1", "t"])) == [("t", 1), ("t", 0)]


def test_a_list_of_nodes_is_turned_over_the_partitions_of_a_topic_so_that_each_node_leads_some():
    there = info((1,), (1,), (1,), (1,))
    assert then(plan_to(chosen(there, ["t"]), (1, 2, 3), ["t"])) == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]


def test_a_partition_that_is_named_gets_the_list_as_it_is():
    there = info((1,), (1,))
    assert then(plan_to(chosen(there, ["t/1"]), (1, 2, 3), ["t/1"])) == [(1, 2, 3)]


def test_more_replicas_go_where_fewest_are():
    there = info((1,), (1,), (2,))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3), (1, 2), (2, 3)]


def test_more_replicas_go_to_racks_that_the_partition_is_not_in():
    there = info((1,), racks=("a", "a", "b"))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3)]


def test_fewer_replicas_keep_the_leader_and_those_in_sync():
    there = info((1, 2, 3), in_sync=(1, 3))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3)]


def test_more_replicas_than_nodes_are_refused():
    there = info((1,))
    with pytest.raises(Failure, match="3 are up"):
        plan_count(there, chosen(there, ["t"]), 4)


def test_a_row_says_what_changes():
    (kept, grown, turned) = plan_to(chosen(info((1, 2), (3,), (2, 1)), ["t"]), (1, 2), ["t/0", "t/1", "t/2"])
    assert [each.row()["change"] for each in (kept, grown, turned)] == ["stays", "+1 +2 -3", "another order"]
    assert [each.is_change for each in (kept, grown, turned)] == [False, True, True]
