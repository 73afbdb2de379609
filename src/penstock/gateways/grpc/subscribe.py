"""Subscribe and SubscribeBatch: records from one of three kinds of subscriptions, at the pace of their client.

More records are taken only when the connection has accepted the ones before, so a slow reader costs the broker one portion of
records, and what gRPC's flow control lets through.
"""

import asyncio
from typing import Any, Final, Protocol

from penstock.gateways.grpc.call import GrpcCall
from penstock.gateways.grpc.following import Following, ends_for
from penstock.gateways.grpc.leasing import leasing
from penstock.gateways.pacing import pace
from penstock.limits import GRPC_BATCH_BYTES_MAX, GRPC_BATCH_RECORDS_MAX
from penstock.operations.records import FollowTopic
from penstock.wire.mq.messages import encode_frame
from penstock.wire.mq.mq_generated import SubscribeRequest

_BATCH_RECORDS_DEFAULT: Final = 500
_SINGLES_RECORDS: Final = 64
"""Records taken at a time for a stream of single records: enough to make this cheap."""
CONSUMER_ID: Final = "consumer-id"
"""The name in the initial metadata, which is sent as soon as the subscription is open."""


class SubscriptionSource(Protocol):
    """One subscription. ``ready`` is awaited before each ``take``."""

    @property
    def consumer_id(self) -> str:
        """The id of the consumer."""
        ...

    @property
    def woken(self) -> asyncio.Event:
        """Set when :meth:`take` may return records or raise an error."""
        ...

    async def ready(self) -> None:
        """Open the subscription, or open it again after its coordinator has moved; return at once if it is open."""
        ...

    def take(self, max_records: int, max_bytes: int) -> list[Any]:
        """The next records; if there are none, ``woken`` will be set. PenstockError if there will never be more."""
        ...

    def message(self, taken: Any) -> bytes | None:
        """The message for the client; None if the record no longer belongs to this subscription."""
        ...

    def sent(self, taken: list[Any], size_bytes: int) -> None:
        """The connection accepted these records."""
        ...

    def close(self) -> None:
        """The subscription has ended."""
        ...


async def subscribe(request: SubscribeRequest, call: GrpcCall) -> None:
    """Send each record in a message of its own."""
    write = call.context.write

    async def send(subscription: SubscriptionSource, taken: list[Any]) -> int:
        count = 0
        for item in taken:
            message = subscription.message(item)
            if message is not None:
                await write(message)
                subscription.sent([item], len(message))
                call.consumed(len(message))
                count += 1
        return count

    await _serve(request, call, _SINGLES_RECORDS, send)


async def subscribe_batch(request: SubscribeRequest, call: GrpcCall) -> None:
    """Send many records in each message."""
    write = call.context.write

    async def send(subscription: SubscriptionSource, taken: list[Any]) -> int:
        messages = [(item, message) for item in taken if (message := subscription.message(item)) is not None]
        if messages:
            frame = encode_frame(message for _, message in messages)
            await write(frame)
            subscription.sent([item for item, _ in messages], len(frame))
            call.consumed(len(frame))
        return len(messages)

    wanted = request.max_batch or _BATCH_RECORDS_DEFAULT
    await _serve(request, call, min(wanted, GRPC_BATCH_RECORDS_MAX), send)


async def _serve(request: SubscribeRequest, call: GrpcCall, portion: int, send: Any) -> None:
    serving = call.serving
    await call.broker.do(FollowTopic(request.topic), call.caller)
    topic = call.broker.topics.require(request.topic)
    subscription: SubscriptionSource
    if request.lease_ms:
        subscription = leasing(request, call, topic)
    else:
        subscription = Following(request, call, topic, await ends_for(request, call))
    try:
        with serving.stream(subscription.woken.set):
            await subscription.ready()
            await call.context.send_initial_metadata((_metadata_of(subscription.consumer_id),))
            left = request.max_messages
            while True:
                subscription.woken.clear()
                await subscription.ready()
                taken = subscription.take(min(portion, left) if request.max_messages else portion, GRPC_BATCH_BYTES_MAX)
                if taken:
                    left -= await send(subscription, taken)
                    if request.max_messages and left <= 0:
                        return
                    if call.broker.quotas.is_on:
                        await pace(call.broker.quotas, call.caller, subscription.woken, lambda: serving.stopping)
                else:
                    await subscription.woken.wait()
                serving.require_running()
    finally:
        subscription.close()


def _metadata_of(consumer_id: str) -> tuple[str, str | bytes]:
    """The consumer id as metadata, which is ASCII unless its name ends in -bin."""
    if consumer_id.isascii() and consumer_id.isprintable():
        return CONSUMER_ID, consumer_id
    return f"{CONSUMER_ID}-bin", consumer_id.encode()
