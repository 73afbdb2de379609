"""The data directory: who owns it, and whose it is.

``lock`` is held by the one process that may write here; ``node.json`` says which cluster and node the data belongs to, and in
which format it lies, so that a later version can tell what it finds.
"""

import fcntl
import os
from typing import Final

import msgspec

from penstock.ports import Disk, Entropy
from penstock.runtime.disk import RealDisk

FORMAT_VERSION: Final = 1


class DataDirError(Exception):
    """The directory cannot be used; the text says what to do."""


class NotThisNodesError(DataDirError):
    """It is another node's, or another cluster's: the settings, or the directory that they name, are wrong."""


class NodeFile(msgspec.Struct, frozen=True):
    """The content of ``node.json``."""

    format_version: int
    node_id: int
    cluster_id: str
    cluster: str = ""
    """The name of the cluster that it belongs to; empty while it is alone."""
    directory: str = ""
    """An id of this very directory, for a cluster to know it by."""


class DataDir:
    """An owned data directory. Keep it until the broker has stopped."""

    def __init__(self, path: str) -> None:
        self.path: Final = os.path.abspath(path)
        self._lock_fd: int | None = None

    def own(self) -> None:
        """Make the directory if need be and take its lock, or say who has it."""
        try:
            # With its parents synced: a loss of power must not take the directory with everything that was synced in it.
            RealDisk().make_dirs(self.path)
            descriptor = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirError(
                f"cannot use {self.path} for data: {error.strerror}; specify another directory with --data-dir"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise DataDirError(
                f"{self.path} is in use by process {owner}: stop that broker, or use another --data-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = descriptor

    def identify(self, disk: Disk, entropy: Entropy, node_id: int, *, cluster: str = "") -> NodeFile:
        """Read whose data this is, or write it for a new directory. ``cluster`` is the one that it is wanted for."""
        path = os.path.join(self.path, "node.json")
        if not disk.exists(path):
            node = NodeFile(FORMAT_VERSION, node_id, entropy.uuid().hex)
            disk.write_atomic(path, msgspec.json.encode(node))
            return node
        try:
            node = msgspec.json.decode(disk.read_bytes(path), type=NodeFile)
        except msgspec.DecodeError as error:
            raise DataDirError(f"{path} cannot be read ({error}); restore it from a backup of the directory") from error
        if node.format_version != FORMAT_VERSION:
            raise DataDirError(
                f"{self.path} has format {node.format_version} but this version uses {FORMAT_VERSION}: use the version of Penstock that wrote it"
            )
        if node.node_id != node_id:
            raise NotThisNodesError(self._of_another_node(node, node_id, cluster))
        return node

    def _of_another_node(self, node: NodeFile, node_id: int, cluster: str) -> str:
        if not cluster:
            return (
                f"{self.path} belongs to node {node.node_id}, not {node_id}: set server.node_id to {node.node_id} "
                "(PENSTOCK__SERVER__NODE_ID), or use another --data-dir"
            )
        if node.cluster:
            return f"{self.path} belongs to node {node.node_id}, not {node_id}: start it with --node-id {node.node_id}, or use another --data-dir"
        # The number alone would not help: a cluster that has begun takes nobody's topics.
        return f"{self.path} belongs to a single broker (node {node.node_id}), which can only become the first node of a new cluster, with --node-id {node.node_id}. Nothing was changed. Use an empty --data-dir for node {node_id}"

    def name(self, disk: Disk, entropy: Entropy, node: NodeFile) -> NodeFile:
        """Give the directory an id of its own, if it has none: what belongs to a cluster is known by it."""
        if node.directory:
            return node
        named = msgspec.structs.replace(node, directory=entropy.uuid().hex)
        disk.write_atomic(os.path.join(self.path, "node.json"), msgspec.json.encode(named))
        return named

    def join(self, disk: Disk, entropy: Entropy, node: NodeFile, cluster: str, cluster_id: str) -> NodeFile:
        """Note that the directory belongs to a cluster from now on. One that belongs to another one is refused."""
        if node.cluster and (node.cluster, node.cluster_id) != (cluster, cluster_id):
            raise NotThisNodesError(
                f"{self.path} belongs to cluster {node.cluster} ({node.cluster_id}), not to {cluster} ({cluster_id}): check --cluster and "
                "--etcd, or use another --data-dir"
            )
        joined = NodeFile(FORMAT_VERSION, node.node_id, cluster_id, cluster, node.directory or entropy.uuid().hex)
        if joined != node:
            disk.write_atomic(os.path.join(self.path, "node.json"), msgspec.json.encode(joined))
        return joined

    def stay_alone(self, node: NodeFile) -> None:
        """Refuse a directory of a cluster to a broker that is to be alone: its metadata is elsewhere."""
        if node.cluster:
            raise NotThisNodesError(
                f"{self.path} belongs to cluster {node.cluster}: start it with --cluster {node.cluster} and --etcd, or use another --data-dir"
            )

    def release(self) -> None:
        """Let another process have it."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
