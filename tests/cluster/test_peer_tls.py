"""TLS between real nodes on a real etcd: a running cluster changes to it under load, and its certificates are renewed while it runs."""

import hashlib
import json
import signal
import socket
import ssl
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from penstock.settings import PeerTlsMode, TlsSettings
from tests.cluster.load import SECONDS, Load
from tests.support.cluster_processes import ClusterProcesses, NodeProcess
from tests.support.etcd import Etcd
from tests.support.node_certificates import DAY, Authority, authority
from tests.support.waiting import eventually

CLUSTER = "tested"
SETTINGS = {"cluster.handover_ms": 30_000}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path / "certificates")


def with_tls(mode: PeerTlsMode, files: TlsSettings) -> dict[str, object]:
    return {
        "cluster.peer_tls": mode.value,
        "tls.peer.cert_file": files.cert_file,
        "tls.peer.key_file": files.key_file,
        "tls.peer.ca_file": files.ca_file,
    }


def restart(cluster: ClusterProcesses, node: NodeProcess, load: Load) -> None:
    load.go_on(100, 10)
    assert node.stop() == 0
    load.go_on(100, 10)
    node.start()
    cluster.wait_until_in_sync()


def offers(cluster: ClusterProcesses) -> list[bool]:
    """Whether each node offers TLS, as one of them knows it."""
    address = cluster.nodes[1].addresses["http"]
    with urllib.request.urlopen(f"http://{address}/v1/cluster", timeout=SECONDS) as answer:
        return [node["peer_tls"] for node in json.load(answer)["nodes"]]


def shown(node: NodeProcess, client: TlsSettings) -> str:
    """The SHA-256 of the certificate that a new connection to a node gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(client.ca_file)
    context.load_cert_chain(client.cert_file, client.key_file)
    host, _, port = node.addresses["peer"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as raw, context.wrap_socket(raw) as wrapped:
        return hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()


def shows(node: NodeProcess, client: TlsSettings, wanted: str) -> bool:
    return shown(node, client) == wanted


def in_file(files: TlsSettings) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(Path(files.cert_file).read_text())).hexdigest()


@pytest.mark.timeout(600)
def test_a_running_cluster_changes_to_tls_and_loses_nothing(tmp_path: Path, etcd: Etcd, ours: Authority) -> None:
    with ClusterProcesses(tmp_path, etcd.urls, settings=SETTINGS, gateways=False) as cluster:
        load = Load(cluster)
        load.go_on(100, 10)
        assert offers(cluster) == [False, False, False]
        for mode in (PeerTlsMode.ACCEPT, PeerTlsMode.REQUIRE):
            for node_id, node in cluster.nodes.items():
                node.configure(with_tls(mode, ours.node(node_id, cluster=CLUSTER)))
                restart(cluster, node, load)
            assert offers(cluster) == [True, True, True]
        assert all("peer" in node.encrypted for node in cluster.nodes.values())
        # The same certificates, made anew: the files change while the nodes run.
        stranger = ours.certified("stranger", [])
        lengths = {node_id: len(node.log_text()) for node_id, node in cluster.nodes.items()}
        for node_id, node in cluster.nodes.items():
            before = shown(node, stranger)
            renewed = in_file(ours.node(node_id, cluster=CLUSTER))
            assert renewed != before
            node.signal(signal.SIGHUP)
            eventually(partial(shows, node, stranger, renewed), SECONDS, "the node shows its new certificate")
            load.go_on(100, 10)
        # Links that were open stay open.
        assert all("was lost" not in node.log_text()[lengths[node_id] :] for node_id, node in cluster.nodes.items())
        # And new ones are made with the new certificates.
        restart(cluster, cluster.nodes[1], load)
        load.finish()


def test_a_node_does_not_start_with_a_certificate_of_another(tmp_path: Path, etcd: Etcd, ours: Authority) -> None:
    for files, said in (
        (ours.node(2, cluster=CLUSTER), f"penstock://{CLUSTER}/node/2"),
        (ours.node(1, cluster="other"), "penstock://other/node/1"),
        (ours.node(1, cluster=CLUSTER, age=3 * DAY), "expired"),
        (TlsSettings(), "TLS between nodes needs a certificate"),
    ):
        node = NodeProcess(tmp_path / "one", 1, etcd.urls, with_tls(PeerTlsMode.REQUIRE, files), gateways=False)
        with pytest.raises(RuntimeError, match="exit code 2"):
            node.start()
        [error] = [line for line in node.log_text().splitlines() if line.startswith("error: ")][-1:]
        assert said in error
        # Nothing was begun.
        assert not (tmp_path / "one").exists()
