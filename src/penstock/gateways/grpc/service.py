"""The table of calls, and what every call has in common: an error of the core becomes a status, a bug INTERNAL and a log entry.

Nothing that a client sends, and no bug in a handler, gets past this module: the broker continues.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc import groups, publish, queues, subscribe, topics
from penstock.gateways.grpc.call import GrpcCall, Serving, UndecodableRequest
from penstock.gateways.grpc.errors import code_of, details_of, translated
from penstock.gateways.grpc.logins import Logins
from penstock.types import Gateway
from penstock.wire.mq import mq_generated as mq

logger = logging.getLogger("penstock.grpc")

SERVICE: Final = mq.DESCRIPTOR.services_by_name["MessageQueueService"].full_name


_Serve = Callable[[Any, Any], Awaitable[Any]]
"""Called by grpc with a request, or an iterator of them, and the context of the call."""


class Unary(NamedTuple):
    """A call with one request and one response."""

    request: Any
    handle: Callable[[Any, GrpcCall], Awaitable[Any]]


class Streaming(NamedTuple):
    """A call that writes its responses itself, through its context."""

    request: Any
    handle: Callable[[Any, GrpcCall], Awaitable[None]]
    requests: bool = False
    """Whether the client sends a stream, too."""


CALLS: Final[Mapping[str, Unary | Streaming]] = {
    "CreateTopic": Unary(mq.CreateTopicRequest, topics.create_topic),
    "Publish": Unary(mq.PublishRequest, publish.publish),
    "Subscribe": Streaming(mq.SubscribeRequest, subscribe.subscribe),
    "CommitOffset": Unary(mq.CommitOffsetRequest, groups.commit_offset),
    "PublishStream": Streaming(mq.PublishFrame, publish.publish_stream, requests=True),
    "SubscribeBatch": Streaming(mq.SubscribeRequest, subscribe.subscribe_batch),
    "Ack": Unary(mq.AckRequest, queues.ack),
    "Nack": Unary(mq.NackRequest, queues.nack),
    "Extend": Unary(mq.ExtendRequest, queues.extend),
    "ListTopics": Unary(mq.ListTopicsRequest, topics.list_topics),
    "DeleteTopic": Unary(mq.DeleteTopicRequest, topics.delete_topic),
    "TopicStats": Unary(mq.TopicStatsRequest, topics.topic_stats),
    "GroupStatus": Unary(mq.GroupStatusRequest, groups.group_status),
    "DeliveryStatus": Unary(mq.DeliveryStatusRequest, queues.delivery_status),
}


def handlers(logins: Logins) -> Any:
    """The handlers for a grpc server."""
    return grpc.method_handlers_generic_handler(
        SERVICE, {name: _handler(name, call, logins) for name, call in CALLS.items()}
    )


def _handler(name: str, call: Unary | Streaming, logins: Logins) -> Any:
    """If clients must log in, every call is a stream of requests for grpc: it would read a single one before it asks who is calling."""
    decode = partial(_decode, call.request.DESCRIPTOR.full_name, call.request.FromString)
    reads = logins.is_required or (isinstance(call, Streaming) and call.requests)
    if isinstance(call, Unary):
        make = grpc.stream_unary_rpc_method_handler if reads else grpc.unary_unary_rpc_method_handler
        serve = _unary(name, call, logins)
    else:
        make = grpc.stream_stream_rpc_method_handler if reads else grpc.unary_stream_rpc_method_handler
        serve = _streaming(name, call, logins)
    return make(serve, request_deserializer=decode, response_serializer=_encode)


async def _only_request(name: str, given: Any, context: Any, logins: Logins) -> Any:
    """The request of a call that has one; INVALID_REQUEST if it cannot be decoded, or does not come."""
    request = await context.read() if logins.is_required else given
    if request is grpc.aio.EOF:
        raise PenstockError(
            Reason.INVALID_REQUEST, f"The call of {name} ended without its request. Send one message with each call"
        )
    if type(request) is UndecodableRequest:
        raise request.refusal
    return request


def _decode(name: str, decode: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return decode(raw)
    except DecodeError as error:
        return UndecodableRequest(name, str(error))


def _encode(message: Any) -> bytes:
    # Frequent messages are encoded already.
    encoded: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return encoded


def _unary(name: str, unary: Unary, logins: Logins) -> _Serve:
    serving = logins.serving
    handle, now = unary.handle, serving.loop.time
    latency = serving.broker.meters.latency(Gateway.GRPC, name)

    async def answer(given: Any, context: Any) -> tuple[Any, tuple[grpc.StatusCode, str] | None]:
        request = None
        try:
            serving.enter()
        except PenstockError as error:
            return None, _status(name, request, error, serving)
        try:
            call = await logins.call(context)
            request = await _only_request(name, given, context, logins)
            with serving.call():
                return await handle(request, call), None
        except Exception as error:  # noqa: BLE001  # bugs are logged, and the broker continues
            return None, _status(name, request, error, serving)
        finally:
            serving.leave()

    async def serve(given: Any, context: Any) -> Any:
        began = now()
        response, status = await answer(given, context)
        latency.observe(now() - began)
        if status is None:
            return response
        await context.abort(*status)
        return None

    return serve


def _streaming(name: str, streaming: Streaming, logins: Logins) -> _Serve:
    handle, serving = streaming.handle, logins.serving

    async def answer(given: Any, context: Any) -> tuple[grpc.StatusCode, str] | None:
        request = None
        try:
            serving.enter()
        except PenstockError as error:
            return _status(name, request, error, serving)
        try:
            call = await logins.call(context)
            request = given if streaming.requests else await _only_request(name, given, context, logins)
            with logins.stream(call):
                await handle(request, call)
        except grpc.aio.InternalError:
            # The client has disconnected, and the call is about to be cancelled.
            return None
        except Exception as error:  # noqa: BLE001  # bugs are logged, and the broker continues
            return _status(name, request, error, serving)
        finally:
            serving.leave()
        return None

    async def serve(given: Any, context: Any) -> None:
        status = await answer(given, context)
        if status is not None:
            await context.abort(*status)

    return serve


def _status(name: str, request: Any, error: Exception, serving: Serving) -> tuple[grpc.StatusCode, str]:
    if not isinstance(error, PenstockError):
        logger.error("%s failed", name, exc_info=error)
        error = PenstockError(Reason.UNKNOWN, "The broker had an internal error. See its log.")
    elif error.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION:
        error = _translated(request, error, serving)
    serving.broker.meters.request_errors.add((Gateway.GRPC.value, error.reason.name))
    return code_of(error.reason), details_of(error)


def _translated(request: Any, error: PenstockError, serving: Serving) -> PenstockError:
    """The API's own error for an unknown topic or partition, except for a partition that a publisher chose."""
    topic = request.name if hasattr(request, "name") else getattr(request, "topic", None)
    if topic is None or (isinstance(request, mq.DeliveryStatusRequest) and request.message_id):
        return error
    chosen = isinstance(request, mq.PublishRequest)
    return translated(error, serving.broker.topics, topic, 0 if chosen else getattr(request, "partition", 0))
