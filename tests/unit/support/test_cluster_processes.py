from pathlib import Path

from tests.support.cluster_processes import AnyNode, ClusterProcesses


def test_a_client_that_gives_up_a_node_connects_to_another_whatever_other_clients_do(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, "http://127.0.0.1:1")
    for node in cluster.nodes.values():
        node.addresses = {"http": f"node{node.node_id}"}
    clients = [AnyNode(cluster, first) for first in range(3)]
    assert [client.addresses["http"] for client in clients] == ["node1", "node2", "node3"]
    assert [clients[0].addresses["http"] for _ in range(3)] == ["node2", "node3", "node1"]
    assert clients[1].addresses["http"] == "node3"
