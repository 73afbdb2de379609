"""Whether the process is alive and ready for requests, for people, load balancers and service managers."""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from penstock import __version__
from penstock.core.broker import Broker
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall


class Healthy(Struct, frozen=True, omit_defaults=True):
    """The broker serves requests. ``degraded``: the cluster's metadata store cannot be reached, so existing leaders continue, and no metadata can change."""

    status: Literal["healthy", "degraded"]
    problem: str | UnsetType = UNSET


class Alive(Struct, frozen=True, omit_defaults=True):
    """The process is running. The version is for clients that authenticate, if they must."""

    status: Literal["alive"]
    version: str | UnsetType = UNSET


class Readiness(Struct, frozen=True, omit_defaults=True):
    """Whether the broker is ready for requests. A node of a cluster is ready while it is registered and the metadata store answers."""

    status: Literal["ready", "not ready"]
    problem: str | UnsetType = UNSET


CALLS: Final = ApiCalls("Node")


@CALLS.get("/health", CallDoc("Check whether the broker is healthy", {200: Healthy}))
async def _health(call: HttpCall) -> Answer:
    problem = call.gateway.problem()
    return json_answer(Healthy("healthy") if problem is None else Healthy("degraded", problem))


@CALLS.get("/livez", CallDoc("Check whether the process is alive", {200: Alive}))
async def _livez(call: HttpCall) -> Answer:
    return json_answer(Alive("alive") if call.is_stranger else Alive("alive", __version__))


def _unregistered(broker: Broker) -> str | None:
    """Why this process is not a member of its cluster; None if it is."""
    cluster = broker.cluster
    node = cluster.nodes.nodes.get(broker.node_id)
    if node is None:
        return "This node is not registered in its cluster yet: it registers as soon as the metadata store answers."
    if node.epoch != cluster.replicas.node_epoch:
        return "Another process is registered with this node id; this process leads no partitions until it registers"
    return None


@CALLS.get("/readyz", CallDoc("Check whether the broker is ready for requests", {200: Readiness, 503: Readiness}))
async def _readyz(call: HttpCall) -> Answer:
    gateway = call.gateway
    problem = gateway.problem() or _unregistered(gateway.broker)
    if problem is not None:
        return json_answer(Readiness("not ready", UNSET if call.is_stranger else problem), 503)
    ready = gateway.is_ready()
    return json_answer(Readiness("ready" if ready else "not ready"), 200 if ready else 503)
