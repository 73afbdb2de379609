"""Which calls belong to another node, and how they get there and back.

What belongs to a group (its offsets, its members, its queues) is served by the node that speaks for the group. A call that comes to another node is
carried to that one, byte for byte, with a mark in its metadata, and what comes back is given on as it comes: messages one by one, so the client's
pace is the other node's; the client's cancellation and its deadline reach the other node, and its status reaches the client.

A refusal by which nothing was done says so in the trailing metadata. Then, and when nobody could be reached, the first node looks again for a few
seconds. A stream goes on at another node after messages were given on, if none of them can come twice: one that reads goes on where it stands
(:mod:`penstock.gateways.grpc.progress`), one that takes a number of leases takes the rest. A connected worker's stream ends: a new one would be sent again what the worker holds.

Invariant: nothing is tried again that may have been done, unless doing it twice is the same as once. A call that was carried here is carried no further.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc

from penstock.core.broker import ClusterSide
from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import (
    LOOK_AGAIN_SECONDS,
    LOOK_AGAIN_SECONDS_MAX,
    Carrying,
    can_be_elsewhere,
)
from penstock.gateways.grpc.call import Begun, Call, Serving, Told
from penstock.gateways.grpc.channels import Channels
from penstock.gateways.grpc.errors import topic_not_found
from penstock.gateways.grpc.progress import Progress, read_places, relayed_places
from penstock.gateways.grpc.subscribe import consumer_of
from penstock.operations.operation import Action
from penstock.types import NodeId

MARK: Final = "penstock-carried"
PLACES: Final = "penstock-places"
REASON: Final = "penstock-reason"
"""In the trailing metadata of a call that was carried: why nothing was done, in the core's word."""
STREAM_SECONDS_MAX: Final = 15.0
"""A stream has time: so long it looks for a node to go on at."""
_NOBODY: Final = "Nobody speaks for this at the moment: the node that did is gone or handing over. Try again."

Find = Callable[[Carrying, Any], NodeId | None]
"""Whose a call is, by its request; None is this node's."""


Handle = Callable[[Any, Call], Awaitable[Any]]
"""What serves a call here."""


def by_group(carrying: Carrying, request: Any) -> NodeId | None:
    """Who speaks for the group of a request. Without one it is refused here, or needs nobody."""
    return carrying.group(request.consumer_group) if request.consumer_group else None


def only_here(_: Carrying, __: Any) -> NodeId | None:
    """Whoever is asked answers, and may ask others for their part of it."""
    return None


class Carrier:
    """The carrying of one gateway of a cluster's node."""

    def __init__(self, cluster: ClusterSide, carrying: Carrying, service: str) -> None:
        self._carrying = carrying
        self._channels = Channels(carrying, cluster.nodes)
        self._service = service

    async def close(self) -> None:
        """Carry nothing more."""
        await self._channels.close()

    # The node that is carried to.

    def call(self, serving: Serving, name: str, raw: bytes, context: Any) -> Call:
        """A call that came: another node of this cluster may have carried it here. A mark of anybody else is nothing."""
        mark = places = ""
        for key, value in context.invocation_metadata() or ():
            if key == MARK:
                mark = value
            elif key == PLACES:
                places = value
        carried = self._carrying.believed(mark, _signed_part(name, places, raw)) if mark else None
        return Call(serving, context) if carried is None else Call(serving, context, carried, read_places(places))

    # The node that carries.

    async def answer(
        self, serving: Serving, name: str, find: Find, handle: Handle, came: tuple[bytes, Any], context: Any
    ) -> Any:
        """The answer of whoever the call belongs to."""
        raw, request = came
        call = self.call(serving, name, raw, context)
        if call.carried is None:
            return await self._answer(name, raw, request, call, find, handle)
        try:
            return await handle(request, call)
        except PenstockError as error:
            context.set_trailing_metadata(_trailing(error))
            raise

    async def _answer(self, name: str, raw: bytes, request: Any, call: Call, find: Find, handle: Handle) -> Any:
        search = _Search(call, request, LOOK_AGAIN_SECONDS_MAX)
        while True:
            try:
                node = find(self._carrying, request)
                if node is None:
                    return await handle(request, call)
                return await self._ask(node, name, raw, call)
            except PenstockError as error:
                search.check(error, is_repeatable=name in _REPEATABLE)
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def ask(self, node: NodeId, name: str, request: Any, call: Call) -> bytes:
        """Ask another node something on behalf of this call; PenstockError or :class:`Told` when it does not answer."""
        return await self._ask(node, name, request.SerializeToString(), call)

    async def _ask(self, node: NodeId, name: str, raw: bytes, call: Call) -> bytes:
        async with self._channels.to(node) as channel:
            ask = channel.unary_unary(f"/{self._service}/{name}")
            metadata = self._metadata(node, name, "", raw, call)
            try:
                answer: bytes = await ask(raw, timeout=call.context.time_remaining(), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                _refuse(node, error)
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                raise _lost(node) from error
            return answer

    async def follow(
        self, serving: Serving, name: str, find: Find, handle: Handle, came: tuple[bytes, Any], context: Any
    ) -> None:
        """The messages of whoever the call belongs to, and of who speaks for it next."""
        raw, request = came
        call = self.call(serving, name, raw, context)
        if call.carried is None:
            await self._follow(name, request, call, find, handle)
            return
        try:
            await handle(request, call)
        except PenstockError as error:
            context.set_trailing_metadata(_trailing(error))
            raise

    async def _follow(self, name: str, request: Any, call: Call, find: Find, handle: Handle) -> None:
        progress = call.progress = Progress(request)
        search = _Search(call, request, STREAM_SECONDS_MAX)
        topic = call.topic(request.topic, Action.READ)
        while True:
            sent = progress.sent
            try:
                if call.broker.topics.get_by_id(topic.topic_id) is None:
                    # Where it stands says nothing of a topic that has the name now.
                    raise topic_not_found(topic.name)
                node = find(self._carrying, request)
                if node is None:
                    await handle(progress.request(), call)
                else:
                    await self._relay(node, name, progress, call)
                return
            except PenstockError as error:
                if progress.sent > sent:
                    search = _Search(call, request, STREAM_SECONDS_MAX)
                search.check(error, is_repeatable=True)
                if not progress.can_go_on:
                    raise PenstockError(
                        Reason.COORDINATOR_NOT_AVAILABLE,
                        "Another node speaks for the group now, and this worker's stream has ended with the last. Subscribe again.",
                    ) from error
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _relay(self, node: NodeId, name: str, progress: Progress, call: Call) -> None:
        async with self._channels.to(node) as channel:
            raw, places = progress.request().SerializeToString(), progress.places()
            subscribe = channel.unary_stream(f"/{self._service}/{name}")
            metadata = self._metadata(node, name, places, raw, call)
            stream = subscribe(raw, timeout=call.context.time_remaining(), metadata=metadata)
            await self._give_on(node, name, stream, progress, call)

    async def _give_on(self, node: NodeId, name: str, stream: Any, progress: Progress, call: Call) -> None:
        write, relayed = call.context.write, relayed_places(name)
        try:
            with call.serving.stream(stream.cancel):
                metadata = await stream.initial_metadata()
                await call.started(consumer_of(metadata), metadata)
                async for message in stream:
                    await write(message)
                    progress.gave(relayed(message))
                call.serving.require_running()
        except grpc.aio.AioRpcError as error:
            call.serving.require_running()
            _refuse(node, error)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # The stream was, not who serves it: this node stops, or the other node's life has ended.
            call.serving.require_running()
            raise _lost(node) from error
        finally:
            stream.cancel()

    def _metadata(self, node: NodeId, name: str, places: str, raw: bytes, call: Call) -> tuple[tuple[str, str], ...]:
        mark = self._carrying.mark(node, call.caller, _signed_part(name, places, raw))
        return ((MARK, mark), (PLACES, places)) if places else ((MARK, mark),)


_REPEATABLE: Final = frozenset({"GroupStatus", "DeliveryStatus", "TopicStats"})
"""What only looks: it may be asked again whatever became of the first question."""


class _Search:
    """How long it is looked for somebody who speaks for a call."""

    def __init__(self, call: Call, request: Any, seconds: float) -> None:
        self._call = call
        self._request = request
        self._seconds = seconds
        self._until: float | None = None

    def check(self, error: PenstockError, *, is_repeatable: bool) -> None:
        """Raise the error unless the call may be tried again, elsewhere or a little later."""
        lost = error.reason is Reason.LINK_LOST
        if not is_repeatable and (lost or isinstance(error, Begun)):
            raise error
        stops = error.reason is Reason.SHUTTING_DOWN and isinstance(error, RefusedThere)
        if not lost and not stops and not can_be_elsewhere(error.reason) and not self._is_known_here(error):
            raise error
        now = self._call.serving.loop.time()
        if self._until is None:
            self._until = now + self._seconds
        elif now >= self._until:
            raise PenstockError(Reason.COORDINATOR_NOT_AVAILABLE, f"{_NOBODY} ({error.text})") from error

    def _is_known_here(self, error: PenstockError) -> bool:
        """Whether another node has not heard yet of a topic that is known here."""
        if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION or not isinstance(error, RefusedThere):
            return False
        topic = self._call.broker.topics.get(getattr(self._request, "topic", ""))
        return topic is not None and getattr(self._request, "partition", 0) < topic.partition_count


class RefusedThere(PenstockError):
    """What another node says for which nothing was done."""


def _refuse(node: NodeId, error: grpc.aio.AioRpcError) -> NoReturn:
    for key, value in error.trailing_metadata() or ():
        if key == REASON and isinstance(value, str) and value in Reason.__members__:
            raise RefusedThere(Reason[value], error.details() or "") from error
        if key == REASON:
            raise Told(error.code(), error.details() or "") from error
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN):
        raise _lost(node) from error
    raise Told(error.code(), error.details() or "") from error


def _lost(node: NodeId) -> PenstockError:
    return PenstockError(
        Reason.LINK_LOST,
        f"Node {node} was asked and did not answer: it may have done this, or not. Look, or try again.",
    )


def _is_cancelled() -> bool:
    """Whether the running task is, and not just what it waits for: a channel that is closed cancels its calls."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _signed_part(name: str, places: str, raw: bytes) -> bytes:
    return b"grpc " + name.encode() + b"\n" + places.encode() + b"\n" + raw


def _trailing(error: PenstockError) -> tuple[tuple[str, str], ...]:
    """What a node that carried a call here is told with a refusal: the reason, or that something was begun."""
    return ((REASON, "-" if isinstance(error, Begun) else error.reason.name),)
