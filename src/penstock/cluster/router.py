"""Sends operations to the nodes that they belong to: the :class:`penstock.core.operations.door.Router` of a cluster.

Operations have their own link to each node, so that they cannot block the appends for which they wait.

Invariant: an operation is retried only if it certainly had no effect, or may always be repeated, and for at most :data:`TRY_SECONDS`,
about what it takes to notice that a node is dead and to elect another.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from penstock.cluster.links import Identity, Link, fail
from penstock.core.broker import Broker
from penstock.core.operations.door import ELSEWHERE, unexpected
from penstock.core.operations.handling import MERGES, Cancel, Done, OnEnd, OnItems, OpenStream
from penstock.core.operations.owners import owner_of, topic_of
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations.catalogue import result_decoder
from penstock.operations.operation import AnyOperation, Operation, OwnerKind, Repeat, Stream
from penstock.types import Buffer, NodeId
from penstock.wire.errors import ProtocolViolation
from penstock.wire.peers import (
    VERSION,
    CancelHead,
    DoHead,
    GrantHead,
    OperationAnswer,
    OperationHead,
    PeerApi,
    encode_peer_request,
    refusal_in,
)

TRY_SECONDS: Final = 5.0
STREAM_TRY_SECONDS: Final = 15.0
"""The same for opening a stream."""
_AGAIN_SECONDS: Final = 0.05
_ANSWER_SECONDS: Final = 30.0
"""In addition to the wait that the caller requests. The death of a node is noticed long before by its lease."""
_CONNECT_SECONDS: Final = 3.0
_LEARNING_MAX: Final = 64
"""Limit for operations that look up an unknown topic in the metadata store at the same time."""
_LEARN_SECONDS: Final = 0.005
_HEADER_BYTES: Final = 4

R = TypeVar("R")
T = TypeVar("T")
_answer_decoder: Final = msgspec.msgpack.Decoder(OperationAnswer)


class OperationRouter:
    """Sends the operations of one node."""

    def __init__(
        self, broker: Broker, identity: Callable[[], Identity], problem: Callable[[], str | None] = lambda: None
    ) -> None:
        """``problem`` returns why the metadata store cannot be reached, or None."""
        self._broker = broker
        self._cluster: Final = broker.cluster
        self._problem = problem
        self._identity = identity
        self._links: dict[NodeId, Link] = {}
        self._epochs: dict[NodeId, int] = {}
        """The epoch of each node when its link was connected. A node that registered again does not answer earlier requests."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._learning = 0
        self._stopped = False

    def start(self) -> None:
        """Become the door's router."""
        self._broker.door.router = self
        self._cluster.nodes.on_changed.append(self._nodes_changed)

    async def stop(self) -> None:
        """Stop. Operations that are under way on other nodes fail."""
        self._stopped = True
        for link in list(self._links.values()):
            await link.aclose()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # One result.

    def is_here(self, asked: AnyOperation[Any]) -> bool:
        """Whether this node owns the operation, as far as it knows."""
        if asked.belongs_to.kind is OwnerKind.EVERY:
            return False
        try:
            return owner_of(self._broker, asked) == self._broker.node_id
        except PenstockError:
            return False

    async def do(self, operation: Operation[R], caller: Caller) -> R:
        """The result, from whichever node owns the operation, or from all of them."""
        if operation.belongs_to.kind is OwnerKind.EVERY:
            return await self._of_every_node(operation, caller)

        async def here() -> R:
            return await self._broker.door.run(operation, caller)

        return await self._at_owner(operation, TRY_SECONDS, here, lambda node: self._ask(node, operation, caller))

    def begin(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel:
        """The same in the background."""

        async def run() -> None:
            try:
                found: R | PenstockError = await self.do(operation, caller)
            except PenstockError as error:
                found = error
            except Exception as error:  # noqa: BLE001 - it is reported, and the caller gets an answer
                found = unexpected(self._broker, operation, error)
            done(found)

        task = asyncio.get_running_loop().create_task(run())
        # The loop itself holds tasks only weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        return cancel

    async def _at_owner(
        self,
        asked: AnyOperation[Any],
        seconds: float,
        here: Callable[[], Coroutine[Any, Any, T]],
        there: Callable[[NodeId], Coroutine[Any, Any, T]],
    ) -> T:
        """The result of ``here`` or ``there``, depending on which node owns the operation; retried while the owner changes."""

        async def found() -> T:
            search = _Search(self._broker, asked, seconds)
            while True:
                is_remote = False
                try:
                    node = owner_of(self._broker, asked)
                    if node == self._broker.node_id:
                        return await here()
                    is_remote = True
                    return await there(node)
                except PenstockError as error:
                    search.check(error, is_remote=is_remote)
                await asyncio.sleep(_AGAIN_SECONDS)

        return await self._knowing_the_topic(asked, found)

    async def _of_every_node(self, operation: Operation[R], caller: Caller) -> R:
        """The merged results of all live nodes. A node that goes down meanwhile is left out."""
        nodes = self._cluster.nodes.nodes
        own = self._broker.node_id

        async def one(node: NodeId) -> R | None:
            search = _Search(self._broker, operation, TRY_SECONDS)
            while node in nodes:
                try:
                    return await self._ask(node, operation, caller)
                except PenstockError as error:
                    search.check(error, is_remote=True)
                await asyncio.sleep(_AGAIN_SECONDS)
            return None

        others = [node.node_id for node in nodes.values() if node.node_id != own]
        here = await self._knowing_the_topic(operation, lambda: self._broker.door.run(operation, caller))
        found = await asyncio.gather(*map(one, others))
        by_node: dict[int, R] = {own: here}
        by_node.update((node, each) for node, each in zip(others, found, strict=True) if each is not None)
        merged: R = MERGES[type(operation)](self._broker, by_node)
        return merged

    async def _ask(self, node: NodeId, operation: Operation[R], caller: Caller) -> R:
        link = await self._connected(node)
        answered: asyncio.Future[OperationAnswer] = asyncio.get_running_loop().create_future()
        number = link.ask(
            int(PeerApi.DO),
            VERSION,
            _request(operation, caller),
            partial(_answered, answered),
            partial(fail, answered),
        )
        try:
            async with asyncio.timeout(_ANSWER_SECONDS + operation.wait_ms_max() / 1000):
                answer = await answered
        except TimeoutError:
            _tell(link, PeerApi.CANCEL, CancelHead(number))
            raise _lost(node, "No response in time") from None
        except PenstockError as error:
            raise _lost(node, error.text) from error
        except asyncio.CancelledError:
            _tell(link, PeerApi.CANCEL, CancelHead(number))
            raise
        refusal = refusal_in(answer)
        if refusal is not None:
            raise refusal
        result: R = _decoded(node, operation, answer)
        return result

    # Streams.

    async def open(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """A stream from whichever node owns it."""

        async def here() -> OpenStream:
            return self._broker.door.start(stream, caller, on_items, on_end)

        return await self._at_owner(
            stream, STREAM_TRY_SECONDS, here, lambda node: self._open_at(node, stream, caller, on_items, on_end)
        )

    async def _open_at(
        self, node: NodeId, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd
    ) -> OpenStream:
        flow = _RemoteFlow(await self._connected(node), node, stream, caller, on_items, on_end)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await flow.opened
        except TimeoutError:
            flow.close()
            raise _lost(node, "No response in time") from None
        except asyncio.CancelledError:
            flow.close()
            raise
        return flow

    # Unknown topics.

    async def _knowing_the_topic(self, asked: AnyOperation[Any], run: Callable[[], Coroutine[Any, Any, R]]) -> R:
        try:
            return await run()
        except PenstockError as error:
            topic = topic_of(asked)
            if error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION or topic is None or not await self.learn(topic):
                raise
        return await run()

    async def learn(self, topic: str) -> bool:
        """Wait for a topic that another node may just have created; whether this node knows it now."""
        topics = self._broker.topics
        if topic in topics or self._learning >= _LEARNING_MAX or self._problem() is not None:
            # Do not wait for an unavailable store.
            return False
        self._learning += 1
        try:
            async with asyncio.timeout(TRY_SECONDS):
                if not await topics.is_agreed(topic):
                    return False
                while topic not in topics:  # noqa: ASYNC110 - there is no event for a single topic
                    await asyncio.sleep(_LEARN_SECONDS)
        except (PenstockError, TimeoutError):
            return False
        finally:
            self._learning -= 1
        return True

    # Links.

    async def _connected(self, node: NodeId) -> Link:
        if self._stopped:
            raise PenstockError(Reason.SHUTTING_DOWN)
        nodes = self._cluster.nodes
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = Link(node, nodes, self._broker.entropy)
        identity = self._identity()
        if not link.is_ready(identity):
            known = nodes.nodes.get(node)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await link.connect(identity)
            except TimeoutError:
                raise PenstockError(Reason.LEADER_NOT_AVAILABLE, f"Node {node} does not answer") from None
            except PenstockError as error:
                # Nothing was sent, so this can be retried.
                raise PenstockError(Reason.LEADER_NOT_AVAILABLE, error.text) from error
            if known is not None:
                self._epochs[node] = known.epoch
        return link

    def _nodes_changed(self) -> None:
        """Close the links to nodes that are gone or have registered again: they do not answer earlier requests."""
        nodes = self._cluster.nodes.nodes
        for node, link in self._links.items():
            known = nodes.get(node)
            if link.is_connected and (known is None or self._epochs.get(node, known.epoch) != known.epoch):
                link.close()


class _Search:
    """Decides how long to look for a node that carries out an operation."""

    def __init__(self, broker: Broker, asked: AnyOperation[Any], seconds: float) -> None:
        self._broker = broker
        self._asked = asked
        self._seconds = seconds
        self._until: float | None = None

    def check(self, error: PenstockError, *, is_remote: bool) -> None:
        """Raise the error unless the operation may be retried, on another node or a moment later."""
        if not self._may_repeat(error, is_remote=is_remote):
            raise error
        now = asyncio.get_running_loop().time()
        if self._until is None:
            self._until = now + self._seconds
        elif now >= self._until:
            reason = error.reason if error.reason in ELSEWHERE else Reason.COORDINATOR_NOT_AVAILABLE
            raise PenstockError(
                reason,
                f"No node can carry this out at the moment ({error.text}). Nothing was done; send it again.",
            ) from error

    def _may_repeat(self, error: PenstockError, *, is_remote: bool) -> bool:
        always = self._asked.repeat is Repeat.ALWAYS
        reason = error.reason
        if error.begun and not always:
            return False
        if reason in ELSEWHERE:
            return True
        if reason is Reason.LINK_LOST:
            return always
        return is_remote and (reason is Reason.SHUTTING_DOWN or self._is_known_here(reason))

    def _is_known_here(self, reason: Reason) -> bool:
        """Whether the other node does not know a topic yet that is known here."""
        if reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        topic = self._broker.topics.get(topic_of(self._asked) or "")
        return topic is not None and 0 <= (getattr(self._asked, "partition", 0) or 0) < topic.partition_count


class _RemoteFlow:
    """A stream from another node."""

    def __init__(
        self,
        link: Link,
        node: NodeId,
        stream: Stream[Any],
        caller: Caller,
        on_items: OnItems[Any],
        on_end: OnEnd,
    ) -> None:
        self._link = link
        self._node = node
        self._stream = stream
        self._on_items = on_items
        self._on_end = on_end
        self._closed = False
        self.opened: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._number = link.ask(
            int(PeerApi.OPEN), VERSION, _request(stream, caller), self._came, self._lost, stays=True
        )

    def grant(self, count: int) -> None:
        """This many more items may be sent."""
        if not self._closed and count:
            _tell(self._link, PeerApi.GRANT, GrantHead(self._number, count))

    def close(self) -> None:
        """No more items are wanted."""
        if not self._closed:
            self._closed = True
            _tell(self._link, PeerApi.CANCEL, CancelHead(self._number))

    def _came(self, body: memoryview) -> None:
        answer = _answer_of(body)
        if answer.last:
            self._link.release(self._number)
            self._end(refusal_in(answer))
            return
        if self._closed:
            return
        items = _decoded(self._node, self._stream, answer)
        if not self.opened.done():
            self.opened.set_result(None)
        if items:
            self._on_items(items)

    def _lost(self, error: PenstockError) -> None:
        self._end(error)

    def _end(self, error: PenstockError | None) -> None:
        if self._closed:
            return
        self._closed = True
        if self.opened.done():
            self._on_end(error)
        elif error is None:
            # It opened and ended at once.
            self.opened.set_result(None)
            self._on_end(None)
        else:
            self.opened.set_exception(error)


def _request(asked: AnyOperation[Any], caller: Caller) -> list[Buffer]:
    head = DoHead(
        type(asked).__name__,
        caller.principal,
        caller.gateway.value,
        caller.client,
        caller.groups,
        caller.listener,
        caller.method,
        caller.client_id,
        caller.request_id,
    )
    return encode_peer_request(head, msgspec.msgpack.encode(asked))


def _tell(link: Link, api: PeerApi, head: OperationHead) -> None:
    link.tell(int(api), VERSION, encode_peer_request(head))


def _answer_of(body: memoryview) -> OperationAnswer:
    try:
        # A copy: its result is read later.
        return _answer_decoder.decode(bytes(body[_HEADER_BYTES:]))
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"Invalid answer to an operation: {error}") from None


def _answered(future: "asyncio.Future[OperationAnswer]", body: memoryview) -> None:
    answer = _answer_of(body)
    if not future.done():
        future.set_result(answer)


def _decoded(node: NodeId, asked: AnyOperation[Any], answer: OperationAnswer) -> Any:  # noqa: ANN401  the result of any operation
    try:
        return result_decoder(type(asked)).decode(answer.result)
    except msgspec.MsgspecError as error:
        raise _lost(node, f"Invalid response: {error}") from error


def _lost(node: NodeId, why: str) -> PenstockError:
    return PenstockError(
        Reason.LINK_LOST,
        f"Node {node} owns this and did not answer: it may have done this, or not. Check the result before you retry. ({why})",
    )
