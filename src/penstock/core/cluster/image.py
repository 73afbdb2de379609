"""The nodes of the cluster and its controller, as last received from the metadata store.

``nodes/<id>`` (on the node's lease): ``{"incarnation", "directory", "listeners": {"kafka": "host:port", ...}, "rack", "shutting_down", "version",
"started_ms", "peer_tls"}``. A node's epoch is the entry's create revision, so it changes when the node registers again. ``controller`` (on a lease):
``{"node"}``; the controller's epoch is its create revision. ``drains/<id>``: ``{}`` while a node is being drained.

Invariant: the image changes only by the store's events.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec

from penstock.address import Address, parse_address
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Entry, Event, MetadataStore, Unsubscribe
from penstock.ports import Clock
from penstock.types import NodeId

NODES_PREFIX: Final = "nodes/"
DRAINS_PREFIX: Final = "drains/"
CONTROLLER_KEY: Final = "controller"


class NodeRecord(msgspec.Struct, frozen=True):
    """The value under ``nodes/<id>``."""

    incarnation: UUID
    """The id of the process."""
    directory: UUID
    """The id of the data directory, which only one process at a time can use."""
    listeners: dict[str, str] = {}
    rack: str | None = None
    shutting_down: bool = False
    version: str = ""
    started_ms: int = 0
    peer_tls: bool = False
    """Whether other nodes can connect with TLS."""


class ControllerRecord(msgspec.Struct, frozen=True):
    """The value under ``controller``."""

    node: int


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A registered node."""

    node_id: NodeId
    epoch: int
    rack: str | None
    shutting_down: bool
    incarnation: UUID
    listeners: Mapping[str, Address]
    """By gateway (``kafka``, ``http``, ``tcp``, ``grpc``), and ``peer`` for other nodes."""
    version: str
    started_ms: int
    peer_tls: bool = False


@dataclass(frozen=True, slots=True)
class ElectedController:
    """The elected controller."""

    node_id: NodeId
    epoch: int


Hook = Callable[[], None]


class ClusterImage:
    """All nodes. Empty at first; :meth:`load` fills it without calling hooks."""

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock
        self.nodes: dict[NodeId, RegisteredNode] = {}
        self.left: dict[NodeId, RegisteredNode] = {}
        """Nodes that are gone, as they were last registered."""
        self.left_ms: dict[NodeId, int] = {}
        """When the nodes in ``left`` were seen to leave. For display only, since clocks may be wrong."""
        self.controller: ElectedController | None = None
        self.draining: set[NodeId] = set()
        self.on_changed: Final[list[Hook]] = []
        """Called after nodes, the controller or drains have changed."""
        self._held_events: list[Event] | None = []
        self._unsubscribes: list[Unsubscribe] = []

    async def load(self) -> None:
        """Read everything from the store and follow it from there."""
        prefixes = (NODES_PREFIX, CONTROLLER_KEY, DRAINS_PREFIX)
        for prefix in prefixes:
            self._unsubscribes.append(self._store.subscribe(prefix, self._take))
        found = {prefix: await self._store.range(prefix) for prefix in prefixes}
        held, self._held_events = self._held_events or [], None
        for entries in found.values():
            for entry in entries.entries:
                self._put(entry)
        for event in held:
            known = next(entries for prefix, entries in found.items() if event.key.startswith(prefix))
            if event.revision > known.revision:
                self._apply(event)

    def add_local(self, node: RegisteredNode) -> None:
        """Count a broker that is alone, which registers nowhere, as the only node and the controller."""
        self.nodes[node.node_id] = node
        self.controller = ElectedController(node.node_id, node.epoch)

    def close(self) -> None:
        """Follow the store no more."""
        for unsubscribe in self._unsubscribes:
            unsubscribe()
        self._unsubscribes.clear()

    # Asking.

    def live(self) -> dict[int, int]:
        """The nodes that are registered, with their epochs."""
        return {node.node_id: node.epoch for node in self.nodes.values()}

    def avoided(self) -> set[NodeId]:
        """Nodes that should lead nothing: they are being drained or stopped."""
        return self.draining | {node.node_id for node in self.nodes.values() if node.shutting_down}

    def is_live(self, node_id: int, epoch: int) -> bool:
        """Whether a node is registered in this incarnation, and is not stopping."""
        node = self.nodes.get(NodeId(node_id))
        return node is not None and node.epoch == epoch and not node.shutting_down

    def racks(self) -> dict[int, str | None]:
        """The nodes that may get replicas, with their racks."""
        avoided = self.avoided()
        return {node.node_id: node.rack for node in self.nodes.values() if node.node_id not in avoided}

    def address(self, node_id: int, listener: str) -> Address:
        """The address of a node's listener; LEADER_NOT_AVAILABLE if the node is not up, or has no such listener."""
        node = self.nodes.get(NodeId(node_id))
        address = None if node is None else node.listeners.get(listener)
        if address is None:
            raise PenstockError(
                Reason.LEADER_NOT_AVAILABLE,
                f"Node {node_id} is not up" if node is None else f"Node {node_id} does not listen for {listener}",
            )
        return address

    async def check_store(self) -> None:
        """Return once the store has answered; METADATA_UNAVAILABLE if it cannot be reached."""
        await self._store.get(CONTROLLER_KEY)

    # Following.

    def _take(self, events: list[Event]) -> None:
        if self._held_events is not None:
            self._held_events += events
            return
        for event in events:
            self._apply(event)
        for hook in self.on_changed:
            hook()

    def _apply(self, event: Event) -> None:
        if event.entry is not None:
            self._put(event.entry)
        elif event.key == CONTROLLER_KEY:
            self.controller = None
        elif event.key.startswith(DRAINS_PREFIX):
            self.draining.discard(_id_of(event.key, DRAINS_PREFIX))
        else:
            node_id = _id_of(event.key, NODES_PREFIX)
            node = self.nodes.pop(node_id, None)
            if node is not None:
                self.left[node_id] = node
                if self._clock is not None:
                    self.left_ms[node_id] = self._clock.now_ms()

    def _put(self, entry: Entry) -> None:
        try:
            if entry.key == CONTROLLER_KEY:
                found = msgspec.json.decode(entry.value, type=ControllerRecord)
                self.controller = ElectedController(NodeId(found.node), entry.create_revision)
            elif entry.key.startswith(DRAINS_PREFIX):
                self.draining.add(_id_of(entry.key, DRAINS_PREFIX))
            else:
                node = _node(entry)
                self.nodes[node.node_id] = node
                self.left.pop(node.node_id, None)
                self.left_ms.pop(node.node_id, None)
        except (msgspec.DecodeError, ValueError):
            raise PenstockError(
                Reason.STORAGE_ERROR,
                f"The entry {entry.key!r} of the metadata store cannot be read; restore the store from a backup",
            ) from None


def node_key(node_id: int) -> str:
    """The key of a node's record."""
    return f"{NODES_PREFIX}{node_id}"


def drain_key(node_id: int) -> str:
    """The key of a node's drain."""
    return f"{DRAINS_PREFIX}{node_id}"


def _id_of(key: str, prefix: str) -> NodeId:
    return NodeId(int(key.removeprefix(prefix)))


def _node(entry: Entry) -> RegisteredNode:
    record = msgspec.json.decode(entry.value, type=NodeRecord)
    return RegisteredNode(
        node_id=_id_of(entry.key, NODES_PREFIX),
        epoch=entry.create_revision,
        rack=record.rack,
        shutting_down=record.shutting_down,
        incarnation=record.incarnation,
        listeners={name: parse_address(text) for name, text in record.listeners.items()},
        version=record.version,
        started_ms=record.started_ms,
        peer_tls=record.peer_tls,
    )
