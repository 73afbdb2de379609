"""What a client that has not logged in can cost: no request of its is read, and no more than a few of its calls wait."""

import asyncio
import base64
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from penstock.config import load
from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.logins import Strangers
from penstock.limits import (
    GRPC_CONNECTION_STREAMS_MAX,
    GRPC_LOOKAHEAD_BYTES,
    KIB,
    LOGINS_PER_CLIENT_MAX,
    MIB,
)
from penstock.server import Server
from penstock.settings import LimitSettings
from penstock.testing.broker import TEST_SETTINGS
from penstock.wire.mq import mq_generated as mq
from tests.support.kafka_wire import until

PATH = "/mq.MessageQueueService"
ROOT = "root-marked-1"
LIMITS = LimitSettings(strangers_max=3, strangers_per_address_max=2)


@pytest.fixture
def read(monkeypatch):
    """The sizes of all requests that were read."""
    sizes = []

    def noted(_name, decode, raw):
        sizes.append(len(raw))
        return decode(raw)

    monkeypatch.setattr("penstock.gateways.grpc.service._decode", noted)
    return sizes


@pytest_asyncio.fixture
async def secured(tmp_path: Path, gateways, read):
    """A broker whose clients must log in, with room for two strangers of an address. Its failed logins are not answered."""
    file = tmp_path / "password"
    file.write_text(ROOT)
    file.chmod(0o600)
    settings = {
        **TEST_SETTINGS,
        "listeners.grpc": "127.0.0.1:0",
        "server.data_dir": str(tmp_path / "data"),
        "security.authentication": "required",
        "security.admin_password_file": str(file),
        "limits.strangers_per_address_max": 2,
    }
    node = Server(load(flags=settings))
    await node.start()
    late = asyncio.get_running_loop().create_future()
    pauses: list[int] = []

    async def pause(milliseconds: int) -> None:
        pauses.append(milliseconds)
        await late

    gateways[0].broker.authenticator.attempts.pause = pause
    gateways[0].pauses = pauses
    yield node
    if not late.done():
        late.set_result(None)
    await node.stop()


@pytest_asyncio.fixture
async def channel(secured):
    async with grpc.aio.insecure_channel(str(secured.addresses["grpc"])) as connected:
        yield connected


def metadata(password: str, user: str = "admin") -> tuple[tuple[str, str], ...]:
    return (("authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()),)


async def refusal(call) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code()


async def test_the_request_of_a_call_is_read_after_its_login_and_not_without_one(
    secured, gateways, channel, read
) -> None:
    body = mq.PublishRequest(topic="nowhere", payload=b"x").SerializeToString()
    publish = channel.unary_unary(f"{PATH}/Publish")
    subscribe = channel.unary_stream(f"{PATH}/Subscribe")
    waiting = publish(body, metadata=metadata("wrong"), timeout=20)
    streaming = subscribe(body, metadata=metadata("wrong too"), timeout=20)
    await until(lambda: len(gateways[0].pauses) == 2)
    assert await refusal(publish(body, timeout=20)) is grpc.StatusCode.UNAUTHENTICATED
    assert read == []
    assert await refusal(publish(body, metadata=metadata(ROOT), timeout=20)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    waiting.cancel()
    streaming.cancel()
    await until(lambda: not gateways[0].broker.authenticator._under_way)
    assert await refusal(publish(body, metadata=metadata(ROOT), timeout=20)) is grpc.StatusCode.NOT_FOUND
    assert read == [len(body)]


async def test_calls_of_a_client_that_is_known_are_served_while_strangers_wait_at_its_address(
    secured, gateways, channel
) -> None:
    topics = channel.unary_unary(f"{PATH}/ListTopics")
    await topics(b"", metadata=metadata(ROOT), timeout=20)
    waiting = [topics(b"", metadata=metadata(f"wrong-{number}"), timeout=20) for number in range(2)]
    await until(lambda: len(gateways[0].pauses) == 2)
    another = topics(b"", metadata=metadata("wrong-3"), timeout=20)
    assert await refusal(another) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await topics(b"", metadata=metadata(ROOT), timeout=20)
    for call in waiting:
        call.cancel()


async def test_a_client_may_begin_with_many_calls_at_once(secured, channel) -> None:
    topics = channel.unary_unary(f"{PATH}/ListTopics")
    calls = [topics(b"", metadata=metadata(ROOT), timeout=20) for _ in range(2 * LOGINS_PER_CLIENT_MAX)]
    assert len(await asyncio.gather(*calls)) == len(calls)


async def test_a_call_without_its_request_is_an_invalid_argument(secured, channel) -> None:
    call = channel.stream_unary(f"{PATH}/ListTopics")(iter([]), metadata=metadata(ROOT), timeout=20)
    assert await refusal(call) is grpc.StatusCode.INVALID_ARGUMENT


# The places.


def test_strangers_have_places_by_address_and_in_total_and_one_credential_takes_one() -> None:
    strangers = Strangers(LIMITS)
    with strangers.checking("a", b"1"), strangers.checking("a", b"1"), strangers.checking("a", b"2"):
        with pytest.raises(PenstockError) as refused, strangers.checking("a", b"3"):
            pass
        assert refused.value.reason is Reason.POLICY_VIOLATION
        with strangers.checking("b", b"1"), pytest.raises(PenstockError), strangers.checking("c", b"1"):
            pass
        with strangers.checking("c", b"1"):
            pass
    assert strangers._by_network == {}
    assert strangers._count == 0


def test_addresses_of_one_network_of_ipv6_have_the_same_places() -> None:
    strangers = Strangers(LIMITS)
    with strangers.checking("2001:db8::1", b"1"), strangers.checking("2001:db8::2", b"2"):
        with pytest.raises(PenstockError), strangers.checking("2001:db8::3", b"3"):
            pass
        with strangers.checking("2001:db8:1::1", b"3"):
            pass


def test_even_one_credential_has_no_more_calls_than_one_connection() -> None:
    strangers = Strangers(LIMITS)
    waiting = [strangers.checking("a", b"1") for _ in range(GRPC_CONNECTION_STREAMS_MAX)]
    for call in waiting:
        call.__enter__()
    with pytest.raises(PenstockError), strangers.checking("a", b"1"):
        pass
    for call in waiting:
        call.__exit__(None, None, None)
    with strangers.checking("a", b"2"):
        pass


# What is sent ahead.


async def test_a_client_cannot_send_megabytes_ahead_of_its_login(secured, gateways) -> None:
    sent = 0

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        nonlocal sent
        while data := await reader.read(64 * KIB):
            sent += len(data) if counts else 0
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = secured.addresses["grpc"]
        upstream = await asyncio.open_connection(address.host, address.port)
        await asyncio.gather(relay(reader, upstream[1], counts=True), relay(upstream[0], writer, counts=False))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        topics = channel.unary_unary(f"{PATH}/ListTopics")
        await topics(b"", metadata=metadata(ROOT), timeout=20)
        body = mq.PublishRequest(topic="t", payload=bytes(16 * MIB)).SerializeToString()
        waiting = channel.unary_unary(f"{PATH}/Publish")(body, metadata=metadata("wrong"), timeout=60)
        await until(lambda: gateways[0].pauses and sent > GRPC_LOOKAHEAD_BYTES)
        # Whatever was sent before these calls has come.
        for _ in range(200):
            await topics(b"", metadata=metadata(ROOT), timeout=20)
        assert sent < 4 * GRPC_LOOKAHEAD_BYTES
        waiting.cancel()
