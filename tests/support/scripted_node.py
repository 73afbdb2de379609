"""Another node as a test wants it to be: an HTTP listener that shows what came, and answers with exactly the bytes it is told to."""

import asyncio
import re
from collections.abc import Awaitable, Callable

Answer = Callable[["Asked"], Awaitable[None]]


class Asked:
    """One request, and the way to answer it."""

    def __init__(self, connection: int, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        """Which connection it came on, counted from 1."""
        self.line, *lines = head.decode("latin-1").split("\r\n")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        self.body = body
        self.writer = writer

    def answer(self, status: int = 200, body: bytes = b"{}", *headers: str) -> None:
        lines = [
            f"HTTP/1.1 {status} X",
            f"content-length: {len(body)}",
            "content-type: application/json",
            *headers,
            "",
            "",
        ]
        self.writer.write("\r\n".join(lines).encode() + body)

    def begin_stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def piece(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def cut(self) -> None:
        self.writer.transport.abort()


class ScriptedNode:
    """Use it as an async context manager. ``answer`` is called for each request of a connection, in their order."""

    def __init__(self, answer: Answer | None = None) -> None:
        self._answer = answer
        self.asked: list[Asked] = []
        self.connections = 0
        self.lost = 0
        """Connections that the other end has closed."""

    async def __aenter__(self) -> "ScriptedNode":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None] | None] = set()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self._server.close()
        for task in self._tasks:
            if task is not None:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"\r\ncontent-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                asked = Asked(number, head, body, writer)
                self.asked.append(asked)
                if self._answer is None:
                    asked.answer()
                else:
                    await self._answer(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()
