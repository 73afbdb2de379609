"""Headless Chromium, and what it needs for attacks: a site with a page, and a relay that shows what passes between browser and broker."""

import asyncio
import contextlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

CHROMIUM = shutil.which("chromium")
SECONDS_MAX = 60.0
EVIL = "evil.test"
"""The name of a site that is not the broker; for the browser it means loopback."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps"),
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
    f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
)
"""Without the browser's own checks of requests to loopback, which other browsers and older versions do not have."""


@contextlib.asynccontextmanager
async def browsing(url: str, profile: Path, log: Path) -> AsyncIterator[None]:
    """A browser that opens an address, with a new profile."""
    assert CHROMIUM is not None
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", url, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@dataclass(slots=True)
class Exchange:
    """A request as the browser sent it, and the status of its answer."""

    method: str
    target: str
    head: str
    status: int = 0


@dataclass(slots=True)
class Site:
    """A web server with one page, at every path; it remembers what is posted to it."""

    page: Callable[[], str]
    reports: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)content-length: (\d+)", head)
            if length is not None:
                self.reports.put_nowait((await reader.readexactly(int(length[1]))).decode())
            body = b"" if length is not None else self.page().encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            await writer.drain()
        writer.close()


class Relay:
    """Stands between the browser and a broker, and can be a site at first: by that, a name is rebound."""

    def __init__(self, broker: str) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = host, int(port)
        self.exchanges: list[Exchange] = []
        self.site: Site | None = None
        """Serves the connections while it is set."""
        self.port = 0
        self._changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass the requests of a connection on, one after the other."""
        if self.site is not None:
            await self.site.serve(reader, writer)
            return
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            upward_reader, upward = await asyncio.open_connection(*self._broker)
            try:
                while True:
                    await self._exchange(reader, upward, upward_reader, writer)
            finally:
                upward.transport.abort()
        writer.close()

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        upward: asyncio.StreamWriter,
        upward_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode("latin-1").split(" ", 2)
        seen = Exchange(method, target, head.decode("latin-1").lower())
        upward.write(head + await self._body(head, reader))
        answer = await upward_reader.readuntil(b"\r\n\r\n")
        seen.status = int(answer.split(b" ", 2)[1])
        self.exchanges.append(seen)
        self._changed.set()
        writer.write(answer + (await self._body(answer, upward_reader) if method != "HEAD" else b""))
        await writer.drain()

    @staticmethod
    async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return await reader.readexactly(int(length[1])) if length is not None else b""

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until it holds for what has passed."""
        async with asyncio.timeout(SECONDS_MAX):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def of(self, mark: str) -> list[Exchange]:
        """The exchanges whose target has this mark."""
        return [seen for seen in self.exchanges if mark in seen.target]


@contextlib.asynccontextmanager
async def listening(what: Site | Relay) -> AsyncIterator[None]:
    """On a free port of loopback."""
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.create_task(what.serve(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    what.port = server.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        server.close()
        for task, writer in serving.items():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
