"""POST /v1/produce: publish one record, whose envelope is stored in its headers. It is answered once all in-sync replicas have it.

A record with an idempotency key, in its envelope or in the header ``Idempotency-Key``, is appended once within the key's window; a
repeated request returns the position of the first record. A partition whose backlog is full refuses records, and tells for how long.
"""

from typing import Final

from msgspec import UNSET

from penstock.core.publish import NewRecord, Placed, Results
from penstock.core.queues.envelope import NO_ENVELOPE, write_envelope
from penstock.core.security.lanes import authorise_lane
from penstock.errors import BacklogFull, PenstockError, Reason
from penstock.gateways.http.server.answers import Answer, json_answer
from penstock.gateways.http.server.errors import Refusal
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Done, HttpCall, Parameter, refused
from penstock.gateways.http.v1.models import ErrorAnswer, Produced, ProduceRequest
from penstock.gateways.http.v1.records import bytes_of, envelope_in
from penstock.gateways.http.v1.requests import PRODUCE_PARAMETERS, read, refuse, require_topic
from penstock.operations.operation import Action
from penstock.operations.records import PublishedOnce, PublishOnce
from penstock.types import Acks

CALLS: Final = ApiCalls("v1: queues")
IDEMPOTENCY_KEY: Final = b"idempotency-key"


@CALLS.hot(
    "/v1/produce",
    CallDoc(
        "Publish a record to a topic",
        {200: Produced, 429: ErrorAnswer},
        errors=(400,),
        description="The fields go in the query string, flat, or in a body. A known idempotency key appends nothing and returns the position of the first record, with duplicate: true.",
        parameters=(
            *PRODUCE_PARAMETERS,
            Parameter("Idempotency-Key", description="as idempotency_key in the envelope", where="header"),
        ),
        body=ProduceRequest,
        body_required=False,
        headers={429: {"Retry-After": "seconds after which to try again"}},
    ),
)
def produce(call: HttpCall, done: Done) -> None:
    """POST /v1/produce."""
    request = read(ProduceRequest, call.query, call.body)
    topic = request.topic.strip()
    if not topic or not request.value:
        raise refuse("topic and value are required")
    broker = call.gateway.broker
    found = require_topic(call, topic, Action.WRITE)
    value = bytes_of("value", request.value, request.encoding)
    key = None if request.key is None else bytes_of("key", request.key, request.key_encoding)
    envelope = NO_ENVELOPE
    if request.envelope is not None:
        now_ms = broker.clock.now_ms()
        envelope = envelope_in(request.envelope, now_ms)
        if envelope.deadline_ms is not None and envelope.deadline_ms <= now_ms:
            raise PenstockError(Reason.DEADLINE_EXCEEDED, "message deadline exceeded")
        if envelope.partition_override is not None and not 0 <= envelope.partition_override < found.partition_count:
            authorise_lane(broker, call.caller, Action.WRITE, topic)
            raise refuse("partition_override out of range")
    headers = () if envelope is NO_ENVELOPE else write_envelope(envelope)
    record = NewRecord(key, value, headers, envelope.partition_override)
    once = envelope.idempotency_key or _header_key(call)
    if once is not None:

        def placed_once(found: PublishedOnce | PenstockError) -> None:
            if isinstance(found, PublishedOnce):
                done(_answer(call, topic, Placed(found.partition, found.offset, found.timestamp_ms), found.duplicate))
            else:
                done(_answer(call, topic, found))

        asked = PublishOnce(
            topic, once, value, key, record.headers, envelope.partition_override, envelope.tenant_id or ""
        )
        broker.begin(asked, call.caller, placed_once)
        return

    def placed(results: Results) -> None:
        done(_answer(call, topic, results[0]))

    if broker.backlog.is_on:
        authorise_lane(broker, call.caller, Action.WRITE, topic)
        record = record._replace(partition=broker.publisher.choose_partition(found, record))
        assert record.partition is not None
        try:
            broker.backlog.check(topic, record.partition)
        except BacklogFull as error:
            raise _backlog_full(error) from error
    broker.publisher.publish(call.caller, topic, (record,), Acks.ALL, placed)


def _header_key(call: HttpCall) -> str | None:
    given = call.header(IDEMPOTENCY_KEY)
    if given is None:
        return None
    try:
        return given.decode().strip() or None
    except UnicodeDecodeError:
        raise refuse("invalid Idempotency-Key: give UTF-8") from None


def _answer(call: HttpCall, topic: str, result: Placed | PenstockError, duplicate: bool = False) -> Answer:
    if isinstance(result, Placed):
        return json_answer(Produced("produced", topic, result.partition, result.offset, duplicate or UNSET))
    return refused(call.gateway, call.path, _backlog_full(result) if isinstance(result, BacklogFull) else result)


def _backlog_full(error: BacklogFull) -> Refusal:
    """429, with the time after which to try again."""
    seconds = -(-error.retry_after_ms // 1000)
    return Refusal(
        429,
        error.text,
        headers=((b"retry-after", b"%d" % seconds),),
        more={"reason": error.bound.value, "retry_after_ms": error.retry_after_ms},
    )
