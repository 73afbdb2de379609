"""Reading from the closest replica (KIP-392): a client that says which rack it is in is sent to a follower there, if one will do.

The leader chooses, anew whenever the client asks it: a follower that is in sync, up, to stay, and has what is asked for. A follower serves what
it knows to be committed, and only while it is in sync; then it sends the client back to the leader.
"""

from uuid import UUID

from penstock.core.broker import Broker
from penstock.core.partition import Partition
from penstock.core.replica import Replica
from penstock.core.topics import Topic
from penstock.errors import PenstockError, Reason
from penstock.types import NodeId


def closer_replica(broker: Broker, partition: Partition, rack: str, offset: int) -> int | None:
    """The follower that a client in ``rack`` should read this from; None when it is best served here."""
    cluster, in_sync = broker.cluster, partition.in_sync
    if cluster is None or in_sync is None or offset < partition.log.start_offset:
        return None
    nodes = cluster.nodes.nodes
    here = nodes.get(broker.node_id)
    if here is not None and here.rack == rack:
        return None
    avoided = cluster.nodes.avoided()
    able = sorted(
        node_id
        for node_id, epoch in in_sync.agreed.items()
        if node_id not in avoided
        and (node := nodes.get(NodeId(node_id))) is not None
        and (node.epoch, node.rack) == (epoch, rack)
        and "kafka" in node.listeners
        and (in_sync.end_of(node_id) or 0) >= offset
    )
    # Where a rack has several, its readers are spread over them.
    return able[partition.index % len(able)] if able else None


def copy_here(broker: Broker, topic: str | bytes, index: int) -> Replica:
    """The copy of a partition that is led elsewhere, if it may be read here; NOT_LEADER_OR_FOLLOWER when it may not."""
    found = _topic(broker, topic)
    replica = broker.replica(found.name, index)
    if broker.node_id not in broker.topics.partition(found, index).in_sync:
        raise PenstockError(
            Reason.NOT_LEADER_OR_FOLLOWER,
            f"{found.name}/{index} is not in sync on node {broker.node_id}; ask its leader.",
        )
    return replica


def _topic(broker: Broker, topic: str | bytes) -> Topic:
    return broker.topics.require(topic) if isinstance(topic, str) else broker.topics.require_id(UUID(bytes=topic))
