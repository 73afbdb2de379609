"""The calls of the service, and what is done around each: a refusal becomes a status, a mistake of ours INTERNAL and a line in the log.

Nothing that a client sends, and no mistake in a handler, gets past here: the broker goes on.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import grpc

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc import groups, leases, publish, status, subscribe, topics
from penstock.gateways.grpc.call import Call, Serving
from penstock.gateways.grpc.errors import code_of, details_of
from penstock.types import Gateway
from penstock.wire.mq import mq_generated as mq

logger = logging.getLogger("penstock.grpc")

SERVICE: Final = mq.DESCRIPTOR.services_by_name["MessageQueueService"].full_name


class Unary(NamedTuple):
    """One message in, one out."""

    request: Any
    handle: Callable[[Any, Call], Awaitable[Any]]


class Streaming(NamedTuple):
    """Writes its messages itself, through the call's context."""

    request: Any
    handle: Callable[[Any, Call], Awaitable[None]]
    requests: bool = False
    """Whether the client streams too."""


CALLS: Final[Mapping[str, Unary | Streaming]] = {
    "CreateTopic": Unary(mq.CreateTopicRequest, topics.create_topic),
    "Publish": Unary(mq.PublishRequest, publish.publish),
    "Subscribe": Streaming(mq.SubscribeRequest, subscribe.subscribe),
    "CommitOffset": Unary(mq.CommitOffsetRequest, groups.commit_offset),
    "PublishStream": Streaming(mq.PublishFrame, publish.publish_stream, requests=True),
    "SubscribeBatch": Streaming(mq.SubscribeRequest, subscribe.subscribe_batch),
    "Ack": Unary(mq.AckRequest, leases.ack),
    "Nack": Unary(mq.NackRequest, leases.nack),
    "Extend": Unary(mq.ExtendRequest, leases.extend),
    "ListTopics": Unary(mq.ListTopicsRequest, topics.list_topics),
    "DeleteTopic": Unary(mq.DeleteTopicRequest, topics.delete_topic),
    "TopicStats": Unary(mq.TopicStatsRequest, status.topic_stats),
    "GroupStatus": Unary(mq.GroupStatusRequest, status.group_status),
    "DeliveryStatus": Unary(mq.DeliveryStatusRequest, status.delivery_status),
}


def handlers(serving: Serving) -> Any:
    """What a grpc server is given."""
    return grpc.method_handlers_generic_handler(
        SERVICE, {name: _handler(name, call, serving) for name, call in CALLS.items()}
    )


def _handler(name: str, call: Unary | Streaming, serving: Serving) -> Any:
    decode = call.request.FromString
    if isinstance(call, Unary):
        return grpc.unary_unary_rpc_method_handler(
            _unary(name, call, serving), request_deserializer=decode, response_serializer=_encode
        )
    make = grpc.stream_stream_rpc_method_handler if call.requests else grpc.unary_stream_rpc_method_handler
    return make(_streaming(name, call, serving), request_deserializer=decode, response_serializer=_encode)


def _encode(message: Any) -> bytes:
    # What there are many of is encoded already.
    encoded: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return encoded


def _unary(name: str, unary: Unary, serving: Serving) -> Callable[[Any, Any], Awaitable[Any]]:
    handle, now = unary.handle, serving.loop.time
    latency = serving.broker.meters.latency(Gateway.GRPC, name)

    async def serve(request: Any, context: Any) -> Any:
        began = now()
        try:
            with serving.call():
                response = await handle(request, Call(serving, context))
        except Exception as error:  # noqa: BLE001  # this is the place where mistakes end
            refusal = _refusal(name, error, serving)
        else:
            latency.observe(now() - began)
            return response
        latency.observe(now() - began)
        await context.abort(code_of(refusal.reason), details_of(refusal))
        return None

    return serve


def _streaming(name: str, streaming: Streaming, serving: Serving) -> Callable[[Any, Any], Awaitable[None]]:
    handle = streaming.handle

    async def serve(request: Any, context: Any) -> None:
        try:
            await handle(request, Call(serving, context))
        except grpc.aio.InternalError:
            # What was written could not be sent: the client is gone, and the cancellation is on its way.
            return
        except Exception as error:  # noqa: BLE001  # this is the place where mistakes end
            refusal = _refusal(name, error, serving)
        else:
            return
        await context.abort(code_of(refusal.reason), details_of(refusal))

    return serve


def _refusal(name: str, error: Exception, serving: Serving) -> PenstockError:
    if not isinstance(error, PenstockError):
        logger.error("%s failed", name, exc_info=error)
        error = PenstockError(Reason.UNKNOWN, "The broker failed to answer. Its log says why.")
    serving.broker.meters.request_errors.add((Gateway.GRPC.value, error.reason.name))
    return error
