"""The calls of the service, and what is done around each: a refusal becomes a status, a mistake of ours INTERNAL and a line in the log.

Nothing that a client sends, and no mistake in a handler, gets past here: the broker goes on.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc import groups, leases, publish, status, subscribe, topics
from penstock.gateways.grpc.call import Call, Garbled, Serving, Told
from penstock.gateways.grpc.carrier import Find, by_group, only_here
from penstock.gateways.grpc.errors import code_of, details_of
from penstock.types import Gateway
from penstock.wire.mq import mq_generated as mq

logger = logging.getLogger("penstock.grpc")

SERVICE: Final = mq.DESCRIPTOR.services_by_name["MessageQueueService"].full_name


_Serve = Callable[[Any, Any], Awaitable[Any]]
"""What grpc calls with a request, or an iterator of them, and the call's context."""


class Unary(NamedTuple):
    """One message in, one out."""

    request: Any
    handle: Callable[[Any, Call], Awaitable[Any]]
    find: Find | None = None
    """Whose it is; None: whoever is asked serves it."""


class Streaming(NamedTuple):
    """Writes its messages itself, through the call's context."""

    request: Any
    handle: Callable[[Any, Call], Awaitable[None]]
    requests: bool = False
    """Whether the client streams too."""
    find: Find | None = None


CALLS: Final[Mapping[str, Unary | Streaming]] = {
    "CreateTopic": Unary(mq.CreateTopicRequest, topics.create_topic),
    "Publish": Unary(mq.PublishRequest, publish.publish),
    "Subscribe": Streaming(mq.SubscribeRequest, subscribe.subscribe, find=by_group),
    "CommitOffset": Unary(mq.CommitOffsetRequest, groups.commit_offset, by_group),
    "PublishStream": Streaming(mq.PublishFrame, publish.publish_stream, requests=True),
    "SubscribeBatch": Streaming(mq.SubscribeRequest, subscribe.subscribe_batch, find=by_group),
    "Ack": Unary(mq.AckRequest, leases.ack, by_group),
    "Nack": Unary(mq.NackRequest, leases.nack, by_group),
    "Extend": Unary(mq.ExtendRequest, leases.extend, by_group),
    "ListTopics": Unary(mq.ListTopicsRequest, topics.list_topics),
    "DeleteTopic": Unary(mq.DeleteTopicRequest, topics.delete_topic),
    "TopicStats": Unary(mq.TopicStatsRequest, status.topic_stats, only_here),
    "GroupStatus": Unary(mq.GroupStatusRequest, status.group_status, by_group),
    "DeliveryStatus": Unary(mq.DeliveryStatusRequest, status.delivery_status, by_group),
}


def handlers(serving: Serving) -> Any:
    """What a grpc server is given."""
    return grpc.method_handlers_generic_handler(
        SERVICE, {name: _handler(name, call, serving) for name, call in CALLS.items()}
    )


def _handler(name: str, call: Unary | Streaming, serving: Serving) -> Any:
    decode = partial(_decode, call.request.DESCRIPTOR.full_name, call.request.FromString)
    carrier, find = serving.carrier, call.find
    carry: _Serve | None = None
    if carrier is not None and find is not None:
        decode = partial(_with_raw, decode)
        begin = carrier.answer if isinstance(call, Unary) else carrier.follow
        carry = partial(begin, serving, name, find, call.handle)
    if isinstance(call, Unary):
        return grpc.unary_unary_rpc_method_handler(
            _unary(name, call, serving, carry), request_deserializer=decode, response_serializer=_encode
        )
    make = grpc.stream_stream_rpc_method_handler if call.requests else grpc.unary_stream_rpc_method_handler
    return make(_streaming(name, call, serving, carry), request_deserializer=decode, response_serializer=_encode)


def _decode(name: str, decode: Callable[[bytes], Any], raw: bytes) -> Any:
    try:
        return decode(raw)
    except DecodeError as error:
        return Garbled(name, str(error))


def _with_raw(decode: Callable[[bytes], Any], raw: bytes) -> tuple[bytes, Any] | Garbled:
    """A request that may be carried, as it came and as it is read: the one is what a mark is good for."""
    decoded = decode(raw)
    return decoded if type(decoded) is Garbled else (raw, decoded)


def _encode(message: Any) -> bytes:
    # What there are many of is encoded already.
    encoded: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return encoded


def _unary(name: str, unary: Unary, serving: Serving, carry: _Serve | None) -> _Serve:
    """With ``carry`` the call may belong to another node, and that is what serves it."""
    handle, now = unary.handle, serving.loop.time
    latency = serving.broker.meters.latency(Gateway.GRPC, name)

    async def serve(request: Any, context: Any) -> Any:
        began = now()
        try:
            if type(request) is Garbled:
                raise request.refusal
            with serving.call():
                response = await (handle(request, Call(serving, context)) if carry is None else carry(request, context))
        except Told as told:
            status = told.code, told.details
        except Exception as error:  # noqa: BLE001  # this is the place where mistakes end
            refusal = _refusal(name, error, serving)
            status = code_of(refusal.reason), details_of(refusal)
        else:
            latency.observe(now() - began)
            return response
        latency.observe(now() - began)
        await context.abort(*status)
        return None

    return serve


def _streaming(name: str, streaming: Streaming, serving: Serving, carry: _Serve | None) -> _Serve:
    handle = streaming.handle

    async def serve(request: Any, context: Any) -> None:
        try:
            if type(request) is Garbled:
                raise request.refusal
            await (handle(request, Call(serving, context)) if carry is None else carry(request, context))
        except grpc.aio.InternalError:
            # What was written could not be sent: the client is gone, and the cancellation is on its way.
            return
        except Told as told:
            status = told.code, told.details
        except Exception as error:  # noqa: BLE001  # this is the place where mistakes end
            refusal = _refusal(name, error, serving)
            status = code_of(refusal.reason), details_of(refusal)
        else:
            return
        await context.abort(*status)

    return serve


def _refusal(name: str, error: Exception, serving: Serving) -> PenstockError:
    if not isinstance(error, PenstockError):
        logger.error("%s failed", name, exc_info=error)
        error = PenstockError(Reason.UNKNOWN, "The broker had an internal error. See its log.")
    serving.broker.meters.request_errors.add((Gateway.GRPC.value, error.reason.name))
    return error
