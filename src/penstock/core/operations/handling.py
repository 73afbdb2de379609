"""How a handler is declared. There are four kinds, and the kind says what a failure means.

* :func:`answers`: returns the result at once. If it raises, nothing was done.
* :func:`begins`: is given ``done`` and calls it exactly once, perhaps before it returns. If it raises, nothing was begun; a failure
  that is passed to ``done`` may have been carried out in part. It may return a function that cancels.
* :func:`works`: a coroutine. A failure may have been carried out in part.
* :func:`streams`: is given ``on_items`` and ``on_end``, and returns a :class:`OpenStream`. If it raises, nothing was begun.
"""

from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from penstock.errors import PenstockError, Reason
from penstock.operations.operation import AnyOperation, Operation, Stream

if TYPE_CHECKING:
    from penstock.core.broker import Broker

R = TypeVar("R")
Item = TypeVar("Item")

Done = Callable[[R | PenstockError], None]
"""Is called once with the result, or with the reason for a failure after something was begun."""
Cancel = Callable[[], None]
"""The result is no longer needed; does nothing after it was reported."""
OnItems = Callable[[Sequence[R]], None]
OnEnd = Callable[[PenstockError | None], None]
"""Is called once when the stream ends: with None, or with the reason for its failure."""


class OpenStream(Protocol):
    """An open stream, for its reader."""

    def grant(self, count: int, /) -> None:
        """Allow this many more items."""
        ...

    def close(self) -> None:
        """Stop the stream; does nothing after its end. ``on_end`` is not called after it."""
        ...


class HandlerKind(Enum):
    """The kinds of handlers, by what a failure means; see the module."""

    ANSWERS = "answers"
    BEGINS = "begins"
    WORKS = "works"
    STREAMS = "streams"


class Handler(NamedTuple):
    """The function that carries out an operation on this node."""

    kind: HandlerKind
    run: Callable[..., Any]


HANDLERS: Final[dict[type[AnyOperation[Any]], Handler]] = {}
BEGINNERS: Final[dict[type[AnyOperation[Any]], Callable[..., Cancel | None]]] = {}
"""The handlers of the kind that begins, again: it saves the hot ones a look-up."""
MERGES: Final[dict[type[AnyOperation[Any]], Callable[["Broker", dict[int, Any]], Any]]] = {}
"""How the answers of all nodes become one, for the operations that every node answers."""


def answers(operation: type[Operation[R]]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Declare a handler ``(broker, operation, caller) -> result``."""
    return _declare(operation, HandlerKind.ANSWERS)


def begins(
    operation: type[Operation[R]],
) -> Callable[[Callable[..., Cancel | None]], Callable[..., Cancel | None]]:
    """Declare a handler ``(broker, operation, caller, done) -> cancel or None``."""
    return _declare(operation, HandlerKind.BEGINS)


def works(
    operation: type[Operation[R]],
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Declare a handler ``async (broker, operation, caller) -> result``."""
    return _declare(operation, HandlerKind.WORKS)


def streams(stream: type[Stream[R]]) -> Callable[[Callable[..., OpenStream]], Callable[..., OpenStream]]:
    """Declare a handler ``(broker, stream, caller, on_items, on_end) -> open stream``."""
    return _declare(stream, HandlerKind.STREAMS)


def merges(operation: type[Operation[R]]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Declare how the answers of all nodes, by node, become one: ``(broker, answers) -> result``."""

    def declare(merge: Callable[..., R]) -> Callable[..., R]:
        MERGES[operation] = merge
        return merge

    return declare


def _declare(asked: type[AnyOperation[Any]], kind: HandlerKind) -> Callable[[Any], Any]:
    def declare(run: Any) -> Any:  # noqa: ANN401  a handler of any operation
        assert asked not in HANDLERS, f"{asked.__name__} has two handlers"
        HANDLERS[asked] = Handler(kind, run)
        if kind is HandlerKind.BEGINS:
            BEGINNERS[asked] = run
        return run

    return declare


async def awaited(start: Callable[[Callable[[R], None]], object]) -> R:
    """What is passed to the callback that ``start`` gets."""
    future: Future[R] = Future()
    start(lambda found: None if future.done() else future.set_result(found))
    return await future


async def next_turn(broker: "Broker") -> None:
    """Return in the next turn of the event loop, so that others are served in between."""
    future: Future[None] = Future()
    broker.flusher.gather(lambda: None if future.done() else future.set_result(None))
    await future


def in_order(items: Sequence[Item], done: Done[tuple[R, ...]]) -> Callable[[Mapping[Item, R]], None]:
    """``done`` for a function that reports a mapping with the result of each item."""
    return lambda found: done(tuple([found[item] for item in items]))


class with_reason:  # noqa: N801  used as a function; an object is smaller than a closure, and there is one for every ack
    """``done`` for a function that reports the reason for a failure, or None for success."""

    __slots__ = ("_done",)

    def __init__(self, done: Done[None]) -> None:
        self._done = done

    def __call__(self, reason: Reason | None) -> None:
        """Called with the outcome."""
        self._done(None if reason is None else PenstockError(reason))
