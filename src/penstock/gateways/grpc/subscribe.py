"""Subscribe and SubscribeBatch: a source of records, and a client that takes them at its own pace.

A source is asked for more only when the client's connection has taken what it gave before, so a slow reader costs the broker
one portion of records and what gRPC's flow control lets through.
"""

import asyncio
from typing import Any, Final, Protocol

from penstock.gateways.grpc.call import Call
from penstock.gateways.grpc.following import Following, ends_for
from penstock.gateways.grpc.leasing import leasing
from penstock.limits import GRPC_BATCH_BYTES_MAX, GRPC_BATCH_RECORDS_MAX
from penstock.operations.records import FollowTopic
from penstock.wire.mq.messages import encode_frame
from penstock.wire.mq.mq_generated import SubscribeRequest

_BATCH_RECORDS_DEFAULT: Final = 500
_SINGLES_RECORDS: Final = 64
"""Records taken at a time for a stream of single ones: enough to make the taking cheap."""
CONSUMER_ID: Final = "consumer-id"
"""In the initial metadata, which is sent as soon as the subscription is open."""


class Source(Protocol):
    """Where a subscription's records come from. ``ready`` is awaited before each ``take``."""

    @property
    def consumer_id(self) -> str:
        """Who subscribes."""
        ...

    @property
    def woken(self) -> asyncio.Event:
        """Set when :meth:`take` may have more, or a refusal."""
        ...

    async def ready(self) -> None:
        """Open it, or open again what has ended at another node; return at once while it is open."""
        ...

    def take(self, max_records: int, max_bytes: int) -> list[Any]:
        """What there is; empty when ``woken`` will be set. PenstockError when there will never be more."""
        ...

    def message(self, taken: Any) -> bytes | None:
        """The message that the subscriber gets; None when it is not this subscription's any more."""
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
        return len(messages)

    wanted = request.max_batch or _BATCH_RECORDS_DEFAULT
    await _serve(request, call, min(wanted, GRPC_BATCH_RECORDS_MAX), send)


async def _serve(request: SubscribeRequest, call: Call, portion: int, send: Any) -> None:
    serving = call.serving
    await call.broker.do(FollowTopic(request.topic), call.caller)
    topic = call.broker.topics.require(request.topic)
    source: Source
    if request.lease_ms:
        source = leasing(request, call, topic)
    else:
        source = Following(request, call, topic, await ends_for(request, call))
    try:
        with serving.stream(source.woken.set):
            await source.ready()
            await call.context.send_initial_metadata((_named(source.consumer_id),))
            left = request.max_messages
            while True:
                source.woken.clear()
                await source.ready()
                taken = source.take(min(portion, left) if request.max_messages else portion, GRPC_BATCH_BYTES_MAX)
                if taken:
                    left -= await send(source, taken)
                    if request.max_messages and left <= 0:
                        return
                else:
                    await source.woken.wait()
                serving.require_running()
    finally:
        source.close()


def _named(consumer_id: str) -> tuple[str, str | bytes]:
    """Metadata is ASCII, except where its name says that it is bytes."""
    if consumer_id.isascii() and consumer_id.isprintable():
        return CONSUMER_ID, consumer_id
    return f"{CONSUMER_ID}-bin", consumer_id.encode()
