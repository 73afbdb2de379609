"""The application: every resource module's routes put together, and what surrounds each request.

A request gets its id here, an unknown path or method is answered in the shape of its API, and a mistake of ours is a 500 with
the trace in the log: it never stops the broker.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateways.http import consumers, health, messages, tail, topics
from penstock.gateways.http.answers import REQUEST_ID, Refusal, error_answer, failure_answer, given_request_id
from penstock.gateways.http.routing import RawAnswer

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

logger = logging.getLogger("penstock.http")

Routes = Callable[["HttpGateway"], Sequence[Route]]

RESOURCES: Final[Sequence[Routes]] = (health.routes, topics.routes, messages.routes, tail.routes, consumers.routes)
"""TarantoolMQ's API and ours beside it."""

V1_RESOURCES: Final[Sequence[Routes]] = ()
"""DriftQ's API and ours beside it, all below /v1."""


def build_app(gateway: "HttpGateway") -> ASGIApp:
    """The whole API."""
    routes: list[BaseRoute] = [made for module in (*RESOURCES, *V1_RESOURCES) for made in module(gateway)]
    app = Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method})
    app.router.redirect_slashes = False
    gateway.routes = [found for found in app.routes if isinstance(found, Route)]
    return Surroundings(gateway, app)


async def _not_found(request: Request, _: Exception) -> Response:
    return _refuse(request, Refusal(404, "Not found"))


async def _wrong_method(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed: set[str] = set()
    for known in request.app.routes:
        if isinstance(known, Route) and known.matches(request.scope)[0] is not Match.NONE:
            allowed |= known.methods or set()
    allow = ", ".join(sorted(allowed))
    text = f"Method not allowed; use {allow}"
    return _refuse(request, Refusal(405, text, headers=((b"allow", allow.encode()),)))


def _refuse(request: Request, refusal: Refusal) -> Response:
    return RawAnswer(error_answer(request.scope["path"], refusal), request.scope["penstock.request_id"])


class Surroundings:
    """Gives each request its id, and answers for an application that fails."""

    def __init__(self, gateway: "HttpGateway", app: ASGIApp) -> None:
        self._gateway = gateway
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        request_id = given_request_id(scope["headers"]) or self._gateway.new_request_id()
        scope["penstock.request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message.get("headers", ()))
                if not any(name == REQUEST_ID for name, _ in headers):
                    message = {**message, "headers": [*headers, (REQUEST_ID, request_id)]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception(
                "request %s failed: %s %s", request_id.decode("ascii"), scope["method"], ascii(scope["path"])
            )
            if started:
                raise
            await RawAnswer(failure_answer(scope["path"], request_id), request_id)(scope, receive, send)
