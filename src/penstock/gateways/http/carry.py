"""Carrying: a request that belongs to another node is handed on to it, and its answer is given back as it comes.

A route says whose its requests are (:data:`Owner`). What belongs to this node is served here; all else goes to its owner's HTTP
listener with a mark (:mod:`penstock.gateways.carrying`), and is carried once only: a node that gets a marked request serves it, or
refuses it and says by the header :data:`ELSEWHERE` that nothing was done. Then the first node looks again, for a few seconds. It never sends
again what may have been done; whoever asked is told so.

The client's disconnect closes the carried request at once. A broker that is alone has nothing of this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from penstock.errors import PenstockError, Reason
from penstock.gateways.carrying import LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS_MAX, Carrying, can_be_elsewhere
from penstock.gateways.http.answers import (
    REQUEST_ID,
    UNKNOWN_TOPIC,
    Answer,
    RawHeaders,
    Refusal,
    failure_answer,
    refusal_of,
)
from penstock.gateways.http.carried_answer import ELSEWHERE, CarriedAnswer, given_back
from penstock.gateways.http.peer_connection import Exchange, Head, NodeLost
from penstock.gateways.http.peer_pool import PeerPool
from penstock.gateways.http.routing import Call, Done, HotHandler, answer_of, refused
from penstock.types import Gateway, NodeId

if TYPE_CHECKING:
    from penstock.gateways.http.gateway import HttpGateway

logger = logging.getLogger("penstock.http")

MARK: Final = b"x-penstock-carried"
_WAIT_SECONDS_MAX: Final = 60.0
"""What a request may wait for by its own wish, beside the time that any request may take."""
_NOT_CARRIED: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-connection",
        b"proxy-authorization",
        b"expect",
        b"host",
        b"content-length",
        MARK,
        REQUEST_ID,
    }
)
_LEARNING_MAX: Final = 64
"""Requests at a time that ask the metadata store for a topic that this node does not know."""
_LEARN_SECONDS: Final = 0.005
_REPEATABLE: Final = frozenset({"GET", "HEAD", "PUT"})
"""Methods whose requests may be sent again although the first may have been served."""

Owner = Callable[[Call], NodeId | None]
"""Whose a request is; None: this node's. What cannot be read is this node's too, which refuses it."""
Serve = Callable[[Call], Awaitable[Answer | Response]]

T = TypeVar("T")


def here(_: Call) -> NodeId | None:
    """The owner of what every node answers for itself: it may take a moment until it can."""
    return None


class _Outgoing(NamedTuple):
    """What is asked of another node."""

    method: str
    target: bytes
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class Carry:
    """The carrying of one gateway."""

    def __init__(self, gateway: "HttpGateway") -> None:
        self._gateway = gateway
        self.whose: Final = Carrying(gateway.broker)
        self.pool: Final = PeerPool(gateway)
        self._tasks: set[asyncio.Task[None]] = set()
        self._learning = 0

    # The node that is carried to.

    def take_mark(self, call: Call) -> None:
        """Believe a node of this cluster that carried the request here; a mark of anybody else is nothing."""
        mark = call.header(MARK)
        if mark is None:
            return
        found = self.whose.believed(mark, _marked(call.method, _target(call)))
        if found is not None:
            call.caller = found.caller(Gateway.HTTP)
            call.is_carried = True

    # Every node.

    async def answered(self, call: Call, owner: Owner | None, serve: Serve, *, alone: bool = True) -> Answer | Response:
        """The answer of whoever the request belongs to; without an ``owner`` that is whoever gets it."""
        self.take_mark(call)
        try:
            return await (serve(call) if owner is None else self.served(call, owner, serve, alone=alone))
        except UNKNOWN_TOPIC as error:
            if not await self._learned(error.topic):
                raise
        return await (serve(call) if owner is None else self.served(call, owner, serve, alone=alone))

    async def _learned(self, topic: str) -> bool:
        """Whether this node knows a topic by now, which another one made just before."""
        topics = self._gateway.broker.topics
        if self._learning >= _LEARNING_MAX or self._gateway.problem() is not None:
            # Whoever could tell does not answer: nobody is to wait for that.
            return False
        self._learning += 1
        try:
            async with asyncio.timeout(LOOK_AGAIN_SECONDS_MAX):
                if not await topics.is_agreed(topic):
                    return False
                while topic not in topics:  # noqa: ASYNC110 - the image tells nobody of one topic
                    await asyncio.sleep(_LEARN_SECONDS)
        except (PenstockError, TimeoutError):
            return False
        finally:
            self._learning -= 1
        return True

    # The node that carries.

    async def served(self, call: Call, owner: Owner, serve: Serve, *, alone: bool) -> Answer | Response:
        """The answer of whoever the request belongs to; ``serve`` is for this node's own.

        ``alone``: it may wait, so it has a connection of its own, and closing it tells the other node that nobody waits.
        """
        if call.is_carried:
            return await _served_or_elsewhere(call, serve)
        loop = self._gateway.loop
        until = loop.time() + LOOK_AGAIN_SECONDS_MAX
        while True:
            try:
                node = owner(call)
                if node is None:
                    return await serve(call)
                return await self._carried(call, node, alone=alone)
            except PenstockError as error:
                if not can_be_elsewhere(error.reason):
                    raise
                if loop.time() >= until:
                    raise refusal_of(error) from None
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    def hot(self, handler: HotHandler, owner: Owner | None, *, alone: bool) -> HotHandler:
        """The same for the fast lane: what belongs to this node is served in the same turn."""

        def served(call: Call, done: Done) -> None:
            if owner is not None:
                self.take_mark(call)
            try:
                if owner is None or call.is_carried or owner(call) is None:
                    handler(call, done)
                    return
            except UNKNOWN_TOPIC:
                # Another node may have made it just now.
                pass
            except PenstockError as error:
                if not can_be_elsewhere(error.reason):
                    raise
                if call.is_carried:
                    raise elsewhere(error) from None
            self._begin_hot(call, done, handler, owner, alone=alone)

        return served

    def _begin_hot(self, call: Call, done: Done, handler: HotHandler, owner: Owner | None, *, alone: bool) -> None:
        async def serve(call: Call) -> Answer:
            call.cancel = None
            try:
                return await answer_of(handler, call)
            except asyncio.CancelledError:
                _give_up(call)
                raise

        async def run() -> None:
            try:
                answer = await self.answered(call, owner, serve, alone=alone)
                assert isinstance(answer, Answer)
            except (PenstockError, Refusal) as error:
                answer = refused(self._gateway, call.path, error)
            except Exception:
                identity = call.request_id.decode("ascii")
                logger.exception("request %s failed: POST %a", identity, call.path, extra={"request_id": identity})
                answer = failure_answer(call.path, call.request_id)
            done(answer)

        task = self._gateway.loop.create_task(run())
        # The loop itself holds tasks only weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if alone:

            def cancel() -> None:
                task.cancel()

            call.cancel = cancel

    async def _carried(self, call: Call, node: NodeId, *, alone: bool) -> Answer | Response:
        """What that node answers. PenstockError with a reason for looking again when it did nothing."""
        exchange = await self._begin(node, _of_call(call), call, alone=alone)
        request = call.request
        if request is None:
            try:
                # Who shares a connection is answered by the fast lane when it takes too long.
                head = await (self._head(call.method, node, exchange) if alone else self._head_of(node, exchange))
                return await self._whole(node, exchange, head)
            except asyncio.CancelledError:
                if alone:
                    exchange.close()
                raise
        gone = asyncio.ensure_future(_gone(request.receive))
        try:
            head = await self._head(call.method, node, exchange, gone)
        except BaseException:
            gone.cancel()
            if alone:
                exchange.close()
            raise
        return CarriedAnswer.begun(self._gateway, node, exchange, head, gone)

    async def _begin(self, node: NodeId, asked: _Outgoing, call: Call, *, alone: bool) -> Exchange:
        mark = self.whose.mark(node, call.caller, _marked(asked.method, asked.target))
        address = self.whose.address(node, Gateway.HTTP)
        lines = [
            b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (asked.method.encode(), asked.target, str(address).encode()),
            *(b"%s: %s\r\n" % header for header in asked.headers),
            b"%s: %s\r\n%s: %s\r\n" % (REQUEST_ID, call.request_id, MARK, mark.encode()),
        ]
        if asked.body or asked.method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d\r\n" % len(asked.body))
        lines.append(b"\r\n")
        if sum(map(len, lines)) > self._gateway.bounds.head_bytes_max:
            # The other node would refuse it and hang up, and what other clients have behind it on the connection would be lost.
            raise Refusal(
                431, f"The headers are too many to be handed on to node {node}, which this belongs to. Send fewer."
            )
        request = b"".join((*lines, asked.body))
        return await self.pool.ask(node, request, alone=alone, is_head=asked.method == "HEAD")

    async def _head(
        self, method: str, node: NodeId, exchange: Exchange, gone: asyncio.Future[None] | None = None
    ) -> Head:
        seconds = self._gateway.settings.request_timeout_ms / 1000 + _WAIT_SECONDS_MAX
        waited: set[asyncio.Future[Any]] = {exchange.head} if gone is None else {exchange.head, gone}
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not exchange.head.done():
            if gone is not None and gone.done():
                raise ClientDisconnect
            raise _unknown(node)
        return await self._head_of(node, exchange, method)

    async def _head_of(self, node: NodeId, exchange: Exchange, method: str = "POST") -> Head:
        try:
            head = await exchange.head
        except NodeLost:
            if method in _REPEATABLE:
                raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"Node {node} is not up any more.") from None
            raise _unknown(node) from None
        elsewhere = head.header(ELSEWHERE)
        if elsewhere is not None:
            await exchange.body(self._gateway.settings.body_bytes_max)
            raise PenstockError(_reason(elsewhere))
        return head

    async def _whole(self, node: NodeId, exchange: Exchange, head: Head) -> Answer:
        """All of an answer, for the fast lane."""
        try:
            body = await exchange.body(self._gateway.bounds.unsent_bytes_max)
        except NodeLost:
            raise _unknown(node) from None
        except ValueError:
            exchange.close()
            raise Refusal(503, "The answer is too large. Ask for less.") from None
        content_type = head.header(b"content-type") or b""
        ours = {b"content-type", b"content-length", REQUEST_ID}
        more = tuple(header for header in given_back(head.headers) if header[0] not in ours)
        return Answer(head.status, body, content_type, more)

    # Asking on behalf of a request.

    async def ask(self, call: Call, find: Callable[[], NodeId | None], target: str, model: type[T]) -> T | None:
        """What the owner answers to a GET of ours, asked for ``call``; None when this node is the owner. Its refusal is ours."""
        loop = self._gateway.loop
        until = loop.time() + LOOK_AGAIN_SECONDS_MAX
        while True:
            try:
                node = find()
                return None if node is None else await self._asked(call, node, target.encode(), model)
            except PenstockError as error:
                if not can_be_elsewhere(error.reason):
                    raise
                if loop.time() >= until:
                    raise refusal_of(error) from None
            await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def ask_all(self, call: Call, model: type[T]) -> dict[NodeId, T]:
        """What every other node answers for itself to this GET; nothing when another node asks it of this one."""
        cluster = self._gateway.broker.cluster
        if cluster is None or call.is_carried:
            return {}
        others = [node.node_id for node in cluster.nodes.nodes.values() if node.node_id != self._gateway.broker.node_id]

        async def one(node: NodeId) -> T | None:
            return await self.ask(call, lambda: node if node in cluster.nodes.nodes else None, target, model)

        target = _target(call).decode("ascii")
        answers = await asyncio.gather(*(one(node) for node in others))
        return {node: found for node, found in zip(others, answers, strict=True) if found is not None}

    async def _asked(self, call: Call, node: NodeId, target: bytes, model: type[T]) -> T:
        exchange = await self._begin(
            node, _Outgoing("GET", target, _carried_headers(call.headers), b""), call, alone=True
        )
        try:
            answer = await self._whole(node, exchange, await self._head("GET", node, exchange))
        except asyncio.CancelledError:
            exchange.close()
            raise
        except PenstockError as error:
            if error.reason is not Reason.LINK_LOST:
                raise
            # It only looks, so it can be asked again.
            raise PenstockError(Reason.LEADER_NOT_AVAILABLE, error.text) from None
        if answer.status != 200:
            raise Refusal(answer.status, _text_of(answer.body))
        try:
            return msgspec.json.decode(answer.body, type=model)
        except msgspec.MsgspecError:
            raise Refusal(503, f"Node {node} gave an answer that cannot be read: it may run another version.") from None

    def close(self) -> None:
        """The gateway stops."""
        self.pool.close()


async def _served_or_elsewhere(call: Call, serve: Serve) -> Answer | Response:
    try:
        return await serve(call)
    except PenstockError as error:
        if not can_be_elsewhere(error.reason):
            raise
        raise elsewhere(error) from None


def elsewhere(error: PenstockError) -> Refusal:
    """A refusal by which the node that carried the request knows that it may look again."""
    refusal = refusal_of(error)
    refusal.headers = (*refusal.headers, (ELSEWHERE, error.reason.name.encode()))
    return refusal


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _give_up(call: Call) -> None:
    if call.cancel is not None:
        call.cancel()


def _reason(name: bytes) -> Reason:
    try:
        return Reason[name.decode("ascii", "replace")]
    except KeyError:
        return Reason.NOT_COORDINATOR


def _unknown(node: NodeId) -> PenstockError:
    return PenstockError(
        Reason.LINK_LOST,
        f"Node {node}, which this belongs to, was lost before it answered. What was asked may be done: look before you ask again.",
    )


def _of_call(call: Call) -> _Outgoing:
    return _Outgoing(call.method, _target(call), _carried_headers(call.headers), call.body)


def _target(call: Call) -> bytes:
    path = call.raw_path
    return b"%s?%s" % (path, call.query) if call.query else path


def _marked(method: str, target: bytes) -> bytes:
    """What a mark is good for."""
    return b"%s %s" % (method.encode(), target)


def _carried_headers(headers: RawHeaders) -> RawHeaders:
    return [header for header in headers if header[0] not in _NOT_CARRIED]


class _ErrorBody(msgspec.Struct):
    error: str
    message: str = ""


def _text_of(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:
        return "Another node refused."
    return found.message or found.error
