"""Requests of operators: moves of partitions, elections, and drains of nodes.

The node that receives a request writes it to the metadata store by compare-and-set. A move is a record with ``adding`` and ``removing``
(``records.py``), a drain the entry ``drains/<id>``; the controller carries them out (``decisions.py``). No node keeps a request in memory,
so the next controller can continue. An election is written at once, if the partition's epoch and the new leader's node epoch have not
changed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from penstock.core.cluster.decisions import co_led
from penstock.core.cluster.election import LiveNodes, elected, is_led, preferred
from penstock.core.cluster.image import ClusterImage, drain_key, node_key
from penstock.core.cluster.placement import check_assignment
from penstock.core.cluster.records import is_reassigning, reassigning, target_of
from penstock.core.topics.names import GROUP_STATE_TOPICS
from penstock.core.topics.records import NO_LEADER, PartitionRecord, decode_partition, encode, partition_key
from penstock.core.topics.topics import Topic, Topics
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Compare, Delete, MetadataStore, Put
from penstock.operations.cluster import NodeDrain, ReplicaMove
from penstock.types import NodeId

_ATTEMPTS_MAX: Final = 100
"""How often a change is retried because another node changed the record in between."""


class ElectionKind(IntEnum):
    """The nodes that an election on request may choose; the numbers are Kafka's."""

    PREFERRED = 0
    """The first replica, if it is in sync."""
    UNCLEAN = 1
    """Any live replica, if there is no leader: acknowledged records may be lost."""


def moved(
    record: PartitionRecord, target: tuple[int, ...], live: LiveNodes, min_in_sync: int, avoid: Iterable[int] = ()
) -> PartitionRecord:
    """The record at the beginning of a move. INVALID_REPLICA_ASSIGNMENT if none of the in-sync replicas would be left.

    If the leader was being added by a move that this one replaces, another one is elected at once.
    """
    begun = reassigning(record, target)
    if not any(node in begun.replicas for node in record.in_sync):
        raise PenstockError(
            Reason.INVALID_REPLICA_ASSIGNMENT,
            f"None of the in-sync replicas ({', '.join(map(str, record.in_sync))}) would remain; include one of them, or wait until others are in sync",
        )
    if begun.leader != NO_LEADER and begun.leader not in begun.replicas:
        return elected(begun, live, min_in_sync, avoid=set(avoid))
    return begun


def is_only_at(record: PartitionRecord, node_id: int, live: LiveNodes) -> bool:
    """Whether a partition waits for this node: it is down, and no live node has all acknowledged records."""
    keepers = {*record.in_sync, *record.elr}
    return node_id in keepers and not any(node in live for node in keepers)


class Reassignments:
    """Writes the requests. Each method returns once the request is stored, not when it is completed."""

    def __init__(self, store: MetadataStore, topics: Topics, nodes: ClusterImage) -> None:
        self._store = store
        self._topics = topics
        self._nodes = nodes

    # Moves.

    async def alter(
        self,
        topic: str,
        partition: int,
        replicas: Sequence[int] | None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> None:
        """Move a partition to these nodes, the preferred leader first; None cancels the move under way. Co-led partitions move too.

        INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR or NO_REASSIGNMENT_IN_PROGRESS if that is not possible.
        """
        found = self._topics.require_named(topic)
        await self._alter(found, partition, replicas, allow_replication_factor_change)
        if found.name in GROUP_STATE_TOPICS:
            for other, index in co_led(self._topics, found, partition):
                if other is not found and (
                    replicas is not None or is_reassigning(self._topics.partition(other, index))
                ):
                    await self._alter(other, index, replicas, allow_replication_factor_change)

    async def _alter(
        self, found: Topic, partition: int, replicas: Sequence[int] | None, allow_replication_factor_change: bool
    ) -> None:
        topic = found.name

        def change(record: PartitionRecord) -> PartitionRecord:
            if replicas is None:
                target = self._before(found, partition, record)
            else:
                target = tuple(replicas)
                self._check(record, target)
                if not allow_replication_factor_change and len(target) != len(target_of(record)):
                    raise PenstockError(
                        Reason.INVALID_REPLICATION_FACTOR,
                        f"{topic}/{partition} has {len(target_of(record))} replicas, but {len(target)} were named, which would change its replication factor. Name the same number, or allow the change.",
                    )
            return moved(record, target, self._nodes.live(), found.min_in_sync, self._nodes.avoided())

        await self._change(found, partition, change)

    def _before(self, topic: Topic, partition: int, record: PartitionRecord) -> tuple[int, ...]:
        if not is_reassigning(record):
            raise PenstockError(
                Reason.NO_REASSIGNMENT_IN_PROGRESS,
                f"{topic.name}/{partition} is not being moved: there is nothing to cancel.",
            )
        return tuple(node for node in record.replicas if node not in record.adding)

    def _check(self, record: PartitionRecord, target: tuple[int, ...]) -> None:
        # A node that is down may keep a replica, but cannot get a new one.
        known: dict[int, str | None] = dict.fromkeys((*record.replicas, *self._nodes.nodes))
        check_assignment(target, known)
        draining = [node for node in target if node in self._nodes.draining and node not in record.replicas]
        if draining:
            raise PenstockError(
                Reason.INVALID_REPLICA_ASSIGNMENT,
                f"Node {draining[0]} is being drained. Name other nodes, or end its drain first.",
            )

    def list(self, partitions: Iterable[tuple[str, int]] | None = None) -> Iterator[ReplicaMove]:
        """The moves under way, of these partitions or of all. Unknown partitions are skipped."""
        if partitions is None:
            for topic in self._topics:
                for index, record in enumerate(self._topics.partitions(topic)):
                    if is_reassigning(record):
                        yield _move(topic, index, record)
            return
        for name, index in partitions:
            found = self._topics.get(name)
            if found is not None and 0 <= index < found.partition_count:
                record = self._topics.partition(found, index)
                if is_reassigning(record):
                    yield _move(found, index, record)

    # Elections.

    async def elect(self, topic: str, partition: int, kind: ElectionKind) -> None:
        """Elect a leader now. ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE or ELIGIBLE_LEADERS_NOT_AVAILABLE if there is none to elect."""
        found = self._topics.require_named(topic)

        def change(record: PartitionRecord) -> PartitionRecord:
            live = self._nodes.live()
            if kind is ElectionKind.PREFERRED:
                return self._elect_preferred(found, partition, record, live)
            return self._elect_unclean(found, partition, record, live)

        await self._change(found, partition, change)

    def _elect_preferred(
        self, topic: Topic, partition: int, record: PartitionRecord, live: LiveNodes
    ) -> PartitionRecord:
        first = preferred(record)
        if record.leader == first and is_led(record, live):
            raise PenstockError(
                Reason.ELECTION_NOT_NEEDED,
                f"{topic.name}/{partition} is already led by node {first}, its preferred leader",
            )
        if (first, live.get(first)) not in record.isr or first in self._nodes.avoided():
            why = (
                "it is being drained, or about to stop"
                if first in self._nodes.avoided()
                else "it is not up and in sync"
            )
            raise PenstockError(
                Reason.PREFERRED_LEADER_NOT_AVAILABLE,
                f"Node {first} cannot lead {topic.name}/{partition}: {why}. Start it, or end its drain, and wait until it has caught up.",
            )
        return elected(record, live, topic.min_in_sync, avoid=[node for node in record.replicas if node != first])

    def _elect_unclean(self, topic: Topic, partition: int, record: PartitionRecord, live: LiveNodes) -> PartitionRecord:
        if is_led(record, live):
            raise PenstockError(
                Reason.ELECTION_NOT_NEEDED,
                f"{topic.name}/{partition} is led by node {record.leader}; an unclean election is not needed.",
            )
        changed = elected(record, live, topic.min_in_sync, avoid=self._nodes.avoided(), unclean=True)
        if changed.leader == NO_LEADER:
            raise PenstockError(
                Reason.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"No node that has {topic.name}/{partition} is up. Start one of {', '.join(map(str, record.replicas))}.",
            )
        return changed

    # Drains.

    async def drain(self, node_id: int) -> None:
        """Move all leaderships and replicas of a node to others, as far as possible, while it stays up.

        UNKNOWN_NODE if there is no such node, INVALID_REQUEST if no other node could take anything.
        """
        if NodeId(node_id) not in self._nodes.nodes and not self.progress(node_id).replicas:
            raise PenstockError(
                Reason.UNKNOWN_NODE,
                f"There is no node {node_id} in the cluster. Its nodes are {', '.join(map(str, sorted(self._nodes.nodes)))}.",
            )
        if not set(self._nodes.racks()) - {node_id}:
            raise PenstockError(
                Reason.INVALID_REQUEST,
                f"No node can take over from node {node_id}: it is a single broker, or all other nodes are down, stopping, or being drained. "
                "Start another node, or end a drain. Nothing was done.",
            )
        await self._store.txn([Compare(drain_key(node_id), create_revision=0)], [Put(drain_key(node_id), b"{}")])

    async def undrain(self, node_id: int) -> None:
        """End a drain, if there is one. A node that is down and has no replicas is forgotten.

        Moved partitions stay where they are, but the controller may place internal partitions with too few replicas there (``moves.py``).
        """
        await self._store.txn([], [Delete(drain_key(node_id))])

    def drains(self) -> tuple[NodeDrain, ...]:
        """All drains with their progress."""
        return tuple(self.progress(node_id) for node_id in sorted(self._nodes.draining))

    def progress(self, node_id: int) -> NodeDrain:
        """What a node still leads and has."""
        leading = replicas = stuck = only_there = 0
        able = set(self._nodes.racks()) - {node_id}
        live = self._nodes.live()
        for topic in self._topics:
            for record in self._topics.partitions(topic):
                leading += record.leader == node_id
                if node_id in record.replicas:
                    replicas += 1
                    if is_only_at(record, node_id, live):
                        only_there += 1
                    else:
                        stuck += node_id not in record.removing and able <= set(record.replicas)
        return NodeDrain(node_id, leading, replicas, stuck, not leading and not replicas, only_there)

    # Writing.

    async def _change(self, topic: Topic, index: int, change: Callable[[PartitionRecord], PartitionRecord]) -> None:
        self._topics.partition(topic, index)
        key = partition_key(topic.topic_id, index)
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(key)
            if entry is None:
                raise PenstockError(
                    Reason.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic.name} was deleted by another client at the same time",
                )
            record = decode_partition(key, entry.value)
            changed = change(record)
            if changed == record:
                return
            compares = [Compare(key, mod_revision=entry.mod_revision)]
            if changed.leader != NO_LEADER and changed.leader_epoch != record.leader_epoch:
                # Only if the node is still in this incarnation.
                compares.append(Compare(node_key(changed.leader), create_revision=changed.leader_node_epoch))
            if (await self._store.txn(compares, [Put(key, encode(changed))])).succeeded:
                return
        raise PenstockError(
            Reason.REQUEST_TIMED_OUT, f"{topic.name}/{index} was changed by other nodes at the same time; try again"
        )


def _move(topic: Topic, index: int, record: PartitionRecord) -> ReplicaMove:
    return ReplicaMove(topic.name, index, record.replicas, record.adding, record.removing)
