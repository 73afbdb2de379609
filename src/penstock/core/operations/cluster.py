"""The cluster: its description, nodes that are drained, and which nodes have and lead partitions."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.core.cluster.election import is_led, preferred
from penstock.core.cluster.reassignment import ElectionKind
from penstock.core.cluster.status import status_steps
from penstock.core.operations.handling import answers, next_turn, works
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations import cluster
from penstock.types import PartitionKey

if TYPE_CHECKING:
    from penstock.core.broker import Broker

_STORE_MS_MAX: Final = 2_000
"""The metadata store has this long to show that it is reachable."""
_PARTITIONS_A_TURN: Final = 64
"""A replica may have to be opened first; others are served in between."""


@works(cluster.DescribeCluster)
async def describe(broker: "Broker", _: cluster.DescribeCluster, __: Caller) -> cluster.ClusterDescription:
    """As this node knows it."""
    steps = status_steps(broker, await _metadata(broker))
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: cluster.ClusterDescription = done.value
            return found
        await next_turn(broker)


async def _metadata(broker: "Broker") -> cluster.Metadata:
    try:
        in_time = await broker.within(_STORE_MS_MAX, broker.cluster.nodes.check_store())
    except PenstockError as error:
        return cluster.Metadata(is_reachable=False, error=error.text)
    if not in_time:
        return cluster.Metadata(is_reachable=False, error=f"it did not answer within {_STORE_MS_MAX // 1000} s")
    return cluster.Metadata(is_reachable=True, error=None)


@works(cluster.DrainNode)
async def drain(broker: "Broker", asked: cluster.DrainNode, _: Caller) -> cluster.NodeDrain:
    """Returns when the wish is stored."""
    reassignments = broker.cluster.reassignments
    await reassignments.drain(asked.node)
    return reassignments.progress(asked.node)


@works(cluster.UndrainNode)
async def undrain(broker: "Broker", asked: cluster.UndrainNode, _: Caller) -> cluster.NodeDrain:
    """Returns when the wish is stored."""
    reassignments = broker.cluster.reassignments
    await reassignments.undrain(asked.node)
    return reassignments.progress(asked.node)


@works(cluster.RotateClusterSecret)
async def rotate_secret(broker: "Broker", _: cluster.RotateClusterSecret, __: Caller) -> cluster.SecretRotation:
    """Returns when the new secret is stored; the nodes receive it a moment later."""
    generation = await broker.cluster.secret.rotate(broker.entropy, broker.clock.now_ms())
    broker.report(f"the cluster's secret was rotated (generation {generation})")
    return cluster.SecretRotation(generation)


@answers(cluster.ReadMetrics)
def read_metrics(_: "Broker", __: cluster.ReadMetrics, ___: Caller) -> None:
    """They are put together by the gateway that was asked, with a library that only it loads."""


@answers(cluster.DescribeQuorum)
def describe_quorum(broker: "Broker", _: cluster.DescribeQuorum, __: Caller) -> None:
    """A cluster agrees through etcd, whose members are not nodes: any list of voters would be invented."""
    if broker.is_alone:
        text = "This broker is not part of a cluster: its metadata is in its own data directory, and there is no quorum to describe"
    else:
        text = (
            "This cluster keeps its metadata in etcd and has no KRaft quorum. "
            "'penstock cluster status' shows the nodes and the controller, 'etcdctl endpoint status --cluster' the members of etcd"
        )
    raise PenstockError(Reason.UNSUPPORTED_VERSION, text)


@works(cluster.ListReplicas)
async def list_replicas(broker: "Broker", asked: cluster.ListReplicas, _: Caller) -> tuple[cluster.ReplicaSize, ...]:
    """Led here or copied."""
    wanted: Iterable[tuple[str, Iterable[int]]] | None = asked.partitions
    if wanted is None:
        wanted = [(topic.name, range(topic.partition_count)) for topic in broker.topics]
    found: list[cluster.ReplicaSize] = []
    count = 0
    for name, indexes in wanted:
        for index in indexes:
            if count % _PARTITIONS_A_TURN == 0:
                await next_turn(broker)
            count += 1
            try:
                if broker.node_id not in broker.topics.partition(broker.topics.require(name), index).replicas:
                    continue
                size_bytes = broker.replica(name, index).log.size_bytes
            except PenstockError:
                continue
            found.append(cluster.ReplicaSize(name, index, size_bytes))
    return tuple(found)


@answers(cluster.MoveToFolder)
def move_to_folder(broker: "Broker", asked: cluster.MoveToFolder, _: Caller) -> bool:
    """Done already if it is the data directory."""
    broker.replica(asked.topic, asked.partition)
    return os.path.normpath(asked.folder) == os.path.normpath(broker.logs.data_dir)


@works(cluster.ReassignPartition)
async def reassign_partition(broker: "Broker", asked: cluster.ReassignPartition, _: Caller) -> None:
    """Returns when the wish is stored."""
    await broker.cluster.reassignments.alter(
        asked.topic,
        asked.partition,
        asked.replicas,
        allow_replication_factor_change=asked.allow_replication_factor_change,
    )


@works(cluster.ListReassignments)
async def list_reassignments(
    broker: "Broker", asked: cluster.ListReassignments, _: Caller
) -> tuple[cluster.ReplicaMove, ...]:
    """Each once."""
    reassignments = broker.cluster.reassignments
    if asked.partitions is None:
        return tuple(reassignments.list())
    moves: dict[cluster.ReplicaMove, None] = {}
    for first in range(0, len(asked.partitions), _PARTITIONS_A_TURN):
        moves.update(dict.fromkeys(reassignments.list(asked.partitions[first : first + _PARTITIONS_A_TURN])))
        await next_turn(broker)
    return tuple(moves)


@works(cluster.ElectLeader)
async def elect_leader(broker: "Broker", asked: cluster.ElectLeader, _: Caller) -> None:
    """Returns when the leader is stored."""
    kind = ElectionKind.UNCLEAN if asked.unclean else ElectionKind.PREFERRED
    await broker.cluster.reassignments.elect(asked.topic, asked.partition, kind)


@answers(cluster.ListElections)
def list_elections(broker: "Broker", asked: cluster.ListElections, _: Caller) -> tuple[PartitionKey, ...]:
    """From the metadata that every node has."""
    topics, live = broker.topics, broker.cluster.nodes.live()
    return tuple(
        PartitionKey(topic.name, index)
        for topic in topics
        for index, record in enumerate(topics.partitions(topic))
        if not is_led(record, live) or (not asked.unclean and record.leader != preferred(record))
    )
