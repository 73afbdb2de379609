"""The simulated network: order within a connection, cuts, resets."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.address import Address
from penstock.testing.simulation.loop import Process, SimulatedLoop
from penstock.testing.simulation.network import RESET_SECONDS, Network, SimulatedListener

SERVER = Address("10.0.0.1", 9)


class World:
    """A server that notes what it gets, and a client."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1))
        self.network = Network(self.loop)
        self.server = Process("server", SERVER.host)
        self.client = Process("client", "10.0.0.2")
        self.got = b""
        self.ended: str | None = None

    async def _serve(self) -> None:
        await asyncio.start_server(self._connected, sock=SimulatedListener(SERVER))  # type: ignore[arg-type]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                self.got += data
            self.ended = "closed"
        except ConnectionError:
            self.ended = "reset"
        finally:
            writer.close()

    def run(self, story: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        async def tell() -> None:
            _, writer = await asyncio.open_connection(*SERVER)
            try:
                await story(writer)
            finally:
                writer.close()

        self.loop.run_until_complete(self.loop.spawn(self.server, self._serve()))
        try:
            self.loop.run_until_complete(self.loop.spawn(self.client, tell()))
        finally:
            self.network.bury()
            self.server.bury()
            self.client.bury()
            self.loop.close()


def test_bytes_arrive_in_order_after_a_while_and_then_the_end() -> None:
    world = World()

    async def story(writer: asyncio.StreamWriter) -> None:
        for number in range(50):
            writer.write(b"%02d" % number)
        assert world.got == b""
        writer.close()
        await asyncio.sleep(1)

    world.run(story)
    assert world.got == b"".join(b"%02d" % number for number in range(50))
    assert world.ended == "closed"


def test_a_cut_link_holds_bytes_back_until_it_is_mended() -> None:
    world = World()
    way = (world.client.host, world.server.host)

    async def story(writer: asyncio.StreamWriter) -> None:
        writer.write(b"on its way ")
        world.network.cut(*way)
        writer.write(b"behind it")
        await asyncio.sleep(RESET_SECONDS / 2)
        assert world.got == b""
        world.network.mend(*way)
        await asyncio.sleep(1)

    world.run(story)
    assert world.got == b"on its way behind it"


def test_a_connection_over_a_cut_link_is_given_up_in_the_end() -> None:
    world = World()

    async def story(_: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        world.network.cut(world.server.host, world.client.host)
        await asyncio.sleep(RESET_SECONDS + 1)

    world.run(story)
    assert world.ended == "reset"


def test_who_is_connected_to_a_killed_process_is_reset_and_nobody_connects_to_it() -> None:
    world = World()

    async def story(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        world.server.kill()
        await asyncio.sleep(0.1)
        assert writer.is_closing()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*SERVER)

    world.run(story)


def test_what_was_sent_over_a_broken_connection_still_arrives() -> None:
    world = World()

    async def story(writer: asyncio.StreamWriter) -> None:
        writer.write(b"once")
        world.network.break_connections(1.0)
        await asyncio.sleep(1)
        assert writer.is_closing()

    world.run(story)
    assert world.got == b"once"


def test_a_paused_process_is_connected_to_and_reads_when_it_goes_on() -> None:
    world = World()

    async def story(writer: asyncio.StreamWriter) -> None:
        world.server.pause()
        writer.write(b"later")
        await asyncio.sleep(1)
        assert world.got == b""
        world.loop.call_soon(world.server.resume, world.loop)
        await asyncio.sleep(1)

    world.run(story)
    assert world.got == b"later"
