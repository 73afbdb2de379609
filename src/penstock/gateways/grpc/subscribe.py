"""Subscribe and SubscribeBatch: a source of records, and a client that takes them at its own pace.

A source is asked for more only when the client's connection has taken what it gave before, so a slow reader costs the broker
one portion of records and what gRPC's flow control lets through.
"""

import asyncio
from typing import Any, Final, Protocol

from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.following import following, standings_for
from penstock.gateways.grpc.leasing import leasing
from penstock.limits import GRPC_BATCH_BYTES_MAX, GRPC_BATCH_RECORDS_MAX
from penstock.wire.mq.messages import encode_frame
from penstock.wire.mq.mq_generated import SubscribeRequest

_BATCH_RECORDS_DEFAULT: Final = 500
_SINGLES_RECORDS: Final = 64
"""Records taken at a time for a stream of single ones: enough to make the taking cheap."""
CONSUMER_ID: Final = "consumer-id"
"""In the initial metadata, which is sent as soon as the subscription stands."""


class Source(Protocol):
    """Where a subscription's records come from."""

    @property
    def consumer_id(self) -> str:
        """Who subscribes."""
        ...

    @property
    def woken(self) -> asyncio.Event:
        """Set when :meth:`take` may have more, or a refusal."""
        ...

    def take(self, max_records: int, max_bytes: int) -> list[Any]:
        """What there is; empty when ``woken`` will be set. PenstockError when there will never be more."""
        ...

    def message(self, taken: Any) -> bytes | None:
        """The message that the subscriber gets; None when it is not this subscription's any more."""
        ...

    def place(self, taken: Any) -> tuple[int, int]:
        """Its partition and offset."""
        ...

    def sent(self, taken: list[Any], size_bytes: int) -> None:
        """The client's connection took these."""
        ...

    def close(self) -> None:
        """The subscription has ended."""
        ...


async def subscribe(request: SubscribeRequest, call: Call) -> None:
    """One record a message."""
    write = call.context.write

    async def send(source: Source, taken: list[Any]) -> int:
        count = 0
        for item in taken:
            message = source.message(item)
            if message is not None:
                await write(message)
                source.sent([item], len(message))
                if call.progress is not None:
                    call.progress.gave((source.place(item),))
                count += 1
        return count

    await _serve(request, call, _SINGLES_RECORDS, send)


async def subscribe_batch(request: SubscribeRequest, call: Call) -> None:
    """Many records a message."""
    write = call.context.write

    async def send(source: Source, taken: list[Any]) -> int:
        messages = [(item, message) for item in taken if (message := source.message(item)) is not None]
        if messages:
            frame = encode_frame(message for _, message in messages)
            await write(frame)
            source.sent([item for item, _ in messages], len(frame))
            if call.progress is not None:
                call.progress.gave(source.place(item) for item, _ in messages)
        return len(messages)

    wanted = request.max_batch or _BATCH_RECORDS_DEFAULT
    await _serve(request, call, min(wanted, GRPC_BATCH_RECORDS_MAX), send)


async def _serve(request: SubscribeRequest, call: Call, portion: int, send: Any) -> None:
    serving = call.serving
    source: Source
    if request.lease_ms:
        source = leasing(request, call)
    else:
        source = following(request, call, await standings_for(request, call))
    try:
        with serving.stream(source.woken.set):
            await call.started(source.consumer_id, (_named(source.consumer_id),))
            left = request.max_messages
            while True:
                taken = source.take(min(portion, left) if request.max_messages else portion, GRPC_BATCH_BYTES_MAX)
                if taken:
                    left -= await send(source, taken)
                    if request.max_messages and left <= 0:
                        return
                else:
                    # Nothing can have happened since the take: nobody else had the loop.
                    source.woken.clear()
                    await source.woken.wait()
                serving.require_running()
    finally:
        source.close()


def _named(consumer_id: str) -> tuple[str, str | bytes]:
    """Metadata is ASCII, except where its name says that it is bytes."""
    if consumer_id.isascii() and consumer_id.isprintable():
        return CONSUMER_ID, consumer_id
    return f"{CONSUMER_ID}-bin", consumer_id.encode()


def consumer_of(metadata: Any) -> str:
    """The way back: who subscribes, of initial metadata."""
    for key, value in metadata or ():
        if key == CONSUMER_ID:
            return str(value)
        if key == f"{CONSUMER_ID}-bin":
            return bytes(value).decode()
    return ""
