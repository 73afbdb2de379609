"""How a resource module declares its calls: a path, a method, a function, and what the OpenAPI document says about it.

A resource module has ``routes(gateway) -> list[Route]`` and makes each with :func:`route` or :func:`hot_route`; ``app.py``
puts them together. A handler gets a :class:`Call` and returns an :class:`~penstock.gateways.http.server.answers.Answer` (or a
Starlette response when it streams). To refuse, it raises ``Refusal`` or lets a ``PenstockError`` pass; the shape of the API is
given here. A hot handler never waits: it gets a ``done`` and calls it exactly once, perhaps before it returns.
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

from penstock.core.access import Caller
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import (
    CODES,
    UNKNOWN_TOPIC,
    Answer,
    RawHeaders,
    Refusal,
    error_answer,
    headers_of,
    refusal_of,
)
from penstock.limits import KIB
from penstock.meters import Histogram
from penstock.operations.operation import Operation
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

T = TypeVar("T")

QUERY_FIELDS_MAX: Final = 100
_LARGE_ANSWER_BYTES: Final = 64 * KIB


class Call:
    """One request as a handler sees it. ``request`` is Starlette's, for those that stream; the fast lane has none.

    A hot handler whose answer may take its time sets ``cancel``: it is called when the client is gone before it.
    """

    __slots__ = (
        "body",
        "caller",
        "cancel",
        "gateway",
        "headers",
        "params",
        "path",
        "query",
        "request",
        "request_id",
    )

    def __init__(
        self,
        gateway: "HttpGateway",
        caller: Caller,
        path: str,
        params: Mapping[str, str],
        query: bytes,
        headers: RawHeaders,
        body: bytes,
        request_id: bytes,
        request: Request | None = None,
    ) -> None:
        self.gateway = gateway
        self.caller = caller
        self.path = path
        self.params = params
        self.query = query
        self.headers = headers
        self.body = body
        self.request_id = request_id
        self.request = request
        self.cancel: Callable[[], None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in small letters."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    async def do(self, operation: Operation[T]) -> T:
        """The result of an operation, in the time that a request may take."""
        return await in_time(self.gateway, self.gateway.broker.do(operation, self.caller))

    @property
    def is_head(self) -> bool:
        """Whether only the headers of the answer to a GET are wanted: a stream must not begin for it."""
        return self.request is not None and self.request.method == "HEAD"

    def query_fields(self) -> dict[str, str]:
        """The query string; of a name given twice the last counts."""
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
        """A number of the query string, or a refusal that says what it may be."""
        text = fields.get(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20 and low <= int(text) <= high:
            return int(text)
        raise Refusal(400, f"{name} must be an integer from {low} to {high}.")


Done = Callable[[Answer], None]
Handler = Callable[[Call], Awaitable[Answer | Response]]
HotHandler = Callable[[Call, Done], None]


@dataclass(frozen=True, slots=True)
class Content:
    """A body that is not JSON: its media type, and what one piece of it (a line, an event) is; a list is any of its models."""

    media_type: str
    model: Any = str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query string. Those of the path are known by the path."""

    name: str
    model: Any = str
    description: str = ""
    required: bool = False
    where: str = "query"


@dataclass(frozen=True, slots=True)
class CallDoc:
    """What the OpenAPI document says about a call. Models are msgspec's; ``None`` is an answer without a body.

    ``errors`` are the statuses with a body in the API's error shape; those that any call may have (413, 500, 503) are known.
    """

    tag: str
    summary: str
    answers: Mapping[int, Any]
    errors: Sequence[int] = ()
    description: str = ""
    parameters: Sequence[Parameter] = ()
    body: Any = None
    """The JSON body's model, or a list of models and :class:`Content`, any of which may be sent."""
    body_required: bool = True
    headers: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By status: headers of the answer, each with its description."""


def required(model: Any, **fields: Mapping[str, Any]) -> Any:
    """For the document: a model whose decoder lets these fields be absent, because their absence has a text of its own."""
    properties = {name: dict(schema) for name, schema in fields.items()}
    return Annotated[model, msgspec.Meta(extra_json_schema={"required": list(fields), "properties": properties})]


class ApiRoute(Route):
    """A Starlette route that knows its OpenAPI operation, and its hot function if the fast lane may take it."""

    operation: CallDoc
    method: str
    hot: HotHandler | None = None
    is_large: bool = False
    """Its answer may be many times as large as the request: none is begun behind it on a connection before it has left."""
    latency: Histogram


class RawAnswer(Response):
    """An answer that goes out with exactly the headers that the fast lane sends."""

    def __init__(self, answer: Answer, request_id: bytes) -> None:
        super().__init__(answer.body, answer.status)
        self.raw_headers = headers_of(answer, request_id)


def route(
    gateway: "HttpGateway",
    method: str,
    path: str,
    handler: Handler,
    operation: CallDoc,
    *,
    reads_body: bool = True,
) -> ApiRoute:
    """A call of the API. The body is read before the handler is called, unless ``reads_body`` is false."""
    latency = gateway.broker.meters.latency(Gateway.HTTP, f"{method} {path.replace(':path', '')}")

    async def endpoint(request: Request) -> Response:
        started = gateway.loop.time()
        call = call_of(gateway, request)
        try:
            if reads_body:
                call.body = await read_body(gateway, request)
            answer = await _knowing_the_topic(call, handler)
        except ClientDisconnect:
            # Nobody is there to be answered.
            return Response(status_code=400)
        except (PenstockError, Refusal) as error:
            answer = refused(gateway, call.path, error)
        latency.observe(gateway.loop.time() - started)
        if isinstance(answer, Answer):
            return RawAnswer(bounded(gateway, call.path, answer), call.request_id)
        return answer

    made = ApiRoute(path, endpoint, methods=[method])
    made.operation = operation
    made.latency = latency
    made.method = method
    return made


def hot_route(
    gateway: "HttpGateway",
    method: str,
    path: str,
    handler: HotHandler,
    operation: CallDoc,
    wide: Handler | None = None,
    *,
    is_large: bool = False,
    wide_reads: bool = False,
) -> ApiRoute:
    """A call that the fast lane may take too. ``wide`` is for ASGI when it knows more ways of sending than the lane does, or
    (``wide_reads``) reads the body by itself.
    """

    async def through_asgi(call: Call) -> Answer:
        return await answer_of(handler, call)

    made = route(gateway, method, path, wide or through_asgi, operation, reads_body=not wide_reads)
    made.hot = handler if gateway.broker.is_alone else partial(_hot_knowing_the_topic, handler)
    made.is_large = is_large
    return made


async def _knowing_the_topic(call: Call, handler: Handler) -> Answer | Response:
    """The answer of a handler, which is asked again if another node created the topic just before."""
    try:
        return await handler(call)
    except UNKNOWN_TOPIC as error:
        router = call.gateway.broker.door.router
        if router is None or not await router.learn(error.topic):
            raise
    return await handler(call)


def _hot_knowing_the_topic(handler: HotHandler, call: Call, done: Done) -> None:
    """The same for the fast lane, which waits for nothing."""
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


async def answer_of(handler: HotHandler, call: Call) -> Answer:
    """What a hot handler answers, for one who can wait."""
    future: asyncio.Future[Answer] = call.gateway.loop.create_future()

    def done(answer: Answer) -> None:
        if not future.done():
            future.set_result(answer)

    handler(call, done)
    # Whoever can be cancelled has its own idea of how long to wait.
    return await (future if call.cancel is not None else in_time(call.gateway, future))


async def in_time(gateway: "HttpGateway", waited: Awaitable[T]) -> T:
    """What a request waits for; 504 when it does not come in the time that a request may take."""
    try:
        async with asyncio.timeout(gateway.settings.request_timeout_ms / 1000):
            return await waited
    except TimeoutError:
        raise too_late(gateway) from None


def too_late(gateway: "HttpGateway") -> Refusal:
    """504: nobody knows whether it will still happen."""
    return Refusal(
        504,
        f"There was no answer within {gateway.settings.request_timeout_ms} ms. The request may still be processed: check before you repeat it.",
    )


def bounded(gateway: "HttpGateway", path: str, answer: Answer) -> Answer:
    """The answer, or a refusal when it is large and too much is made already that nobody takes."""
    if len(answer.body) <= _LARGE_ANSWER_BYTES or gateway.unsent_bytes <= gateway.bounds.unsent_bytes_max:
        return answer
    return refused(
        gateway, path, Refusal(503, "Other clients have not read their responses. Request less, or try again later.")
    )


def refused(gateway: "HttpGateway", path: str, error: PenstockError | Refusal) -> Answer:
    """A refusal as an answer. It is counted."""
    if isinstance(error, PenstockError):
        reason = error.reason.name.lower()
        error = refusal_of(error)
    else:
        reason = (error.code or CODES.get(error.status, "INTERNAL")).lower()
    gateway.broker.meters.request_errors.add((Gateway.HTTP.value, reason))
    return error_answer(path, error)


def call_of(gateway: "HttpGateway", request: Request) -> Call:
    """The request without its body."""
    scope = request.scope
    return Call(
        gateway,
        gateway.caller(request),
        scope["path"],
        request.path_params,
        scope["query_string"],
        scope["headers"],
        b"",
        scope["penstock.request_id"],
        request,
    )


async def read_body(gateway: "HttpGateway", request: Request) -> bytes:
    """The whole body, within the bound."""
    most = gateway.settings.body_bytes_max
    told = request.headers.get("content-length", "0")
    if told.isascii() and told.isdigit() and int(told) > most:
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
    """413; the rest of the body is not read, so the connection ends with it."""
    return Refusal(
        413, f"The body is larger than {most} bytes. Send it in smaller parts.", headers=((b"connection", b"close"),)
    )


def decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """A JSON body as its model, or a refusal that says where it is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"The body is invalid: {_plain(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {_plain(str(error))}") from None


def _plain(text: str) -> str:
    text = text.rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
