"""Where replicas are to go: the plan that people see first."""

from uuid import UUID

import pytest

from penstock.address import Address
from penstock.cli.cluster_plan import check_plan, chosen, parse_nodes, parse_partition, plan_count, plan_to, with_linked
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


def topics(**partitions):
    """Nodes 1 to 4, and these topics with their partitions' replicas, all in sync."""
    nodes = {n: Node(n, Address("127.0.0.1", 9000 + n), None) for n in range(1, 5)}
    found = {
        name: TopicInfo(name, UUID(int=1), False, tuple(PartitionInfo(n, r[0], 0, r, r) for n, r in enumerate(parts)))
        for name, parts in partitions.items()
    }
    return ClusterInfo("c", 1, nodes, found, {})


def then(planned):
    return [each.then for each in planned]


@pytest.mark.parametrize(("text", "place"), [("orders", ("orders", None)), ("a.b/12", ("a.b", 12))])
def test_a_topic_or_one_partition_of_it_is_named(text, place) -> None:
    assert parse_partition(text) == place


@pytest.mark.parametrize("text", ["", "/1", "t/", "t/x", "t/-1", "t/1/2"])
def test_what_names_no_partition_is_wrong_usage(text) -> None:
    with pytest.raises(Failure) as raised:
        parse_partition(text)
    assert raised.value.code is Exit.USAGE


@pytest.mark.parametrize("text", ["", "1,", "1,x", "1,1", "-1"])
def test_what_names_no_nodes_is_wrong_usage(text) -> None:
    with pytest.raises(Failure) as raised:
        parse_nodes(text, "--to")
    assert raised.value.code is Exit.USAGE


def test_what_is_not_there_is_not_found() -> None:
    there = info((1,), (2,))
    for text in ("u", "t/2"):
        with pytest.raises(Failure) as raised:
            chosen(there, [text])
        assert raised.value.code is Exit.NOT_FOUND
    assert list(chosen(there, ["t/1", "t"])) == [("t", 1), ("t", 0)]


def test_a_list_of_nodes_is_turned_over_the_partitions_of_a_topic_so_that_each_node_leads_some() -> None:
    there = info((1,), (1,), (1,), (1,))
    assert then(plan_to(chosen(there, ["t"]), (1, 2, 3), ["t"])) == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]


def test_a_partition_that_is_named_gets_the_list_as_it_is() -> None:
    there = info((1,), (1,))
    assert then(plan_to(chosen(there, ["t/1"]), (1, 2, 3), ["t/1"])) == [(1, 2, 3)]


def test_more_replicas_go_where_fewest_are() -> None:
    there = info((1,), (1,), (2,))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3), (1, 2), (2, 3)]


def test_more_replicas_go_to_racks_that_the_partition_is_not_in() -> None:
    there = info((1,), racks=("a", "a", "b"))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3)]


def test_fewer_replicas_keep_the_leader_and_those_in_sync() -> None:
    there = info((1, 2, 3), in_sync=(1, 3))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 3)]


def test_more_replicas_than_nodes_are_refused() -> None:
    there = info((1,))
    with pytest.raises(Failure, match="only 3 are up"):
        plan_count(there, chosen(there, ["t"]), 4)
    with pytest.raises(Failure, match="3 replicas need 3 nodes, but only 2 are up and not being drained"):
        plan_count(there, chosen(there, ["t"]), 3, draining={3})
    alone = info((1,), racks=(None,))
    with pytest.raises(Failure, match="2 replicas need 2 nodes, but only 1 is up;"):
        plan_count(alone, chosen(alone, ["t"]), 2)


def test_fewer_replicas_are_taken_from_nodes_that_are_being_emptied_first() -> None:
    there = info((1, 4, 3), racks=(None,) * 4)
    assert then(plan_count(there, chosen(there, ["t"]), 2, draining={1})) == [(4, 3)]


def test_fewer_replicas_are_taken_from_nodes_that_are_down_before_those_that_are_up() -> None:
    # Node 4 is none of those that are up.
    there = info((4, 1, 2), in_sync=(1, 2))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 2)]
    both = info((4, 1, 2, 3), in_sync=(1, 2))
    assert then(plan_count(both, chosen(both, ["t"]), 2, draining={1})) == [(2, 3)]
    assert then(plan_count(both, chosen(both, ["t"]), 3, draining={1})) == [(4, 2, 3)]


def test_where_too_few_are_up_one_that_is_takes_the_place_of_one_that_is_down() -> None:
    # A move ends when all that are to have the partition are in sync: one to a node that is down would not.
    there = info((4, 5, 1), in_sync=(1,))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(1, 2)]


def test_a_node_that_is_down_and_alone_has_all_records_is_kept() -> None:
    there = info((4, 1, 2), in_sync=(4,))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(4, 1)]


def test_nothing_new_goes_to_nodes_that_are_being_emptied_and_others_take_their_places() -> None:
    there = info((1, 2), (2,), racks=(None,) * 4)
    assert then(plan_count(there, chosen(there, ["t"]), 2, draining={1})) == [(2, 3), (2, 4)]


def test_where_nobody_else_is_a_node_that_is_being_emptied_keeps_what_it_has() -> None:
    there = info((1, 2, 3))
    assert then(plan_count(there, chosen(there, ["t"]), 3, draining={1})) == [(1, 2, 3)]


def test_a_node_that_is_down_is_no_reason_to_copy_anything() -> None:
    there = info((4, 1), in_sync=(1,))
    assert then(plan_count(there, chosen(there, ["t"]), 2)) == [(4, 1)]
    assert then(plan_count(there, chosen(there, ["t"]), 3)) == [(4, 1, 2)]


@pytest.mark.parametrize(
    ("named", "places"),
    [
        (["__queue_state"], ["__queue_state", "__consumer_offsets"]),
        (["__consumer_offsets/1"], ["__consumer_offsets/1", "__queue_state/1"]),
    ],
)
def test_what_is_led_together_is_planned_together_and_says_why(named, places) -> None:
    there = topics(__consumer_offsets=[(1,), (1,)], __queue_state=[(1,), (1,)], t=[(1,)])
    found, why = with_linked(there, named)
    assert found == places
    assert f"so {places[1]} is moved as well" in why
    assert with_linked(there, [*places, "t"]) == ([*places, "t"], None)


def test_what_is_led_together_goes_to_the_same_nodes() -> None:
    there = topics(__queue_state=[(1, 4, 3), (1, 2)], __consumer_offsets=[(4, 3, 2), (1, 2)], t=[(2, 3)])
    planned = plan_count(there, chosen(there, ["__queue_state", "__consumer_offsets"]), 2, draining={1})
    by_place = {(each.topic, each.partition): each.then for each in planned}
    assert by_place["__queue_state", 0] == by_place["__consumer_offsets", 0] == (4, 3)
    assert by_place["__queue_state", 1] == by_place["__consumer_offsets", 1]
    assert not any(1 in nodes for nodes in by_place.values())
    # In the order in which they were named.
    assert next(each.topic for each in planned) == "__queue_state"


def test_a_plan_that_the_cluster_would_refuse_is_refused() -> None:
    there = info((1, 2), (9, 1))
    check_plan(there, plan_to(chosen(there, ["t/1"]), (9, 1, 2), ["t/1"]), ())
    with pytest.raises(Failure, match=r"Node 9 is not up, so t/0 .* Nodes that are up: 1, 2, 3\. Nothing was"):
        check_plan(there, plan_to(chosen(there, ["t"]), (1, 9), ["t"]), ())
    with pytest.raises(Failure, match=r"Node 3 is being drained .* penstock cluster drain 3 --undo"):
        check_plan(there, plan_to(chosen(there, ["t"]), (1, 3), ["t"]), {3})
    check_plan(there, plan_to(chosen(there, ["t/0"]), (2, 1), ["t/0"]), {2})
    alone = info((1,), racks=(None,))
    with pytest.raises(Failure, match="Only node 1 is up"):
        check_plan(alone, plan_to(chosen(alone, ["t"]), (1, 2), ["t"]), ())


def test_a_row_says_what_changes() -> None:
    (kept, grown, turned) = plan_to(chosen(info((1, 2), (3,), (2, 1)), ["t"]), (1, 2), ["t/0", "t/1", "t/2"])
    assert [each.row()["change"] for each in (kept, grown, turned)] == ["stays", "+1 +2 -3", "another order"]
    assert [each.is_change for each in (kept, grown, turned)] == [False, True, True]
