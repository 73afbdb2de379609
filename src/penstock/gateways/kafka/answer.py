"""A place in a connection's order of answers: empty until what the client asked for has happened."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.meters import Histogram
from penstock.types import Buffer

if TYPE_CHECKING:
    from penstock.gateways.kafka.connection import KafkaConnection


class Answer:
    """Completed once, with the buffers of a whole frame."""

    __slots__ = ("arrived", "connection", "due_ms", "forget", "late", "latency", "parts")

    def __init__(self, connection: "KafkaConnection", latency: Histogram) -> None:
        self.connection = connection
        self.arrived = connection.arrived
        """When the request was read: an answer that leaves is observed in ``latency``."""
        self.latency = latency
        self.parts: list[Buffer] | None = None
        self.due_ms: int | None = None
        self.late: Callable[[], None] | None = None
        self.forget: Callable[[], None] | None = None

    def complete(self, parts: list[Buffer]) -> None:
        """This is the answer; it leaves when those before it have left."""
        if self.parts is None:
            self.parts = parts
            self.connection.ready()

    def time_out(self) -> None:
        """The time that the client gave is up."""
        if self.late is not None:
            self.late()
        self.drop()

    def drop(self) -> None:
        """Nobody waits for it any more: its time is up, or the client is gone."""
        if self.forget is not None:
            self.forget()
