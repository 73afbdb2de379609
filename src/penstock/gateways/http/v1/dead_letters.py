"""Dead letters under ``/v1``: list, show, count, redrive and purge them. ``{topic}`` is the topic that they came from.

Redrive and purge answer with progress lines, and a last line with ``done``. They stop when the client disconnects: what was done
by then stays done, and the same request continues the work.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response
from starlette.types import Send

from penstock.errors import PenstockError
from penstock.gateways.http.server.answers import NDJSON, Answer, encoder, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, Content, HttpCall, refused
from penstock.gateways.http.server.streams import OperationStream, piece
from penstock.gateways.http.v1.models import (
    ChosenLettersRequest,
    DeadLettersRequest,
    EnvelopeOut,
    NoFields,
    RedriveRequest,
)
from penstock.gateways.http.v1.records import envelope_out, other_headers
from penstock.gateways.http.v1.requests import parameters_of, read, refuse
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

CALLS: Final = ApiCalls("v1: dead letters")
SHOWN_DEFAULT: Final = 100
SHOWN_MAX: Final = 1_000
CHOSEN_MAX: Final = 10_000
"""Dead letters that one request may choose by partition and offset."""
_LINES_APART_SECONDS: Final = 0.2
"""Between two progress lines, which people read."""


class DeadLetterTopics(Struct, frozen=True):
    """GET /v1/dlq."""

    topics: tuple[DeadLetterTopic, ...]


class DeadLetterOut(Struct, frozen=True):
    """One dead letter; ``partition`` and ``offset`` are its position in the dead-letter topic."""

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


_LINES: Final = Content("application/x-ndjson", Progress)
_BOTH_WAYS: Final = "The filter goes in the query string or in a body. A body can also list the dead letters, in `chosen`; those that are no longer open are skipped, so the same request can be repeated."


@CALLS.get("/v1/dlq", CallDoc("List the topics that have dead letters", {200: DeadLetterTopics}, errors=(400,)))
async def _topics(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(DeadLetterTopics(await call.gateway.broker.do(ListDeadLetterTopics(), call.caller)))


@CALLS.get(
    "/v1/dlq/{topic}",
    CallDoc(
        "Show dead letters that are open",
        {200: DeadLetterList},
        errors=(400, 404, 429),
        parameters=parameters_of(DeadLettersRequest),
    ),
)
async def _show(call: HttpCall) -> Answer:
    request = read(DeadLettersRequest, call.query, b"")
    most = SHOWN_DEFAULT if request.max_records is None else request.max_records
    if not 1 <= most <= SHOWN_MAX:
        raise refuse(f"max_records must be from 1 to {SHOWN_MAX}")
    asked = ShowDeadLetters(call.params["topic"], _filter_of(request), most)
    letters = await call.gateway.broker.do(asked, call.caller)
    return json_answer(DeadLetterList([_letter(each) for each in letters]))


@CALLS.post(
    "/v1/dlq/{topic}/plan",
    CallDoc(
        "Count by reason the dead letters that a redrive would move",
        {200: RedrivePlan},
        errors=(400, 404, 429),
        description=_BOTH_WAYS,
        parameters=parameters_of(DeadLettersRequest),
        body=ChosenLettersRequest,
        body_required=False,
    ),
)
async def _plan(call: HttpCall) -> Answer:
    request = read(ChosenLettersRequest, call.query, call.body)
    asked = PlanRedrive(call.params["topic"], _filter_of(request), _most(request))
    return json_answer(await call.gateway.broker.do(asked, call.caller))


@CALLS.post(
    "/v1/dlq/{topic}/redrive",
    CallDoc(
        "Send dead letters back to their original topic",
        {200: _LINES},
        errors=(400, 404, 429),
        description=f"{_BOTH_WAYS} The response has progress lines and a last line with done; the operation stops if you disconnect.",
        parameters=parameters_of(RedriveRequest),
        body=RedriveRequest,
        body_required=False,
    ),
)
async def _redrive(call: HttpCall) -> Answer | Response:
    request = read(RedriveRequest, call.query, call.body)
    rate = request.rate_per_second
    return await _streamed(call, Redrive(0, call.params["topic"], _filter_of(request), rate, _most(request)))


@CALLS.post(
    "/v1/dlq/{topic}/purge",
    CallDoc(
        "Discard dead letters",
        {200: _LINES},
        errors=(400, 404, 429),
        description=f"{_BOTH_WAYS} They stay in the dead-letter topic until its retention ends, and are no longer open.",
        parameters=parameters_of(DeadLettersRequest),
        body=ChosenLettersRequest,
        body_required=False,
    ),
)
async def _purge(call: HttpCall) -> Answer | Response:
    request = read(ChosenLettersRequest, call.query, call.body)
    return await _streamed(call, Purge(0, call.params["topic"], _filter_of(request), _most(request)))


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


async def _streamed(call: HttpCall, asked: Redrive | Purge) -> Response:
    stream = ProgressStream(call)
    await stream.open(asked, stream.progressed, stream.finished)
    return stream


class ProgressStream(OperationStream):
    """The progress of a redrive or purge, a line at a time."""

    def __init__(self, call: HttpCall) -> None:
        super().__init__(call, NDJSON)
        self._changed = asyncio.Event()
        self._progress: Progress | None = None
        self._last_line: bytes | None = None
        self._ended = False

    def progressed(self, items: Sequence[Progress]) -> None:
        """Something was done."""
        self._progress = items[-1]
        if self._progress.done:
            self._last_line = encoder.encode(self._progress)
            self.end()
        self._changed.set()

    def finished(self, error: PenstockError | None) -> None:
        """Nothing more will be done."""
        if error is not None:
            self._last_line = refused(self.call.gateway, self.call.path, error).body
        self.end()

    def end(self) -> None:
        """Send the last line, if there is one, and nothing more."""
        self._ended = True
        self._changed.set()

    async def send_pieces(self, send: Send) -> None:
        """Send a line now and then, and the last one."""
        sent: Progress | None = None
        while not self._ended:
            await self._changed.wait()
            self._changed.clear()
            if self._progress is not None and self._progress != sent and not self._ended:
                sent = self._progress
                await send(piece(encoder.encode(sent) + b"\n"))
                await self._pause()
        if self._last_line is not None:
            await send(piece(self._last_line + b"\n"))

    async def _pause(self) -> None:
        """Wait until the next line may be sent, or until the end."""
        try:
            async with asyncio.timeout(_LINES_APART_SECONDS):
                while not self._ended:
                    await self._changed.wait()
                    self._changed.clear()
        except TimeoutError:
            self._changed.set()
