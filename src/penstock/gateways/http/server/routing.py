"""How a resource declares its calls: a method, a path, a handler, and what the OpenAPI document says about it.

A resource module has an :class:`ApiCalls` named ``CALLS``, and decorates each handler with one of its methods; ``app.py`` serves
them all. A handler takes a :class:`HttpCall` and returns an :class:`~penstock.gateways.http.server.answers.Answer`, or a Starlette
response if it streams. To refuse, it raises ``Refusal`` or ``PenstockError``. A hot handler never waits: it is given a ``done``
and calls it exactly once, perhaps before it returns.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.core.security.access import Caller
from penstock.core.security.identity import NOBODY, Identity
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import Answer, RawHeaders, headers_of
from penstock.gateways.http.server.errors import CODES, UNKNOWN_TOPIC, Refusal, error_answer, refusal_of
from penstock.limits import KIB
from penstock.meters import Histogram
from penstock.operations.operation import Operation
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.gateways.http.server.connection import HttpConnection
    from penstock.gateways.http.server.gateway import HttpGateway

T = TypeVar("T")

QUERY_FIELDS_MAX: Final = 100
CONNECTION: Final = "penstock.connection"
"""The connection of a request, in its scope."""
_LARGE_ANSWER_BYTES: Final = 64 * KIB


@dataclass(slots=True)
class HttpCall:
    """One request as a handler sees it. ``request`` is Starlette's, and None in the fast lane.

    A hot handler that may wait long sets ``cancel``, which is called if the client disconnects before the answer.
    """

    gateway: "HttpGateway"
    caller: Caller
    path: str
    params: Mapping[str, str]
    query: bytes
    headers: RawHeaders
    body: bytes
    request_id: bytes
    request: Request | None = None
    identity: Identity = NOBODY
    cancel: Callable[[], None] | None = None

    def require_current(self) -> None:
        """AUTHENTICATION_FAILED if the caller's user, password or key is gone, or its token has expired, since the request began."""
        if not self.gateway.logins.is_current(self.identity):
            raise PenstockError(
                Reason.AUTHENTICATION_FAILED, "The credential of this request is no longer valid; send another one"
            )

    def header(self, name: bytes) -> bytes | None:
        """The first header with this lower-case name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def is_stranger(self) -> bool:
        """Whether the client must authenticate and has not: a handler tells it as little as possible."""
        return self.identity is NOBODY and self.gateway.logins.is_required

    async def do(self, operation: Operation[T]) -> T:
        """The result of an operation; 504 if it takes longer than a request may."""
        caller = self.caller._replace(request_id=self.request_id.decode("latin-1"))
        return await in_time(self.gateway, self.gateway.broker.do(operation, caller))

    @property
    def is_head(self) -> bool:
        """Whether only the headers of a GET are wanted: a handler must not begin a stream."""
        return self.request is not None and self.request.method == "HEAD"

    def query_fields(self) -> dict[str, str]:
        """The fields of the query string; the last one of each name."""
        if not self.query:
            return {}
        try:
            return dict(
                parse_qsl(
                    self.query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX
                )
            )
        except ValueError:
            raise Refusal(
                400, "The query string cannot be read: send name=value pairs in UTF-8, percent-encoded."
            ) from None

    def int_field(self, fields: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
        """A number of the query string, or a refusal with its range."""
        text = fields.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(text) <= high:
            return int(text)
        raise Refusal(400, f"{name} must be an integer from {low} to {high}")


Done = Callable[[Answer], None]
Handler = Callable[[HttpCall], Awaitable[Answer | Response]]
HotHandler = Callable[[HttpCall, Done], None]


@dataclass(frozen=True, slots=True)
class Content:
    """A body that is not JSON: its media type, and the model of one piece of it (a line, an event); a list means any of its models."""

    media_type: str
    model: Any = str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query string or a header. Parameters in the path are taken from the path."""

    name: str
    model: Any = str
    description: str = ""
    required: bool = False
    where: str = "query"


@dataclass(frozen=True, slots=True)
class CallDoc:
    """What the OpenAPI document says about a call. Models are msgspec types; ``None`` means no body.

    ``errors`` are the statuses of this call's errors, without those that every call can return (413, 500, 503).
    """

    summary: str
    answers: Mapping[int, Any]
    errors: Sequence[int] = ()
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: Any = None
    """The model of the JSON body, or a list of models and :class:`Content`, any of which may be sent."""
    body_required: bool = True
    headers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By status: the response headers, each with its description."""


def required(model: Any, **fields: Mapping[str, Any]) -> Any:
    """For the document: a model in which these fields are required. The decoder accepts their absence, which has an error text of its own."""
    properties = {name: dict(schema) for name, schema in fields.items()}
    return Annotated[model, msgspec.Meta(extra_json_schema={"required": list(fields), "properties": properties})]


class ApiRoute(Route):
    """A Starlette route with its documentation, and its hot handler if the fast lane may take it."""

    tag: str
    doc: CallDoc
    method: str
    hot: HotHandler | None = None
    is_large: bool = False
    """The answer may be many times as large as the request: it is made alone on its connection."""
    latency: Histogram


class RawAnswer(Response):
    """An answer with exactly the headers that the fast lane sends."""

    def __init__(self, answer: Answer, request_id: bytes) -> None:
        super().__init__(answer.body, answer.status)
        self.raw_headers = headers_of(answer, request_id)


class ApiCalls:
    """The calls of one resource, in the order in which they are matched and documented. Its methods are decorators that add one."""

    def __init__(self, tag: str) -> None:
        """``tag``: the section of the OpenAPI document."""
        self._tag = tag
        self._declared: list[Callable[[HttpGateway], ApiRoute]] = []

    def routes(self, gateway: "HttpGateway") -> list[ApiRoute]:
        """The routes of all calls."""
        return [declared(gateway) for declared in self._declared]

    def get(self, path: str, doc: CallDoc) -> Callable[[Handler], Handler]:
        """Add a GET, which also serves HEAD."""
        return self._add("GET", path, doc)

    def post(self, path: str, doc: CallDoc) -> Callable[[Handler], Handler]:
        """Add a POST."""
        return self._add("POST", path, doc)

    def put(self, path: str, doc: CallDoc) -> Callable[[Handler], Handler]:
        """Add a PUT."""
        return self._add("PUT", path, doc)

    def delete(self, path: str, doc: CallDoc) -> Callable[[Handler], Handler]:
        """Add a DELETE."""
        return self._add("DELETE", path, doc)

    def hot(
        self, path: str, doc: CallDoc, asgi: Handler | None = None, *, reads_body: bool = True, is_large: bool = False
    ) -> Callable[[HotHandler], HotHandler]:
        """Add a POST that the fast lane takes too. ``asgi`` serves the requests that it does not take, if they need more than
        the handler does; it reads the body itself unless ``reads_body``.
        """

        def add(handler: HotHandler) -> HotHandler:
            async def through_asgi(call: HttpCall) -> Answer:
                return await answer_of(handler, call)

            def declared(gateway: "HttpGateway") -> ApiRoute:
                route = _route(self._tag, "POST", path, doc, asgi or through_asgi, gateway, reads_body=reads_body)
                route.hot = handler if gateway.broker.is_alone else partial(_hot_retrying_unknown_topic, handler)
                route.is_large = is_large
                return route

            self._declared.append(declared)
            return handler

        return add

    def _add(self, method: str, path: str, doc: CallDoc) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self._declared.append(partial(_route, self._tag, method, path, doc, handler))
            return handler

        return add


def _route(
    tag: str, method: str, path: str, doc: CallDoc, handler: Handler, gateway: "HttpGateway", *, reads_body: bool = True
) -> ApiRoute:
    latency = gateway.broker.meters.latency(Gateway.HTTP, f"{method} {path.replace(':path', '')}")

    async def endpoint(request: Request) -> Response:
        started = gateway.loop.time()
        call = call_of(gateway, request)
        try:
            if reads_body:
                call.body = await read_body(gateway, request)
            answer = await _retrying_unknown_topic(call, handler)
        except ClientDisconnect:
            return Response(status_code=400)
        except (PenstockError, Refusal) as error:
            answer = refused(gateway, call.path, error)
        latency.observe(gateway.loop.time() - started)
        if gateway.broker.quotas.is_on:
            throttle(call.caller, gateway, request.scope[CONNECTION])
        if isinstance(answer, Answer):
            return RawAnswer(bounded(gateway, call.path, answer), call.request_id)
        return answer

    route = ApiRoute(path, endpoint, methods=[method])
    route.tag = tag
    route.doc = doc
    route.latency = latency
    route.method = method
    return route


def throttle(caller: Caller, gateway: "HttpGateway", connection: "HttpConnection") -> None:
    """Take no request from the connection for a while if the caller is over a quota now."""
    delay_ms = gateway.broker.quotas.delay_ms(caller)
    if delay_ms:
        connection.mute(delay_ms)


async def _retrying_unknown_topic(call: HttpCall, handler: Handler) -> Answer | Response:
    """The answer of a handler, which is called again if another node created the topic just before."""
    try:
        return await handler(call)
    except UNKNOWN_TOPIC as error:
        router = call.gateway.broker.door.router
        if router is None or not await router.learn(error.topic):
            raise
    return await handler(call)


def _hot_retrying_unknown_topic(handler: HotHandler, call: HttpCall, done: Done) -> None:
    """The same for the fast lane, which never waits."""
    try:
        handler(call, done)
    except UNKNOWN_TOPIC as error:
        gateway, topic = call.gateway, error.topic
        refusal = refused(gateway, call.path, error)

        async def learn() -> None:
            router = gateway.broker.door.router
            if router is None or not await router.learn(topic):
                done(refusal)
                return
            try:
                handler(call, done)
            except (PenstockError, Refusal) as refused_again:
                done(refused(gateway, call.path, refused_again))

        gateway.broker.background(learn())


async def answer_of(handler: HotHandler, call: HttpCall) -> Answer:
    """The answer of a hot handler, for callers that can wait."""
    future: asyncio.Future[Answer] = call.gateway.loop.create_future()

    def done(answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)

    handler(call, done)
    # A call that can be cancelled has its own timeout.
    return await (future if call.cancel is not None else in_time(call.gateway, future))


async def in_time(gateway: "HttpGateway", waited: Awaitable[T]) -> T:
    """Wait at most as long as a request may take; 504 after that."""
    try:
        async with asyncio.timeout(gateway.settings.request_timeout_ms / 1000):
            return await waited
    except TimeoutError:
        raise too_late(gateway) from None


def too_late(gateway: "HttpGateway") -> Refusal:
    """504: the outcome of the request is unknown."""
    return Refusal(
        504,
        f"There was no answer within {gateway.settings.request_timeout_ms} ms. The request may still be processed: check before you repeat it.",
    )


def bounded(gateway: "HttpGateway", path: str, answer: Answer) -> Answer:
    """The answer, or a refusal if it is large and too many answers have not been read by their clients."""
    if len(answer.body) <= _LARGE_ANSWER_BYTES or gateway.unsent_bytes <= gateway.bounds.unsent_bytes_max:
        return answer
    return refused(
        gateway, path, Refusal(503, "Other clients have not read their responses. Request less, or try again later.")
    )


def refused(gateway: "HttpGateway", path: str, error: PenstockError | Refusal) -> Answer:
    """The answer to a refused request, which is counted."""
    if isinstance(error, PenstockError):
        reason = error.reason.name.lower()
        error = refusal_of(error)
    else:
        reason = CODES.get(error.status, "INTERNAL").lower()
    gateway.broker.meters.request_errors.add((Gateway.HTTP.value, reason))
    return error_answer(path, error)


def call_of(gateway: "HttpGateway", request: Request) -> HttpCall:
    """The request without its body."""
    scope = request.scope
    return HttpCall(
        gateway,
        scope["penstock.caller"],
        scope["path"],
        request.path_params,
        scope["query_string"],
        scope["headers"],
        b"",
        scope["penstock.request_id"],
        request,
        scope["penstock.identity"],
    )


async def read_body(gateway: "HttpGateway", request: Request) -> bytes:
    """The whole body; 413 if it is too large."""
    most = gateway.settings.body_bytes_max
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length) > most:
        raise body_too_large(most)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            may_be_kept = gateway.hold(size - len(part), size)
            if size > most:
                raise body_too_large(most)
            if not may_be_kept:
                raise Refusal(
                    503,
                    "Too many large bodies are being received. Send smaller ones, or try again later.",
                    headers=((b"connection", b"close"),),
                )
            parts.append(part)
        return b"".join(parts)
    finally:
        gateway.hold(size, 0)


def body_too_large(most: int) -> Refusal:
    """413; the rest of the body is not read, so the connection is closed."""
    return Refusal(
        413, f"The body is larger than {most} bytes. Send it in smaller parts.", headers=((b"connection", b"close"),)
    )


def decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """A JSON body as its model, or a refusal that says what is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"The body is invalid: {_plain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {_plain(str(error))}") from None


def body_of(model: type[T], call: HttpCall) -> T:
    """The JSON body of a call; no body is like one without fields."""
    return decoded(msgspec.json.Decoder(model), call.body) if call.body.strip() else model()


def _plain(text: str) -> str:
    text = text.rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
