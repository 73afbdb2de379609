"""Redis Streams: XADD and XREAD by raw RESP, with the append-only file synced every second or on every write."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.base import Flush, free_port, run_tool
from bench.peers.singles import SinglesPeer
from penstock.address import Address
from penstock.bench.delivery import STAMP
from penstock.bench.faults import BenchError
from penstock.bench.kafka import connect
from penstock.bench.pump import Counter, TokenCounter

KEY = b"bench"
ENTRY_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")
Reply = bytes | int | list["Reply"] | None


def command_frame(*words: bytes) -> bytes:
    """A command in RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def parse_reply(data: bytes, at: int) -> tuple[Reply, int] | None:
    """The reply at `at` and where it ends; None while it is not whole."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, text = data[at : at + 1], data[at + 1 : line_end]
    at = line_end + 2
    if kind in (b"+", b"-"):
        if kind == b"-":
            raise BenchError(f"Redis answered with an error: {text.decode(errors='replace')}")
        return text, at
    number = int(text)
    if kind == b":":
        return number, at
    if number < 0:
        return None, at
    if kind == b"$":
        return (data[at : at + number], at + number + 2) if len(data) >= at + number + 2 else None
    items: list[Reply] = []
    for _ in range(number):
        item = parse_reply(data, at)
        if item is None:
            return None
        items.append(item[0])
        at = item[1]
    return items, at


class RedisTap:
    """XREAD that blocks: one is always waiting at the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self._last = b"0-0"
        self._ask()

    def _ask(self) -> None:
        self._sock.sendall(command_frame(b"XREAD", b"COUNT", b"1000", b"BLOCK", b"0", b"STREAMS", KEY, self._last))

    def feed(self, data: memoryview) -> list[int]:
        """The stamps of all entries in a whole reply."""
        self._data += data
        whole = parse_reply(self._data, 0)
        if whole is None:
            return []
        text, self._data = self._data[: whole[1]], self._data[whole[1] :]
        self._last = ENTRY_ID.findall(text)[-1]
        self._ask()
        return [int(stamp) for stamp in STAMP.findall(text)]


class Redis(SinglesPeer):
    """A Redis server with an append-only file."""

    name = "redis"
    title = "Redis Streams"

    def __init__(self, home: Path, flush: Flush) -> None:
        super().__init__(home, flush)
        self.address = Address("127.0.0.1", free_port())

    @classmethod
    def why_missing(cls) -> str | None:
        """Debian's package is enough."""
        if not shutil.which("redis-server"):
            return "no redis-server on the PATH: install Debian's package redis-server"
        cls.title = f"Redis Streams {run_tool(['redis-server', '--version'], 'ask Redis for its version').split('v=')[1].split()[0]}"
        return None

    def command(self) -> tuple[list[str], dict[str, str]]:
        """No snapshots: the append-only file is what keeps the data."""
        sync = "always" if self.flush is Flush.SYNC else "everysec"
        options = (
            f"--bind 127.0.0.1 --port {self.address.port} --appendonly yes --appendfsync {sync} --daemonize no".split()
        )
        return ["redis-server", *options, "--save", "", "--dir", str(self.home / "data")], {}

    def ask(self, *words: bytes) -> Reply:
        """One command and its reply, on a connection of its own."""
        with connect(self.address) as sock:
            sock.sendall(command_frame(*words))
            data = b""
            while (reply := parse_reply(data, 0)) is None:
                piece = sock.recv(1 << 16)
                if not piece:
                    raise BenchError("Redis closed the connection")
                data += piece
            return reply[0]

    def is_ready(self) -> bool:
        """Whether it answers PING."""
        return self.ask(b"PING") == b"PONG"

    @contextmanager
    def fresh_stream(self) -> Iterator[None]:
        """A stream is made by its first entry."""
        self.ask(b"DEL", KEY)
        try:
            yield
        finally:
            self.ask(b"DEL", KEY)

    def connect(self, connection: int) -> socket.socket:  # noqa: ARG002  all connections are alike
        """Nothing is to be said first."""
        return connect(self.address)

    def frame(self, connection: int, value: bytes) -> bytes:  # noqa: ARG002  all connections are alike
        """XADD with one field."""
        return command_frame(b"XADD", KEY, b"*", b"v", value)

    def counter(self) -> Counter:
        """Each answer is an entry's name, which has one dash; an error line begins with one."""
        return TokenCounter(b"-", (b"\n-",))

    def tap(self, sock: socket.socket) -> RedisTap:
        """XREAD."""
        return RedisTap(sock)
