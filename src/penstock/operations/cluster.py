"""The cluster: its nodes, what is not healthy, nodes that are drained, and which nodes have and lead partitions."""

import msgspec

from penstock.operations.operation import ANY_NODE, Action, Operation, Repeat, on_cluster
from penstock.types import PartitionKey


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node. A node that is down is listed while it has partitions; what only nodes that are up report is null then.

    ``stuck`` counts replicas that no other node could take if this one were drained. ``left_ms`` is when the node was seen to leave, if
    it is down and the node that answers saw it. ``only_there`` counts partitions that wait for it: it is down, and no node that is up has
    every acknowledged record. ``peer_tls``: other nodes connect to it with TLS, if they can.
    """

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
    stuck: int = 0
    left_ms: int | None = None
    listeners: dict[str, str]
    only_there: int = 0
    peer_tls: bool = False

    @property
    def state(self) -> str:
        """In one word."""
        if not self.is_up:
            return "down"
        if self.is_stopping:
            return "stopping"
        return "draining" if self.is_draining else "up"


class Controller(msgspec.Struct, frozen=True):
    """The node that chooses leaders. The epoch grows with every controller."""

    node: int
    epoch: int


class Metadata(msgspec.Struct, frozen=True):
    """The metadata store, which all nodes share: whether this node can reach it, and if not, why."""

    is_reachable: bool
    error: str | None


class PartitionTrouble(msgspec.Struct, frozen=True):
    """A partition that is not healthy, and why."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    why: str


class PartitionMove(msgspec.Struct, frozen=True):
    """A partition that is being reassigned. Offsets are known to the node that leads it, and null elsewhere."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    in_sync: tuple[int, ...]
    start_offset: int | None
    end_offset: int | None
    copied: dict[str, int] | None

    @property
    def share(self) -> float | None:
        """How much of it the nodes that are being added have, from 0 to 1; None if it is not known here."""
        if self.copied is None or self.start_offset is None or self.end_offset is None:
            return None
        waited_for = [end for node, end in self.copied.items() if int(node) not in self.in_sync]
        whole = self.end_offset - self.start_offset
        if not waited_for or not whole:
            return 1.0
        return min(max(min(waited_for) - self.start_offset, 0) / whole, 1.0)


class NodeDrain(msgspec.Struct, frozen=True):
    """A node that is being drained: what it still leads and has, what no other node can take, and what no node that is up has whole."""

    node: int
    leads: int
    replicas: int
    stuck: int
    is_done: bool
    only_there: int = 0


class ClusterDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as one node knows it. Lists of partitions are cut at 1000; counts are of all."""

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
    under_min_in_sync: list[PartitionTrouble] = msgspec.field(default_factory=list)
    offline: list[PartitionTrouble]
    moves: list[PartitionMove]
    drains: list[NodeDrain]


class DescribeCluster(Operation[ClusterDescription], frozen=True):
    """Nodes, controller, and what is not healthy."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class DrainNode(Operation[NodeDrain], frozen=True):
    """Have other nodes lead and store what a node does, as far as they can."""

    node: int

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE


class UndrainNode(Operation[NodeDrain], frozen=True):
    """Use a drained node again; one that is down and has nothing is forgotten."""

    node: int

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE


class SecretRotation(msgspec.Struct, frozen=True):
    """The number of the new secret. The one before it remains valid until the next rotation."""

    generation: int


class RotateClusterSecret(Operation[SecretRotation], frozen=True):
    """Replace the secret with which nodes authenticate to each other."""

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE


class ReadMetrics(Operation[None], frozen=True):
    """Read the metrics of a node; its HTTP gateway has the text."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class DescribeQuorum(Operation[None], frozen=True):
    """The voters of the metadata, which are not nodes: refused as by a Kafka cluster on ZooKeeper."""

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


# Replicas.


class ReplicaSize(msgspec.Struct, frozen=True):
    """A replica on one node, and the bytes that it takes."""

    topic: str
    partition: int
    size_bytes: int


class ListReplicas(Operation[tuple[ReplicaSize, ...]], frozen=True):
    """The replicas on this node: all, or of these partitions by topic. What is not here, or does not exist, is left out."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class MoveToFolder(Operation[bool], frozen=True):
    """Store a replica of this node in this folder; False if it cannot be, because a node has one data directory."""

    topic: str
    partition: int
    folder: str

    is_change = False
    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ReassignPartition(Operation[None], frozen=True):
    """Give a partition to these nodes, the preferred leader first; None cancels the reassignment that is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None
    allow_replication_factor_change: bool = True

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE


class ReplicaMove(msgspec.Struct, frozen=True):
    """A partition that is being reassigned. ``replicas`` has old and new nodes, in the order of the new ones."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ListReassignments(Operation[tuple[ReplicaMove, ...]], frozen=True):
    """The partitions that are being reassigned: all, or those of these."""

    partitions: tuple[PartitionKey, ...] | None = None

    rights = (on_cluster(Action.DESCRIBE),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS


class ElectLeader(Operation[None], frozen=True):
    """Let the preferred replica lead a partition; or, if no in-sync replica is up, any replica, which may lose records."""

    topic: str
    partition: int
    unclean: bool = False

    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE


class ListElections(Operation[tuple[PartitionKey, ...]], frozen=True):
    """The partitions for which an election is needed: they have no leader or, unless it is to be unclean, not the preferred one."""

    unclean: bool = False

    is_change = False
    rights = (on_cluster(Action.ALTER),)
    belongs_to = ANY_NODE
    repeat = Repeat.ALWAYS
