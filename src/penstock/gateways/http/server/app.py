"""The application: every resource module's routes put together, and what surrounds each request.

A request gets its id here, an unknown path or method is answered in the shape of its API, and a mistake of ours is a 500 with
the trace in the log: it never stops the broker.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.gateways.http.server import documentation, health, metrics
from penstock.gateways.http.server.answers import (
    REQUEST_ID,
    Refusal,
    error_answer,
    failure_answer,
    given_request_id,
    is_v1,
)
from penstock.gateways.http.server.routing import RawAnswer
from penstock.gateways.http.tarantoolmq import consumers, members, messages, tail, topics
from penstock.gateways.http.v1.resources import RESOURCES as V1_RESOURCES
from penstock.observe import logs as log_lines

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

logger = logging.getLogger("penstock.http")

Routes = Callable[["HttpGateway"], Sequence[Route]]

RESOURCES: Final[Sequence[Routes]] = (
    documentation.routes,
    health.routes,
    metrics.routes,
    topics.routes,
    messages.routes,
    tail.routes,
    consumers.routes,
    members.routes,
)
"""TarantoolMQ's API and ours beside it."""


def build_app(gateway: "HttpGateway") -> ASGIApp:
    """The whole API."""
    routes: list[BaseRoute] = [made for module in (*RESOURCES, *V1_RESOURCES) for made in module(gateway)]
    gateway.routes = [found for found in routes if isinstance(found, Route)]

    async def not_found(request: Request, _: Exception) -> Response:
        return _refuse(request, Refusal(404, "Not found"))

    async def wrong_method(request: Request, _: Exception) -> Response:
        matching = (known for known in gateway.routes if known.matches(request.scope)[0] is not Match.NONE)
        allow = ", ".join(sorted({method for known in matching for method in known.methods or ()}))
        headers = ((b"allow", allow.encode()),)
        if is_v1(request.scope["path"]):
            return _refuse(request, Refusal(405, f"Method not allowed; use {allow}", headers=headers))
        # The API outside /v1 knows one answer for whatever it does not serve.
        return _refuse(request, Refusal(404, "Not found", headers=headers))

    # Not the whole of Starlette's application: its own answer to a failure would come before ours.
    router = ExceptionMiddleware(Router(routes, redirect_slashes=False), handlers={404: not_found, 405: wrong_method})
    return Surroundings(gateway, router)


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
        log_lines.request_id.set(request_id.decode("ascii"))
        # Without it the router answers an unknown path itself, in nobody's shape.
        scope["app"] = self._app
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
