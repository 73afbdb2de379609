"""How a cluster stands, as people see it."""

import msgspec
import pytest

from penstock.cli.cluster_view import drain_line, print_status
from penstock.operations.cluster import ClusterDescription, NodeDrain, PartitionMove

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


def shown(capsys, *, every=False, **changes):
    print_status(msgspec.convert({**FINE, **changes}, ClusterDescription), every=every)
    return capsys.readouterr().out


def test_a_cluster_that_is_well_says_so(capsys) -> None:
    text = shown(capsys)
    assert "cluster abc  controller node 1  etcd reachable  partitions 3" in text
    assert "All partitions have a leader" in text


def test_what_is_wrong_is_shown_with_why(capsys) -> None:
    text = shown(
        capsys,
        offline_count=5,
        offline=[TROUBLE],
        controller=None,
        metadata={"is_reachable": False, "error": "nobody answers"},
    )
    assert "no controller  etcd NOT REACHABLE" in text
    assert "etcd as seen by node 1: nobody answers" in text
    assert "t/0 is offline: node 2 is not up (the first 1 of 5)" in text
    assert "Restore etcd" in text
    assert "All partitions have a leader" not in text


def test_what_has_one_cause_is_one_line_and_says_what_to_do(capsys) -> None:
    lacking = [{**TROUBLE, "topic": f"t{index % 5}", "partition": index, "leader": 1} for index in range(64)]
    lacking += [{**TROUBLE, "topic": "u", "partition": index, "why": "node 4 is not caught up"} for index in range(2)]
    down = {**NODE, "node": 2, "is_up": False, "left_ms": 1_767_225_600_000}
    changes = {"under_replicated": lacking, "under_replicated_count": 66, "nodes": [NODE, down]}
    text = shown(capsys, **changes)
    assert "\n64 partitions of 5 topics are under-replicated: node 2 is not up\n" in text
    assert "\nu/0 and u/1 are under-replicated: node 4 is not caught up\n" in text
    assert "\nNode 2 has been down since 2026-01-01T00:00:00.000Z\n" in text
    assert "To do: start node 2 again" in text
    assert "penstock cluster drain 2" in text
    assert "t1/1" not in text
    assert "penstock cluster status --all" in text
    every = shown(capsys, every=True, **changes)
    assert len([line for line in every.splitlines() if line.rstrip().endswith("node 2 is not up")]) == 64
    assert "--all" not in every


def test_replicas_that_catch_up_need_nothing_but_patience(capsys) -> None:
    text = shown(capsys, under_replicated=[TROUBLE], under_replicated_count=1)
    assert "To do: wait, replicas are catching up" in text


def test_a_topic_that_wants_more_in_sync_than_it_has_replicas_is_told_with_both_ways_out(capsys) -> None:
    why = "min.insync.replicas is 3, which is impossible with 2 replicas"
    trouble = {**TROUBLE, "topic": "strict", "leader": 1, "in_sync": [1, 2], "why": why}
    text = shown(capsys, under_min_in_sync=[trouble], under_min_in_sync_count=1)
    assert f"strict/0 is below min.insync.replicas and refusing writes with acks=all: {why}" in text
    assert "penstock cluster reassign strict --replication-factor N" in text
    assert "penstock topic config strict --set min.insync.replicas=N" in text
    # Nothing is missing of what there can be, and it is not well all the same.
    assert (
        "all their replicas in sync, but 1 partition is refusing writes with acks=all, since min.insync.replicas"
        in text
    )


@pytest.mark.parametrize(
    ("changes", "state"),
    [({}, "up"), ({"is_up": False}, "down"), ({"is_stopping": True}, "stopping"), ({"is_draining": True}, "draining")],
)
def test_a_node_is_in_one_state(capsys, changes, state) -> None:
    rows = shown(capsys, nodes=[{**NODE, **changes}]).splitlines()
    assert [row.split()[1] for row in rows if row.strip().startswith("1 ")] == [state]


def test_a_move_shows_how_far_it_is(capsys) -> None:
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
def test_the_share_of_a_move_is_what_the_slowest_new_replica_has(changes, share) -> None:
    assert msgspec.convert({**MOVE, **changes}, PartitionMove).share == share


def test_a_node_that_is_being_emptied_or_was_is_not_to_be_started_again(capsys) -> None:
    down = {**NODE, "node": 2, "is_up": False, "is_draining": True, "replicas": 0, "left_ms": 1_767_225_600_000}
    drain = {"node": 2, "leads": 0, "replicas": 0, "stuck": 0, "is_done": True}
    text = shown(capsys, nodes=[NODE, down], drains=[drain])
    assert '\nNode 2 is down and empty; forget it with "penstock cluster drain 2 --undo"\n' in text
    under_way = {**drain, "replicas": 1, "is_done": False}
    lacking = {"under_replicated": [TROUBLE], "under_replicated_count": 1}
    text += shown(capsys, nodes=[NODE, {**down, "replicas": 1}], drains=[under_way], **lacking)
    assert "Node 2 is down and being drained: 1 partition left; other nodes copy them" in text
    for wrong in ("start node 2", "stop it", "run penstock cluster drain", "has been down since"):
        assert wrong not in text


def test_of_several_nodes_that_are_down_those_are_to_be_started_that_are_not_being_emptied(capsys) -> None:
    down = [{**NODE, "node": number, "is_up": False, "is_draining": number == 2} for number in (2, 3)]
    drain = {"node": 2, "leads": 0, "replicas": 3, "stuck": 0, "is_done": False}
    assert "To do: start node 3 again" in shown(capsys, nodes=[NODE, *down], drains=[drain])


def test_what_waits_for_a_node_that_is_down_says_so_with_the_ways_out() -> None:
    text = drain_line(NodeDrain(3, 0, 2, 0, False, 1), is_up=False)
    assert (
        "2 partitions left; 1 of its partitions waits for it, since no other node has all its records. Start node 3 again"
        in text
    )
    assert "penstock cluster elect TOPIC/PARTITION --unclean" in text
    assert "penstock topic rm TOPIC" in text
    assert "there is nothing to do" not in text


def test_a_drain_says_what_is_left_and_what_cannot_go() -> None:
    assert "leads 1 and has 2 partitions" in drain_line(NodeDrain(3, 1, 2, 0, False))
    assert drain_line(NodeDrain(3, 0, 1, 0, False)).endswith("leads 0 and has 1 partition")
    assert "penstock cluster drain 3 --undo" in drain_line(NodeDrain(3, 0, 2, 2, False))
    assert drain_line(NodeDrain(3, 0, 2, 2, False), advises=False).endswith("2 of them have nowhere to go")
    assert "is empty" in drain_line(NodeDrain(3, 0, 0, 0, True))
