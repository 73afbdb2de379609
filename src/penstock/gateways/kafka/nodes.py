"""The nodes as Kafka's clients are told: of a broker that is alone, itself, where the client connected to."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.address import Address
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext

NO_CONTROLLER = -1


class ToldNode(NamedTuple):
    """One node, and where clients reach it."""

    node_id: int
    address: Address
    rack: str | None = None


def nodes_of(context: RequestContext) -> list[ToldNode]:
    """All nodes that are up and serve Kafka's clients."""
    cluster = context.broker.cluster
    if cluster is None:
        return [ToldNode(context.broker.node_id, context.advertised)]
    return [
        ToldNode(node.node_id, node.listeners["kafka"], node.rack)
        for node in sorted(cluster.nodes.nodes.values(), key=lambda node: node.node_id)
        if "kafka" in node.listeners
    ]


def controller_of(context: RequestContext) -> int:
    """The controller's id. Every node does what clients ask of a controller, so they are told one that is up."""
    cluster = context.broker.cluster
    if cluster is None:
        return context.broker.node_id
    controller = cluster.nodes.controller
    return NO_CONTROLLER if controller is None else controller.node_id


def offline_of(context: RequestContext, replicas: Sequence[int]) -> list[int]:
    """Replicas whose nodes are not up."""
    cluster = context.broker.cluster
    return [] if cluster is None else [node for node in replicas if node not in cluster.nodes.nodes]


def coordinator_of(context: RequestContext, group: str) -> ToldNode:
    """Who speaks for a group; COORDINATOR_NOT_AVAILABLE when nobody does."""
    cluster = context.broker.cluster
    if cluster is None:
        return ToldNode(context.broker.node_id, context.advertised)
    node_id = cluster.coordinators.node_of(group)
    try:
        return ToldNode(node_id, cluster.nodes.address(node_id, "kafka"))
    except PenstockError as error:
        raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, error.text) from None
