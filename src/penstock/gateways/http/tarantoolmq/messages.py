"""Publishing messages, one or many at a time, and reading them from an offset.

The messages of a batch are checked one by one: the result of an invalid one is its error, and the others are published. If the body
is not JSON, nothing is published.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Struct
from starlette.responses import Response

from penstock.core.publish import NewRecord, Results
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import NDJSON, Answer, encoder, json_answer
from penstock.gateways.http.server.errors import Refusal, UnknownTopic, error_answer
from penstock.gateways.http.server.routing import (
    ApiCalls,
    CallDoc,
    Content,
    Done,
    HttpCall,
    Parameter,
    answer_of,
    decoded,
    read_body,
    required,
)
from penstock.gateways.http.tarantoolmq.models import (
    ACKS,
    MISSING_VALUE,
    NOT_JSON,
    PARTITION_NOT_FOUND,
    BatchRequest,
    MessageArray,
    MessageList,
    MessageRequest,
    NotPublished,
    Published,
    PublishedBatch,
    batch_decoder,
    decode_message,
    message_decoder,
    message_of,
    publish_decoder,
    publish_refusal,
    published,
    raw_decoder,
    record_of,
    wrong_message,
)
from penstock.gateways.http.tarantoolmq.ndjson import publish_lines
from penstock.gateways.http.tarantoolmq.topics import TOPIC_NOT_FOUND, find_topic, translated_errors
from penstock.limits import MIB
from penstock.operations.operation import Action
from penstock.operations.records import ReadRecords
from penstock.operations.topics import DescribePartition
from penstock.types import Acks

Records = Sequence[NewRecord]
PlacedDone = Callable[[Results], None]
BatchDone = Callable[[list[Published | NotPublished]], None]

RECORDS_DEFAULT: Final = 100
POLL_BYTES_MAX: Final = 8 * MIB
"""The size of an answer is limited to about this, whatever number of messages was requested."""
_PASSING: Final = frozenset({Reason.NOT_ENOUGH_REPLICAS, Reason.LEADER_NOT_AVAILABLE, Reason.NOT_LEADER_OR_FOLLOWER})
"""Errors that pass by themselves and appended nothing: the records are published again."""
_SPACE: Final = b" \t\r\n"

CALLS: Final = ApiCalls("Messages")


class Watermarks(Struct, frozen=True):
    """Offsets from ``low_watermark`` up to, and without, ``high_watermark`` can be read."""

    high_watermark: int
    low_watermark: int


# Publishing.


_LINE_DESCRIPTION: Final = "One message, an array of messages, or an object with `messages`. With the type application/x-ndjson, the body is a stream of lines with one message each, and so is the response: one line for each message, in order, while the request is still being sent."


async def _publish(call: HttpCall) -> Answer | Response:
    """Publish through ASGI, which also takes streams of lines."""
    assert call.request is not None
    content_type = (call.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type == NDJSON:
        find_topic(call, call.params["topic"], Action.WRITE)
        return publish_lines(call, publish_each)
    # The call may be repeated, with its body already read.
    call.body = call.body or await read_body(call.gateway, call.request)
    return await answer_of(publish, call)


@CALLS.hot(
    "/topics/{topic}/messages",
    CallDoc(
        "Publish one message or many",
        {200: [Published, PublishedBatch, Content("application/x-ndjson", [Published, NotPublished])]},
        errors=(400, 404, 413),
        description=_LINE_DESCRIPTION,
        body=[
            required(MessageRequest, value={"type": "string"}),
            BatchRequest,
            MessageArray,
            Content("application/x-ndjson", required(MessageRequest, value={"type": "string"})),
        ],
    ),
    asgi=_publish,
    reads_body=False,
)
def publish(call: HttpCall, done: Done) -> None:
    """POST /topics/:t/messages with a JSON body."""
    gateway = call.gateway
    topic = call.params["topic"]
    body = call.body
    acks = gateway.settings.acks
    first = body[:1] if body[:1] not in _SPACE else body.lstrip(_SPACE)[:1]
    if not first:
        raise Refusal(400, MISSING_VALUE)
    if first == b"[":
        _publish_many(call, topic, _batch(body), acks, done)
        return
    try:
        request = publish_decoder.decode(body)
    except (msgspec.ValidationError, UnicodeDecodeError):
        request = None
    except NOT_JSON:
        decoded(message_decoder, body)
        raise
    if request is None:
        # Either one invalid message, or messages some of which are invalid.
        whole = decoded(msgspec.json.Decoder(dict[str, msgspec.Raw]), body)
        if "messages" not in whole:
            raise Refusal(400, wrong_message(body))
        rest = msgspec.json.encode({name: value for name, value in whole.items() if name != "messages"})
        settings: MessageRequest = decoded(message_decoder, rest)
        _publish_many(call, topic, _batch(bytes(whole["messages"])), _acks(settings, acks), done)
    elif request.messages is not UNSET:
        if request.value is not None:
            raise Refusal(400, "Send either one message or messages, not both")
        _publish_many(call, topic, list(request.messages), _acks(request, acks), done)
    else:
        _publish_one(call, topic, request, _acks(request, acks), done)


def _acks(message: MessageRequest, default: Acks) -> Acks:
    return default if message.acks is None else ACKS[message.acks]


def _batch(body: bytes) -> list[MessageRequest | NotPublished]:
    """The messages of an array. They are decoded one by one only if some are invalid."""
    try:
        return batch_decoder.decode(body)  # type: ignore[return-value]  # a list of the one kind
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass
    except NOT_JSON:
        decoded(raw_decoder, body)
        raise
    return [decode_message(raw) for raw in decoded(raw_decoder, body)]


def _publish_one(call: HttpCall, topic: str, message: MessageRequest, acks: Acks, done: Done) -> None:
    def placed(results: Results) -> None:
        result = results[0]
        if isinstance(result, PenstockError):
            done(error_answer(call.path, publish_refusal(result)))
        else:
            done(Answer(200, encoder.encode(published(topic, result, acked=acks is not Acks.NONE))))

    record = record_of(message)
    _append(call, topic, (record,), acks, placed)


def _publish_many(
    call: HttpCall, topic: str, messages: list[MessageRequest | NotPublished], acks: Acks, done: Done
) -> None:
    most = call.gateway.bounds.batch_records_max
    if len(messages) > most:
        raise Refusal(413, f"A batch has at most {most} messages, not {len(messages)}. Send several batches.")

    def all_placed(results: list[Published | NotPublished]) -> None:
        done(Answer(200, encoder.encode(PublishedBatch(results))))

    publish_each(call, topic, messages, acks, all_placed)


class _Batch:
    """A batch that is being published in runs of records with the same acks; it is answered after the last run."""

    __slots__ = ("done", "left", "results")

    def __init__(self, results: list[Published | NotPublished], done: BatchDone) -> None:
        self.results = results
        self.left = 1
        self.done = done

    def end_one(self) -> None:
        self.left -= 1
        if not self.left:
            self.done(self.results)


def publish_each(
    call: HttpCall, topic: str, messages: list[MessageRequest | NotPublished], acks: Acks, done: BatchDone
) -> None:
    """Publish the valid messages; ``done`` gets one result for each message. PenstockError or Refusal if all are refused."""
    find_topic(call, topic, Action.WRITE)
    nothing = NotPublished("")
    results: list[Published | NotPublished] = [nothing] * len(messages)
    batch = _Batch(results, done)
    records: list[NewRecord] = []
    places: list[int] = []
    run_acks = acks
    for at, message in enumerate(messages):
        if isinstance(message, NotPublished):
            results[at] = message
            continue
        wanted = acks if message.acks is None else ACKS[message.acks]
        if wanted is not run_acks and records:
            # Records are published in order, so a change of acks starts a new run.
            _append_run(call, topic, records, places, run_acks, batch)
            records, places = [], []
        run_acks = wanted
        try:
            records.append(record_of(message))
            places.append(at)
        except Refusal as refusal:
            results[at] = NotPublished(refusal.text)
    if records:
        _append_run(call, topic, records, places, run_acks, batch)
    batch.end_one()


def _append_run(
    call: HttpCall, topic: str, records: list[NewRecord], places: list[int], acks: Acks, batch: _Batch
) -> None:
    acked = acks is not Acks.NONE
    results = batch.results
    batch.left += 1

    def placed(found: Results) -> None:
        for at, result in zip(places, found, strict=True):
            if isinstance(result, PenstockError):
                results[at] = NotPublished(publish_refusal(result).text)
            else:
                partition, offset, timestamp_ms = result
                results[at] = Published(f"{topic}/{partition}@{offset}", topic, partition, offset, timestamp_ms, acked)
        batch.end_one()

    _append(call, topic, records, acks, placed)


def _append(call: HttpCall, topic: str, records: Records, acks: Acks, placed: PlacedDone) -> None:
    try:
        call.gateway.broker.publisher.publish(call.caller, topic, records, acks, placed)
    except PenstockError as error:
        if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownTopic(topic, TOPIC_NOT_FOUND) from None
        if error.reason not in _PASSING or not call.gateway.settings.retries:
            raise
        _append_later(call, topic, records, acks, placed, call.gateway.settings.retries)


def _append_later(call: HttpCall, topic: str, records: Records, acks: Acks, placed: PlacedDone, tries: int) -> None:
    """Try again in a moment, since nothing was appended."""

    def try_again() -> None:
        try:
            call.gateway.broker.publisher.publish(call.caller, topic, records, acks, placed)
        except PenstockError as error:
            if error.reason in _PASSING and tries > 1:
                _append_later(call, topic, records, acks, placed, tries - 1)
            else:
                placed([error] * len(records))

    call.gateway.loop.call_later(call.gateway.settings.retry_backoff_ms / 1000, try_again)


# Reading.


def _index(call: HttpCall) -> int:
    """The partition in the path; 404 if it is not a number."""
    index = call.params["partition"]
    if not (index.isascii() and index.isdigit() and len(index) < 10):
        raise Refusal(404, PARTITION_NOT_FOUND)
    return int(index)


@CALLS.get(
    "/topics/{topic}/partitions/{partition}/messages",
    CallDoc(
        "Read messages of a partition, starting at an offset",
        {200: MessageList},
        errors=(400, 404),
        description="An offset that retention has deleted starts at the oldest message; an offset past the end returns nothing.",
        parameters=(
            Parameter("offset", Annotated[int, Meta(ge=0, le=2**63 - 1)], "the first offset; default 0"),
            Parameter(
                "max_records",
                Annotated[int, Meta(ge=1, le=2**63 - 1)],
                f"the maximum number of messages; default {RECORDS_DEFAULT}, limited by the broker's max_poll_records",
            ),
        ),
    ),
)
async def _read(call: HttpCall) -> Answer:
    topic, index = call.params["topic"], _index(call)
    fields = call.query_fields()
    offset = call.int_field(fields, "offset", 0, 0, 2**63 - 1)
    asked = call.int_field(fields, "max_records", RECORDS_DEFAULT, 1, 2**63 - 1)
    count = min(asked, call.gateway.settings.max_poll_records)
    with translated_errors(call, topic):
        found = await call.do(ReadRecords(topic, index, offset, count, POLL_BYTES_MAX))
    return json_answer(MessageList([message_of(topic, index, record) for record in found]))


@CALLS.get(
    "/topics/{topic}/partitions/{partition}/offsets",
    CallDoc("Show the offset range of a partition", {200: Watermarks}, errors=(404,)),
)
async def _offsets(call: HttpCall) -> Answer:
    topic = call.params["topic"]
    with translated_errors(call, topic):
        found = await call.do(DescribePartition(topic, _index(call)))
    return json_answer(Watermarks(found.high_watermark, found.start_offset))
