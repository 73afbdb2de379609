"""A stream at a coordinator that moves; the coordinator is this test."""

import asyncio
from types import SimpleNamespace

import pytest
import pytest_asyncio

from penstock.errors import PenstockError, Reason
from penstock.gateways.grpc import coordinated
from penstock.gateways.grpc.call import Serving
from penstock.gateways.grpc.coordinated import CoordinatedStream
from penstock.operations.groups import Membership
from tests.support.listeners import unbound


class Coordinator:
    """Opens streams, and ends them when the test says so."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.is_there.set()
        self.waits = asyncio.Event()
        self.ends = []
        self.closed = 0

    async def open(self, _stream, _caller, _on_items, on_end):
        self.waits.set()
        await self.is_there.wait()
        self.ends.append(on_end)
        return self

    def grant(self, count) -> None: ...

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(coordinated, "RETRY_SECONDS", 0)


@pytest.fixture
def coordinator():
    return Coordinator()


@pytest_asyncio.fixture
async def serving():
    return Serving(None, unbound("grpc"))


@pytest.fixture
def paused():
    return []


@pytest.fixture
def stream(coordinator, serving, paused):
    call = SimpleNamespace(broker=coordinator, caller=None, serving=serving)
    membership = Membership(credit=0, group="g", topic="t", consumer_id="c")
    return CoordinatedStream(call, membership, lambda _: None, asyncio.Event(), lambda: paused.append(True))


@pytest.mark.parametrize("reason", [Reason.NOT_COORDINATOR, Reason.LINK_LOST, Reason.SHUTTING_DOWN])
async def test_a_stream_whose_coordinator_moved_is_opened_again(stream, coordinator, paused, reason) -> None:
    await stream.ready()
    await stream.ready()
    assert len(coordinator.ends) == 1
    coordinator.ends[0](PenstockError(reason))
    assert paused == [True]
    await stream.ready()
    assert len(coordinator.ends) == 2
    stream.close()
    assert coordinator.closed == 1


async def test_a_stream_that_is_refused_is_not_opened_again(stream, coordinator) -> None:
    await stream.ready()
    coordinator.ends[0](PenstockError(Reason.FENCED_INSTANCE_ID))
    for _ in range(2):
        with pytest.raises(PenstockError) as caught:
            await stream.ready()
        assert caught.value.reason is Reason.FENCED_INSTANCE_ID
    assert len(coordinator.ends) == 1


async def test_a_stop_does_not_wait_for_a_coordinator(stream, coordinator, serving) -> None:
    coordinator.is_there.clear()
    waiting = asyncio.create_task(stream.ready())
    await coordinator.waits.wait()
    serving.stop()
    with pytest.raises(PenstockError) as caught:
        await waiting
    assert caught.value.reason is Reason.SHUTTING_DOWN
    assert not serving.streams
