"""How the cluster stands, and nodes that are to be emptied, under ``/v1``: what Kafka's protocol has no words for.

Any node answers. A broker that is alone answers for itself.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.broker import Broker, ClusterSide
from penstock.core.cluster_status import ClusterStatus, MoveStatus, NodeStatus, Trouble, status_steps
from penstock.core.replication.reassignment import Drain
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.answers import Answer, json_answer
from penstock.gateways.http.routing import Call, CallDoc, route
from penstock.gateways.http.v1_models import NoFields
from penstock.gateways.http.v1_requests import read

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TAG: Final = "v1: cluster"
_STORE_SECONDS_MAX: Final = 2.0
"""So long the metadata store has to show that it is there."""


class ClusterNode(Struct, frozen=True):
    """One node. One that is not up is listed while it has partitions; what is only known of nodes that are up is null then.

    ``stuck`` are replicas that no other node could take if this one were to be emptied. ``left_ms`` is when it was seen to leave, if it is down and whoever
    answers was there to see it. ``only_there`` are partitions that wait for it: it is down, and nobody who is up has all that was acknowledged.
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
    stuck: int
    left_ms: int | None
    listeners: dict[str, str]
    only_there: int


class Controller(Struct, frozen=True):
    """Who decides on leaders. The epoch grows with every controller."""

    node: int
    epoch: int


class Metadata(Struct, frozen=True):
    """The metadata store, which all nodes share: whether this node can reach it, and if not, why."""

    is_reachable: bool
    error: str | None


class PartitionTrouble(Struct, frozen=True):
    """A partition that is not as it should be."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    eligible: tuple[int, ...]
    why: str


class PartitionMove(Struct, frozen=True):
    """A partition on its way to other nodes. Offsets are known to the node that leads it, and null elsewhere."""

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


class NodeDrain(Struct, frozen=True):
    """A node that is being emptied: what it still leads and has, what of that nobody else can take, and what nobody who is up has whole."""

    node: int
    leads: int
    replicas: int
    stuck: int
    is_done: bool
    only_there: int


class Cluster(Struct, frozen=True):
    """GET /v1/cluster. Lists of partitions are cut at 1000; counts are of all."""

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
    under_min_in_sync: list[PartitionTrouble]
    offline: list[PartitionTrouble]
    moves: list[PartitionMove]
    drains: list[NodeDrain]


async def _cluster(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.DESCRIBE)
    metadata = await _metadata(broker)
    status = await _status(broker)
    return json_answer(
        Cluster(
            cluster_id=broker.cluster_id,
            node=broker.node_id,
            is_alone=broker.cluster is None,
            metadata=metadata,
            controller=_controller(broker),
            nodes=[_node(broker, each) for each in status.nodes],
            partitions=status.partitions,
            under_replicated_count=status.under_replicated_count,
            under_min_in_sync_count=status.under_min_in_sync_count,
            offline_count=status.offline_count,
            moving_count=status.moving_count,
            under_replicated=[_trouble(each) for each in status.under_replicated],
            under_min_in_sync=[_trouble(each) for each in status.under_min_in_sync],
            offline=[_trouble(each) for each in status.offline],
            moves=[_move(each) for each in status.moves],
            drains=[_drained(each) for each in status.drains],
        )
    )


async def _status(broker: Broker) -> ClusterStatus:
    steps = status_steps(broker)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: ClusterStatus = done.value
            return found
        await asyncio.sleep(0)


async def _drain(call: Call) -> Answer:
    return await _set_drain(call, wanted=True)


async def _undrain(call: Call) -> Answer:
    return await _set_drain(call, wanted=False)


async def _set_drain(call: Call, *, wanted: bool) -> Answer:
    read(NoFields, call.query, b"")
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.ALTER)
    node_id = _node_id(call.params["node"])
    cluster = _several(broker)
    if wanted:
        await cluster.reassignments.drain(node_id)
    else:
        await cluster.reassignments.undrain(node_id)
    return json_answer(_drained(cluster.reassignments.progress(node_id)))


def _several(broker: Broker) -> ClusterSide:
    if broker.cluster is None:
        raise PenstockError(
            Reason.INVALID_REQUEST,
            "This is a single broker: there is no other node to take its partitions. Nothing was done.",
        )
    return broker.cluster


def _node_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise PenstockError(Reason.INVALID_REQUEST, f"{text[:20]!a} is not a node: specify the node id.")
    return int(text)


async def _metadata(broker: Broker) -> Metadata:
    if broker.cluster is None:
        return Metadata(is_reachable=True, error=None)
    try:
        async with asyncio.timeout(_STORE_SECONDS_MAX):
            await broker.cluster.nodes.check_store()
    except PenstockError as error:
        return Metadata(is_reachable=False, error=error.text)
    except TimeoutError:
        return Metadata(is_reachable=False, error=f"it did not answer within {_STORE_SECONDS_MAX:.0f} s")
    return Metadata(is_reachable=True, error=None)


def _controller(broker: Broker) -> Controller | None:
    if broker.cluster is None:
        return Controller(broker.node_id, 0)
    found = broker.cluster.nodes.controller
    return None if found is None else Controller(found.node_id, found.epoch)


def _node(broker: Broker, status: NodeStatus) -> ClusterNode:
    node = status.node
    # A broker that is alone is registered nowhere, and is up all the same.
    is_up = node is not None or broker.cluster is None
    return ClusterNode(
        node=status.node_id,
        is_up=is_up,
        epoch=None if node is None else node.epoch,
        rack=None if node is None else node.rack,
        version=None if node is None else node.version,
        started_ms=None if node is None else node.started_ms,
        is_stopping=node is not None and node.shutting_down,
        is_draining=status.is_draining,
        leads=status.leading,
        replicas=status.replicas,
        stuck=status.stuck,
        left_ms=status.left_ms,
        listeners={} if node is None else {name: str(address) for name, address in node.listeners.items()},
        only_there=status.only_there,
    )


def _leader(node_id: int) -> int | None:
    return None if node_id < 0 else node_id


def _trouble(found: Trouble) -> PartitionTrouble:
    return PartitionTrouble(
        found.topic,
        found.partition,
        _leader(found.leader),
        found.replicas,
        found.in_sync,
        found.eligible,
        found.why,
    )


def _move(found: MoveStatus) -> PartitionMove:
    move = found.move
    return PartitionMove(
        topic=move.topic,
        partition=move.partition,
        leader=_leader(found.leader),
        replicas=move.replicas,
        adding=move.adding,
        removing=move.removing,
        in_sync=found.in_sync,
        start_offset=found.start_offset,
        end_offset=found.end_offset,
        copied=None if found.copied is None else {str(node): end for node, end in found.copied.items()},
    )


def _drained(drain: Drain) -> NodeDrain:
    return NodeDrain(drain.node_id, drain.leading, drain.replicas, drain.stuck, drain.is_done, drain.only_there)


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/cluster, POST and DELETE /v1/cluster/drain/{node}."""
    return [
        route(
            gateway,
            "GET",
            "/v1/cluster",
            _cluster,
            CallDoc(
                TAG,
                "Show the state of the cluster: nodes, controller, and problems",
                {200: Cluster},
                (400,),
            ),
        ),
        route(
            gateway,
            "POST",
            "/v1/cluster/drain/{node}",
            _drain,
            CallDoc(
                TAG,
                "Drain a node: move its leaderships and replicas to other nodes, as far as possible",
                {200: NodeDrain},
                errors=(400, 404),
            ),
        ),
        route(
            gateway,
            "DELETE",
            "/v1/cluster/drain/{node}",
            _undrain,
            CallDoc(
                TAG,
                "Use a drained node again; a node that is down and empty is removed from the cluster",
                {200: NodeDrain},
                errors=(400,),
            ),
        ),
    ]
