"""Many strangers at once, each from an address of its own (all of 127.0.0.0/8 is this machine), so that the limits for one address do not hide faults."""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.runtime.loop import new_event_loop
from tests.fuzz.doors import Conversation

SECONDS_MAX = 120.0
"""For the broker to close a connection whose client sends no more."""
KEPT_BYTES_MAX = 64 * 1024
BETWEEN_CHECKS = 2_000
"""Frames between two logins of a good client."""
REFUSED_SHARE_MAX = 0.05
"""Of connections that the broker closes before they say anything, since they are the oldest of too many."""
GONE = 0.2
"""The share of strangers that leave without waiting."""


class Conversing(asyncio.Protocol):
    """A connection of a stranger."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived = asyncio.Event()
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        if len(self._received) < KEPT_BYTES_MAX:
            self._received += data
        self._arrived.set()

    def connection_lost(self, _: Exception | None) -> None:
        self._arrived.set()
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    async def answer(self) -> bytes:
        async with asyncio.timeout(SECONDS_MAX):
            await self._arrived.wait()
        if not self.closed.done():
            self._arrived.clear()
        data = bytes(self._received)
        self._received.clear()
        return data

    async def leave(self, *, at_once: bool) -> None:
        """Disconnect: at once, or after everything is answered."""
        assert self._transport is not None
        if at_once:
            self._transport.abort()
        elif self._transport.get_extra_info("ssl_object") is None:
            if not self._transport.is_closing():
                self._transport.write_eof()
        else:
            self._transport.close()
        async with asyncio.timeout(SECONDS_MAX):
            await self.closed


@dataclass
class Crowd:
    """Strangers at the places of some listeners, who say so many mutated messages in all."""

    places: list[tuple[str, int]]
    conversation: Conversation
    seed: str
    frames: int
    at_once: int = 128
    context: ssl.SSLContext | None = None
    check: Callable[[], None] | None = None
    """Whether a good client gets in, in a thread of its own."""
    sent: int = field(default=0, init=False)
    begun: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    checks: int = field(default=0, init=False)
    _due: asyncio.Event = field(init=False)
    """Set when it is time for the next check."""

    def run(self) -> int:
        """Returns how many messages they said."""
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._run())
        return self.sent

    async def _run(self) -> None:
        self._due = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(self.at_once):
                group.create_task(self._many())
            if self.check is not None:
                group.create_task(self._check(self.check))

    async def _check(self, check: Callable[[], None]) -> None:
        while self.sent < self.frames:
            await asyncio.to_thread(check)
            self.checks += 1
            self._due.clear()
            if self.sent < min(self.frames, self.checks * BETWEEN_CHECKS):
                await self._due.wait()

    def _count(self, messages: int) -> None:
        self.sent += messages
        if self.sent >= min(self.frames, self.checks * BETWEEN_CHECKS):
            self._due.set()

    async def _many(self) -> None:
        while self.sent < self.frames:
            self.begun += 1
            # By the number of the connection, so that the order in which they end changes nothing.
            await self._one(random.Random(f"{self.seed}/{self.begun}"))

    async def _one(self, rng: random.Random) -> None:
        source = f"127.{rng.randint(1, 254)}.{rng.randint(0, 254)}.{rng.randint(1, 254)}"
        host, port = rng.choice(self.places)
        loop = asyncio.get_running_loop()
        sock_options: dict[str, Any] = (
            {"ssl": self.context, "server_hostname": "127.0.0.1"} if self.context is not None else {}
        )
        try:
            _, stranger = await loop.create_connection(Conversing, host, port, local_addr=(source, 0), **sock_options)
        except ConnectionError as error:
            # It was the oldest of too many.
            self.refused += 1
            if self.refused > REFUSED_SHARE_MAX * self.begun + self.at_once:
                raise AssertionError(f"{self.refused} of {self.begun} connections were refused") from error
            return
        self._count(await self.conversation(rng, stranger))
        await stranger.leave(at_once=rng.random() < GONE)
