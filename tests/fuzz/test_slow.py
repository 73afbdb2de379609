"""A thousand strangers at once who say nothing, or next to nothing: a good client gets in meanwhile, memory is bounded, and the limits close all of them."""

import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.limits import STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest
from tests.fuzz.doors import client_hellos
from tests.support.kafka_wire import encode
from tests.support.secured import SecuredProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.0/8 is this machine")

CLOSED_SECONDS_MAX = 90.0
"""The limits are 10 s; a busy machine may need longer."""
DRIP_SECONDS = 1.0
GROWTH_BYTES_MAX = 256 * 1024 * 1024
HALF = {
    "kafka": encode(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest("SCRAM-SHA-256"), 1) + b"\0\0",
    "http": b"GET /v1/topics HTTP/1.1\r\nHost: 127",
    "tcp": b'{"type": "auth", "user": "',
    "grpc": b"PRI * HTTP/2.0\r\n",
}
"""After the handshake of TLS: an exchange that does not go on."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredProcess]:
    with SecuredProcess(tmp_path_factory.mktemp("slow"), tls=True) as broker:
        for door in HALF:
            broker.enter(door)
        yield broker
        assert "Traceback" not in broker.log_text(), broker.log_text()


class Slow:
    """One stranger: silent, dripping, in the middle of the handshake, or of its login."""

    def __init__(self, broker: SecuredProcess, door: str, number: int, source: str) -> None:
        kind = number % 4
        hello = client_hellos()[0]
        self.rest = hello if kind == 1 else b""
        """What it sends byte by byte."""
        if kind == 3:
            assert broker.context is not None
            plain = socket.create_connection(broker.place(door), 60, (source, 0))
            self.sock: socket.socket = _handshaken(broker.context, plain, door)
            self.sock.sendall(HALF[door])
        else:
            self.sock = socket.create_connection(broker.place(door), 60, (source, 0))
            if kind == 2:
                self.sock.sendall(hello[: len(hello) // 2])
        self.sock.setblocking(False)

    def drip(self) -> None:
        """The next byte."""
        if self.rest:
            self.sock.send(self.rest[:1])
            self.rest = self.rest[1:]

    def is_closed(self) -> bool:
        """Whether the broker has closed the connection; what it says before that does not matter."""
        try:
            return self.sock.recv(4096) == b""
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True


def _handshaken(context: ssl.SSLContext, sock: socket.socket, door: str) -> socket.socket:
    if door == "grpc":
        context.set_alpn_protocols(["h2"])
    return context.wrap_socket(sock, server_hostname="127.0.0.1")


class Strangers:
    """All of them."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.dripped = time.monotonic()

    def add(self, slow: Slow) -> None:
        self.selector.register(slow.sock, selectors.EVENT_READ, slow)

    @property
    def all(self) -> list[Slow]:
        return [key.data for key in self.selector.get_map().values()]

    def watch(self, seconds: float) -> None:
        """Wait for the broker, and forget the connections that it has closed."""
        for key, _ in self.selector.select(seconds):
            if key.data.is_closed():
                self.selector.unregister(key.fileobj)
                key.data.sock.close()
        if time.monotonic() - self.dripped >= DRIP_SECONDS:
            self.dripped = time.monotonic()
            for slow in self.all:
                try:
                    slow.drip()
                except OSError:
                    # The broker has closed it, which the next turn sees.
                    slow.rest = b""

    def watch_until(self, most: int) -> None:
        """Return when no more than so many are connected."""
        deadline = time.monotonic() + CLOSED_SECONDS_MAX
        while len(self.selector.get_map()) > most:
            assert time.monotonic() < deadline, f"{len(self.all)} are still connected"
            self.watch(DRIP_SECONDS)


@pytest.mark.parametrize("door", ["kafka", "http", "tcp", "grpc"])
def test_slow_and_silent_strangers_keep_nobody_out_and_are_closed(
    broker: SecuredProcess, door: str, tmp_path: Path
) -> None:
    size = broker.resident_bytes()
    strangers = Strangers()
    for number in range(STRANGERS_MAX):
        strangers.add(Slow(broker, door, number, f"127.1.1.{1 + number // STRANGERS_PER_ADDRESS_MAX}"))
        if number % 100 == 99:
            broker.enter(door)
            strangers.watch(0)
    broker.enter(door)
    assert broker.resident_bytes() - size < GROWTH_BYTES_MAX
    # Every one of them, though some still drip.
    strangers.watch_until(0)
    broker.enter(door)
    assert broker.resident_bytes() - size < GROWTH_BYTES_MAX


@pytest.mark.parametrize("door", ["kafka", "http", "tcp"])
def test_the_newest_strangers_of_an_address_take_the_places_of_its_oldest(broker: SecuredProcess, door: str) -> None:
    strangers = Strangers()
    elsewhere = Slow(broker, door, 0, "127.2.2.1")
    for _ in range(STRANGERS_PER_ADDRESS_MAX + 10):
        strangers.add(Slow(broker, door, 0, "127.2.2.2"))
    oldest = strangers.all[:10]
    strangers.watch_until(STRANGERS_PER_ADDRESS_MAX)
    assert all(slow.sock.fileno() < 0 for slow in oldest)
    assert not elsewhere.is_closed(), "one address has no effect on another"
    broker.enter(door)
    for slow in [*strangers.all, elsewhere]:
        slow.sock.close()
