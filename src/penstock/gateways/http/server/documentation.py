"""The calls of the gateway at ``/``, the OpenAPI document, and an interactive page that shows it.

The page consists of the three files in ``static/``, and loads nothing from elsewhere.
"""

from importlib.resources import files
from typing import Any, Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.gateways.http.server.answers import HTML, JSON, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, ApiRoute, CallDoc, Content, HttpCall, RawAnswer

CALLS: Final = ApiCalls("Node")
_POLICY: Final = (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'")
_REVALIDATE: Final = (b"cache-control", b"no-cache")
PAGE: Final = "/docs"
"""Other sites may link to it, because it only shows what can be called."""
_FILES: Final = {
    path: Answer(200, (files(__package__) / "static" / name).read_bytes(), content_type, (_POLICY, _REVALIDATE))
    for path, name, content_type in (
        (PAGE, "docs.html", HTML),
        ("/docs/docs.css", "docs.css", b"text/css; charset=utf-8"),
        ("/docs/docs.js", "docs.js", b"text/javascript; charset=utf-8"),
    )
}


class Service(Struct, frozen=True):
    """The name and the version of the service, and all of its calls."""

    service: str
    version: str
    endpoints: list[str]


@CALLS.get("/", CallDoc("Show the name of the service and its calls", {200: Service}))
async def _service(call: HttpCall) -> Answer:
    known = [route for route in call.gateway.routes if isinstance(route, ApiRoute)]
    return json_answer(Service("penstock", __version__, [f"{route.method} {route.path_format}" for route in known]))


@CALLS.get("/openapi.json", CallDoc("Get the OpenAPI document of this API", {200: dict[str, Any]}))
async def _document(call: HttpCall) -> Answer:
    return Answer(200, call.gateway.openapi, JSON, (_REVALIDATE,))


@CALLS.get(PAGE, CallDoc("The interactive page of this API", {200: Content("text/html; charset=utf-8")}))
async def _file(call: HttpCall) -> Answer:
    return _FILES[call.path]


async def _other_file(request: Request) -> Response:
    return RawAnswer(_FILES[request.url.path], request.scope["penstock.request_id"])


OTHER_FILES: Final = [Route(path, _other_file) for path in _FILES if path != PAGE]
"""The routes of the other files of the page, which are not in the document."""
