"""Exactly-once sinks, under ``/v1``: open one, commit or abort what is staged in it, look at it, delete it.

Staging itself is a plain Kafka produce to the sink's staging topic. A commit that takes longer than a request may is answered
504 and goes on; whoever asks again hears how it ended.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar
from uuid import UUID

from msgspec import Meta, Struct
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.sinks import sinks
from penstock.core.sinks.sinks import Part
from penstock.errors import PenstockError
from penstock.gateways.http.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.routing import Call, CallDoc, in_time, route
from penstock.gateways.http.v1_models import Count, Milliseconds, NoFields, Request
from penstock.gateways.http.v1_requests import decode, read, refuse
from penstock.limits import SINK_REMEMBER_MS_MIN, SINK_STAGED_MAX
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TAG: Final = "v1: sinks"
_STATUSES_PER_TURN: Final = 32

T = TypeVar("T")

Staged = Annotated[
    tuple[Count, Count, Count], Meta(description="staging partition, base offset and number of records: whole batches")
]


_BOUNDED: Final = Meta(extra_json_schema={"maxItems": SINK_STAGED_MAX})
"""The core counts: it can say what to do."""


class PartIn(Request, frozen=True):
    """What goes to one partition, in this order."""

    topic: str
    partition: Count
    staged: Annotated[list[Staged], _BOUNDED]


class OpenIn(Request, frozen=True):
    """POST /v1/sinks/{sink}/open."""

    remember_ms: (
        Annotated[
            Milliseconds,
            Meta(
                description=f"how long the sink is remembered when it is not used: at most sinks.remember_ms, which is the default; at least {SINK_REMEMBER_MS_MIN}"
            ),
        ]
        | None
    ) = None


class CommitIn(Request, frozen=True):
    """POST /v1/sinks/{sink}/commit."""

    batch_id: Count
    parts: Annotated[list[PartIn], _BOUNDED]
    staging_id: (
        Annotated[
            UUID,
            Meta(
                description="the staging_id that open returned; the commit is refused if that staging topic no longer exists"
            ),
        ]
        | None
    ) = None


class AbortIn(Request, frozen=True):
    """POST /v1/sinks/{sink}/abort."""

    batch_id: Count


class Opened(Struct, frozen=True):
    """A sink that is ready: where to stage, and the last batch that it committed."""

    sink: str
    staging_topic: str
    staging_id: UUID
    partitions: int
    last_batch_id: int | None


class Committed(Struct, frozen=True):
    """The batch is in its targets. ``already``: it was before this call, which appended nothing.

    ``dropped`` are records whose topic was deleted while the commit was under way.
    """

    committed: bool
    already: bool
    records: int
    dropped: int


class Aborted(Struct, frozen=True):
    """Whether what was staged is dropped; if not, why not."""

    aborted: bool
    why: str


class Sink(Struct, frozen=True):
    """How a sink stands. ``committing`` is the batch on its way to its targets, ``problem`` what keeps it from getting there.

    It is forgotten when nobody used it for ``remember_ms`` after ``used_ms``.
    """

    sink: str
    staging_topic: str
    last_batch_id: int | None
    committed_ms: int | None
    since_ms: int
    staged_bytes: int
    committing: int | None
    problem: str | None
    used_ms: int
    remember_ms: int


class SinkList(Struct, frozen=True):
    """GET /v1/sinks."""

    sinks: list[Sink]


async def _answered(call: Call, ask: Callable[[Callable[[T | PenstockError], None]], None]) -> T:
    """What the core tells, in the time that a request may take."""
    future: asyncio.Future[T | PenstockError] = call.gateway.loop.create_future()

    def done(result: T | PenstockError) -> None:
        if not future.done():
            future.set_result(result)

    ask(done)
    result = await in_time(call.gateway, future)
    if isinstance(result, PenstockError):
        raise result
    return result


async def _open(call: Call) -> Answer:
    request = read(OpenIn, call.query, call.body)
    name, found = call.params["sink"], call.gateway.broker.sinks
    opened: sinks.Opened = await _answered(
        call, lambda done: found.open(call.caller, name, done, remember_ms=request.remember_ms)
    )
    return json_answer(Opened(name, *opened))


async def _commit(call: Call) -> Answer:
    request = _body(CommitIn, call)
    parts = [Part(part.topic, part.partition, part.staged) for part in request.parts]
    name, found = call.params["sink"], call.gateway.broker.sinks
    committed: sinks.Committed = await _answered(
        call,
        lambda done: found.commit(call.caller, name, request.batch_id, parts, done, staging_id=request.staging_id),
    )
    return json_answer(Committed(True, *committed))


async def _abort(call: Call) -> Answer:
    request = _body(AbortIn, call)
    name, found = call.params["sink"], call.gateway.broker.sinks
    aborted: sinks.Aborted = await _answered(call, lambda done: found.abort(call.caller, name, request.batch_id, done))
    return json_answer(Aborted(*aborted))


R = TypeVar("R", bound=Request)


def _body(model: type[R], call: Call) -> R:
    if call.query or not call.body:
        raise refuse("send the request as a JSON body")
    return decode(model, call.body)


async def _delete(call: Call) -> Answer:
    read(NoFields, call.query, call.body)
    name, found = call.params["sink"], call.gateway.broker.sinks
    deleted: sinks.Deleted = await _answered(call, lambda done: found.delete(call.caller, name, done))
    assert deleted.sink == name
    return NO_CONTENT


async def _list(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.DESCRIBE)
    told: list[Sink] = []
    for number, name in enumerate(broker.sinks.names()):
        if number % _STATUSES_PER_TURN == 0:
            await asyncio.sleep(0)
        if broker.sinks.knows(name):
            told.append(Sink(*broker.sinks.status(call.caller, name)))
    return json_answer(SinkList(told))


async def _status(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(Sink(*call.gateway.broker.sinks.status(call.caller, call.params["sink"])))


def sinks_owner(call: Call) -> NodeId | None:
    """One node of a cluster looks after all sinks."""
    carry = call.gateway.carry
    return None if carry is None else carry.whose.sinks()


def routes(gateway: "HttpGateway") -> list[Route]:
    """POST /v1/sinks/{sink}/open, /commit and /abort; GET /v1/sinks; GET and DELETE /v1/sinks/{sink}."""
    return [
        route(
            gateway,
            "POST",
            "/v1/sinks/{sink}/open",
            _open,
            CallDoc(
                TAG,
                "Open an exactly-once sink: create it and its staging topic if they do not exist",
                {200: Opened},
                errors=(400, 429, 504),
                body=OpenIn,
                body_required=False,
            ),
            owner=sinks_owner,
        ),
        route(
            gateway,
            "POST",
            "/v1/sinks/{sink}/commit",
            _commit,
            CallDoc(
                TAG,
                "Append the staged records to their topics, all of them and exactly once",
                {200: Committed},
                errors=(400, 404, 409, 429, 504),
                description="A batch id that is not greater than the last one appends nothing. After a 503 or 504 the commit may still be running: repeat it to get the result.",
                body=CommitIn,
            ),
            owner=sinks_owner,
        ),
        route(
            gateway,
            "POST",
            "/v1/sinks/{sink}/abort",
            _abort,
            CallDoc(
                TAG,
                "Discard what is staged, unless the batch is committed or being committed",
                {200: Aborted},
                errors=(400, 404, 409, 504),
                body=AbortIn,
            ),
            owner=sinks_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/sinks",
            _list,
            CallDoc(TAG, "Show the state of all sinks", {200: SinkList}, (400,)),
            owner=sinks_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/sinks/{sink}",
            _status,
            CallDoc(TAG, "Show the state of a sink", {200: Sink}, errors=(400, 404)),
            owner=sinks_owner,
        ),
        route(
            gateway,
            "DELETE",
            "/v1/sinks/{sink}",
            _delete,
            CallDoc(
                TAG,
                "Delete a sink, what is staged in it, and the memory of its commits",
                {204: None},
                errors=(400, 404, 409, 504),
            ),
            owner=sinks_owner,
        ),
    ]
