"""The lane and the general way of a fetch: the same request gets the same bytes back, whichever way it takes."""

from typing import Any

import pytest

from penstock.gateways.kafka.fetch_lane import FetchLane
from penstock.transport.receive import FrameReader
from tests.support.kafka_wire import FETCH, PRODUCE, WireNode, batch, encode, fetch, fetched, produce, values

VERSIONS = range(4, 19)
LANE_VERSIONS = range(5, 19)
BY_ID_FROM = 13
CORRELATION_ID = 77


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Which fetches the lane took, in their order."""
    real = FetchLane.take
    seen: list[bool] = []

    def take(self: FetchLane, frames: FrameReader, *place: int) -> bool:
        answer = real(self, frames, *place)
        seen.append(answer)
        return answer

    monkeypatch.setattr(FetchLane, "take", take)
    return seen


async def filled(wire: WireNode, version: int) -> Any:
    """Five batches in the topic; gives what a fetch of this version calls it."""
    client = await wire.connect()
    for number in range(5):
        await client.ask(PRODUCE, produce("t", batch(b"value %d" % number)), 9)
    await client.close()
    return wire.broker.topics.require("t").topic_id.bytes if version >= BY_ID_FROM else "t"


async def both_ways(wire: WireNode, version: int, taught: Any, asked: Any) -> tuple[bytes, bytes]:
    frame = encode(FETCH, asked, version, CORRELATION_ID)
    general = await wire.connect()
    general.writer.write(frame)
    lane = await wire.connect()
    lane.writer.write(encode(FETCH, taught, version, 1))
    await lane.receive()
    lane.writer.write(frame)
    return await general.receive(), await lane.receive()


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_both_ways_answer_the_same_bytes_in_every_version(
    wire: WireNode, taken: list[bool], version: int, isolation_level: int
) -> None:
    topic = await filled(wire, version)
    fields = {"isolation_level": isolation_level, "max_wait_ms": 100}
    general, lane = await both_ways(wire, version, fetch(topic, 0, **fields), fetch(topic, 2, **fields))
    assert lane == general
    assert sorted(taken) == sorted([False, False, version in LANE_VERSIONS])


async def test_the_lane_serves_what_is_asked_for(wire: WireNode, taken: list[bool]) -> None:
    topic = await filled(wire, 12)
    client = await wire.connect()
    one_batch = {"partition_max_bytes": 1}
    for offset in (3, 0, 4, 2):
        answer = fetched(await client.ask(FETCH, fetch(topic, offset, **one_batch), 12))
        assert values(answer.records) == [b"value %d" % offset]
    assert taken == [False, True, True, True]


@pytest.mark.parametrize(
    "other",
    [
        {"partition_max_bytes": 5},
        {"max_bytes": 7},
        {"leader_epoch": 0},
        {"leader_epoch": 9},
        {"last_fetched_epoch": 0},
        {"isolation_level": 1},
        {"min_bytes": 2},
        {"partition": 1},
        {"session_epoch": 0},
    ],
    ids=str,
)
async def test_a_request_that_differs_in_more_than_its_offset_goes_the_general_way(
    wire: WireNode, taken: list[bool], other: dict[str, int]
) -> None:
    topic = await filled(wire, 12)
    general, lane = await both_ways(wire, 12, fetch(topic, 0), fetch(topic, 0, **other))
    assert taken == [False, False, False]
    if "session_epoch" not in other:
        assert lane == general


async def test_an_offset_that_is_not_there_goes_the_general_way(wire: WireNode, taken: list[bool]) -> None:
    topic = await filled(wire, 12)
    for offset in (5, 6, -1):
        general, lane = await both_ways(wire, 12, fetch(topic, 0), fetch(topic, offset))
        assert lane == general
    assert not any(taken)


async def test_a_reader_at_the_end_waits_and_goes_on(wire: WireNode, taken: list[bool]) -> None:
    topic = await filled(wire, 12)
    client = await wire.connect()
    await client.ask(FETCH, fetch(topic, 4, max_wait_ms=10_000), 12)
    client.send(FETCH, fetch(topic, 5, max_wait_ms=10_000), 12)
    producer = await wire.connect()
    await producer.ask(PRODUCE, produce("t", batch(b"late")), 9)
    assert values(fetched((await client.answer(FETCH, 12))[1]).records) == [b"late"]
    assert taken == [False, False]


async def test_too_little_to_send_is_waited_for(wire: WireNode, taken: list[bool]) -> None:
    topic = await filled(wire, 12)
    client = await wire.connect()
    wanted = {"min_bytes": 100, "max_wait_ms": 10}
    await client.ask(FETCH, fetch(topic, 0, **wanted), 12)
    answer = fetched(await client.ask(FETCH, fetch(topic, 4, **wanted), 12))
    assert values(answer.records) == [b"value 4"]
    assert taken == [False, False]


async def test_a_topic_made_anew_is_not_read_from_the_old_one(wire: WireNode, taken: list[bool]) -> None:
    await filled(wire, 12)
    client = await wire.connect()
    await client.ask(FETCH, fetch("t", 0), 12)
    await wire.broker.topics.delete("t")
    await wire.create("t", 1)
    answer = fetched(await client.ask(FETCH, fetch("t", 0), 12))
    assert (answer.error_code, bytes(answer.records or b"")) == (0, b"")
    assert taken == [False, False]
