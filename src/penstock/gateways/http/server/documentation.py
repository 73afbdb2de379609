"""What the gateway says about itself: its calls at ``/``, the OpenAPI document, and a page to read it and try it out.

The page is made of three files of ours in ``static/``, and needs nothing from anywhere else.
"""

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from starlette.routing import Route

from penstock import __version__
from penstock.gateways.http.server.answers import HTML, JSON, Answer, encoder, json_answer
from penstock.gateways.http.server.openapi import document
from penstock.gateways.http.server.routing import ApiRoute, Call, CallDoc, Content, route

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

_POLICY: Final = (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'")
_REVALIDATE: Final = (b"cache-control", b"no-cache")
_FILES: Final = {
    "/docs": ("docs.html", HTML),
    "/docs/docs.css": ("docs.css", b"text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", b"text/javascript; charset=utf-8"),
}


class Service(Struct, frozen=True):
    """What this is, and what it can be asked."""

    service: str
    version: str
    endpoints: list[str]


async def _service(call: Call) -> Answer:
    known = [found for found in call.gateway.routes if isinstance(found, ApiRoute)]
    return json_answer(Service("penstock", __version__, [f"{found.method} {found.path_format}" for found in known]))


class _Pages:
    """The document and the page, made once."""

    def __init__(self, gateway: "HttpGateway") -> None:
        self._gateway = gateway
        self._document: Answer | None = None
        folder = files("penstock.gateways.http.server") / "static"
        self._files = {
            path: Answer(200, (folder / name).read_bytes(), kind, (_POLICY, _REVALIDATE))
            for path, (name, kind) in _FILES.items()
        }

    async def document(self, _: Call) -> Answer:
        if self._document is None:
            # Not before: the document is about all routes, these too.
            self._document = Answer(200, encoder.encode(document(self._gateway.routes)), JSON, (_REVALIDATE,))
        return self._document

    async def file(self, call: Call) -> Answer:
        return self._files[call.path]


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /, /openapi.json and /docs."""
    pages = _Pages(gateway)
    shown = CallDoc("Node", "The interactive page of this API", {200: Content("text/html; charset=utf-8")})
    return [
        route(
            gateway, "GET", "/", _service, CallDoc("Node", "Show the name of the service and its calls", {200: Service})
        ),
        route(
            gateway,
            "GET",
            "/openapi.json",
            pages.document,
            CallDoc("Node", "Get the OpenAPI document of this API", {200: dict[str, Any]}),
        ),
        route(gateway, "GET", "/docs", pages.file, shown),
        *(Route(path, route(gateway, "GET", path, pages.file, shown).endpoint) for path in list(_FILES)[1:]),
    ]
