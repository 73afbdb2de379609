"""Exactly-once sinks under ``/v1``: open one, commit or abort what is staged in it, show it, delete it.

Records are staged by a plain Kafka produce to the sink's staging topic. A commit that takes longer than a request may is answered with
504 and continues; repeat it to get the result.
"""

from typing import Annotated, Final, TypeVar
from uuid import UUID

from msgspec import Meta, Struct

from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import Count, Milliseconds, NoFields, StrictRequest
from penstock.gateways.http.v1.requests import decode, read, refuse
from penstock.limits import SINK_REMEMBER_MS_MIN, SINK_STAGED_MAX
from penstock.operations.sinks import (
    AbortedBatch,
    AbortSink,
    CommitSink,
    CommittedBatch,
    DeleteSink,
    DescribeSink,
    ListSinks,
    OpenedSink,
    OpenSink,
    SinkPart,
    SinkStatus,
)

CALLS: Final = ApiCalls("v1: sinks")
Staged = Annotated[
    tuple[Count, Count, Count], Meta(description="staging partition, base offset and number of records: whole batches")
]


_BOUNDED: Final = Meta(extra_json_schema={"maxItems": SINK_STAGED_MAX})
"""Checked by the core, which has the error text."""


class PartIn(StrictRequest, frozen=True):
    """What is appended to one partition, in this order."""

    topic: str
    partition: Count
    staged: Annotated[list[Staged], _BOUNDED]


class OpenIn(StrictRequest, frozen=True):
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


class CommitIn(StrictRequest, frozen=True):
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


class AbortIn(StrictRequest, frozen=True):
    """POST /v1/sinks/{sink}/abort."""

    batch_id: Count


class SinkList(Struct, frozen=True):
    """GET /v1/sinks."""

    sinks: tuple[SinkStatus, ...]


@CALLS.post(
    "/v1/sinks/{sink}/open",
    CallDoc(
        "Open an exactly-once sink: create it and its staging topic if they do not exist",
        {200: OpenedSink},
        errors=(400, 429, 504),
        body=OpenIn,
        body_required=False,
    ),
)
async def _open(call: HttpCall) -> Answer:
    request = read(OpenIn, call.query, call.body)
    return json_answer(await call.do(OpenSink(call.params["sink"], request.remember_ms)))


@CALLS.post(
    "/v1/sinks/{sink}/commit",
    CallDoc(
        "Append the staged records to their topics, all of them and exactly once",
        {200: CommittedBatch},
        errors=(400, 404, 409, 429, 504),
        description="A batch id that is not greater than the last one appends nothing. After a 503 or 504 the commit may still be running: repeat it to get the result.",
        body=CommitIn,
    ),
)
async def _commit(call: HttpCall) -> Answer:
    request = _body(CommitIn, call)
    parts = [SinkPart(part.topic, part.partition, part.staged) for part in request.parts]
    return json_answer(await call.do(CommitSink(call.params["sink"], request.batch_id, parts, request.staging_id)))


@CALLS.post(
    "/v1/sinks/{sink}/abort",
    CallDoc(
        "Discard what is staged, unless the batch is committed or being committed",
        {200: AbortedBatch},
        errors=(400, 404, 409, 504),
        body=AbortIn,
    ),
)
async def _abort(call: HttpCall) -> Answer:
    request = _body(AbortIn, call)
    return json_answer(await call.do(AbortSink(call.params["sink"], request.batch_id)))


R = TypeVar("R", bound=StrictRequest)


def _body(model: type[R], call: HttpCall) -> R:
    if call.query or not call.body:
        raise refuse("send the request as a JSON body")
    return decode(model, call.body)


@CALLS.get("/v1/sinks", CallDoc("Show the state of all sinks", {200: SinkList}, (400,)))
async def _list(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(SinkList(await call.do(ListSinks())))


@CALLS.get("/v1/sinks/{sink}", CallDoc("Show the state of a sink", {200: SinkStatus}, errors=(400, 404)))
async def _status(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeSink(call.params["sink"])))


@CALLS.delete(
    "/v1/sinks/{sink}",
    CallDoc(
        "Delete a sink, what is staged in it, and the memory of its commits", {204: None}, errors=(400, 404, 409, 504)
    ),
)
async def _delete(call: HttpCall) -> Answer:
    read(NoFields, call.query, call.body)
    await call.do(DeleteSink(call.params["sink"]))
    return NO_CONTENT
