"""Publish and PublishStream.

Invariant of a stream: frames are appended in the order in which they arrive, and answered in that order, each once all its records
are committed or refused. At most ``GRPC_PENDING_FRAMES_MAX`` frames wait for their commit, and no further frame once they have
``GRPC_PENDING_RECORDS_MAX`` records. Above these limits nothing is read, and gRPC's flow control makes the client wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

from penstock.core.operations.handling import awaited
from penstock.core.publish import NewRecord, PublishDone, Results
from penstock.errors import PenstockError
from penstock.gateways.grpc.call import GrpcCall, UndecodableRequest
from penstock.gateways.grpc.errors import code_of, details_of, translated
from penstock.gateways.grpc.records import new_record
from penstock.gateways.publishing import publish_by_topic
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


async def publish(request: PublishRequest, call: GrpcCall) -> PublishResponse:
    """Publish a record; answered once it is committed."""
    call.check_quota()
    name, broker = request.topic, call.broker
    topic, records = broker.topics.get(name), (new_record(request),)
    results = await awaited(partial(broker.publisher.publish, call.caller, name, records, Acks.ALL))
    placed = results[0]
    if isinstance(placed, PenstockError):
        raise placed
    assert topic is not None, "the publisher knows the topic"
    partition, offset, timestamp_ms = placed
    return PublishResponse(
        message_id=MessageIds(topic.topic_id, partition).of(offset).decode(),
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


async def publish_stream(frames: "AsyncIterator[PublishFrame | UndecodableRequest]", call: GrpcCall) -> None:
    """Read frames in one task, and answer them in the other."""
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
    """One frame under way, whose records may be for several topics."""

    __slots__ = ("count", "frame_id", "is_done", "results", "stream", "topics")

    def __init__(self, stream: "_PublishStream", frame: PublishFrame) -> None:
        self.stream = stream
        self.frame_id = frame.id
        self.results: Results = []
        requests = frame.records
        self.count = len(requests)
        self.topics = topics = [request.topic or frame.topic for request in requests]
        self.is_done = False
        """Whether every record is committed or refused."""
        done: PublishDone = self._settle
        try:
            records = [new_record(request) for request in requests]
        except PenstockError:
            topics, records, done = _without_invalid(topics, requests, done)
        if records:
            publish_by_topic(stream.call.broker.publisher, stream.call.caller, topics, records, done)
        else:
            done([])

    def _settle(self, results: Results) -> None:
        self.results = results
        self.is_done = True
        self.stream.wake()

    def response(self) -> PublishFrameResponse:
        """The response, with a place for each record."""
        results = self.results
        try:
            # Nearly always, no record failed.
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
                error = translated(result, self.stream.call.broker.topics, self.topics[at])
                response.partitions.append(_NOWHERE)
                response.offsets.append(_NOWHERE)
                response.failures.append(
                    PublishFailure(index=at, code=code_of(error.reason).value[0], message=details_of(error))
                )
            else:
                response.partitions.append(result.partition)
                response.offsets.append(result.offset)
        return response


def _without_invalid(
    topics: Sequence[str], requests: Sequence[PublishRequest], done: PublishDone
) -> tuple[list[str], list[NewRecord], PublishDone]:
    """The topics and the records of the valid requests, and what adds the errors of the others to their results."""
    refused: dict[int, PenstockError] = {}
    valid_topics: list[str] = []
    records: list[NewRecord] = []
    for at, request in enumerate(requests):
        try:
            records.append(new_record(request))
            valid_topics.append(topics[at])
        except PenstockError as error:
            refused[at] = error

    def done_with_all(results: Results) -> None:
        others = iter(results)
        done([refused[at] if at in refused else next(others) for at in range(len(requests))])

    return valid_topics, records, done_with_all


class _PublishStream:
    """The frames of one client."""

    def __init__(self, call: GrpcCall) -> None:
        self.call: Final = call
        self._pending: deque[_Frame] = deque()
        self._pending_records = 0
        self._woken = asyncio.Event()
        self._room = asyncio.Event()

    def wake(self) -> None:
        """A frame is done, the client has sent its last frame, or the broker stops."""
        self._woken.set()

    async def read(self, frames: "AsyncIterator[PublishFrame | UndecodableRequest]") -> None:
        """Append frames, within the limits. An invalid frame ends the stream, after the answers to the frames before it."""
        pending, serving = self._pending, self.call.serving
        async for frame in frames:
            if serving.stopping:
                return
            if isinstance(frame, UndecodableRequest):
                raise frame.refusal
            pending.append(_Frame(self, frame))
            self._pending_records += pending[-1].count
            if pending[0].is_done:
                self._woken.set()
            if self.call.broker.quotas.is_on:
                # Nothing more is read: gRPC's flow control makes the client wait.
                await asyncio.sleep(self.call.broker.quotas.delay_ms(self.call.caller) / 1000)
            while len(pending) >= GRPC_PENDING_FRAMES_MAX or self._pending_records >= GRPC_PENDING_RECORDS_MAX:
                self._room.clear()
                await self._room.wait()

    async def answer(self, reader: "asyncio.Task[None]") -> None:
        """Answer in order until the client has sent its last frame, or the broker stops."""
        pending, write, serving = self._pending, self.call.context.write, self.call.serving
        while True:
            while pending and pending[0].is_done:
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
