"""How queues stand, under ``/v1``: all of them, one of them, the records in it, and why a record is not being delivered."""

from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Struct, UnsetType
from starlette.routing import Route

from penstock.core.access import Action
from penstock.core.publish import record_id
from penstock.core.queues.delivery import (
    KnownStates,
    OwnerStatus,
    PartitionStatus,
    PeekedRecord,
    QueueStatus,
    RecordState,
    WhyState,
)
from penstock.gateways.http.answers import Answer, json_answer
from penstock.gateways.http.carry import here
from penstock.gateways.http.consumers import group_owner
from penstock.gateways.http.routing import Call, CallDoc, Parameter, route
from penstock.gateways.http.v1_models import Count, EnvelopeOut, NoFields, PeekRequest, StatesRequest, WhyRequest
from penstock.gateways.http.v1_record import envelope_out
from penstock.gateways.http.v1_requests import read, refuse, worker_owner
from penstock.text import text_of

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TAG: Final = "v1: queues"
PEEKED_MAX: Final = 1_000
"""Records in one answer."""


class Queue(Struct, frozen=True):
    """A topic worked by a group. ``lag`` are its unfinished records, ``in_flight`` those that are leased."""

    topic: str
    group: str
    lag: int
    in_flight: int
    in_flight_max: int
    partitions: tuple[PartitionStatus, ...]
    owners: tuple[OwnerStatus, ...]


class QueueList(Struct, frozen=True):
    """GET /v1/queues."""

    queues: list[Queue]


class Peeked(Struct, frozen=True):
    """An unfinished record of a queue. ``until_ms`` is when its lease or its wait ends, if it has one."""

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


class RecordStateOut(Struct, frozen=True):
    """What a queue knows of one unfinished record. ``until_ms`` is when its lease or its wait ends, if it has one."""

    offset: int
    state: RecordState
    attempts: int
    last_error: str
    owner: str | UnsetType = UNSET
    until_ms: int | UnsetType = UNSET


class RecordStates(Struct, frozen=True):
    """GET /v1/queues/{topic}/{group}/states. Below ``floor`` all is finished, and so are the runs in ``finished`` (each from an offset
    up to, and without, the second); what is in neither list, below ``next_offset`` or ``end``, is untouched.
    """

    topic: str
    group: str
    partition: int
    floor: int
    end: int
    records: list[RecordStateOut]
    finished: tuple[tuple[int, int], ...]
    next_offset: int | None


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


def queue_of(status: QueueStatus) -> Queue:
    """A queue as it is told."""
    return Queue(
        status.topic,
        status.group,
        status.lag,
        status.in_flight,
        status.in_flight_max,
        status.partitions,
        status.owners,
    )


async def _queues(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    broker = call.gateway.broker
    broker.access.require_cluster(call.caller, Action.DESCRIBE)
    found = [queue_of(status) for status in broker.queues.queues()]
    if call.gateway.carry is not None:
        for told in (await call.gateway.carry.ask_all(call, QueueList)).values():
            found += told.queues
    return json_answer(QueueList(sorted(found, key=lambda queue: (queue.topic, queue.group))))


async def _queue(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    topic, group = _named(call)
    return json_answer(queue_of(call.gateway.broker.queues.status(topic, group)))


async def _peek(call: Call) -> Answer:
    request = read(PeekRequest, call.query, b"")
    if not 1 <= request.max_records <= PEEKED_MAX:
        raise refuse(f"max_records must be from 1 to {PEEKED_MAX}")
    topic, group = _named(call)
    call.gateway.broker.access.require_topic(call.caller, Action.READ, topic)
    found = call.gateway.broker.queues.peek(topic, group, request.max_records)
    return json_answer(PeekedRecords([_peeked(record) for record in found]))


async def _states(call: Call) -> Answer:
    request = read(StatesRequest, call.query, b"")
    if request.partition is None:
        raise refuse("partition is required")
    topic, group = _named(call)
    found = call.gateway.broker.queues.known_states(topic, group, request.partition, request.offset)
    return json_answer(_states_of(topic, group, found))


def _states_of(topic: str, group: str, found: KnownStates) -> RecordStates:
    records = [
        RecordStateOut(
            record.offset,
            record.state,
            record.attempts,
            record.last_error or "",
            owner=record.owner or UNSET,
            until_ms=record.until_ms or UNSET,
        )
        for record in found.touched
    ]
    return RecordStates(
        topic, group, found.partition, found.floor, found.end, records, found.finished, found.next_offset
    )


def _named(call: Call) -> tuple[str, str]:
    topic, group = call.params["topic"], call.params["group"]
    access = call.gateway.broker.access
    access.require_topic(call.caller, Action.DESCRIBE, topic)
    access.require_group(call.caller, Action.DESCRIBE, group)
    return topic, group


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


async def _why(call: Call) -> Answer:
    request = read(WhyRequest, call.query, b"")
    topic, group = request.topic.strip(), request.group.strip()
    partition, offset = request.partition, request.offset
    if not topic or not group or partition is None or offset is None:
        raise refuse("topic, group, partition and offset are required")
    access = call.gateway.broker.access
    access.require_topic(call.caller, Action.DESCRIBE, topic)
    access.require_group(call.caller, Action.DESCRIBE, group)
    why = call.gateway.broker.queues.why(topic, partition, offset, group)
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


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/queues, /v1/queues/{topic}/{group}, its /peek and /states, and /v1/why."""
    return [
        route(
            gateway,
            "GET",
            "/v1/queues",
            _queues,
            CallDoc(TAG, "Show the state of all queues", {200: QueueList}, errors=(400,)),
            owner=here,
        ),
        # Before the queue itself: a group may have slashes in its name.
        route(
            gateway,
            "GET",
            "/v1/queues/{topic}/{group:path}/peek",
            _peek,
            CallDoc(
                TAG,
                "Show the unfinished records of a queue, without changing anything",
                {200: PeekedRecords},
                errors=(400, 404),
                parameters=(
                    Parameter("max_records", Count, f"the maximum number of records, up to {PEEKED_MAX}; default 100"),
                ),
            ),
            owner=group_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/queues/{topic}/{group:path}/states",
            _states,
            CallDoc(
                TAG,
                "Show the states of the records of a partition, without the records",
                {200: RecordStates},
                errors=(400, 404),
                description="The response is limited; to continue, use its `next_offset`.",
                parameters=(
                    Parameter("partition", Count, "the partition", required=True),
                    Parameter("offset", Count, "only records from this offset on"),
                ),
            ),
            owner=group_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/queues/{topic}/{group:path}",
            _queue,
            CallDoc(TAG, "Show the state of a queue", {200: Queue}, errors=(400, 404)),
            owner=group_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/why",
            _why,
            CallDoc(
                TAG,
                "Explain in one sentence why a record is not delivered",
                {200: WhyAnswer},
                errors=(400,),
                parameters=(
                    Parameter("topic", str, "the topic", required=True),
                    Parameter("partition", Count, "the record's partition", required=True),
                    Parameter("offset", Count, "the record's offset", required=True),
                    Parameter("group", str, "the consumer group", required=True),
                ),
            ),
            owner=worker_owner(WhyRequest),
        ),
    ]
