"""A connection whose other end the test holds: it decides how bytes are cut, and whether answers are taken."""

import asyncio
import json
from pathlib import Path
from typing import Any, Self

from penstock.gateways.tcp.connection import TcpConnection
from penstock.gateways.tcp.gateway import TcpBounds, TcpGateway
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until
from tests.support.listeners import arrival


class Pipe(asyncio.Transport):
    """What the event loop would be to a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.closed = False
        self.aborted = False
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data
        self.writes += 1

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Client:
    """One connection of a :class:`TcpNode`."""

    def __init__(self, gateway: TcpGateway) -> None:
        self.pipe = Pipe()
        self.connection = TcpConnection(gateway, arrival("tcp"))
        self.connection.connection_made(self.pipe)

    def send(self, *lines: dict[str, Any] | bytes) -> None:
        """Lines, in one piece."""
        self.pieces(
            b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
        )

    def pieces(self, *pieces: bytes) -> None:
        """Bytes as they are, one call each."""
        for piece in pieces:
            assert self.pipe.reading, "a connection that is paused gets nothing"
            self.connection.data_received(piece)

    @property
    def answers(self) -> list[dict[str, Any]]:
        """All so far."""
        return [json.loads(line) for line in bytes(self.pipe.written).splitlines()]

    async def answered(self, count: int) -> list[dict[str, Any]]:
        """All answers, once there are so many."""
        await until(lambda: self.pipe.written.count(b"\n") >= count)
        return self.answers

    def gone(self) -> None:
        """The client is no more."""
        self.pipe.closed = True
        self.connection.connection_lost(None)


class TcpNode(KafkaNode):
    """A node with a TCP gateway that listens nowhere."""

    def __init__(self, data_dir: Path, bounds: TcpBounds | None = None, **settings: Any) -> None:
        super().__init__(data_dir, **settings)
        self._bounds = bounds

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.tcp = TcpGateway(self.broker, self.flusher.turn, self.settings.tcp, self.settings.limits, self._bounds)
        await self.create("t", 2)
        return self

    def connect(self) -> Client:
        return Client(self.tcp)


def produce(value: str, topic: str = "t", partition: int = 0) -> dict[str, Any]:
    return {"type": "produce", "topic": topic, "value": value, "partition": partition}


FETCH = {"type": "fetch", "topic": "t", "partition": 0, "offset": 0, "max": 10_000}
LIST = {"type": "listTopics"}
