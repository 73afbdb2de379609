"""Whether the process lives and takes requests, for people, load balancers and service managers."""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from starlette.routing import Route

from penstock import __version__
from penstock.gateways.http.answers import Answer, json_answer
from penstock.gateways.http.routing import Call, Operation, route

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway


class Healthy(Struct, frozen=True):
    """The broker serves."""

    status: Literal["healthy"]


class Alive(Struct, frozen=True):
    """The process runs."""

    status: Literal["alive"]
    version: str


class Readiness(Struct, frozen=True):
    """Whether requests are taken."""

    status: Literal["ready", "not ready"]


async def _health(_: Call) -> Answer:
    return json_answer(Healthy("healthy"))


async def _livez(_: Call) -> Answer:
    return json_answer(Alive("alive", __version__))


async def _readyz(call: Call) -> Answer:
    ready = call.gateway.is_ready()
    return json_answer(Readiness("ready" if ready else "not ready"), 200 if ready else 503)


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /health, /livez and /readyz."""
    return [
        route(gateway, "GET", "/health", _health, Operation("Node", "Say that the broker serves", {200: Healthy})),
        route(gateway, "GET", "/livez", _livez, Operation("Node", "Say that the process runs", {200: Alive})),
        route(
            gateway,
            "GET",
            "/readyz",
            _readyz,
            Operation("Node", "Say whether requests are taken", {200: Readiness, 503: Readiness}),
        ),
    ]
