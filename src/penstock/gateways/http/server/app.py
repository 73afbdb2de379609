"""The application: the routes of all resources, and what every request has in common.

Each request gets its id here. An unknown path or method is answered in the form of its API. A bug is answered with 500; its trace is
logged, and the broker continues.
"""

import logging
from typing import TYPE_CHECKING, Final

from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.core.security.identity import NOBODY
from penstock.errors import PenstockError
from penstock.gateways.http.server import documentation, health, metrics
from penstock.gateways.http.server.answers import REQUEST_ID, RawHeaders, given_request_id
from penstock.gateways.http.server.connection import HttpConnection
from penstock.gateways.http.server.errors import Refusal, error_answer, failure_answer, is_v1
from penstock.gateways.http.server.logins import OPEN_PATHS, has_credential, without_credential
from penstock.gateways.http.server.routing import CONNECTION, RawAnswer, refused
from penstock.gateways.http.tarantoolmq import consumers, members, messages, tail, topics
from penstock.gateways.http.v1 import (
    access,
    cluster,
    consume,
    dead_letters,
    groups,
    leases,
    produce,
    queues,
    quotas,
    sinks,
    status,
    users,
)
from penstock.gateways.http.v1 import topics as v1_topics
from penstock.limits import KIB
from penstock.observe import logs as log_lines

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

logger = logging.getLogger("penstock.http")

RESOURCES: Final = (
    documentation,
    health,
    metrics,
    topics,
    messages,
    tail,
    consumers,
    members,
    v1_topics,
    produce,
    consume,
    leases,
    queues,
    dead_letters,
    groups,
    sinks,
    access,
    cluster,
    quotas,
    users,
    status,
)
"""In the order in which they are documented."""

_UNREAD_BYTES_MAX: Final = 64 * KIB
"""A longer body of a refused request is not received."""


def build_app(gateway: "HttpGateway") -> ASGIApp:
    """The whole API."""
    gateway.routes += (route for resource in RESOURCES for route in resource.CALLS.routes(gateway))
    gateway.routes += documentation.OTHER_FILES

    async def not_found(request: Request, _: Exception) -> Response:
        return _refuse(request, Refusal(404, "Not found"))

    async def wrong_method(request: Request, _: Exception) -> Response:
        matching = (known for known in gateway.routes if known.matches(request.scope)[0] is not Match.NONE)
        allow = ", ".join(sorted({method for known in matching for method in known.methods or ()}))
        headers = ((b"allow", allow.encode()),)
        if is_v1(request.scope["path"]):
            return _refuse(request, Refusal(405, f"Method not allowed; use {allow}", headers=headers))
        # Outside /v1, an unknown method is answered like an unknown path.
        return _refuse(request, Refusal(404, "Not found", headers=headers))

    # Without the rest of Starlette's application, which would answer failures before RequestMiddleware does.
    router = ExceptionMiddleware(
        Router(gateway.routes, redirect_slashes=False), handlers={404: not_found, 405: wrong_method}
    )
    return RequestMiddleware(gateway, router)


def _refuse(request: Request, refusal: Refusal) -> Response:
    return RawAnswer(error_answer(request.scope["path"], refusal), request.scope["penstock.request_id"])


def _refuse_unread(gateway: "HttpGateway", scope: Scope, error: Refusal | PenstockError) -> Response:
    """Refuse a request whose body is not read. The connection stays open only if the body is short."""
    answer = refused(gateway, scope["path"], error)
    if _has_long_body(scope["headers"]):
        answer = answer._replace(headers=(*answer.headers, (b"connection", b"close")))
    return RawAnswer(answer, scope["penstock.request_id"])


def _is_open(scope: Scope, connection: HttpConnection) -> bool:
    """Whether everyone may send this request, and the client does not say who it is."""
    asks = scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")
    return asks and not has_credential(scope["headers"], connection)


def _has_long_body(headers: RawHeaders) -> bool:
    for name, value in headers:
        if name == b"transfer-encoding":
            return True
        if name == b"content-length":
            return not (value.isdigit() and len(value) < 12 and int(value) <= _UNREAD_BYTES_MAX)
    return False


class RequestMiddleware:
    """Gives each request its id, refuses those that are not to be served, and answers those whose handlers fail."""

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
        # Without it, the router would answer unknown paths itself, in another form.
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

        refusal = self._gateway.guard.refusal(scope["method"], scope["path"], scope["headers"])
        if refusal is not None:
            await _refuse_unread(self._gateway, scope, refusal)(scope, receive, send)
            return
        connection: HttpConnection = scope[CONNECTION]
        scope["penstock.caller"], scope["penstock.identity"] = connection.caller, NOBODY
        logins = self._gateway.logins
        if logins.is_required and not _is_open(scope, connection):
            try:
                login = await logins.login(scope["headers"], connection)
            except PenstockError as error:
                await _refuse_unread(self._gateway, scope, error)(scope, receive, send_with_id)
                return
            headers = without_credential(scope["headers"])
            by_certificate = len(headers) == len(scope["headers"])
            scope["penstock.caller"] = connection.authenticated(login, by_certificate=by_certificate)
            scope["penstock.identity"], scope["headers"] = login.identity, headers
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception(
                "request %s failed: %s %s", request_id.decode("ascii"), scope["method"], ascii(scope["path"])
            )
            if started:
                raise
            await RawAnswer(failure_answer(scope["path"], request_id), request_id)(scope, receive, send)
