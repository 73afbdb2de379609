"""A local cluster's folder: ports are chosen once, and nobody else has it meanwhile."""

import socket

import pytest

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


def test_a_restart_has_the_same_ports(folder):
    with folder.held():
        first = folder.layout(3, 0, 0)
        assert len(set(ports_of(first))) == 17
    with folder.held():
        assert folder.layout(None, None, None) == first


def test_more_nodes_get_ports_that_no_other_has_though_they_do_not_run(folder):
    with folder.held():
        first = folder.layout(1, 0, 0)
        grown = folder.layout(3, None, None)
    assert grown.nodes[1] == first.nodes[1]
    assert len(set(ports_of(grown))) == 17


def test_a_port_that_is_taken_is_passed_over(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken, folder.held():
        port = taken.getsockname()[1]
        layout = folder.layout(2, port, 0)
        assert port < layout.nodes[1].kafka < layout.nodes[2].kafka


@pytest.mark.parametrize(("nodes", "kafka", "http"), [(1, None, None), (None, 9092, None), (None, None, 8080)])
def test_a_folder_with_a_cluster_keeps_its_nodes_and_ports(folder, nodes, kafka, http):
    with folder.held():
        folder.layout(2, 0, 0)
        with pytest.raises(Failure) as raised:
            folder.layout(nodes, kafka, http)
    assert raised.value.code is Exit.USAGE
    assert "--data-dir" in str(raised.value)


def test_a_folder_is_one_cluster_s_at_a_time(folder, tmp_path):
    with folder.held(), pytest.raises(Failure, match="in use"), ClusterFolder(tmp_path / "c").held():
        pass


def test_a_file_that_cannot_be_read_says_what_to_do(folder):
    with folder.held():
        (folder.path / "cluster.json").write_text("{")
        with pytest.raises(Failure, match="remove it"):
            folder.layout(None, None, None)


def test_the_folder_of_a_broker_is_not_taken_for_a_cluster_s(tmp_path):
    (tmp_path / "node.json").write_text("{}")
    with pytest.raises(Failure, match="data directory of a broker"), ClusterFolder(tmp_path).held():
        pass
