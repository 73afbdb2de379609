"""The lines of a redrive between the core's job and a client."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from penstock.errors import PenstockError, Reason
from penstock.gateways.http.v1.dead_letters import ProgressStream
from penstock.meters import Meters
from penstock.operations.dead_letters import Progress


class World:
    """A job stream with a client that can leave, and a job that notes that it was cancelled."""

    def __init__(self) -> None:
        self.sent: list[dict] = []
        self.left = asyncio.Event()
        self.cancelled = 0
        self.ended: list = []
        gateway = SimpleNamespace(end_stream=self.ended.append, broker=SimpleNamespace(meters=Meters()))
        self.stream = ProgressStream(SimpleNamespace(gateway=gateway, request_id=b"id", path="/v1/dlq/t/redrive"))  # type: ignore[arg-type]
        self.stream.flow = self
        self.serving = asyncio.ensure_future(self.stream({}, self.receive, self.send))

    def grant(self, count: int) -> None:
        raise AssertionError("progress needs no credit")

    def close(self) -> None:
        self.cancelled += 1

    async def send(self, message) -> None:
        self.sent.append(message)

    async def receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in b"".join(each.get("body", b"") for each in self.sent).splitlines()]

    async def over(self) -> None:
        await asyncio.wait_for(self.serving, 5)
        assert self.ended == [self.stream.end]
        assert self.cancelled == 1


@pytest.fixture
async def world():
    made = World()
    for _ in range(3):
        await asyncio.sleep(0)
    return made


async def test_the_last_line_says_that_all_is_done(world) -> None:
    world.stream.progressed([Progress(2, 1, 0, 0)])
    for _ in range(3):
        await asyncio.sleep(0)
    world.stream.progressed([Progress(2, 2, 0, 0, done=True)])
    await world.over()
    assert world.lines == [
        {"total": 2, "finished": 1, "failed": 0, "skipped": 0, "done": False},
        {"total": 2, "finished": 2, "failed": 0, "skipped": 0, "done": True},
    ]
    assert world.sent[-1]["more_body"] is False


async def test_what_is_over_at_once_has_one_line(world) -> None:
    world.stream.progressed([Progress(0, 0, 0, 0)])
    world.stream.progressed([Progress(0, 0, 0, 0, done=True)])
    await world.over()
    assert [line["done"] for line in world.lines] == [True]


async def test_failures_are_told(world) -> None:
    world.stream.progressed([Progress(3, 1, 2, 0, done=True, last_failure="the topic is gone")])
    await world.over()
    assert world.lines[-1]["last_failure"] == "the topic is gone"


async def test_a_job_that_cannot_go_on_ends_with_the_error(world) -> None:
    world.stream.finished(PenstockError(Reason.SHUTTING_DOWN))
    await world.over()
    assert world.lines == [{"error": "UNAVAILABLE", "message": "the broker is shutting down"}]


async def test_a_client_that_leaves_ends_the_job(world) -> None:
    world.left.set()
    await world.over()
    assert world.lines == []


async def test_the_gateways_stop_ends_the_stream(world) -> None:
    world.stream.end()
    await world.over()
    assert world.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
