"""The folder of a local cluster, and its ports: chosen once and kept in the folder, so that a restart uses the same.

``cluster.json``: ``{"version", "name", "etcd": {"client", "peer"}, "nodes": {"1": {"kafka", "http", "tcp", "grpc", "peer"}, ...}, "kafka_port", "http_port", "racks"}``,
the last three as requested, so that nodes that are added later continue from there; ``lock``, held while it runs;
``etcd/`` and ``etcd.log``; ``node-N/`` and ``node-N.log`` for each node.
"""

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec

from penstock.cli.failures import Exit, Failure
from penstock.cli.locks import LOCK, is_locked

HOST: Final = "127.0.0.1"
NAME: Final = "local"
VERSION: Final = 1
NODES_MAX: Final = 32
KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 8080
TCP_PORT: Final = 4040
GRPC_PORT: Final = 50051
ANY_PORT: Final = 0
_FILE: Final = "cluster.json"
_PORT_MAX: Final = 65535


_Port = Annotated[int, msgspec.Meta(ge=1, le=_PORT_MAX)]
_FirstPort = Annotated[int, msgspec.Meta(ge=ANY_PORT, le=_PORT_MAX)]
_Node = Annotated[int, msgspec.Meta(ge=1)]


class _Versioned(msgspec.Struct, frozen=True):
    """What every release can read of the file."""

    version: int = VERSION


class EtcdPorts(msgspec.Struct, frozen=True):
    """Where etcd listens."""

    client: _Port
    peer: _Port


class NodePorts(msgspec.Struct, frozen=True):
    """Where one node listens."""

    kafka: _Port
    http: _Port
    tcp: _Port
    grpc: _Port
    peer: _Port


class ClusterLayout(msgspec.Struct, frozen=True):
    """The contents of ``cluster.json``."""

    etcd: EtcdPorts
    nodes: Annotated[dict[_Node, NodePorts], msgspec.Meta(min_length=1)]
    name: str = NAME
    version: int = VERSION
    kafka_port: _FirstPort | None = None
    """Where the nodes' ports begin; 0: any. None in a file of a release that did not store it."""
    http_port: _FirstPort | None = None
    racks: tuple[str, ...] = ()

    def first_port(self, listener: str) -> int:
        """Where the ports of this listener begin: as requested, or else the port of node 1."""
        asked: int | None = getattr(self, f"{listener}_port")
        if asked is not None:
            return asked
        port: int = getattr(self.nodes[min(self.nodes)], listener)
        return port

    def rack_of(self, node: int) -> str | None:
        """The rack of a node: racks are assigned in turn."""
        return self.racks[(node - 1) % len(self.racks)] if self.racks else None


class ClusterFolder:
    """One local cluster on disk."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path.resolve()

    def data_dir(self, child: str) -> Path:
        """Where ``etcd`` or ``node-N`` keeps its data."""
        return self.path / child

    def log_file(self, child: str) -> Path:
        """Where its log is."""
        return self.path / f"{child}.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder, so that the cluster runs only once."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self.path / "node.json").exists() and not (self.path / _FILE).exists():
            raise Failure(
                f"{self.path} is the data directory of a broker, not of a local cluster; use another --data-dir. To make that broker the first node of a "
                "cluster: penstock serve --cluster NAME (docs/cluster.md)"
            )
        with (self.path / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"{self.path} is in use by another penstock cluster up; stop it first") from None
            yield

    def layout(
        self,
        nodes: int | None,
        kafka_port: int | None = None,
        http_port: int | None = None,
        racks: Sequence[str] | None = None,
    ) -> ClusterLayout:
        """The cluster to run: that of the folder, with more nodes if requested; a new one in an empty folder."""
        known = self._read()
        if known is not None:
            self._check(known, nodes, {"kafka": kafka_port, "http": http_port})
            kafka, http = known.first_port("kafka"), known.first_port("http")
        else:
            kafka = KAFKA_PORT if kafka_port is None else kafka_port
            http = HTTP_PORT if http_port is None else http_port
        count = nodes or (len(known.nodes) if known is not None else 3)
        with ExitStack() as taken:
            ports = _Ports(taken, set() if known is None else _used(known))
            etcd = EtcdPorts(ports.free(), ports.free()) if known is None else known.etcd
            found = dict(known.nodes) if known is not None else {}
            for node in range(1, count + 1):
                if node not in found:
                    # Node 1 listens where a broker that runs alone does, so that examples work as they are.
                    tcp, grpc = (TCP_PORT, GRPC_PORT) if node == 1 and kafka != ANY_PORT else (ANY_PORT, ANY_PORT)
                    found[node] = NodePorts(
                        ports.from_on(kafka), ports.from_on(http), ports.at(tcp), ports.at(grpc), ports.free()
                    )
        before = () if known is None else known.racks
        named = before if racks is None else tuple(racks)
        name = NAME if known is None else known.name
        made = ClusterLayout(etcd, found, name=name, kafka_port=kafka, http_port=http, racks=named)
        if made != known:
            self._write(made)
        return made

    def check_ports(self, layout: ClusterLayout) -> None:
        """Refuse to start while a port of the cluster is taken: clients would reach another program there."""
        for node in sorted(layout.nodes):
            lock = self.data_dir(f"node-{node}") / LOCK
            if is_locked(lock):
                raise Failure(
                    f"Node {node} of an earlier penstock cluster up is still running (pid {lock.read_text().strip()}); stop it first"
                )
        owners = {"etcd": layout.etcd} | {f"node {node}": ports for node, ports in sorted(layout.nodes.items())}
        taken = [
            f"port {port} of {owner}"
            for owner, ports in owners.items()
            for port in msgspec.structs.astuple(ports)
            if _is_taken(port)
        ]
        if taken:
            raise Failure(
                f"Already in use by another program: {', '.join(taken)}; stop that program, or use another --data-dir"
            )

    def _check(self, known: ClusterLayout, nodes: int | None, asked: Mapping[str, int | None]) -> None:
        if nodes is not None and nodes < len(known.nodes):
            raise Failure(
                f"{self.path} has a cluster of {len(known.nodes)} nodes, which cannot run with only {nodes}; "
                f"leave out --nodes, or use another --data-dir",
                Exit.USAGE,
            )
        for listener, port in asked.items():
            # The stored ports are any free ones.
            first, of_node_1 = known.first_port(listener), getattr(known.nodes[min(known.nodes)], listener)
            if port in (None, ANY_PORT, first, of_node_1):
                continue
            stored = "any free ones" if first == ANY_PORT else f"from {first} on"
            has = ", ".join(str(getattr(ports, listener)) for ports in known.nodes.values())
            raise Failure(
                f"--{listener}-port {port}: the cluster in {self.path} already has its ports, {stored} ({has}); leave out --{listener}-port, change "
                f'"{listener}" of its nodes in {self.path / _FILE} while it is stopped, or use another --data-dir',
                Exit.USAGE,
            )

    def _check_version(self, version: int) -> None:
        if version != VERSION:
            raise Failure(
                f"{self.path / _FILE} has version {version}: use the release that created it, or another --data-dir"
            )

    def _read(self) -> ClusterLayout | None:
        file = self.path / _FILE
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Failure(f"{file} cannot be read: {error.strerror}; use another --data-dir") from None
        try:
            self._check_version(msgspec.json.decode(data, type=_Versioned).version)
            return msgspec.json.decode(data, type=ClusterLayout)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Failure(
                f"{file} cannot be read ({error}); remove it to choose new ports, or use another --data-dir"
            ) from None

    def _write(self, layout: ClusterLayout) -> None:
        new = self.path / f"{_FILE}.new"
        new.write_bytes(msgspec.json.format(msgspec.json.encode(layout), indent=2) + b"\n")
        os.replace(new, self.path / _FILE)


class _Ports:
    """Free ports. Each is kept open until all are chosen, so that none is chosen twice."""

    def __init__(self, stack: ExitStack, used: set[int]) -> None:
        self._stack = stack
        self._used = used

    def free(self) -> int:
        """Any free port."""
        while True:
            port = self._take(ANY_PORT)
            if port is not None:
                return port

    def at(self, wanted: int) -> int:
        """This port, or any free one if it is taken."""
        return self._take(wanted) or self.free()

    def from_on(self, first: int) -> int:
        """The first free port at or above ``first``; any if that is 0."""
        if first == ANY_PORT:
            return self.free()
        for wanted in range(first, _PORT_MAX + 1):
            port = self._take(wanted)
            if port is not None:
                return port
        raise Failure(f"No port at or above {first} is free; specify a lower one", Exit.USAGE)

    def _take(self, wanted: int) -> int | None:
        probe = self._stack.enter_context(socket.socket())
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            if wanted == ANY_PORT:
                raise Failure(f"Cannot get a free port: {error.strerror}") from error
            return None
        port: int = probe.getsockname()[1]
        # A port of a node that does not run at the moment is taken all the same.
        return None if port in self._used else port


def _is_taken(port: int) -> bool:
    """Whether a server could not listen there. Lingering connections of the last run do not matter."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return True
    return False


def _used(layout: ClusterLayout) -> set[int]:
    """The ports that a cluster already has."""
    groups = (layout.etcd, *layout.nodes.values())
    return {port for group in groups for port in msgspec.structs.astuple(group)}
