"""Whether the process lives and takes requests, for people, load balancers and service managers."""

from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from penstock import __version__
from penstock.core.broker import Broker
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import Call, CallDoc, route

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway


class Healthy(Struct, frozen=True, omit_defaults=True):
    """The broker serves; ``degraded``: a cluster's metadata store cannot be reached, so nothing can be changed, and what is led here goes on."""

    status: Literal["healthy", "degraded"]
    problem: str | UnsetType = UNSET


class Alive(Struct, frozen=True):
    """The process runs."""

    status: Literal["alive"]
    version: str


class Readiness(Struct, frozen=True, omit_defaults=True):
    """Whether requests are taken. A node of a cluster takes them while it is registered and the metadata store answers."""

    status: Literal["ready", "not ready"]
    problem: str | UnsetType = UNSET


async def _health(call: Call) -> Answer:
    problem = call.gateway.problem()
    return json_answer(Healthy("healthy") if problem is None else Healthy("degraded", problem))


async def _livez(_: Call) -> Answer:
    return json_answer(Alive("alive", __version__))


def _unregistered(broker: Broker) -> str | None:
    """Why others do not count on this node; None while this process is registered."""
    cluster = broker.cluster
    node = cluster.nodes.nodes.get(broker.node_id)
    if node is None:
        return "This node is not registered in its cluster yet: it registers as soon as the metadata store answers."
    if node.epoch != cluster.replicas.node_epoch:
        return "Another process is registered with this node id; this process leads no partitions until it registers"
    return None


async def _readyz(call: Call) -> Answer:
    gateway = call.gateway
    problem = gateway.problem() or _unregistered(gateway.broker)
    if problem is not None:
        return json_answer(Readiness("not ready", problem), 503)
    ready = gateway.is_ready()
    return json_answer(Readiness("ready" if ready else "not ready"), 200 if ready else 503)


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /health, /livez and /readyz."""
    return [
        route(
            gateway, "GET", "/health", _health, CallDoc("Node", "Check whether the broker is healthy", {200: Healthy})
        ),
        route(gateway, "GET", "/livez", _livez, CallDoc("Node", "Check whether the process is alive", {200: Alive})),
        route(
            gateway,
            "GET",
            "/readyz",
            _readyz,
            CallDoc("Node", "Check whether the broker is ready for requests", {200: Readiness, 503: Readiness}),
        ),
    ]
