"""The data directory: its lock, and the node and cluster that it belongs to.

``lock`` is held by the one process that may write here; ``node.json`` says which cluster and node the data belongs to, and in
which format it is stored, so that a later version can recognize it.
"""

import fcntl
import os
import stat
from typing import Final

import msgspec

from penstock.ports import Disk, Entropy
from penstock.runtime.disk import RealDisk

FORMAT_VERSION: Final = 1
_MODE: Final = 0o700
_PARENT_MODE: Final = 0o777
"""What the umask leaves: the directories above do not belong to the broker."""
_LOCK_MODE: Final = 0o640


class DataDirError(Exception):
    """The directory cannot be used; the text says what to do."""


class NotThisNodesError(DataDirError):
    """The directory belongs to another node or cluster: the settings, or the directory in them, are wrong."""


class NodeFile(msgspec.Struct, frozen=True):
    """The content of ``node.json``."""

    format_version: int
    node_id: int
    cluster_id: str
    cluster: str = ""
    """The name of the cluster that it belongs to; empty for a broker that is alone."""
    directory: str = ""
    """The id of this directory, by which a cluster recognizes it."""
    encrypted: bool = False
    """Whether its logs are encrypted, so that they cannot be read, or recovered, without the key."""


class DataDir:
    """A locked data directory. Keep it until the broker has stopped."""

    def __init__(self, path: str) -> None:
        self.path: Final = os.path.abspath(path)
        self._lock_fd: int | None = None

    def own(self) -> None:
        """Create the directory if necessary and lock it. The error says which process has it."""
        try:
            self._make()
            descriptor = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _LOCK_MODE)
        except OSError as error:
            raise DataDirError(
                f"Cannot use {self.path} for data: {error.strerror}; specify another directory with --data-dir"
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

    def _make(self) -> None:
        """Make the directory, for its owner alone. One that exists keeps its mode: somebody may have chosen it."""
        # Syncs the parents as well: a power failure must not lose the directory with everything that was synced in it.
        disk = RealDisk()
        disk.make_dirs(os.path.dirname(self.path), mode=_PARENT_MODE)
        disk.make_dirs(self.path, mode=_MODE)

    @property
    def exposed(self) -> str:
        """A warning if other users of the machine can enter the directory; empty if not."""
        mode = stat.S_IMODE(os.stat(self.path).st_mode)
        if not mode & stat.S_IRWXO:
            return ""
        return f"other users of this machine can enter {self.path} (mode {mode:04o}): protect it with chmod 700 {self.path}"

    def identify(self, disk: Disk, entropy: Entropy, node_id: int, *, cluster: str = "") -> NodeFile:
        """Read ``node.json``, or write it for a new directory. ``cluster`` is the one that this node belongs to."""
        path = os.path.join(self.path, "node.json")
        if not disk.exists(path):
            node = NodeFile(FORMAT_VERSION, node_id, entropy.uuid().hex)
            disk.write_atomic(path, msgspec.json.encode(node))
            return node
        node = self.read(disk)
        if node.format_version != FORMAT_VERSION:
            raise DataDirError(
                f"{self.path} has format {node.format_version} but this version uses {FORMAT_VERSION}: use the version of Penstock that wrote it"
            )
        if node.node_id != node_id:
            raise NotThisNodesError(self._of_another_node(node, node_id, cluster))
        return node

    def read(self, disk: Disk) -> NodeFile:
        """What ``node.json`` says."""
        path = os.path.join(self.path, "node.json")
        try:
            return msgspec.json.decode(disk.read_bytes(path), type=NodeFile)
        except msgspec.DecodeError as error:
            raise DataDirError(f"{path} cannot be read ({error}); restore it from a backup of the directory") from error

    def _of_another_node(self, node: NodeFile, node_id: int, cluster: str) -> str:
        if not cluster:
            return (
                f"{self.path} belongs to node {node.node_id}, not {node_id}: set server.node_id to {node.node_id} "
                "(PENSTOCK__SERVER__NODE_ID), or use another --data-dir"
            )
        if node.cluster:
            return f"{self.path} belongs to node {node.node_id}, not {node_id}: start it with --node-id {node.node_id}, or use another --data-dir"
        # Another --node-id would not help: an existing cluster cannot take over the topics of a broker.
        return f"{self.path} belongs to a single broker (node {node.node_id}), which can only become the first node of a new cluster, with --node-id {node.node_id}. Nothing was changed. Use an empty --data-dir for node {node_id}"

    def name(self, disk: Disk, entropy: Entropy, node: NodeFile) -> NodeFile:
        """Give the directory an id, if it has none: a cluster recognizes it by that."""
        if node.directory:
            return node
        named = msgspec.structs.replace(node, directory=entropy.uuid().hex)
        disk.write_atomic(os.path.join(self.path, "node.json"), msgspec.json.encode(named))
        return named

    def note_encrypted(self, disk: Disk, node: NodeFile) -> NodeFile:
        """Note that the logs are encrypted from now on."""
        if node.encrypted:
            return node
        noted = msgspec.structs.replace(node, encrypted=True)
        disk.write_atomic(os.path.join(self.path, "node.json"), msgspec.json.encode(noted))
        return noted

    def join(self, disk: Disk, entropy: Entropy, node: NodeFile, cluster: str, cluster_id: str) -> NodeFile:
        """Note that the directory belongs to a cluster from now on. Raises if it belongs to another one."""
        if node.cluster and (node.cluster, node.cluster_id) != (cluster, cluster_id):
            raise NotThisNodesError(
                f"{self.path} belongs to cluster {node.cluster} ({node.cluster_id}), not to {cluster} ({cluster_id}): check --cluster and "
                "--etcd, or use another --data-dir"
            )
        joined = msgspec.structs.replace(
            node, cluster_id=cluster_id, cluster=cluster, directory=node.directory or entropy.uuid().hex
        )
        if joined != node:
            disk.write_atomic(os.path.join(self.path, "node.json"), msgspec.json.encode(joined))
        return joined

    def stay_alone(self, node: NodeFile) -> None:
        """Raises if the directory belongs to a cluster: a broker that is alone cannot use it, because its metadata is in etcd."""
        if node.cluster:
            raise NotThisNodesError(
                f"{self.path} belongs to cluster {node.cluster}: start it with --cluster {node.cluster} and --etcd, or use another --data-dir"
            )

    def release(self) -> None:
        """Unlock the directory."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
