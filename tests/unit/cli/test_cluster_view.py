"""How a cluster stands, as people see it."""

import msgspec
import pytest

from penstock.cli.cluster_view import drain_line, print_status
from penstock.client.cluster_state import ClusterStatus, NodeDrain, PartitionMove

NODE = {
    "node": 1,
    "is_up": True,
    "epoch": 5,
    "rack": "a",
    "version": "1",
    "started_ms": 1,
    "is_stopping": False,
    "is_draining": False,
    "leads": 2,
    "replicas": 3,
    "listeners": {"kafka": "h:1", "http": "h:2"},
}
TROUBLE = {
    "topic": "t",
    "partition": 0,
    "leader": None,
    "replicas": [1, 2],
    "in_sync": [2],
    "eligible": [],
    "why": "node 2 is not up",
}
MOVE = {
    "topic": "m",
    "partition": 4,
    "leader": 1,
    "replicas": [3, 1, 2],
    "adding": [3],
    "removing": [2],
    "in_sync": [1, 2],
    "start_offset": 10,
    "end_offset": 30,
    "copied": {"3": 15},
}
FINE = {
    "cluster_id": "abc",
    "node": 1,
    "is_alone": False,
    "metadata": {"is_reachable": True, "error": None},
    "controller": {"node": 1, "epoch": 3},
    "nodes": [NODE],
    "partitions": 3,
    "under_replicated_count": 0,
    "under_min_in_sync_count": 0,
    "offline_count": 0,
    "moving_count": 0,
    "under_replicated": [],
    "offline": [],
    "moves": [],
    "drains": [],
}


def shown(capsys, **changes):
    print_status(msgspec.convert({**FINE, **changes}, ClusterStatus))
    return capsys.readouterr().out


def test_a_cluster_that_is_well_says_so(capsys):
    text = shown(capsys)
    assert "cluster abc  controller node 1  etcd reachable  partitions 3" in text
    assert "every partition has its leader" in text


def test_what_is_wrong_is_shown_with_why(capsys):
    text = shown(
        capsys,
        offline_count=5,
        offline=[TROUBLE],
        controller=None,
        metadata={"is_reachable": False, "error": "nobody answers"},
        under_min_in_sync_count=1,
    )
    assert "no controller  etcd NOT REACHABLE" in text
    assert "asked by node 1: nobody answers" in text
    assert "5 partitions are offline; the first 1" in text
    assert "node 2 is not up" in text
    assert "1 partition has too few replicas in sync" in text
    assert "every partition has its leader" not in text


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "up"), ({"is_up": False}, "down"), ({"is_stopping": True}, "stopping"), ({"is_draining": True}, "draining")],
)
def test_a_node_is_in_one_state(capsys, changes, state):
    rows = shown(capsys, nodes=[{**NODE, **changes}]).splitlines()
    assert [row.split()[1] for row in rows if row.strip().startswith("1 ")] == [state]


def test_a_move_shows_how_far_it_is(capsys):
    assert "25%" in shown(capsys, moves=[MOVE], moving_count=1)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 0.25),
        ({"copied": {"3": 30}}, 1.0),
        ({"copied": {"3": 0}}, 0.0),
        ({"copied": {"3": 0}, "in_sync": [1, 2, 3]}, 1.0),
        ({"start_offset": 30}, 1.0),
        ({"copied": None}, None),
    ],
)
def test_the_share_of_a_move_is_what_the_slowest_new_replica_has(changes, share):
    assert msgspec.convert({**MOVE, **changes}, PartitionMove).share == share


def test_a_drain_says_what_is_left_and_what_cannot_go():
    assert "leads 1 and has 2" in drain_line(NodeDrain(3, 1, 2, 0, False))
    assert "nowhere to go" in drain_line(NodeDrain(3, 0, 2, 2, False))
    assert "is empty" in drain_line(NodeDrain(3, 0, 0, 0, True))
