"""Answers that wait: the place of each in its connection's order, and what a handler returns that has no response yet."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.meters import Histogram
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.gateways.kafka.connection import KafkaConnection

Outcome = TypeVar("Outcome")
Response = TypeVar("Response")
Done = Callable[[msgspec.Struct | PenstockError], None]


class PendingAnswer:
    """A place in a connection's order of answers. Completed once, with the buffers of a whole frame."""

    __slots__ = ("arrived", "connection", "due_ms", "latency", "parts")

    def __init__(self, connection: "KafkaConnection", latency: Histogram, due_ms: int | None = None) -> None:
        self.connection = connection
        self.arrived = connection.arrived
        """When the request was read: an answer that leaves is observed in ``latency``."""
        self.latency = latency
        self.parts: list[Buffer] | None = None
        self.due_ms = due_ms

    def complete(self, parts: list[Buffer]) -> None:
        """This is the answer; it leaves when those before it have left."""
        if self.parts is None:
            self.parts = parts
            self.connection.ready()

    def time_out(self) -> None:
        """``due_ms`` has passed."""

    def drop(self) -> None:
        """The answer is not wanted any more: its time is up, or the client is gone."""


@dataclass(slots=True)
class Deferred:
    """What a handler returns if the answer waits without holding up the later requests of its connection."""

    start: Callable[[Done], Awaitable[None] | None]
    """Begins; its argument gets the response, or the refusal of a request that is not answered. What is returned must end before the next
    request of the connection begins."""
    timed_out: Callable[[], msgspec.Struct]
    """The response when the client's time is up."""
    forget: Callable[[], None]
    """Called when the answer is not wanted any more."""
    timeout_ms: int
    is_answered: bool


class DeferredAnswer(PendingAnswer):
    """The answer to a deferred request."""

    __slots__ = ("_deferred", "_done")

    def __init__(
        self, connection: "KafkaConnection", latency: Histogram, due_ms: int, deferred: Deferred, done: Done
    ) -> None:
        super().__init__(connection, latency, due_ms)
        self._deferred = deferred
        self._done = done

    def time_out(self) -> None:
        """Say so."""
        self._done(self._deferred.timed_out())
        self.drop()

    def drop(self) -> None:
        """Nothing is kept for it."""
        self._deferred.forget()


def answer_later(
    start: Callable[[Callable[[Outcome | PenstockError], None]], object],
    translate: Callable[[Outcome | PenstockError], Response],
) -> asyncio.Future[Response]:
    """Call ``start`` with a callback; the result is what the callback gets, or the PenstockError that ``start`` raises, translated.

    A future and no task, since most of these calls are answered in the same turn of the loop or the next. When the connection
    is gone, the future is cancelled and the answer is dropped.
    """
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def done(outcome: Outcome | PenstockError) -> None:
        if future.done():
            return
        try:
            future.set_result(translate(outcome))
        except Exception as error:  # noqa: BLE001 - the core is in the middle of answering others; the mistake is this request's alone
            future.set_exception(error)

    try:
        start(done)
    except PenstockError as error:
        done(error)
    return future
