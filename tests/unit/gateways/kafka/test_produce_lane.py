"""The lane and the general way: the same request gets the same bytes back, and leaves the same in the log.

``Ways`` sends a request down both: to a connection that has seen nothing, and to one whose lane knows the shape.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.topics.config import ChangeKind, ConfigChange
from penstock.core.topics.topics import NewTopic
from penstock.errors import Reason
from penstock.gateways.kafka.produce_lane import ProduceLane
from penstock.records.batch import Compression
from penstock.transport.receive import FrameReader
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.support.kafka_node import reason_of
from tests.support.kafka_wire import (
    FETCH,
    METADATA,
    NOW_MS,
    PRODUCE,
    WireClient,
    WireNode,
    batch,
    encode,
    fetch,
    fetched,
    produce,
    produced,
    values,
)

VERSIONS = range(3, 14)
LANE_VERSIONS = range(5, 14)
BY_ID_FROM = 13
CLOSED = b"closed"
GOOD = batch(b"good")


class Ways:
    """Both ways into the same topic."""

    def __init__(self, node: WireNode, version: int, topic: str = "t", acks: int = -1, partition: int = 0) -> None:
        self.node = node
        self.version = version
        self.acks = acks
        self.partition = partition
        self.topic: Any = node.broker.topics.require(topic).topic_id.bytes if version >= BY_ID_FROM else topic
        self.taken: list[bool] = []

    def request(self, records: bytes | None) -> bytes:
        return encode(PRODUCE, produce(self.topic, records, acks=self.acks, partition=self.partition), self.version, 77)

    async def general(self, frame: bytes) -> bytes:
        return await self._send(await self.node.connect(), frame, lane=False)

    async def lane(self, frame: bytes, teach: bytes = GOOD, *, takes: bool | None = True) -> bytes:
        """``takes``: whether the lane must take the request, may not, or (None) may do either."""
        client = await self.node.connect()
        await self._send(client, self.request(teach), lane=False)
        return await self._send(client, frame, lane=takes)

    async def _send(self, client: WireClient, frame: bytes, *, lane: bool | None) -> bytes:
        self.taken.clear()
        client.writer.write(frame)
        try:
            answer = await client.receive()
        except (asyncio.IncompleteReadError, ConnectionError):
            answer = CLOSED
        assert len(self.taken) == 1
        if lane is not None:
            assert self.taken == [lane], "the request went the other way"
        return answer

    def read(self, answer: bytes) -> Any:
        """The answer's one partition; encoding it again must give the same bytes."""
        api = API[PRODUCE]
        head = 5 if self.version >= 9 else 4
        response = api.decode_response(answer, head, self.version)
        assert answer[:4] == struct.pack(">i", 77)
        assert answer[4:head] == bytes(head - 4)
        assert b"".join(api.encode_response(response, self.version)) == answer[head:]
        assert response.responses[0].name == ("" if self.version >= BY_ID_FROM else self.topic)
        return produced(response)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ways], Ways]:
    """Lets ``Ways`` know which requests the lane took."""
    real = ProduceLane.take

    def started(ways: Ways) -> Ways:
        def take(self: ProduceLane, frames: FrameReader, *place: int) -> bool:
            taken = real(self, frames, *place)
            ways.taken.append(taken)
            return taken

        monkeypatch.setattr(ProduceLane, "take", take)
        return ways

    return started


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", VERSIONS)
async def test_both_ways_answer_the_same_in_every_version(wire: WireNode, watch, version: int, acks: int) -> None:
    ways = watch(Ways(wire, version, acks=acks, partition=1))
    frame = ways.request(GOOD)
    general = ways.read(await ways.general(frame))
    lane = ways.read(await ways.lane(frame, takes=version in LANE_VERSIONS))
    assert (general.base_offset, lane.base_offset) == (0, 2)
    lane.base_offset = general.base_offset
    assert lane == general
    assert general.log_start_offset == (0 if version >= 5 else -1)


@pytest.mark.parametrize("version", [9, 13])
async def test_what_is_staged_for_a_sink_takes_the_lane_too(wire: WireNode, watch, version: int) -> None:
    await wire.broker.topics.create(NewTopic("__staging.q", 1), internal=True)
    ways = watch(Ways(wire, version, topic="__staging.q"))
    frame = ways.request(GOOD)
    assert ways.read(await ways.general(frame)).base_offset == 0
    assert ways.read(await ways.lane(frame)).base_offset == 2


@pytest.mark.parametrize("version", [9, 13])
async def test_other_topics_of_the_broker_itself_are_refused(wire: WireNode, watch, version: int) -> None:
    ways = watch(Ways(wire, version, topic="__sinks"))
    told = ways.read(await ways.general(ways.request(GOOD)))
    assert reason_of(told.error_code) is Reason.INVALID_TOPIC


async def test_the_log_start_offset_is_the_one_of_the_moment(wire: WireNode, watch) -> None:
    ways = watch(Ways(wire, 9))
    client = await wire.connect()
    for number in range(4):
        client.writer.write(ways.request(GOOD))
        answer = ways.read(await client.receive())
        assert (answer.base_offset, answer.log_start_offset) == (number, max(0, number - 1))
        wire.broker.partition("t", 0).log.delete_before(number)
    assert ways.taken == [False, True, True, True]


def damaged() -> bytes:
    return GOOD[:-1] + bytes([GOOD[-1] ^ 1])


def other(position: int, value: int) -> bytes:
    return GOOD[:position] + bytes([value]) + GOOD[position + 1 :]


REFUSALS = {
    "damaged": ({}, damaged(), Reason.CORRUPT_RECORDS),
    "cut short": ({}, GOOD[:-1], Reason.CORRUPT_RECORDS),
    "bytes behind it": ({}, GOOD + b"x", Reason.CORRUPT_RECORDS),
    "two batches": ({}, GOOD + GOOD, Reason.CORRUPT_RECORDS),
    "length lies": ({}, other(11, 9), Reason.CORRUPT_RECORDS),
    "nothing": ({}, b"", Reason.CORRUPT_RECORDS),
    "a few bytes": ({}, GOOD[:60], Reason.CORRUPT_RECORDS),
    "old format": ({}, other(16, 1), Reason.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "count lies": ({}, other(60, 2), Reason.INVALID_RECORD),
    "no such codec": ({}, other(22, 7), Reason.UNSUPPORTED_COMPRESSION_TYPE),
    "transactional": ({}, other(22, 0x10), Reason.TRANSACTIONS_NOT_SUPPORTED),
    "control": ({}, other(22, 0x20), Reason.INVALID_RECORD),
    "time of append": ({}, other(22, 0x08), Reason.INVALID_TIMESTAMP),
    "delete horizon": ({}, other(22, 0x40), Reason.INVALID_RECORD),
    "not at offset 0": ({}, other(7, 1), Reason.INVALID_RECORD),
    "too large": ({"max_message_bytes": "500"}, batch(bytes(500)), Reason.RECORDS_TOO_LARGE),
    "from the past": (
        {"message_timestamp_before_max_ms": "1000"},
        batch(b"v", timestamp_ms=NOW_MS - 1001),
        Reason.INVALID_TIMESTAMP,
    ),
    "from the future": (
        {"message_timestamp_after_max_ms": "1000"},
        batch(b"v", timestamp_ms=NOW_MS + 1001),
        Reason.INVALID_TIMESTAMP,
    ),
    "without a key": ({"cleanup_policy": "compact"}, batch(b"v", key=None), Reason.INVALID_RECORD),
    "bomb": (
        {"cleanup_policy": "compact", "max_message_bytes": "2000"},
        batch(bytes(200_000), compression=Compression.GZIP),
        Reason.RECORDS_TOO_LARGE,
    ),
    "sequence without a start": (
        {},
        batch(b"v", producer_id=1, producer_epoch=0, base_sequence=-1),
        Reason.INVALID_RECORD,
    ),
}


def with_sound_crc(data: bytes) -> bytes:
    """Whatever is wrong with a batch, let it not be the checksum."""
    from crc32c import crc32c

    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:] if len(data) > 61 else data


@pytest.mark.parametrize("version", [5, 8, 9, 13])
@pytest.mark.parametrize("name", REFUSALS)
async def test_both_ways_refuse_the_same_with_the_same_words(wire: WireNode, watch, name: str, version: int) -> None:
    configs, records, wanted = REFUSALS[name]
    if name not in ("damaged", "cut short", "bytes behind it", "length lies"):
        records = with_sound_crc(records)
    await wire.create("strict", **configs)
    ways = watch(Ways(wire, version, "strict", acks=1))
    frame = ways.request(records)
    general = await ways.general(frame)
    assert await ways.lane(frame, takes=None if "cleanup_policy" in configs else bool(records)) == general
    answer = ways.read(general)
    assert (reason_of(answer.error_code), answer.base_offset) == (wanted, -1)
    assert (answer.log_append_time_ms, answer.log_start_offset) == (-1, -1)
    assert bool(answer.error_message) == (version >= 8)
    # One batch taught the lane; nothing of what was refused is there.
    assert wire.broker.partition("strict", 0).log.next_offset == 1


def behind(frame: bytes, more: bytes) -> bytes:
    return struct.pack(">i", len(frame) - 4 + len(more)) + frame[4:] + more


def instead_of_end(frame: bytes, end: bytes) -> bytes:
    return behind(frame[: -len(b"\0\0\0")], end)


TAG = b"\x01\x05\x02hi"
"""One tagged field, number 5, two bytes."""


@pytest.mark.parametrize(
    ("version", "change", "accepted"),
    [
        (7, lambda frame: behind(frame, b"\0"), True),
        (9, lambda frame: behind(frame, b"\0"), True),
        (7, lambda frame: behind(frame[:-1], b""), False),
        (9, lambda frame: behind(frame[:-1], b""), False),
        (9, lambda frame: instead_of_end(frame, TAG + b"\0\0"), True),
        (9, lambda frame: instead_of_end(frame, b"\0" + TAG + b"\0"), True),
        (9, lambda frame: instead_of_end(frame, b"\0\0" + TAG), True),
        (9, lambda frame: instead_of_end(frame, b"\0\0\x01"), False),
        (13, lambda frame: instead_of_end(frame, TAG * 3), True),
    ],
    ids=[
        "byte behind",
        "byte behind 9",
        "byte missing",
        "byte missing 9",
        "partition's tag",
        "topic's tag",
        "request's tag",
        "tag without content",
        "tags everywhere",
    ],
)
async def test_both_ways_read_odd_frames_alike(
    wire: WireNode, watch, version: int, change: Callable[[bytes], bytes], accepted: bool
) -> None:
    ways = watch(Ways(wire, version))
    frame = change(ways.request(GOOD))
    general = await ways.general(frame)
    lane = await ways.lane(frame, takes=None)
    assert (general == CLOSED) == (lane == CLOSED) == (not accepted)
    if accepted:
        first, second = ways.read(general), ways.read(lane)
        assert (first.base_offset, second.base_offset, first.error_code) == (0, 2, 0)


@pytest.mark.parametrize("version", [5, 8, 9, 12, 13])
@pytest.mark.parametrize("change", [-3, -1, 1, 3, 100, 2**28], ids=str)
async def test_both_ways_refuse_a_length_of_records_that_lies(wire: WireNode, watch, version: int, change: int) -> None:
    ways = watch(Ways(wire, version))
    frame = ways.request(GOOD)
    at = frame.index(GOOD)
    if version < 9:
        lies = frame[: at - 4] + struct.pack(">i", len(GOOD) + change) + frame[at:]
    else:
        lies = behind(frame[: at - 1], compact(len(GOOD) + change) + frame[at:])
    general = await ways.general(lies)
    assert await ways.lane(lies, takes=False) == general
    assert general == CLOSED or reason_of(ways.read(general).error_code) is Reason.CORRUPT_RECORDS
    assert change < 0 or general == CLOSED
    assert wire.broker.partition("t", 0).log.next_offset == 1


def compact(length: int) -> bytes:
    number, out = length + 1, bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_both_ways_refuse_null_records(wire: WireNode, watch, version: int) -> None:
    ways = watch(Ways(wire, version))
    frame = ways.request(None)
    general = await ways.general(frame)
    assert await ways.lane(frame, takes=False) == general
    assert reason_of(ways.read(general).error_code) is Reason.INVALID_RECORD


async def test_a_length_that_never_ends_is_no_mistake_of_ours(wire: WireNode, watch, caplog) -> None:
    """The longest shape and the shortest rest, at the very end of the receive buffer."""
    ways = watch(Ways(wire, 9))
    client = await wire.connect()
    client.writer.write(ways.request(GOOD))
    await client.receive()
    frame = ways.request(GOOD)
    frame = behind(frame[: frame.index(GOOD) - 1], b"\xff" * 4)
    [ours] = wire.connections()
    room = ours.get_buffer(-1)
    filler = encode(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0, client_id="x" * 30_000)
    count = (len(room) - len(frame)) // len(filler)
    padding = 30_000 - (count + 1) * len(filler) + len(room) - len(frame)
    fillers = filler * count + encode(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0, client_id="x" * padding)
    room[:] = fillers + frame
    ours.buffer_updated(len(room))
    for _ in range(count + 1):
        await client.receive()
    assert await client.closed_by_peer()
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_a_partition_that_is_not_there_is_refused_alike(wire: WireNode, watch, version: int) -> None:
    ways = watch(Ways(wire, version))
    for index in (2, -1, 2**31 - 1):
        ways.partition = index
        frame = ways.request(GOOD)
        general = await ways.general(frame)
        assert reason_of(ways.read(general).error_code) is Reason.UNKNOWN_TOPIC_OR_PARTITION
        ways.partition = 0
        assert await ways.lane(frame, takes=False) == general


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_the_lane_does_not_write_to_a_topic_that_is_gone(wire: WireNode, watch, version: int) -> None:
    ways = watch(Ways(wire, version))
    client = await wire.connect()
    frame = ways.request(GOOD)
    for _ in range(2):
        client.writer.write(frame)
        await client.receive()
    assert ways.taken == [False, True]
    await wire.broker.topics.delete("t")
    client.writer.write(frame)
    wanted = Reason.UNKNOWN_TOPIC_ID if version >= BY_ID_FROM else Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert reason_of(ways.read(await client.receive()).error_code) is wanted
    new = await wire.create("t", 2)
    client.writer.write(frame)
    answer = ways.read(await client.receive())
    if version >= BY_ID_FROM:
        assert reason_of(answer.error_code) is Reason.UNKNOWN_TOPIC_ID
        assert wire.broker.partition_by_id(new.topic_id.bytes, 0).log.next_offset == 0
    else:
        assert (answer.error_code, answer.base_offset) == (0, 0)
        stored = fetched(await client.ask(FETCH, fetch(new.topic_id.bytes, 0), 13))
        assert values(stored.records) == [b"good"]


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_a_changed_setting_holds_for_the_next_request(wire: WireNode, watch, acks: int) -> None:
    ways = watch(Ways(wire, 9, acks=acks))
    client = await wire.connect()
    frame = ways.request(GOOD)
    for _ in range(2):
        client.writer.write(frame)
        if acks:
            await client.receive()
    await client.ask(METADATA, MetadataRequest(), 1)
    assert ways.taken == [False, True]
    await wire.broker.topics.alter("t", [ConfigChange("max.message.bytes", ChangeKind.SET, "20")])
    client.writer.write(frame)
    if acks:
        assert reason_of(ways.read(await client.receive()).error_code) is Reason.RECORDS_TOO_LARGE
    else:
        assert await client.closed_by_peer()
    assert wire.broker.partition("t", 0).log.next_offset == 2


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_too_few_replicas_are_refused_alike_for_those_who_want_them_all(
    wire: WireNode, watch, version: int
) -> None:
    await wire.create("safe", min_insync_replicas="2")
    ways = watch(Ways(wire, version, "safe"))
    frame = ways.request(GOOD)
    general = await ways.general(frame)
    assert reason_of(ways.read(general).error_code) is Reason.NOT_ENOUGH_REPLICAS
    assert await ways.lane(frame, takes=None) == general
    ways.acks = 1
    assert ways.read(await ways.lane(ways.request(GOOD))).error_code == 0


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_time_of_append_is_answered_alike(wire: WireNode, watch, version: int) -> None:
    await wire.create("stamped", message_timestamp_type="LogAppendTime")
    ways = watch(Ways(wire, version, "stamped"))
    frame = ways.request(batch(b"v", timestamp_ms=5))
    wire.clock.advance(1000)
    general = ways.read(await ways.general(frame))
    assert general.log_append_time_ms == NOW_MS + 1000
    lane = ways.read(await ways.lane(frame, takes=None))
    lane.base_offset = 0
    assert lane == general


@pytest.mark.parametrize("acks", [2, -2, 32767])
@pytest.mark.parametrize("version", [3, 9, 13])
async def test_acks_that_do_not_exist_are_refused_every_time(wire: WireNode, watch, version: int, acks: int) -> None:
    ways = watch(Ways(wire, version, acks=acks))
    frame = ways.request(GOOD)
    general = await ways.general(frame)
    assert reason_of(ways.read(general).error_code) is Reason.INVALID_REQUIRED_ACKS
    assert await ways.lane(frame, takes=False) == general
    assert wire.broker.partition("t", 0).log.next_offset == 0


async def test_the_broker_s_own_topics_are_refused_every_time(wire: WireNode, watch) -> None:
    ways = watch(Ways(wire, 9, "__consumer_offsets"))
    frame = ways.request(GOOD)
    general = await ways.general(frame)
    assert reason_of(ways.read(general).error_code) is Reason.INVALID_TOPIC
    assert await ways.lane(frame, takes=False) == general


@pytest.mark.parametrize("version", [5, 9, 13])
async def test_both_ways_number_a_producer_s_batches_alike(wire: WireNode, watch, version: int) -> None:
    ways = watch(Ways(wire, version))
    client = await wire.connect()

    def numbered(sequence: int, epoch: int = 1) -> bytes:
        return ways.request(batch(b"v", producer_id=5, producer_epoch=epoch, base_sequence=sequence))

    async def outcome(frame: bytes) -> tuple[Reason | None, int]:
        client.writer.write(frame)
        lane = await client.receive()
        # The same once more: both answers are those to a repeat or to a mistake, so they are the same bytes.
        general = await ways.general(frame)
        assert general == lane
        answer = ways.read(lane)
        return reason_of(answer.error_code), answer.base_offset

    client.writer.write(ways.request(GOOD))
    await client.receive()
    assert await outcome(numbered(0)) == (None, 1)
    assert await outcome(numbered(1)) == (None, 2)
    assert await outcome(numbered(0)) == (None, 1)
    assert await outcome(numbered(3)) == (Reason.OUT_OF_ORDER_SEQUENCE, -1)
    assert await outcome(numbered(2, epoch=0)) == (Reason.INVALID_PRODUCER_EPOCH, -1)
    assert await outcome(numbered(0, epoch=2)) == (None, 3)
    assert wire.broker.partition("t", 0).log.next_offset == 4


async def test_requests_of_different_shapes_take_turns_on_one_connection(wire: WireNode, watch) -> None:
    """Another version, another client id, other acks, another topic: never the wrong place."""
    await wire.create("u" * 200, 2)
    client = await wire.connect()
    expected: dict[tuple[str, int], list[bytes]] = {}
    sent = 0
    for number in range(300):
        topic = ("t", "u" * 200)[number % 2]
        partition = number // 2 % 2
        acks = (-1, 1, 0)[number // 4 % 3]
        version = (5, 8, 9, 12)[number // 12 % 4]
        value = b"%d" % number
        client.send(
            PRODUCE,
            produce(topic, batch(value), acks=acks, partition=partition, timeout_ms=1000 + number % 5),
            version,
            client_id=(None, "", "me")[number // 7 % 3],
        )
        if acks:
            sent += 1
            answer = await client.answer(PRODUCE, version)
            place = expected.setdefault((topic, partition), [])
            assert (produced(answer[1]).error_code, produced(answer[1]).base_offset) == (0, len(place))
        expected.setdefault((topic, partition), []).append(value)
    await client.ask(METADATA, MetadataRequest(), 1)
    for (topic, partition), wanted in expected.items():
        stored = await client.ask(FETCH, fetch(topic, 0, partition=partition), 12)
        assert values(fetched(stored).records) == wanted
