"""Dead letters, under ``/v1``: which there are, what died of what, sending them back, giving them up.

``{topic}`` is the topic that they came from. Redrive and purge answer with lines: how far they are, now and then, and a last line
with ``done``. They stop when the client leaves; what they did until then is done, and running them again goes on.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.core.operations.handling import Flow
from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NDJSON, REQUEST_ID, Answer, encoder, json_answer
from penstock.gateways.http.server.routing import Call, CallDoc, Content, Parameter, refused, route
from penstock.gateways.http.v1.models import (
    ChosenLettersRequest,
    Count,
    DeadLettersRequest,
    EnvelopeOut,
    NoFields,
    RedriveRequest,
)
from penstock.gateways.http.v1.record import envelope_out, other_headers
from penstock.gateways.http.v1.requests import read, refuse
from penstock.operations.dead_letters import (
    NO_LIMIT,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterTopic,
    ListDeadLetterTopics,
    PlanRedrive,
    Progress,
    Purge,
    Redrive,
    RedrivePlan,
    ShowDeadLetters,
)
from penstock.text import text_of

if TYPE_CHECKING:
    from penstock.gateways.http.server.gateway import HttpGateway

TAG: Final = "v1: dead letters"
SHOWN_DEFAULT: Final = 100
SHOWN_MAX: Final = 1_000
CHOSEN_MAX: Final = 10_000
"""Dead letters that one request names by their places."""
_LINES_APART_SECONDS: Final = 0.2
"""Between two lines about how far a job is: for a person's eyes."""


class DeadLetterTopics(Struct, frozen=True):
    """GET /v1/dlq."""

    topics: tuple[DeadLetterTopic, ...]


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


async def _topics(call: Call) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(DeadLetterTopics(await call.gateway.broker.do(ListDeadLetterTopics(), call.caller)))


async def _show(call: Call) -> Answer:
    request = read(DeadLettersRequest, call.query, b"")
    most = SHOWN_DEFAULT if request.max_records is None else request.max_records
    if not 1 <= most <= SHOWN_MAX:
        raise refuse(f"max_records must be from 1 to {SHOWN_MAX}")
    asked = ShowDeadLetters(call.params["topic"], _filter_of(request), most)
    letters = await call.gateway.broker.do(asked, call.caller)
    return json_answer(DeadLetterList([_letter(each) for each in letters]))


async def _plan(call: Call) -> Answer:
    request = read(ChosenLettersRequest, call.query, call.body)
    asked = PlanRedrive(call.params["topic"], _filter_of(request), _most(request))
    return json_answer(await call.gateway.broker.do(asked, call.caller))


async def _redrive(call: Call) -> Answer | Response:
    request = read(RedriveRequest, call.query, call.body)
    rate = request.rate_per_second
    return await _begun(call, Redrive(0, call.params["topic"], _filter_of(request), rate, _most(request)))


async def _purge(call: Call) -> Answer | Response:
    request = read(ChosenLettersRequest, call.query, call.body)
    return await _begun(call, Purge(0, call.params["topic"], _filter_of(request), _most(request)))


def _most(request: ChosenLettersRequest) -> int:
    return NO_LIMIT if request.max_records is None else request.max_records


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


async def _begun(call: Call, asked: Redrive | Purge) -> Response:
    stream = JobStream(call)
    call.gateway.begin_stream(stream.end)
    try:
        stream.flow = await call.gateway.broker.open(asked, call.caller, stream.progressed, stream.finished)
    except BaseException:
        call.gateway.end_stream(stream.end)
        raise
    return stream


class JobStream(Response):
    """How far a job is, a line at a time, until it is over, its client leaves or the gateway stops."""

    flow: Flow

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.raw_headers = [(b"content-type", NDJSON), (REQUEST_ID, call.request_id)]
        self._call = call
        self._news = asyncio.Event()
        self._standing: Progress | None = None
        self._last: bytes | None = None
        self._over = False

    def progressed(self, items: Sequence[Progress]) -> None:
        """Something was done."""
        self._standing = items[-1]
        if self._standing.done:
            self._last = encoder.encode(self._standing)
            self.end()
        self._news.set()

    def finished(self, error: PenstockError | None) -> None:
        """Nothing more will be done."""
        if error is not None:
            self._last = refused(self._call.gateway, self._call.path, error).body
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
                    await self._send_line(send, encoder.encode(told))
                    await self._pause()
            if self._last is not None:
                await self._send_line(send, self._last)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.flow.close()
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


_FILTER: Final = (
    Parameter("reason", str, "only this reason; a * at the end matches a prefix"),
    Parameter("group", str, "only dead letters of this group"),
    Parameter("partition", Count, "only this partition of the original topic"),
    Parameter("offset", Count, "only this offset of the dead-letter topic"),
    Parameter("from_ms", Count, "died at or after this unix time in milliseconds"),
    Parameter("until_ms", Count, "died before this unix time in milliseconds"),
    Parameter("max_records", Count, "the maximum number of dead letters"),
)
_LINES: Final = Content("application/x-ndjson", Progress)
_BOTH_WAYS: Final = "The filter goes in the query string or in a body. A body can also list the dead letters, in `chosen`; those that are no longer open are skipped, so the same request can be repeated."


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
        ),
        route(
            gateway,
            "POST",
            "/v1/dlq/{topic}/plan",
            _plan,
            CallDoc(
                TAG,
                "Count by reason the dead letters that a redrive would move",
                {200: RedrivePlan},
                errors=(400, 404, 429),
                description=_BOTH_WAYS,
                parameters=_FILTER,
                body=ChosenLettersRequest,
                body_required=False,
            ),
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
        ),
    ]
