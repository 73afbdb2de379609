import asyncio

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc.call import Serving, host_of
from tests.support.listeners import unbound


async def test_a_stop_wakes_the_streams_and_those_that_do_not_end_are_cut_off() -> None:
    serving = Serving(None, unbound("grpc"))
    woken = asyncio.Event()
    never = asyncio.Event()

    async def stuck() -> None:
        with serving.stream(woken.set):
            await never.wait()

    task = asyncio.create_task(stuck())
    await asyncio.sleep(0)
    assert list(serving.streams.values()) == [task]
    serving.stop()
    assert woken.is_set()
    assert not task.done()
    serving.cut_off()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not serving.streams


async def test_no_stream_begins_once_the_broker_stops() -> None:
    serving = Serving(None, unbound("grpc"))
    serving.stop()
    with pytest.raises(PenstockError) as caught, serving.stream(lambda: None):
        pass
    assert caught.value.reason is Reason.SHUTTING_DOWN


async def test_a_stop_waits_for_calls_with_one_answer_but_not_for_ever() -> None:
    serving = Serving(None, unbound("grpc"))
    await serving.drained(60)
    answer = asyncio.Event()

    async def call() -> None:
        with serving.call():
            await answer.wait()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    serving.stop()
    await serving.drained(0)
    waiting = asyncio.create_task(serving.drained(60))
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.set()
    await waiting
    await task


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:127.0.0.1:50000", "127.0.0.1"), ("ipv6:%5B::1%5D:50000", "::1"), ("unix:", "unix:"), ("", "")],
)
def test_a_peer_is_known_by_its_host(peer, host) -> None:
    assert host_of(peer) == host
