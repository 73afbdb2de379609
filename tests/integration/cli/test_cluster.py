"""penstock cluster: a local one on a real etcd, from its start to its end."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.cli import main
from penstock.cli.cluster_folder import ClusterFolder
from penstock.cli.failures import Exit
from tests.support.local_cluster import LocalCluster, is_there
from tests.support.waiting import eventually

needs_etcd = pytest.mark.skipif(
    shutil.which("etcd") is None, reason="etcd is not on PATH; tools/install_test_tools.sh installs it"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("local") / "c", 3) as started:
        yield started


@pytest.fixture
def penstock(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``penstock WORDS`` against the cluster; it must succeed unless ``code`` says otherwise."""
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", cluster.bootstrap)
    monkeypatch.setenv("PENSTOCK_HTTP", cluster.http)

    def run(*words: str, code: int | None = Exit.OK):
        capsys.readouterr()
        ended = main.run(words)
        said = capsys.readouterr()
        assert code in (ended, None), (words, said)
        return said

    return run


def status(penstock, code: int | None = Exit.OK):
    return json.loads(penstock("cluster", "status", "--json", code=code).out)


def replicas_of(penstock, topic: str) -> list[list[int]]:
    [described] = json.loads(penstock("topic", "describe", topic, "-o", "json").out)
    return [part["replicas"] for part in described["partition_list"]]


def test_every_node_says_where_it_is_and_the_cluster_is_well(cluster: LocalCluster, penstock) -> None:
    assert sorted(cluster.addresses) == [1, 2, 3]
    assert all(line.startswith("penstock ready kafka=127.0.0.1:") for line in cluster.lines)
    assert cluster.pids == {node: cluster.pid_of(node) for node in (1, 2, 3)}
    found = eventually(
        lambda: (now := status(penstock)) and now["partitions"] > 3 and now, what="internal topics are made"
    )
    assert [(node["node"], node["is_up"]) for node in found["nodes"]] == [(1, True), (2, True), (3, True)]
    assert [node["listeners"]["kafka"] for node in found["nodes"]] == [cluster.addresses[n]["kafka"] for n in (1, 2, 3)]
    assert found["metadata"]["is_reachable"]
    assert "controller node" in penstock("cluster", "status").out
    said = eventually(lambda: "penstock cluster status" in cluster.said() and cluster.said())
    assert f"export PENSTOCK_BOOTSTRAP={cluster.bootstrap}\n" in said
    assert f"export PENSTOCK_HTTP={cluster.http}\n" in said


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "status"),
        ("queue", "ls"),
        ("dlq", "ls"),
        ("sink", "ls"),
        ("topic", "stats", "named"),
        ("why", "named/0@0", "--group", "g"),
        ("topic", "describe", "named"),
    ],
)
def test_every_command_asks_the_first_node_that_answers(cluster: LocalCluster, penstock, monkeypatch, words) -> None:
    penstock("topic", "create", "named", "--if-not-exists")
    for name, addresses in (("PENSTOCK_HTTP", cluster.http), ("PENSTOCK_BOOTSTRAP", cluster.bootstrap)):
        # Nobody is at port 1.
        monkeypatch.setenv(name, f"127.0.0.1:1,{addresses}")
    penstock(*words)


def test_replicas_and_leaders_go_where_they_are_told(penstock) -> None:
    penstock("topic", "create", "moved", "-p", "2", "-r", "1")
    begun = penstock("cluster", "reassign", "moved", "--to", "3,1", "--yes", "--watch")
    assert "Started 2 moves\n" in begun.err
    assert begun.err.endswith("All moves are finished\n")
    assert replicas_of(penstock, "moved") == [[3, 1], [1, 3]]
    assert penstock("cluster", "reassign", "moved", "--to", "3,1", "--yes").err.startswith("Nothing to move")
    assert penstock("cluster", "reassign", "--list").err == "No partition is being moved\n"
    assert penstock("cluster", "reassign", "moved", "--cancel", "--yes").err.startswith("Nothing to cancel")
    penstock("cluster", "elect", "moved")
    again = json.loads(penstock("cluster", "elect", "moved", "--json").out)
    assert again == [
        {"topic": "moved", "partition": index, "result": "not needed", "error": None} for index in range(2)
    ]
    for how in ("--yes", "--dry-run"):
        refused = penstock("cluster", "reassign", "moved/0", "--to", "1,9", how, code=Exit.FAILED)
        assert "Node 9 is not up" in refused.err
    penstock("cluster", "reassign", "moved/9", "--to", "1", code=Exit.NOT_FOUND)
    penstock("cluster", "reassign", "moved", code=Exit.USAGE)
    penstock("cluster", "reassign", "--to", "1", code=Exit.USAGE)


def test_what_shows_a_plan_needs_a_yes_where_nobody_can_be_asked_and_a_dry_run_does_nothing(penstock) -> None:
    penstock("topic", "create", "planned", "-p", "2", "-r", "1")
    before = replicas_of(penstock, "planned")
    words = ("cluster", "reassign", "planned", "--to", "1,2")
    said = penstock(*words, code=Exit.USAGE)
    assert "Cannot ask without a terminal: add --yes to move 2 partitions, or --dry-run to show the plan" in said.err
    assert "planned" in said.out
    plan = json.loads(penstock(*words, "--dry-run", "--json").out)
    assert [(row["then"], row["result"]) for row in plan] == [([1, 2], "planned"), ([2, 1], "planned")]
    assert replicas_of(penstock, "planned") == before
    done = json.loads(penstock(*words, "--yes", "--json", "--watch").out)
    assert [(row["now"], row["result"]) for row in done] == [(now, "begun") for now in before]
    assert replicas_of(penstock, "planned") == [[1, 2], [2, 1]]
    assert "not needed" in penstock("cluster", "elect", "planned", "--unclean", "--dry-run").out
    assert "add --yes" in penstock("cluster", "elect", "planned", "--unclean", code=Exit.USAGE).err
    assert json.loads(penstock("cluster", "reassign", "--cancel", "--json").out) == []
    assert "add --yes" in penstock("cluster", "drain", "3", "--partial", code=Exit.USAGE).err
    assert status(penstock)["drains"] == []


def test_the_secret_of_the_nodes_is_rotated_while_they_run(penstock) -> None:
    before = json.loads(penstock("cluster", "rotate-secret", "--json").out)["generation"]
    said = penstock("cluster", "rotate-secret")
    assert f"secret {before + 1}; secret {before} remains valid" in said.err
    assert said.out == ""
    penstock("topic", "create", "rotated", "-p", "3", "-r", "3")
    eventually(lambda: not status(penstock, None)["under_replicated_count"], what="the nodes have connected again")


def test_a_drain_that_cannot_end_is_not_begun(penstock) -> None:
    # The internal topics are on all three nodes.
    eventually(lambda: status(penstock)["nodes"][2]["replicas"] > 0, what="internal topics are made")
    said = penstock("cluster", "drain", "3", "--yes", code=Exit.FAILED).err
    assert "Node 3 cannot be drained" in said
    assert "Start another node" in said
    dry = penstock("cluster", "drain", "3", "--dry-run", "--json", code=Exit.FAILED)
    assert dry.err == said
    plan = json.loads(dry.out)
    assert (plan["node"], plan["takers"]) == (3, [1, 2])
    assert 0 < plan["stuck"] <= plan["replicas"]
    assert status(penstock)["drains"] == []
    for words in (("--yes",), ("--undo",), ("--dry-run",)):
        refused = penstock("cluster", "drain", "9", *words, code=Exit.NOT_FOUND).err
        assert refused == "error: The cluster has no node 9; its nodes are 1, 2, 3\n"
    assert "Node 3 is not being drained" in penstock("cluster", "drain", "3", "--undo").err


def test_a_node_is_emptied_of_what_others_can_take_and_the_last_one_is_not(penstock) -> None:
    penstock("topic", "create", "drained", "-p", "3", "-r", "2")
    said = penstock("cluster", "drain", "3", "--partial", "--yes", "--watch", code=Exit.FAILED).err
    assert "cannot be drained further" in said
    assert "penstock cluster drain 3 --undo" in said
    eventually(lambda: all(3 not in replicas for replicas in replicas_of(penstock, "drained")), what="it has moved")
    # Who is being emptied goes first, with what is led together.
    words = ("cluster", "reassign", "__queue_state/0", "--replication-factor", "2", "--dry-run")
    planned = penstock(*words, "--json")
    assert "so __consumer_offsets/0 is moved as well" in planned.err
    assert [(row["topic"], sorted(row["then"])) for row in json.loads(planned.out)] == [
        ("__queue_state", [1, 2]),
        ("__consumer_offsets", [1, 2]),
    ]
    assert [drain["node"] for drain in status(penstock)["drains"]] == [3]
    assert json.loads(penstock("cluster", "drain", "2", "--partial", "--yes", "--json").out)["is_draining"]
    last = penstock("cluster", "drain", "1", "--partial", "--yes", code=Exit.FAILED).err
    assert "No node could take the partitions of node 1: the other nodes are being drained too" in last
    assert "used again" in penstock("cluster", "drain", "2", "--undo").err
    undone = json.loads(penstock("cluster", "drain", "3", "--undo", "--json").out)
    assert undone == {"node": 3, "is_draining": False, "was_draining": True}
    assert status(penstock)["drains"] == []


def test_a_node_that_dies_is_told_with_the_end_of_its_log_and_the_others_go_on(cluster: LocalCluster, penstock) -> None:
    os.kill(cluster.pid_of(2), signal.SIGKILL)
    eventually(lambda: "node-2 was ended by SIGKILL; the others keep running" in cluster.said())
    last_line = (cluster.folder / "node-2.log").read_text().splitlines()[-1]
    restart = f"To start node-2 again: kill -USR1 {cluster.process.pid}"
    eventually(lambda: last_line in cluster.said() and restart in cluster.said(), what="the end of its log is shown")

    def is_taken_over() -> bool:
        # Until others lead what it led, that is offline.
        now = status(penstock, code=None)
        return not now["nodes"][1]["is_up"] and now["offline_count"] == 0

    eventually(is_taken_over, 60, "others lead")
    # The leaders notice by themselves, a moment later.
    eventually(lambda: status(penstock)["under_replicated_count"] > 0, what="its replicas are missing")
    told = penstock("cluster", "status").out
    assert "under-replicated: node 2 is not up" in told
    assert "To do: start node 2 again" in told
    cluster.process.send_signal(signal.SIGUSR1)
    eventually(lambda: status(penstock, code=None)["nodes"][1]["is_up"], 30, "it was started again")


def test_ctrl_c_stops_the_nodes_and_then_etcd_and_leaves_nothing(cluster: LocalCluster) -> None:
    children = cluster.children()
    assert len(children) == 5
    # A node died by itself before: that is not forgotten.
    assert cluster.stop() == Exit.FAILED
    assert [command for pid, command in children.items() if is_there(pid)] == []
    assert "Stopping the nodes, then etcd" in cluster.said()
    for node in (1, 2, 3):
        assert (cluster.folder / f"node-{node}.log").read_text().splitlines()[-1].endswith("stopped")


def test_a_restart_has_the_same_ports_and_a_kill_leaves_nothing(tmp_path) -> None:
    with LocalCluster(tmp_path / "c", 1) as first:
        assert first.stop(signal.SIGTERM) == Exit.OK
    with LocalCluster(tmp_path / "c", 1, is_new=False) as again:
        assert again.addresses == first.addresses
        children = again.children()
        assert len(children) == 3
        again.process.kill()
        again.process.wait()
        eventually(lambda: not any(is_there(pid) for pid in children), what="all children are gone")


@needs_etcd
def test_a_node_that_cannot_start_keeps_nobody_from_the_others(tmp_path) -> None:
    folder = ClusterFolder(tmp_path / "c")
    with folder.held():
        layout = folder.layout(2, 0, 0)
    # A file is in the place of its data directory.
    folder.data_dir("node-1").write_text("")
    command = [sys.executable, "-m", "penstock", "cluster", "up", "--data-dir", str(folder.path)]
    said = tmp_path / "said"
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        try:
            eventually(lambda: "export PENSTOCK_HTTP=" in said.read_text(), 60, "the way to the others is told")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == Exit.FAILED
        finally:
            process.kill()
            process.wait()
    assert "1 of 2 nodes are up" in said.read_text()
    assert "node-1 ended with exit code 1; the others keep running" in said.read_text()
    assert f"export PENSTOCK_BOOTSTRAP=127.0.0.1:{layout.nodes[2].kafka}\n" in said.read_text()
    assert f"export PENSTOCK_HTTP=127.0.0.1:{layout.nodes[2].http}\n" in said.read_text()


@needs_etcd
def test_nothing_is_started_while_another_program_has_a_port_of_the_cluster(tmp_path) -> None:
    folder = ClusterFolder(tmp_path / "c")
    with folder.held():
        port = folder.layout(2, 0, 0).nodes[1].kafka
    command = [sys.executable, "-m", "penstock", "cluster", "up", "--data-dir", str(folder.path)]
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.FAILED
    assert done.stderr == (
        f"error: Already in use by another program: port {port} of node 1; stop that program, or use another --data-dir\n"
    )
    assert sorted(path.name for path in folder.path.iterdir()) == ["cluster.json", "lock"]


def test_when_etcd_dies_all_of_it_is_stopped_and_says_why(tmp_path) -> None:
    with LocalCluster(tmp_path / "c", 1, racks="a") as cluster:
        children = cluster.children()
        [etcd] = [pid for pid, command in children.items() if command.startswith(shutil.which("etcd"))]
        os.kill(etcd, signal.SIGKILL)
        assert cluster.process.wait(60) == Exit.FAILED
        assert not any(is_there(pid) for pid in children)
        assert "etcd was ended by SIGKILL; the nodes cannot run without it and are stopped" in cluster.said()


def test_without_etcd_it_says_how_to_get_one_and_leaves_nothing(tmp_path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "penstock", "cluster", "up"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.FAILED
    assert "apt-get install etcd-server" in done.stderr
    assert "brew install etcd" in done.stderr
    assert list(tmp_path.iterdir()) == []
