"""Dead letters, under ``/v1``: which there are, what died of what, sending them back, giving them up.

``{topic}`` is the topic that they came from. Redrive and purge answer with lines: how far they are, now and then, and a last line
with ``done``. They stop when the client leaves; what they did until then is done, and running them again goes on.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.core.dead_letters.dead_letters import NO_LIMIT, Cancel
from penstock.core.dead_letters.jobs import JobDone, Progress, Told
from penstock.core.dead_letters.letters import DeadLetter, DeadLetterFilter, Plan, ReasonCount
from penstock.core.queues.moves import REDRIVE_GROUP
from penstock.errors import PenstockError
from penstock.gateways.http.answers import NDJSON, REQUEST_ID, Answer, encoder, json_answer
from penstock.gateways.http.routing import Call, CallDoc, Content, Parameter, refused, route
from penstock.gateways.http.v1_models import (
    ChosenLettersRequest,
    Count,
    DeadLettersRequest,
    EnvelopeOut,
    NoFields,
    RedriveRequest,
)
from penstock.gateways.http.v1_record import envelope_out, other_headers
from penstock.gateways.http.v1_requests import read, refuse
from penstock.text import text_of
from penstock.types import NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

TAG: Final = "v1: dead letters"
SHOWN_DEFAULT: Final = 100
SHOWN_MAX: Final = 1_000
CHOSEN_MAX: Final = 10_000
"""Dead letters that one request names by their places."""
_LINES_APART_SECONDS: Final = 0.2
"""Between two lines about how far a job is: for a person's eyes."""

T = TypeVar("T")


class DeadLetterTopicOut(Struct, frozen=True):
    """A topic that has dead letters. ``open`` are those that were neither redriven nor purged."""

    topic: str
    dead_letter_topic: str
    open: int


class DeadLetterTopics(Struct, frozen=True):
    """GET /v1/dlq."""

    topics: list[DeadLetterTopicOut]


class DeadLetterOut(Struct, frozen=True):
    """One dead letter; ``partition`` and ``offset`` are its place in the dead-letter topic."""

    dead_letter_topic: str
    partition: int
    offset: int
    original_topic: str
    original_partition: int
    original_offset: int | None
    original_group: str | None
    attempts: int
    last_error: str
    routed_at_ms: int
    key: str
    value: str | None
    timestamp: int
    envelope: EnvelopeOut | UnsetType = UNSET
    encoding: str | UnsetType = UNSET
    key_encoding: str | UnsetType = UNSET
    headers: dict[str, str | None] | UnsetType = UNSET
    header_encodings: dict[str, str] | UnsetType = UNSET


class DeadLetterList(Struct, frozen=True):
    """GET /v1/dlq/{topic}."""

    records: list[DeadLetterOut]


class PlanOut(Struct, frozen=True):
    """POST /v1/dlq/{topic}/plan: what a redrive would move now, the most frequent reason first."""

    topic: str
    dead_letter_topic: str
    count: int
    oldest_ms: int | None
    newest_ms: int | None
    reasons: tuple[ReasonCount, ...]


class ProgressLine(Struct, frozen=True):
    """A line of a redrive or a purge. ``skipped`` were finished by somebody else meanwhile."""

    total: int
    finished: int
    failed: int
    skipped: int
    done: bool
    last_failure: str | UnsetType = UNSET


async def _topics(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    found = call.gateway.broker.dead_letters.topics(call.caller)
    return json_answer(
        DeadLetterTopics([DeadLetterTopicOut(each.topic, each.dead_letter_topic, each.open_count) for each in found])
    )


async def _show(call: Call) -> Answer:
    request = read(DeadLettersRequest, call.query, b"")
    most = SHOWN_DEFAULT if request.max_records is None else request.max_records
    if not 1 <= most <= SHOWN_MAX:
        raise refuse(f"max_records must be from 1 to {SHOWN_MAX}")
    dead_letters = call.gateway.broker.dead_letters
    letters: list[DeadLetter] = await _answered(
        call, lambda done: dead_letters.show(call.caller, call.params["topic"], _filter_of(request), most, done)
    )
    return json_answer(DeadLetterList([_letter(each) for each in letters]))


async def _plan(call: Call) -> Answer:
    request = read(ChosenLettersRequest, call.query, call.body)
    most = NO_LIMIT if request.max_records is None else request.max_records
    dead_letters = call.gateway.broker.dead_letters
    plan: Plan = await _answered(
        call,
        lambda done: dead_letters.plan(call.caller, call.params["topic"], _filter_of(request), done, max_records=most),
    )
    return json_answer(
        PlanOut(plan.topic, plan.dead_letter_topic, plan.count, plan.oldest_ms, plan.newest_ms, plan.reasons)
    )


async def _redrive(call: Call) -> Answer | Response:
    request = read(RedriveRequest, call.query, call.body)
    most = NO_LIMIT if request.max_records is None else request.max_records

    def begin(progress: Told, done: JobDone) -> Cancel:
        return call.gateway.broker.dead_letters.redrive(
            call.caller,
            call.params["topic"],
            _filter_of(request),
            progress,
            done,
            rate_per_second=request.rate_per_second,
            max_records=most,
        )

    return _begun(call, begin)


async def _purge(call: Call) -> Answer | Response:
    request = read(ChosenLettersRequest, call.query, call.body)
    most = NO_LIMIT if request.max_records is None else request.max_records

    def begin(progress: Told, done: JobDone) -> Cancel:
        return call.gateway.broker.dead_letters.purge(
            call.caller, call.params["topic"], _filter_of(request), progress, done, max_records=most
        )

    return _begun(call, begin)


def _filter_of(request: DeadLettersRequest) -> DeadLetterFilter:
    return DeadLetterFilter(
        reason=request.reason,
        group=request.group,
        partition=request.partition,
        offset=request.offset,
        from_ms=request.from_ms,
        until_ms=request.until_ms,
        chosen=_chosen_of(request) if isinstance(request, ChosenLettersRequest) else None,
    )


def _chosen_of(request: ChosenLettersRequest) -> dict[int, frozenset[int]] | None:
    if request.chosen is None:
        return None
    if sum(len(each.offsets) for each in request.chosen) > CHOSEN_MAX:
        raise refuse(
            f"at most {CHOSEN_MAX} dead letters can be chosen in one request; send the rest in the next request"
        )
    chosen: dict[int, frozenset[int]] = {}
    for each in request.chosen:
        chosen[each.partition] = chosen.get(each.partition, frozenset()).union(each.offsets)
    return chosen


async def _answered(call: Call, ask: Callable[[Callable[[T | PenstockError], None]], Cancel]) -> T:
    future: asyncio.Future[T | PenstockError] = call.gateway.loop.create_future()
    cancel = ask(lambda result: None if future.done() else future.set_result(result))
    try:
        result = await future
    finally:
        cancel()
    if isinstance(result, PenstockError):
        raise result
    return result


def _letter(letter: DeadLetter) -> DeadLetterOut:
    key, key_encoding = text_of(letter.key or b"")
    value, encoding = text_of(letter.value)
    others, encodings = other_headers(letter.headers, is_dead=True)
    return DeadLetterOut(
        letter.topic,
        letter.partition,
        letter.offset,
        letter.original_topic,
        letter.original_partition,
        letter.original_offset,
        letter.original_group,
        letter.attempts,
        letter.last_error,
        letter.routed_at_ms,
        key,
        value,
        letter.timestamp,
        envelope=envelope_out(letter.headers),
        encoding=encoding or UNSET,
        key_encoding=key_encoding or UNSET,
        headers=others or UNSET,
        header_encodings=encodings or UNSET,
    )


# Redrive and purge.


def _begun(call: Call, begin: Callable[[Told, JobDone], Cancel]) -> Response:
    stream = JobStream(call)
    call.gateway.begin_stream(stream.end)
    try:
        stream.cancel = begin(stream.progressed, stream.finished)
    except PenstockError:
        call.gateway.end_stream(stream.end)
        raise
    return stream


class JobStream(Response):
    """How far a job is, a line at a time, until it is over, its client leaves or the gateway stops."""

    cancel: Cancel

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", NDJSON), (REQUEST_ID, call.request_id)]
        self._call = call
        self._news = asyncio.Event()
        self._standing: Progress | None = None
        self._last: bytes | None = None
        self._over = False

    def progressed(self, standing: Progress) -> None:
        """Something was done."""
        self._standing = standing
        self._news.set()

    def finished(self, result: Progress | PenstockError) -> None:
        """All is done, or it cannot go on."""
        if isinstance(result, PenstockError):
            self._last = refused(self._call.gateway, self._call.path, result).body
        else:
            self._last = encoder.encode(_line(result, done=True))
        self.end()

    def end(self) -> None:
        """No more lines than those that are there."""
        self._over = True
        self._news.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Serve the stream to its end."""
        watching = asyncio.ensure_future(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            told: Progress | None = None
            while not self._over:
                await self._news.wait()
                self._news.clear()
                if self._standing != told and not self._over:
                    told = self._standing
                    assert told is not None
                    await self._send_line(send, encoder.encode(_line(told, done=False)))
                    await self._pause()
            if self._last is not None:
                await self._send_line(send, self._last)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.cancel()
            watching.cancel()
            self._call.gateway.end_stream(self.end)

    async def _pause(self) -> None:
        """A moment, or less when it is over before."""
        try:
            async with asyncio.timeout(_LINES_APART_SECONDS):
                while not self._over:
                    await self._news.wait()
                    self._news.clear()
        except TimeoutError:
            self._news.set()

    async def _send_line(self, send: Send, line: bytes) -> None:
        await send({"type": "http.response.body", "body": line + b"\n", "more_body": True})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end()


def _line(standing: Progress, *, done: bool) -> ProgressLine:
    return ProgressLine(
        standing.total,
        standing.finished,
        standing.failed,
        standing.skipped,
        done,
        standing.last_failure or UNSET,
    )


_FILTER: Final = (
    Parameter("reason", str, "only this reason; a * at the end matches a prefix"),
    Parameter("group", str, "only dead letters of this group"),
    Parameter("partition", Count, "only this partition of the original topic"),
    Parameter("offset", Count, "only this offset of the dead-letter topic"),
    Parameter("from_ms", Count, "died at or after this unix time in milliseconds"),
    Parameter("until_ms", Count, "died before this unix time in milliseconds"),
    Parameter("max_records", Count, "the maximum number of dead letters"),
)
_LINES: Final = Content("application/x-ndjson", ProgressLine)
_BOTH_WAYS: Final = "The filter goes in the query string or in a body. A body can also list the dead letters, in `chosen`; those that are no longer open are skipped, so the same request can be repeated."


def letters_owner(call: Call) -> NodeId | None:
    """What was redriven and purged is kept by one group, for all topics."""
    carry = call.gateway.carry
    return None if carry is None else carry.whose.group(REDRIVE_GROUP)


def routes(gateway: "HttpGateway") -> list[Route]:
    """GET /v1/dlq and /v1/dlq/{topic}, POST its /plan, /redrive and /purge."""
    rate = Parameter("rate_per_second", float, "the number per second; 0 or omitted: no limit")
    return [
        route(
            gateway,
            "GET",
            "/v1/dlq",
            _topics,
            CallDoc(TAG, "List the topics that have dead letters", {200: DeadLetterTopics}, errors=(400,)),
            owner=letters_owner,
        ),
        route(
            gateway,
            "GET",
            "/v1/dlq/{topic}",
            _show,
            CallDoc(
                TAG,
                "Show dead letters that are open",
                {200: DeadLetterList},
                errors=(400, 404, 429),
                parameters=_FILTER,
            ),
            owner=letters_owner,
        ),
        route(
            gateway,
            "POST",
            "/v1/dlq/{topic}/plan",
            _plan,
            CallDoc(
                TAG,
                "Count by reason the dead letters that a redrive would move",
                {200: PlanOut},
                errors=(400, 404, 429),
                description=_BOTH_WAYS,
                parameters=_FILTER,
                body=ChosenLettersRequest,
                body_required=False,
            ),
            owner=letters_owner,
        ),
        route(
            gateway,
            "POST",
            "/v1/dlq/{topic}/redrive",
            _redrive,
            CallDoc(
                TAG,
                "Send dead letters back to their original topic",
                {200: _LINES},
                errors=(400, 404, 429),
                description=f"{_BOTH_WAYS} The response has progress lines and a last line with done; the operation stops if you disconnect.",
                parameters=(*_FILTER, rate),
                body=RedriveRequest,
                body_required=False,
            ),
            owner=letters_owner,
        ),
        route(
            gateway,
            "POST",
            "/v1/dlq/{topic}/purge",
            _purge,
            CallDoc(
                TAG,
                "Discard dead letters",
                {200: _LINES},
                errors=(400, 404, 429),
                description=f"{_BOTH_WAYS} They stay in the dead-letter topic until its retention ends, and are no longer open.",
                parameters=_FILTER,
                body=ChosenLettersRequest,
                body_required=False,
            ),
            owner=letters_owner,
        ),
    ]
