"""The door: ``do`` for one result, ``begin`` for callers that cannot wait, ``open`` for streams.

Each of them authorises the operation, counts it, and carries it out on the node that it belongs to. The methods that end in ``_here``
never leave this node: for Kafka's handlers, whose clients find the right node by themselves, and for operations that another node sent.
"""

import traceback
from asyncio import Future
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from penstock.core.audit.audit import Audit
from penstock.core.audit.record import Effect, effect_of
from penstock.core.operations import (  # noqa: F401  each declares its handlers
    access,
    cluster,
    configs,
    dead_letters,
    groups,
    queues,
    quotas,
    records,
    sinks,
    topics,
    transactions,
    users,
)
from penstock.core.operations.handling import BEGINNERS, HANDLERS, Cancel, Done, HandlerKind, OnEnd, OnItems, OpenStream
from penstock.core.operations.memberships import OpenMembership
from penstock.core.operations.open_streams import OpenStreams
from penstock.core.operations.rights import PartlyRefused, authorise
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.operations.operation import AnyOperation, Operation, Stream

if TYPE_CHECKING:
    from penstock.core.broker import Broker

R = TypeVar("R")

ELSEWHERE: Final = frozenset(
    {
        Reason.NOT_LEADER_OR_FOLLOWER,
        Reason.LEADER_NOT_AVAILABLE,
        Reason.NOT_COORDINATOR,
        Reason.COORDINATOR_NOT_AVAILABLE,
        Reason.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Reasons for which another node may own the operation by now, or this node in a moment."""


_LABELS: Final[dict[tuple[type[AnyOperation[Any]], str], tuple[str, str]]] = {}


def unexpected(broker: "Broker", operation: Operation[Any], error: Exception) -> PenstockError:
    """The refusal after a bug in the broker. The traceback is reported."""
    trace = "".join(traceback.format_exception(error))
    broker.report(f"{type(operation).__name__} failed: {trace}")
    return PenstockError(Reason.UNKNOWN, f"Internal error: {type(error).__name__}; see the broker's log")


class Router(Protocol):
    """Carries out operations on the nodes that own them; ``cluster/router.py`` is the real one. They are already authorised."""

    def is_here(self, asked: AnyOperation[Any]) -> bool:
        """Whether this node owns the operation, as far as it knows."""
        ...

    async def do(self, operation: Operation[R], caller: Caller) -> R:
        """The result, from whichever node owns the operation."""
        ...

    def begin(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel:
        """The same in the background."""
        ...

    async def open(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """A stream from whichever node owns it."""
        ...

    async def learn(self, topic: str) -> bool:
        """Look for a topic that another node created just before; whether this node knows it now."""
        ...


class Door:
    """The door of one broker."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._count: Final = broker.meters.operations.add
        self.streams: Final = OpenStreams(broker)
        self._audit: Final[Audit] = broker.audit
        self.router: Router | None = None
        """None for a broker that is alone: it owns everything."""
        self.memberships: Final[dict[tuple[str, str, str], OpenMembership]] = {}
        """Members of groups whose streams are open, by group, topic and consumer."""

    # Wherever it belongs.

    async def do(self, operation: Operation[R], caller: Caller) -> R:
        """The result. PenstockError: nothing was done, unless the error is marked as ``begun``."""
        partly = self._admit(type(operation), operation, caller)
        run = self.run if self.router is None else self.router.do
        if self._audit.is_on and self._audit.follows(type(operation), caller):
            return await self._audit.following(operation, caller, partial(_run, run, operation, partly, caller))
        return await (run(operation, caller) if partly is None else _completed(run, partly, caller))

    def begin(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel | None:
        """Carry it out; ``done`` is called exactly once, perhaps before this returns. PenstockError if nothing was begun.

        Without a task or a future if this node owns the operation.
        """
        kind = type(operation)
        partly = self._admit(kind, operation, caller)
        if partly is not None:
            operation, done = partly.admitted, partly.completing(done)
        if self._audit.is_on and self._audit.follows(kind, caller):
            return self._audited(partial(self._begin, operation, caller), operation, caller, done)
        return self._begin(operation, caller, done)

    def _begin(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel | None:
        kind = type(operation)
        if self.router is None:
            start = BEGINNERS.get(kind)
            if start is not None:
                # The hot ones: an ack takes three microseconds here.
                return start(self._broker, operation, caller, done)
            return self._start(operation, caller, done)
        router = self.router
        if router.is_here(operation):
            try:
                return self._start(operation, caller, done)
            except PenstockError as error:
                if error.reason not in ELSEWHERE and error.reason is not Reason.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return router.begin(operation, caller, done)

    async def open(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """An open stream, which sends items while it has credit. PenstockError if it cannot be opened."""
        self._admit(type(stream), stream, caller)
        if self._audit.is_on and self._audit.follows(type(stream), caller):
            begin = partial(self._open, stream, caller, on_items, on_end)
            return await self._audit.following(stream, caller, begin)
        return await self._open(stream, caller, on_items, on_end)

    async def _open(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        router = self.router
        if router is None:
            return self.start(stream, caller, on_items, on_end)
        return await router.open(stream, caller, on_items, on_end)

    # On this node.

    async def do_here(self, operation: Operation[R], caller: Caller) -> R:
        """The result, if this node owns the operation."""
        partly = self._admit(type(operation), operation, caller)
        if self._audit.is_on and self._audit.follows(type(operation), caller):
            return await self._audit.following(operation, caller, partial(_run, self.run, operation, partly, caller))
        return await (self.run(operation, caller) if partly is None else _completed(self.run, partly, caller))

    def answer_here(self, operation: Operation[R], caller: Caller) -> R:
        """The result at once, if this node owns the operation and its handler is of the kind that answers."""
        kind = type(operation)
        partly = self._admit(kind, operation, caller)
        handler = HANDLERS[kind]
        assert handler.kind is HandlerKind.ANSWERS, kind
        assert effect_of(kind) is not Effect.CHANGE, f"{kind.__name__} cannot wait for the audit log"
        result: R
        if partly is None:
            result = handler.run(self._broker, operation, caller)
        else:
            result = partly.complete(handler.run(self._broker, partly.admitted, caller))  # type: ignore[assignment]  # a tuple
        return result

    def begin_here(
        self, operation: Operation[R], caller: Caller, done: Done[R], *, is_carried: bool = False
    ) -> Cancel | None:
        """As ``begin``, if this node owns the operation. ``is_carried``: another node sent it, and records its result."""
        kind = type(operation)
        partly = self._admit(kind, operation, caller)
        if partly is not None:
            operation, done = partly.admitted, partly.completing(done)
        if self._audit.is_on and not is_carried and self._audit.follows(kind, caller):
            return self._audited(partial(self._begin_owned, operation, caller), operation, caller, done)
        return self._begin_owned(operation, caller, done)

    def _begin_owned(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel | None:
        start = BEGINNERS.get(type(operation))
        return self._start(operation, caller, done) if start is None else start(self._broker, operation, caller, done)

    def open_here(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """As ``open``, if this node owns the stream."""
        self._admit(type(stream), stream, caller)
        return self.start(stream, caller, on_items, on_end)

    def check(self, operation: AnyOperation[Any], caller: Caller) -> None:
        """PenstockError unless the caller has the rights to the operation, which is not carried out.

        For gateways that find mistakes in a request before they can make an operation of it: a refusal comes first.
        """
        try:
            authorise(self._broker, operation, caller)
        except PenstockError as error:
            if self._audit.is_on:
                self._audit.refused(operation, caller, error)
            raise

    # Once it is admitted.

    def _admit(self, kind: type[AnyOperation[Any]], asked: AnyOperation[Any], caller: Caller) -> PartlyRefused | None:
        broker, audit = self._broker, self._audit
        try:
            partly = None if broker.access.allows_all else authorise(broker, asked, caller)
        except PenstockError as error:
            if audit.is_on:
                audit.refused(asked, caller, error)
            raise
        if audit.is_on:
            if partly is not None:
                audit.partly_refused(asked, caller, partly.names(asked))
            if audit.records_data:
                audit.used(asked, caller)
        labels = _LABELS.get((kind, caller.gateway._value_))
        if labels is None:
            labels = _LABELS[kind, caller.gateway._value_] = (kind.__name__, caller.gateway._value_)
        self._count(labels)
        return partly

    def _audited(
        self,
        begin: Callable[[Done[R]], Cancel | None],
        operation: Operation[R],
        caller: Caller,
        done: Done[R],
    ) -> Cancel | None:
        """Begin a change, and record its result."""
        audit = self._audit

        def ended(found: R | PenstockError) -> None:
            audit.ended(operation, caller, found)
            done(found)

        async def begin_when_recorded() -> None:
            try:
                await audit.attempt(operation, caller)
                begin(ended)
            except PenstockError as error:
                ended(error)

        if audit.is_required:
            self._broker.background(begin_when_recorded())
            return None
        try:
            return begin(ended)
        except PenstockError as error:
            audit.ended(operation, caller, error)
            raise

    async def run(self, operation: Operation[R], caller: Caller) -> R:
        """Carry out an admitted operation on this node."""
        handler = HANDLERS[type(operation)]
        result: R
        if handler.kind is HandlerKind.ANSWERS:
            result = handler.run(self._broker, operation, caller)
            return result
        if handler.kind is HandlerKind.WORKS:
            try:
                result = await handler.run(self._broker, operation, caller)
            except PenstockError as error:
                error.begun = True
                raise
            return result
        future: Future[R | PenstockError] = Future()

        def done(found: R | PenstockError) -> None:
            if not future.done():
                future.set_result(found)

        cancel = handler.run(self._broker, operation, caller, done)
        try:
            found = await future
        finally:
            if cancel is not None:
                cancel()
        if isinstance(found, PenstockError):
            found.begun = True
            raise found
        return found

    def _start(self, operation: Operation[R], caller: Caller, done: Done[R]) -> Cancel | None:
        handler = HANDLERS[type(operation)]
        if handler.kind is HandlerKind.BEGINS:
            cancel: Cancel | None = handler.run(self._broker, operation, caller, done)
            return cancel
        if handler.kind is HandlerKind.ANSWERS:
            done(handler.run(self._broker, operation, caller))
        else:
            self._broker.background(self._work(operation, caller, done))
        return None

    async def _work(self, operation: Operation[R], caller: Caller, done: Done[R]) -> None:
        try:
            found = await self.run(operation, caller)
        except PenstockError as error:
            done(error)
        except Exception as error:  # noqa: BLE001 - it is reported, and the caller gets an answer
            done(unexpected(self._broker, operation, error))
        else:
            done(found)

    def start(self, stream: Stream[R], caller: Caller, on_items: OnItems[R], on_end: OnEnd) -> OpenStream:
        """Open an admitted stream on this node."""
        return self.streams.start(stream, caller, on_items, on_end)


async def _run(
    run: Callable[[Operation[R], Caller], Awaitable[R]],
    operation: Operation[R],
    partly: PartlyRefused | None,
    caller: Caller,
) -> R:
    found: R = await (run(operation, caller) if partly is None else _completed(run, partly, caller))
    return found


async def _completed(
    run: Callable[[Operation[Any], Caller], Awaitable[Any]], partly: PartlyRefused, caller: Caller
) -> Any:  # noqa: ANN401  of any operation over many items
    return partly.complete(await run(partly.admitted, caller))
