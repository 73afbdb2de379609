"""A role of their own for the nodes of a cluster in etcd: its user is the name in their certificate, and it sees nothing else.

The calls are those of the etcdctl commands in docs/cluster.md.
"""

import asyncio
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd.endpoints import EtcdEndpoints
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.port import Put
from penstock.wire.etcd import etcd_generated as pb
from tests.support.clients import Record, consume_confluent, produce_confluent
from tests.support.cluster_processes import NodeProcess
from tests.support.etcd import SECONDS_MAX, Certificates, Etcd, certificate_by, make_certificates, running_etcd

pytestmark = pytest.mark.usefixtures("patience")

PREFIX = "/penstock/tested/"
END = "/penstock/tested0"
"""The first key that does not begin with it."""
NODES = "tested-nodes"
"""The name in the nodes' certificate, of their user, and of its role."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("role")


@pytest.fixture(scope="module")
def member(folder: Path) -> Certificates:
    return make_certificates(folder)


@pytest.fixture(scope="module")
def root(folder: Path, member: Certificates) -> Certificates:
    return certificate_by(folder, "root", "root")


@pytest.fixture(scope="module")
def nodes(folder: Path, member: Certificates) -> Certificates:
    return certificate_by(folder, NODES, "nodes")


@pytest.fixture(scope="module")
def etcd(folder: Path, member: Certificates, root: Certificates) -> Iterator[Etcd]:
    with running_etcd(folder / "etcd", certificates=member) as started:
        asyncio.run(protect(started, root))
        yield started


class Kind(IntEnum):
    """Of a permission."""

    READ = 0
    READ_AND_WRITE = 2


async def protect(etcd: Etcd, root: Certificates) -> None:
    """As docs/cluster.md says: a user who may do everything, one for the nodes, and no access without one."""
    auth = Auth(etcd, root)
    try:
        await auth.call("UserAdd", text(1, "root"), NO_PASSWORD)
        await auth.call("RoleAdd", text(1, "root"))
        await auth.call("UserGrantRole", text(1, "root"), text(2, "root"))
        await auth.add_user(NODES, Kind.READ_AND_WRITE)
        await auth.call("AuthEnable")
    finally:
        await auth.close()


class Auth:
    """Users and roles in etcd, which Penstock itself does not change."""

    def __init__(self, etcd: Etcd, root: Certificates) -> None:
        self._endpoints = EtcdEndpoints(etcd.addresses, root.tls())

    async def close(self) -> None:
        await self._endpoints.close()

    async def add_user(self, name: str, kind: Kind) -> None:
        """With a role of the same name on the prefix."""
        permission = bytes((1 << 3, kind)) + text(2, PREFIX) + text(3, END)
        await self.call("RoleAdd", text(1, name))
        await self.call("RoleGrantPermission", text(1, name), text(2, permission))
        await self.call("UserAdd", text(1, name), NO_PASSWORD)
        await self.call("UserGrantRole", text(1, name), text(2, name))

    async def call(self, method: str, *fields: bytes) -> None:
        ask = self._endpoints.current.channel.unary_unary(f"/etcdserverpb.Auth/{method}")
        await ask(b"".join(fields), timeout=SECONDS_MAX)


def text(number: int, value: str | bytes) -> bytes:
    """A field of a message."""
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


NO_PASSWORD = text(3, b"\x08\x01")


def settings_of(nodes: Certificates) -> dict[str, object]:
    return {
        "cluster.replication_factor": 1,
        "cluster.min_in_sync": 1,
        "cluster.etcd_ca": nodes.ca,
        "cluster.etcd_cert": nodes.certificate,
        "cluster.etcd_key": nodes.key,
    }


def test_nodes_with_the_role_work_and_start_again(etcd: Etcd, nodes: Certificates, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "one", 1, etcd.urls, settings_of(nodes), gateways=False) as node:
        produce_confluent(node.bootstrap, "orders", [Record(b"1")])
        assert node.stop() == 0
        node.start()
        produce_confluent(node.bootstrap, "orders", [Record(b"2")])
        assert [record.value for record in consume_confluent(node.bootstrap, "orders", 2)] == [b"1", b"2"]


def test_nodes_that_run_while_the_role_is_made_continue(
    member: Certificates, root: Certificates, nodes: Certificates, tmp_path: Path
) -> None:
    with (
        running_etcd(tmp_path / "etcd", certificates=member) as etcd,
        NodeProcess(tmp_path / "one", 1, etcd.urls, settings_of(nodes), gateways=False) as node,
    ):
        produce_confluent(node.bootstrap, "before", [Record(b"1")])
        asyncio.run(protect(etcd, root))
        # A new topic needs etcd.
        produce_confluent(node.bootstrap, "after", [Record(b"2")])
        assert [record.value for record in consume_confluent(node.bootstrap, "after", 1)] == [b"2"]


@pytest.mark.parametrize("prefix", ["/", "/penstock/", "/penstock/other/", "/penstock/tested", END])
async def test_the_role_reads_and_writes_nothing_outside_its_prefix(
    etcd: Etcd, nodes: Certificates, root: Certificates, prefix: str
) -> None:
    key = prefix.encode() + b"secret"
    everything = EtcdEndpoints(etcd.addresses, root.tls())
    limited = EtcdEndpoints(etcd.addresses, nodes.tls())
    put = pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=key, value=b"1"))])
    try:
        await everything.ask(lambda member: member.txn(put, timeout=SECONDS_MAX))
        for asked in (pb.RangeRequest(key=key), pb.RangeRequest(key=prefix.encode(), range_end=b"\0")):
            with pytest.raises(PenstockError) as refused:
                await limited.ask(lambda member, asked=asked: member.range(asked, timeout=SECONDS_MAX))  # type: ignore[misc]
            assert "permission denied" in refused.value.text
        with pytest.raises(PenstockError) as refused:
            await limited.ask(lambda member: member.txn(put, timeout=SECONDS_MAX))
        assert "permission denied" in refused.value.text
    finally:
        await everything.close()
        await limited.close()


@pytest.mark.parametrize("cluster", ["other", "teste", "tested2"])
async def test_a_node_of_another_cluster_is_refused_with_what_to_do(
    etcd: Etcd, nodes: Certificates, cluster: str
) -> None:
    with pytest.raises(PenstockError) as refused:
        await EtcdStore.open(cluster, etcd.addresses, nodes.tls())
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert f"/penstock/{cluster}/" in refused.value.text


async def test_a_certificate_of_the_same_authority_without_a_user_is_refused(etcd: Etcd, member: Certificates) -> None:
    with pytest.raises(PenstockError) as refused:
        await EtcdStore.open("tested", etcd.addresses, member.tls())
    assert refused.value.reason is Reason.INVALID_CONFIG


async def test_a_node_that_may_only_read_is_told_so(etcd: Etcd, root: Certificates, folder: Path) -> None:
    auth = Auth(etcd, root)
    try:
        await auth.add_user("reader", Kind.READ)
    finally:
        await auth.close()
    store = await EtcdStore.open("tested", etcd.addresses, certificate_by(folder, "reader", "reader").tls())
    try:
        with pytest.raises(PenstockError, match="permission denied"):
            await store.txn([], [Put("a", b"1")])
    finally:
        await store.close()
