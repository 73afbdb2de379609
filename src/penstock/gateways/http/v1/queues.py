"""The state of queues under ``/v1``: of all, of one, of its records, and why a record is not delivered."""

from typing import Final

from msgspec import UNSET, Struct, UnsetType

from penstock.core.publish import record_id
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall
from penstock.gateways.http.v1.models import PEEKED_MAX, EnvelopeOut, NoFields, PeekRequest, StatesRequest, WhyRequest
from penstock.gateways.http.v1.records import envelope_out
from penstock.gateways.http.v1.requests import parameters_of, read, refuse
from penstock.operations.queues import (
    DescribeQueue,
    DescribeStates,
    ExplainRecord,
    KnownStates,
    ListQueues,
    PeekedRecord,
    PeekQueue,
    QueueStatus,
    RecordState,
    WhyState,
)
from penstock.text import text_of

CALLS: Final = ApiCalls("v1: queues")


class QueueList(Struct, frozen=True):
    """GET /v1/queues."""

    queues: tuple[QueueStatus, ...]


class Peeked(Struct, frozen=True):
    """An unfinished record of a queue. ``until_ms`` is when its lease or its backoff ends, if it has one."""

    topic: str
    partition: int
    offset: int
    state: RecordState
    attempts: int
    key: str
    value: str | None
    last_error: str
    timestamp: int
    owner: str | UnsetType = UNSET
    until_ms: int | UnsetType = UNSET
    envelope: EnvelopeOut | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET


class PeekedRecords(Struct, frozen=True):
    """GET /v1/queues/{topic}/{group}/peek."""

    records: list[Peeked]


class WhyAnswer(Struct, frozen=True, rename={"record_id": "id"}):
    """GET /v1/why: a word for programs, a sentence for people, and the facts in it."""

    record_id: str
    topic: str
    partition: int
    offset: int
    group: str
    state: WhyState
    sentence: str
    owner: str | UnsetType = UNSET
    until_ms: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET
    last_error: str | UnsetType = UNSET


@CALLS.get("/v1/queues", CallDoc("Show the state of all queues", {200: QueueList}, errors=(400,)))
async def _queues(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(QueueList(await call.do(ListQueues())))


@CALLS.get(
    "/v1/queues/{topic}/{group:path}/peek",
    CallDoc(
        "Show the unfinished records of a queue, without changing anything",
        {200: PeekedRecords},
        errors=(400, 404),
        parameters=parameters_of(PeekRequest),
    ),
)
async def _peek(call: HttpCall) -> Answer:
    request = read(PeekRequest, call.query, b"")
    if not 1 <= request.max_records <= PEEKED_MAX:
        raise refuse(f"max_records must be from 1 to {PEEKED_MAX}")
    found = await call.do(PeekQueue(*_named(call), request.max_records))
    return json_answer(PeekedRecords([_peeked(record) for record in found]))


@CALLS.get(
    "/v1/queues/{topic}/{group:path}/states",
    CallDoc(
        "Show the states of the records of a partition, without the records",
        {200: KnownStates},
        errors=(400, 404),
        description="The response is limited; to continue, use its `next_offset`.",
        parameters=parameters_of(StatesRequest, required=("partition",)),
    ),
)
async def _states(call: HttpCall) -> Answer:
    request = read(StatesRequest, call.query, b"")
    if request.partition is None:
        raise refuse("partition is required")
    asked = DescribeStates(*_named(call), request.partition, request.offset)
    return json_answer(await call.do(asked))


# After the others: the name of a group may contain slashes.
@CALLS.get(
    "/v1/queues/{topic}/{group:path}", CallDoc("Show the state of a queue", {200: QueueStatus}, errors=(400, 404))
)
async def _queue(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(await call.do(DescribeQueue(*_named(call))))


def _named(call: HttpCall) -> tuple[str, str]:
    return call.params["topic"], call.params["group"]


def _peeked(record: PeekedRecord) -> Peeked:
    key, key_encoding = text_of(record.key or b"")
    value, encoding = text_of(record.value)
    return Peeked(
        record.topic,
        record.partition,
        record.offset,
        record.state,
        record.attempts,
        key,
        value,
        record.last_error or "",
        record.timestamp,
        owner=record.owner or UNSET,
        until_ms=record.until_ms or UNSET,
        envelope=envelope_out(record.headers),
        encoding=encoding or UNSET,
        key_encoding=key_encoding or UNSET,
    )


@CALLS.get(
    "/v1/why",
    CallDoc(
        "Explain in one sentence why a record is not delivered",
        {200: WhyAnswer},
        errors=(400,),
        parameters=parameters_of(WhyRequest, required=("topic", "group", "partition", "offset")),
    ),
)
async def _why(call: HttpCall) -> Answer:
    request = read(WhyRequest, call.query, b"")
    topic, group = request.topic.strip(), request.group.strip()
    partition, offset = request.partition, request.offset
    if not topic or not group or partition is None or offset is None:
        raise refuse("topic, group, partition and offset are required")
    why = await call.do(ExplainRecord(topic, partition, offset, group, request.principal))
    return json_answer(
        WhyAnswer(
            record_id(topic, partition, offset),
            topic,
            partition,
            offset,
            group,
            why.state,
            why.sentence,
            owner=UNSET if why.owner is None else why.owner,
            until_ms=UNSET if why.until_ms is None else why.until_ms,
            attempts=UNSET if why.attempts is None else why.attempts,
            last_error=UNSET if why.last_error is None else why.last_error,
        )
    )
