"""Where replicas go: evenly over nodes, and over racks."""

from collections import Counter

import pytest

from penstock.core.cluster.placement import check_assignment, place
from penstock.errors import PenstockError, Reason


def nodes(count: int, racks: int = 0) -> dict[int, str | None]:
    return {node: f"r{node % racks}" if racks else None for node in range(1, count + 1)}


@pytest.mark.parametrize(("count", "factor", "of"), [(12, 3, 3), (12, 2, 4), (100, 3, 7), (5, 1, 3), (64, 5, 9)])
def test_leaders_and_replicas_are_spread_evenly(count, factor, of) -> None:
    placed = place(count, factor, nodes(of))
    assert all(len(set(replicas)) == factor for replicas in placed)
    leads = Counter(replicas[0] for replicas in placed)
    holds = Counter(node for replicas in placed for node in replicas)
    assert max(leads.values()) - min(leads[node] for node in nodes(of)) <= 1
    assert max(holds.values()) - min(holds[node] for node in nodes(of)) <= 1


def test_every_partition_is_in_as_many_racks_as_it_can_be() -> None:
    racks = nodes(9, racks=3)
    for replicas in place(60, 3, racks):
        assert {racks[node] for node in replicas} == {"r0", "r1", "r2"}
    for replicas in place(60, 4, racks):
        assert max(Counter(racks[node] for node in replicas).values()) == 2


def test_racks_do_not_count_while_a_node_has_none() -> None:
    racks = {**nodes(3, racks=1), 4: None}
    assert Counter(node for replicas in place(8, 2, racks) for node in replicas) == dict.fromkeys(racks, 4)


def test_nodes_with_less_to_do_come_first() -> None:
    placed = place(2, 1, nodes(3), leading={1: 5, 2: 0, 3: 1}, holding={1: 5, 2: 9, 3: 1})
    assert placed == [(2,), (3,)] or placed == [(2,), (2,)]
    assert place(1, 2, nodes(3), leading={1: 5, 2: 5, 3: 0}, holding={1: 1, 2: 9, 3: 3}) == [(3, 1)]


@pytest.mark.parametrize("factor", [0, 4])
def test_more_replicas_than_nodes_are_refused(factor) -> None:
    with pytest.raises(PenstockError) as refused:
        place(1, factor, nodes(3))
    assert refused.value.reason is Reason.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("replicas", [[], [1, 1], [1, 9]])
def test_an_assignment_that_cannot_be_is_refused(replicas) -> None:
    with pytest.raises(PenstockError) as refused:
        check_assignment(replicas, nodes(3))
    assert refused.value.reason is Reason.INVALID_REPLICA_ASSIGNMENT
