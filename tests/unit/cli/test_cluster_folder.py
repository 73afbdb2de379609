"""A local cluster's folder: ports are chosen once, and nobody else has it meanwhile."""

import fcntl
import json
import socket

import pytest

from penstock.cli import cluster_folder
from penstock.cli.cluster_folder import ClusterFolder
from penstock.cli.failures import Exit, Failure


def ports_of(layout):
    found = [layout.etcd.client, layout.etcd.peer]
    for node in layout.nodes.values():
        found += [node.kafka, node.http, node.tcp, node.grpc, node.peer]
    return found


@pytest.fixture
def folder(tmp_path):
    return ClusterFolder(tmp_path / "c")


def test_a_restart_has_the_same_ports(folder) -> None:
    with folder.held():
        first = folder.layout(3, 0, 0)
        assert len(set(ports_of(first))) == 17
    with folder.held():
        assert folder.layout(None, None, None) == first


def test_more_nodes_get_ports_that_no_other_has_though_they_do_not_run(folder) -> None:
    with folder.held():
        first = folder.layout(1, 0, 0)
        grown = folder.layout(3, None, None)
    assert grown.nodes[1] == first.nodes[1]
    assert len(set(ports_of(grown))) == 17


def test_a_port_that_is_taken_is_passed_over(folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, folder.held():
        port = taken.getsockname()[1]
        layout = folder.layout(2, port, 0)
        assert port < layout.nodes[1].kafka < layout.nodes[2].kafka


def test_the_first_node_has_the_usual_ports_of_json_lines_and_grpc_where_they_are_free(folder, monkeypatch) -> None:
    usual = {"TCP_PORT": free_port(), "GRPC_PORT": free_port()}
    for name, port in usual.items():
        monkeypatch.setattr(cluster_folder, name, port)
    with folder.held():
        layout = folder.layout(2, free_port(), 0)
    assert (layout.nodes[1].tcp, layout.nodes[1].grpc) == tuple(usual.values())
    assert len(set(ports_of(layout))) == 12


def test_the_first_node_has_other_ports_where_the_usual_ones_are_taken(folder, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, folder.held():
        port = taken.getsockname()[1]
        monkeypatch.setattr(cluster_folder, "TCP_PORT", port)
        assert folder.layout(1, free_port(), 0).nodes[1].tcp != port


@pytest.mark.parametrize(("nodes", "kafka", "http"), [(1, None, None), (None, 9092, None), (None, None, 8080)])
def test_a_folder_with_a_cluster_keeps_its_nodes_and_ports(folder, nodes, kafka, http) -> None:
    with folder.held():
        folder.layout(2, 0, 0)
        with pytest.raises(Failure) as raised:
            folder.layout(nodes, kafka, http)
    assert raised.value.code is Exit.USAGE
    assert "--data-dir" in str(raised.value)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_the_ports_that_it_has_may_be_asked_for_again(folder) -> None:
    with folder.held():
        first = folder.layout(2, free_port(), 0)
        same = [
            folder.layout(None, first.kafka_port, 0),
            folder.layout(2, first.nodes[1].kafka, first.nodes[1].http),
            folder.layout(None, 0, 0),
        ]
    assert same == [first] * 3


def test_other_ports_are_refused_with_those_that_it_has_and_where_to_change_them(folder) -> None:
    with folder.held():
        first = folder.layout(2, free_port(), 0)
        with pytest.raises(Failure) as raised:
            folder.layout(None, first.nodes[2].kafka + 1, None)
    said = str(raised.value)
    assert f"from {first.kafka_port} on ({first.nodes[1].kafka}, {first.nodes[2].kafka})" in said
    assert str(folder.path / "cluster.json") in said


@pytest.mark.parametrize("is_old", [False, True])
def test_nodes_that_are_added_go_on_from_the_ports_that_the_folder_began_with(folder, is_old) -> None:
    with folder.held():
        first = folder.layout(1, free_port(), free_port())
        if is_old:
            file = folder.path / "cluster.json"
            kept = json.loads(file.read_text())
            del kept["kafka_port"], kept["http_port"], kept["racks"]
            file.write_text(json.dumps(kept))
        grown = folder.layout(2)
    for listener in ("kafka", "http"):
        begins, follows = getattr(first.nodes[1], listener), getattr(grown.nodes[2], listener)
        assert begins < follows < begins + 1000


def test_racks_are_kept_and_may_be_others_the_next_time(folder) -> None:
    with folder.held():
        folder.layout(3, 0, 0, ["a", "b"])
        kept = folder.layout(None)
        assert [kept.rack_of(node) for node in (1, 2, 3)] == ["a", "b", "a"]
        assert folder.layout(None, racks=["c"]).rack_of(2) == "c"
        assert folder.layout(None, racks=[]).rack_of(2) is None
        assert folder.layout(None).racks == ()


def test_a_folder_is_one_cluster_s_at_a_time(folder, tmp_path) -> None:
    with folder.held(), pytest.raises(Failure, match="in use"), ClusterFolder(tmp_path / "c").held():
        pass


@pytest.mark.parametrize("listener", ["kafka", "http", "tcp", "grpc", "peer"])
def test_a_port_of_a_node_that_another_program_has_is_refused(folder, listener) -> None:
    with folder.held():
        layout = folder.layout(2, 0, 0)
        folder.check_ports(layout)
        port = getattr(layout.nodes[2], listener)
        with socket.create_server(("127.0.0.1", port)), pytest.raises(Failure) as raised:
            folder.check_ports(layout)
    assert str(raised.value) == (
        f"Already in use by another program: port {port} of node 2; stop that program, or use another --data-dir"
    )
    assert raised.value.code is Exit.FAILED


def test_all_ports_that_are_taken_are_named(folder) -> None:
    with folder.held():
        layout = folder.layout(1, 0, 0)
        kafka, client = layout.nodes[1].kafka, layout.etcd.client
        with (
            socket.create_server(("127.0.0.1", kafka)),
            socket.create_server(("127.0.0.1", client)),
            pytest.raises(Failure, match=f"another program: port {client} of etcd, port {kafka} of node 1;"),
        ):
            folder.check_ports(layout)


def test_a_connection_of_the_last_run_that_lingers_does_not_keep_its_port(folder) -> None:
    with folder.held():
        layout = folder.layout(1, 0, 0)
        with socket.create_server(("127.0.0.1", layout.nodes[1].kafka)) as server:
            client = socket.create_connection(server.getsockname())
            served, _ = server.accept()
            # The side that closes first is the one that lingers.
            served.close()
            client.recv(1)
            client.close()
        folder.check_ports(layout)


def test_a_node_that_an_earlier_run_left_running_is_named_as_such(folder) -> None:
    with folder.held():
        layout = folder.layout(2, 0, 0)
        folder.data_dir("node-2").mkdir()
        with (folder.data_dir("node-2") / "lock").open("w") as lock:
            lock.write("4711\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(
                Failure, match=r"Node 2 of an earlier penstock cluster up is still running \(pid 4711\)"
            ):
                folder.check_ports(layout)


PORTS = {"kafka": 1, "http": 2, "tcp": 3, "grpc": 4, "peer": 5}


def file(**changes):
    return json.dumps({"etcd": {"client": 10, "peer": 11}, "nodes": {"1": PORTS}, **changes}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"name":"\xff"}',
        file(nodes={}),
        file(nodes={"0": PORTS}),
        file(nodes={"1": {**PORTS, "kafka": 70000}}),
        file(nodes={"1": {**PORTS, "peer": 0}}),
        file(kafka_port=-1),
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do(folder, data) -> None:
    with folder.held():
        (folder.path / "cluster.json").write_bytes(data)
        with pytest.raises(Failure, match=r"cluster\.json cannot be read .*remove it"):
            folder.layout(None, None, None)
        assert (folder.path / "cluster.json").read_bytes() == data


@pytest.mark.parametrize("data", [file(version=2), b'{"version": 2}'])
def test_a_file_of_a_later_release_says_so_whatever_is_in_it(folder, data) -> None:
    with folder.held():
        (folder.path / "cluster.json").write_bytes(data)
        with pytest.raises(Failure, match="has version 2: use the release that created it"):
            folder.layout(None, None, None)


def test_a_folder_in_the_place_of_the_file_is_told_as_such(folder) -> None:
    with folder.held():
        (folder.path / "cluster.json").mkdir()
        with pytest.raises(Failure, match=r"cluster\.json cannot be read: Is a directory"):
            folder.layout(None, None, None)


def test_the_name_of_a_cluster_stays_when_nodes_are_added(folder) -> None:
    with folder.held():
        (folder.path / "cluster.json").write_bytes(file(name="mine"))
        assert folder.layout(2).name == "mine"
        assert folder.layout(None).name == "mine"


def test_the_folder_of_a_broker_is_not_taken_for_a_cluster_s(tmp_path) -> None:
    (tmp_path / "node.json").write_text("{}")
    with pytest.raises(Failure, match="data directory of a broker"), ClusterFolder(tmp_path).held():
        pass
