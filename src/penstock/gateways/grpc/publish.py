"""Publish and PublishStream.

Invariant of a stream: frames are appended in the order in which they come, and answered in that order, each once all its records
are committed or refused. At most ``GRPC_PENDING_FRAMES_MAX`` frames wait for their commit, and no other frame when they have ``GRPC_PENDING_RECORDS_MAX``
records; above that nothing more is read, and gRPC's flow control lets the client wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from penstock.core.access import Action
from penstock.core.publish import NewRecord, Placed, PublishDone, Results
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Call, Garbled, told
from penstock.gateways.grpc.errors import code_of, details_of, topic_not_found
from penstock.gateways.grpc.records import new_record
from penstock.limits import GRPC_PENDING_FRAMES_MAX, GRPC_PENDING_RECORDS_MAX
from penstock.types import Acks
from penstock.wire.mq.ids import MessageIds
from penstock.wire.mq.mq_generated import (
    PublishFailure,
    PublishFrame,
    PublishFrameResponse,
    PublishRequest,
    PublishResponse,
)

_NOWHERE: Final = -1


async def publish(request: PublishRequest, call: Call) -> PublishResponse:
    """Answered once the record is committed."""
    topic = request.topic
    topic_id = call.topic(topic, Action.WRITE).topic_id
    records = (new_record(request),)
    results = await told(partial(call.broker.publisher.publish, call.caller, topic, records, Acks.ALL))
    placed = results[0]
    if isinstance(placed, PenstockError):
        raise _refusal(call, topic, placed)
    partition, offset, timestamp_ms = placed
    return PublishResponse(
        message_id=MessageIds(topic_id, partition).of(offset).decode(),
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def _refusal(call: Call, topic: str, error: PenstockError) -> PenstockError:
    """A topic that went while the record was on its way is told as one that never was."""
    if error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION and topic not in call.broker.topics:
        return topic_not_found(topic)
    return error


async def publish_stream(frames: "AsyncIterator[PublishFrame | Garbled]", call: Call) -> None:
    """Two at work: one reads and appends, the other answers."""
    stream = _PublishStream(call)
    with call.serving.stream(stream.wake):
        reader = asyncio.create_task(stream.read(frames))
        reader.add_done_callback(lambda _: stream.wake())
        try:
            await stream.answer(reader)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


class _Frame:
    """One frame on its way; several topics may be in it, each published by itself."""

    __slots__ = ("_left", "count", "frame_id", "results", "stream", "topics")

    def __init__(self, stream: "_PublishStream", frame: PublishFrame) -> None:
        self.stream = stream
        self.frame_id = frame.id
        self.results: list[Placed | PenstockError] = []
        self.topics: list[str] = []
        self._left = 0
        records = frame.records
        self.count = len(records)
        if not records:
            return
        named = [request.topic or frame.topic for request in records]
        first = named[0]
        if all(name == first for name in named):
            self.topics = [first]
            self._left = 1
            self._publish(first, records, None)
        else:
            self._publish_each(named, records)

    @property
    def done(self) -> bool:
        """Whether every record of it is settled."""
        return not self._left

    def _publish_each(self, named: list[str], records: Sequence[PublishRequest]) -> None:
        self.topics = named
        self.results = [PenstockError(Reason.UNKNOWN)] * len(named)
        places: dict[str, list[int]] = {}
        for at, name in enumerate(named):
            places.setdefault(name, []).append(at)
        self._left = len(places)
        for name, at_these in places.items():
            self._publish(name, [records[at] for at in at_these], at_these)

    def _publish(self, topic: str, requests: Sequence[PublishRequest], places: list[int] | None) -> None:
        call = self.stream.call
        settle: PublishDone = partial(self._settle, places)
        try:
            records = [new_record(request) for request in requests]
        except PenstockError:
            records, settle = _without_bad(requests, settle)
        try:
            call.topic(topic, Action.WRITE)
            call.broker.publisher.publish(call.caller, topic, records, Acks.ALL, settle)
        except PenstockError as error:
            settle([error] * len(records))

    def _settle(self, places: list[int] | None, results: Results) -> None:
        if places is None:
            self.results = results
        else:
            for at, result in zip(places, results, strict=True):
                self.results[at] = result
        self._left -= 1
        if not self._left:
            self.stream.wake()

    def response(self) -> PublishFrameResponse:
        """One place for each record."""
        results = self.results
        try:
            # The usual frame has no failure, and then this is all.
            return PublishFrameResponse(
                partitions=[placed.partition for placed in results],  # type: ignore[union-attr]
                offsets=[placed.offset for placed in results],  # type: ignore[union-attr]
                id=self.frame_id,
            )
        except AttributeError:
            return self._response_with_failures()

    def _response_with_failures(self) -> PublishFrameResponse:
        response = PublishFrameResponse(id=self.frame_id)
        for at, result in enumerate(self.results):
            if isinstance(result, PenstockError):
                topic = self.topics[at] if len(self.topics) > 1 else self.topics[0]
                error = _refusal(self.stream.call, topic, result)
                response.partitions.append(_NOWHERE)
                response.offsets.append(_NOWHERE)
                response.failures.append(
                    PublishFailure(index=at, code=code_of(error.reason).value[0], message=details_of(error))
                )
            else:
                response.partitions.append(result.partition)
                response.offsets.append(result.offset)
        return response


def _without_bad(requests: Sequence[PublishRequest], settle: PublishDone) -> tuple[list[NewRecord], PublishDone]:
    """A record that is none is refused alone: the others, and what puts the refusals between their results."""
    refused: dict[int, PenstockError] = {}
    records: list[NewRecord] = []
    for at, request in enumerate(requests):
        try:
            records.append(new_record(request))
        except PenstockError as error:
            refused[at] = error

    def settle_all(results: Results) -> None:
        others = iter(results)
        settle([refused[at] if at in refused else next(others) for at in range(len(requests))])

    return records, settle_all


class _PublishStream:
    """The frames of one client."""

    def __init__(self, call: Call) -> None:
        self.call: Final = call
        self._pending: deque[_Frame] = deque()
        self._pending_records = 0
        self._woken = asyncio.Event()
        self._room = asyncio.Event()

    def wake(self) -> None:
        """A frame is settled, the reader is at its end, or the broker stops."""
        self._woken.set()

    async def read(self, frames: "AsyncIterator[PublishFrame | Garbled]") -> None:
        """Append what comes, as far as there is room. Bytes that are no frame end the stream, behind the answers to what came before."""
        pending, serving = self._pending, self.call.serving
        async for frame in frames:
            if serving.stopping:
                return
            if isinstance(frame, Garbled):
                raise frame.refusal
            pending.append(_Frame(self, frame))
            self._pending_records += pending[-1].count
            if pending[0].done:
                self._woken.set()
            while len(pending) >= GRPC_PENDING_FRAMES_MAX or self._pending_records >= GRPC_PENDING_RECORDS_MAX:
                self._room.clear()
                await self._room.wait()

    async def answer(self, reader: "asyncio.Task[None]") -> None:
        """Answer in order until the client has sent its last frame, or the broker stops."""
        pending, write, serving = self._pending, self.call.context.write, self.call.serving
        while True:
            while pending and pending[0].done:
                frame = pending.popleft()
                self._pending_records -= frame.count
                self._room.set()
                await write(frame.response())
            if not pending:
                if reader.done():
                    reader.result()
                    break
                if serving.stopping:
                    break
            self._woken.clear()
            await self._woken.wait()
        serving.require_running()
