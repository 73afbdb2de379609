"""Answers that are not ready yet: their position in the order of their connection, and what a handler returns for them."""

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
    """The position of an answer in the order of its connection. It is completed once, with the buffers of a whole frame."""

    __slots__ = ("arrived", "connection", "due_ms", "latency", "parts")

    def __init__(self, connection: "KafkaConnection", latency: Histogram, due_ms: int | None = None) -> None:
        self.connection = connection
        self.arrived = connection.arrived
        """When the request was read, from which ``latency`` is measured."""
        self.latency = latency
        self.parts: list[Buffer] | None = None
        self.due_ms = due_ms

    def complete(self, parts: list[Buffer]) -> None:
        """Set the answer, which is sent after those before it."""
        if self.parts is None:
            self.parts = parts
            self.connection.ready()

    def time_out(self) -> None:
        """Called once ``due_ms`` has passed."""

    def drop(self) -> None:
        """Called when the answer is no longer needed: it has timed out, or the client is gone."""


@dataclass(slots=True)
class Deferred:
    """What a handler returns for an answer that does not delay the later requests of its connection."""

    start: Callable[[Done], Awaitable[None] | None]
    """Starts the request; its argument receives the response, or the refusal of a request without an answer. The next request of the
    connection waits for what is returned."""
    timed_out: Callable[[], msgspec.Struct]
    """The response after the client's timeout."""
    forget: Callable[[], None]
    """Called when the answer is no longer needed."""
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
        """Answer with the timeout."""
        self._done(self._deferred.timed_out())
        self.drop()

    def drop(self) -> None:
        """Forget the request."""
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
        except Exception as error:  # noqa: BLE001 - the core is answering others, too; only this request fails
            future.set_exception(error)

    try:
        start(done)
    except PenstockError as error:
        done(error)
    return future
