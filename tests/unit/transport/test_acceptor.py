"""The way into a gateway: limits on those that are not known, handshakes, and mistakes that are named. On both event loops."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from penstock.settings import LimitSettings, TlsSettings
from penstock.transport.acceptor import Reception
from penstock.transport.listener import Arrival, Door, Listener
from penstock.transport.listening import address_of, bind
from penstock.transport.tls import ServerTls
from tests.support.certificates import Authority
from tests.support.listeners import LOOPBACK

SECONDS_MAX = 60.0
PLAIN_ANSWER = b"use TLS"


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def __init__(self, arrival: Arrival, house: "House") -> None:
        self.arrival = arrival
        self._house = house

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.arrival.on_crowded = self.transport.abort
        self._house.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.arrival.known()
        self._house.connections.remove(self)


class House:
    """One listener with its reception."""

    def __init__(self, limits: LimitSettings, tls: ServerTls | None, *, until_authenticated: bool) -> None:
        self.reception = Reception(limits, until_authenticated=until_authenticated)
        sock = bind(LOOPBACK)
        self.listener = Listener("door", address_of(sock), self.reception.accept, sock, tls=tls)
        self.connections: list[Echo] = []

    async def connect(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(SECONDS_MAX):
            return await asyncio.open_connection(*self.listener.address, ssl=context)

    def failed(self, reason: str) -> int:
        return self.reception.failures.get(("door", reason))


@contextlib.asynccontextmanager
async def house(
    tls: ServerTls | None = None, *, until_authenticated: bool = False, **limits: int
) -> AsyncIterator[House]:
    made = House(LimitSettings(**limits), tls, until_authenticated=until_authenticated)
    accepting = await made.listener.serve(Door(lambda arrival: Echo(arrival, made), lambda _: PLAIN_ANSWER))
    try:
        yield made
    finally:
        accepting.close()
        for connection in made.connections:
            connection.transport.abort()
        await until(lambda: not made.connections)


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


async def closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(SECONDS_MAX):
        try:
            return not await reader.read()
        except ConnectionError:
            return True


async def is_echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"hello")
    async with asyncio.timeout(SECONDS_MAX):
        return await reader.readexactly(5) == b"hello"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as made:
        yield made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority) -> ServerTls:
    pair = authority.server()
    return ServerTls(TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key)), lambda _: "anna")


def connections_of_this_process() -> int:
    """Its open TCP sockets; the event loops open others for themselves."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                count += sock.family == socket.AF_INET
        except OSError:
            continue
    return count


def leaves_nothing_open(runner: asyncio.Runner, scenario: Coroutine[Any, Any, None]) -> None:
    """Run it; what it opened is closed afterwards."""
    before = connections_of_this_process()

    async def measured() -> None:
        await scenario
        await until(lambda: connections_of_this_process() <= before)

    runner.run(measured())


def test_bytes_go_both_ways_with_and_without_tls(runner: asyncio.Runner, authority: Authority, tls: ServerTls) -> None:
    async def scenario() -> None:
        for encryption, context in ((None, None), (tls, authority.context)):
            async with house(encryption) as made:
                reader, writer = await made.connect(context)
                assert await is_echoed(reader, writer)
                assert made.connections[0].arrival.host == "127.0.0.1"
                assert made.reception.stranger_count == 0
                writer.close()

    leaves_nothing_open(runner, scenario())


def test_who_is_silent_makes_room_for_the_next(runner: asyncio.Runner, authority: Authority, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls, strangers_per_address_max=3) as made:
            silent = [await made.connect() for _ in range(3)]
            await until(lambda: made.reception.stranger_count == 3)
            # The first has begun its handshake, which does not help it.
            silent[0][1].write(b"\x16\x03\x01")
            good = await made.connect(authority.context)
            assert await is_echoed(*good)
            assert await closed(silent[0][0])
            assert made.failed("crowded") == 1
            assert made.reception.stranger_count == 2
            for _, writer in (*silent, good):
                writer.close()
            await until(lambda: made.reception.stranger_count == 0)

    leaves_nothing_open(runner, scenario())


def test_one_that_arrives_and_has_to_go_at_once_leaves_nothing(runner: asyncio.Runner, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls, strangers_per_address_max=1) as made:
            many = [socket.create_connection(made.listener.address) for _ in range(50)]
            for sock in many:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(b"\x16\x03\x01")
            await until(lambda: made.failed("crowded") == 49)
            for sock in many:
                sock.close()
            await until(lambda: made.reception.stranger_count == 0)

    leaves_nothing_open(runner, scenario())


def test_all_listeners_together_have_a_limit(runner: asyncio.Runner, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls, strangers_max=2) as made:
            silent = [await made.connect() for _ in range(3)]
            assert await closed(silent[0][0])
            assert made.reception.stranger_count == 2
            for _, writer in silent:
                writer.close()

    leaves_nothing_open(runner, scenario())


def test_who_must_authenticate_is_a_stranger_until_then(runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        async with house(until_authenticated=True, strangers_per_address_max=2) as made:
            first, second = await made.connect(), await made.connect()
            await until(lambda: len(made.connections) == 2)
            assert made.reception.stranger_count == 2
            made.connections[0].arrival.known()
            third, fourth = await made.connect(), await made.connect()
            assert await closed(second[0])
            assert await is_echoed(*first)
            for _, writer in (first, second, third, fourth):
                writer.close()
            await until(lambda: made.reception.stranger_count == 0)

    leaves_nothing_open(runner, scenario())


def test_a_client_without_tls_gets_an_answer_in_its_protocol(runner: asyncio.Runner, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls) as made:
            reader, writer = await made.connect()
            writer.write(b"GET / HTTP/1.1\r\n" + bytes(100_000))
            async with asyncio.timeout(SECONDS_MAX):
                assert await reader.read() == PLAIN_ANSWER
            assert made.failed("not_tls") == 1
            writer.close()
            await until(lambda: made.reception.stranger_count == 0)

    leaves_nothing_open(runner, scenario())


def test_a_client_that_goes_is_forgotten(runner: asyncio.Runner, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls) as made:
            for begun in (b"", b"\x16\x03\x01"):
                _, writer = await made.connect()
                writer.write(begun)
                await until(lambda: made.reception.stranger_count == 1)
                writer.close()
                await until(lambda: made.reception.stranger_count == 0)
            assert made.failed("disconnected") == 2

    leaves_nothing_open(runner, scenario())


def test_the_client_gets_the_alert_of_a_failed_handshake(
    runner: asyncio.Runner, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.server()
    files = {"cert_file": str(pair.certificate), "key_file": str(pair.key), "ca_file": str(authority.file)}
    from penstock.settings import ClientAuth

    strict = ServerTls(TlsSettings(**files, client_auth=ClientAuth.REQUIRED), lambda _: "anna")

    async def scenario() -> None:
        async with house(strict) as made:
            reader, writer = await made.connect(authority.context)
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
                async with asyncio.timeout(SECONDS_MAX):
                    await reader.read()
            await until(lambda: made.failed("no_certificate") == 1)
            assert not made.connections
            writer.close()

    leaves_nothing_open(runner, scenario())


def test_handshakes_above_the_rate_wait_and_are_not_refused(
    runner: asyncio.Runner, authority: Authority, tls: ServerTls
) -> None:
    async def scenario() -> None:
        async with house(tls, handshake_rate_max=2) as made:
            waits = [made.reception.wait_seconds() for _ in range(2)]
            assert waits == [0, 0]
            assert 0 < made.reception.wait_seconds() <= 0.5
            reader, writer = await made.connect(authority.context)
            assert await is_echoed(reader, writer)
            writer.close()

    leaves_nothing_open(runner, scenario())


def test_a_listener_that_closes_ends_those_that_are_not_in_yet(runner: asyncio.Runner, tls: ServerTls) -> None:
    async def scenario() -> None:
        async with house(tls) as made:
            silent, begun = await made.connect(), await made.connect()
            begun[1].write(b"\x16\x03\x01")
            await until(lambda: made.reception.stranger_count == 2)
        for reader, writer in (silent, begun):
            assert await closed(reader)
            writer.close()

    leaves_nothing_open(runner, scenario())


def test_strangers_cannot_fill_the_log(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture) -> None:
    from penstock.transport.handshakes import NOT_TLS, TIMEOUT

    async def scenario() -> None:
        async with house() as made:
            arrival = Arrival(made.listener, "10.0.0.1", made.reception)
            for _ in range(1000):
                arrival.failed(NOT_TLS)
            arrival.failed(TIMEOUT)
            assert made.failed("not_tls") == 1000

    runner.run(scenario())
    assert caplog.text.count("does not use TLS") == 10
    assert "handshake took too long" in caplog.text, "another reason is not hidden"
