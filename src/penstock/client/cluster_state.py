"""How a cluster stands, and nodes that are to be emptied, over HTTP: what Kafka's protocol has no words for.

The structs are what a node answers, field by field; fields that a later one adds are passed over.
"""

import msgspec

from penstock.client.http import HttpClient, v1_path


class ClusterNode(msgspec.Struct, frozen=True):
    """One node. What is only known of nodes that are up is None for one that is not."""

    node: int
    is_up: bool
    epoch: int | None
    rack: str | None
    version: str | None
    started_ms: int | None
    is_stopping: bool
    is_draining: bool
    leads: int
    replicas: int
    listeners: dict[str, str]
    stuck: int = 0
    """Of its replicas, those that no other node could take if this one were to be emptied."""
    left_ms: int | None = None
    """When it was seen to leave, if it is down and the node that was asked saw it."""
    only_there: int = 0
    """Partitions that wait for it: it is down, and nobody who is up has all that was acknowledged. Not counted as stuck."""

    @property
    def state(self) -> str:
        """In a word."""
        if not self.is_up:
            return "down"
        if self.is_stopping:
            return "stopping"
        return "draining" if self.is_draining else "up"


class Controller(msgspec.Struct, frozen=True):
    """Who decides on leaders."""

    node: int
    epoch: int


class Metadata(msgspec.Struct, frozen=True):
    """Whether etcd can be reached from the node that was asked, and if not, why."""

    is_reachable: bool
    error: str | None


class PartitionTrouble(msgspec.Struct, frozen=True):
    """A partition that is not as it should be, and why."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    eligible: list[int]
    why: str


class PartitionMove(msgspec.Struct, frozen=True):
    """A partition on its way to other nodes. Its leader alone knows how far they are."""

    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    adding: list[int]
    removing: list[int]
    in_sync: list[int]
    start_offset: int | None
    end_offset: int | None
    copied: dict[str, int] | None

    @property
    def share(self) -> float | None:
        """How much of it those that are being added have, from 0 to 1; None when it is not known here."""
        if self.copied is None or self.start_offset is None or self.end_offset is None:
            return None
        waited_for = [end for node, end in self.copied.items() if int(node) not in self.in_sync]
        whole = self.end_offset - self.start_offset
        if not waited_for or not whole:
            return 1.0
        return min(max(min(waited_for) - self.start_offset, 0) / whole, 1.0)


class NodeDrain(msgspec.Struct, frozen=True):
    """A node that is being emptied: what it still leads and has, what of that nobody else can take, and what nobody who is up has whole."""

    node: int
    leads: int
    replicas: int
    stuck: int
    is_done: bool
    only_there: int = 0


class ClusterStatus(msgspec.Struct, frozen=True):
    """All of it. Lists of partitions may be cut; counts are of all."""

    cluster_id: str
    node: int
    is_alone: bool
    metadata: Metadata
    controller: Controller | None
    nodes: list[ClusterNode]
    partitions: int
    under_replicated_count: int
    under_min_in_sync_count: int
    offline_count: int
    moving_count: int
    under_replicated: list[PartitionTrouble]
    offline: list[PartitionTrouble]
    moves: list[PartitionMove]
    drains: list[NodeDrain]
    under_min_in_sync: list[PartitionTrouble] = []


class ClusterState(HttpClient):
    """Ask one node, of several the first that answers. Use it in a ``with`` statement."""

    def status(self) -> ClusterStatus:
        """How the cluster stands, as this node knows it."""
        return self._http.get(v1_path("cluster"), ClusterStatus)

    def drain(self, node: int) -> NodeDrain:
        """Let others lead and have what a node does, as far as they can."""
        return self._http.post(v1_path("cluster", "drain", str(node)), {}, NodeDrain)

    def undrain(self, node: int) -> None:
        """Use a node again; one that is down and has nothing is forgotten."""
        self._http.delete(v1_path("cluster", "drain", str(node)))
