"""Opens a node of a cluster from its settings: the shared store, the data directory, and the addresses that other nodes use."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

from penstock.address import Address
from penstock.cluster.agreement import agree
from penstock.cluster.etcd_address import parse_endpoints, read_tls
from penstock.cluster.joining import import_alone
from penstock.errors import PenstockError, Reason
from penstock.metadata.etcd.endpoints import Tls
from penstock.metadata.etcd.store import EtcdStore
from penstock.ports import Clock, Disk, Entropy
from penstock.runtime.data_dir import DataDir, NodeFile
from penstock.settings import ClusterSettings
from penstock.types import NodeId

logger = logging.getLogger("penstock.cluster")

_CONNECT_SECONDS: Final = 15.0
_ANY_HOST = ("0.0.0.0", "::", "")  # noqa: S104 - what is bound is looked at, nothing is bound here


class OpenedNode(NamedTuple):
    """The result of :func:`open_cluster`."""

    store: EtcdStore
    node: NodeFile


async def open_cluster(
    settings: ClusterSettings, data_dir: DataDir, node: NodeFile, disk: Disk, clock: Clock, entropy: Entropy
) -> OpenedNode:
    """Connect to etcd, read or create the cluster's record, and import the metadata of a broker that was alone.

    The directory is marked as belonging to the cluster last. If an earlier step fails, it can be used as before.
    """
    if node.cluster not in ("", settings.name):
        # Checked before anything is written, since the name may be a typing error.
        raise PenstockError(
            Reason.INVALID_CONFIG,
            f"{data_dir.path} belongs to cluster {node.cluster}: start it with --cluster {node.cluster}, or use another --data-dir",
        )
    try:
        addresses, uses_tls = parse_endpoints(settings.etcd)
        tls = read_tls(settings.etcd_ca, settings.etcd_cert, settings.etcd_key, uses_tls=uses_tls)
    except ValueError as error:
        raise PenstockError(Reason.INVALID_CONFIG, f"etcd: {error}") from None
    # Each node prefers another member of etcd, so that the failure of one does not affect all nodes.
    first = node.node_id % len(addresses)
    store = await _connect(settings.name, addresses[first:] + addresses[:first], tls)
    try:
        record = await agree(store, clock, entropy, node.cluster_id, may_make=not node.cluster)
        named = data_dir.name(disk, entropy, node)
        path, directory = f"{data_dir.path}/metadata.sqlite", UUID(hex=named.directory)
        await import_alone(store, disk, path, NodeId(named.node_id), directory)
        joined = data_dir.join(disk, entropy, named, settings.name, record.id)
    except BaseException:
        await store.close()
        raise
    return OpenedNode(store, joined)


async def _connect(cluster: str, addresses: list[Address], tls: Tls | None) -> EtcdStore:
    """Connect, and wait if etcd is starting at the same time. Permanent errors are raised at once."""
    deadline = asyncio.get_running_loop().time() + _CONNECT_SECONDS
    while True:
        try:
            return await EtcdStore.open(cluster, addresses, tls)
        except PenstockError as error:
            if error.reason is not Reason.METADATA_UNAVAILABLE:
                raise
            if asyncio.get_running_loop().time() > deadline:
                names = ", ".join(map(str, addresses))
                raise PenstockError(
                    error.reason,
                    f"No etcd answered at {names} in {_CONNECT_SECONDS:.0f} s; start it, or specify its address with --etcd HOST:PORT,... (docs/cluster.md)",
                ) from error
            logger.warning("%s", error.text)


def advertised(
    bound: Mapping[str, Address | None], advertise: str, chosen: Mapping[str, Address]
) -> dict[str, Address]:
    """The addresses at which other nodes and clients reach this one; ``chosen`` has those that are configured. INVALID_CONFIG if they cannot."""
    found: dict[str, Address] = {}
    for name, address in bound.items():
        if address is None:
            continue
        if name in chosen:
            found[name] = chosen[name]
            continue
        host = advertise or address.host
        if host in _ANY_HOST:
            raise PenstockError(
                Reason.INVALID_CONFIG,
                f"Other nodes cannot connect to {address}: specify an address that they can reach with --advertise HOST",
            )
        found[name] = Address(host, address.port)
    return found
