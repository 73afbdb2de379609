"""Fetch: what is there comes at once and whole, what is not is waited for, and sessions tell only what is new."""

import asyncio
import errno
from typing import Any

import pytest

from penstock.core.topics.topics import Topic
from penstock.errors import Reason
from penstock.gateways.kafka.gateway import KafkaGateway
from penstock.runtime.disk import RealFile
from penstock.settings import LimitSettings
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
)
from tests.support.kafka_node import KafkaNode, reason_of, versions
from tests.support.kafka_wire import batch, fetch, fetched, opened, until, values

KEY = ApiKey.FETCH
BY_ID_FROM = 13
VERSION = 12
LONG_MS = 100_000


async def ask(node: KafkaNode, request: FetchRequest, version: int = VERSION) -> FetchResponse:
    response: FetchResponse = await node.ask(KEY, request, version)
    return response


async def append(node: KafkaNode, topic: str, *batches: bytes, partition: int = 0) -> None:
    target = node.broker.partition(topic, partition)
    for each in batches:
        target.append(bytearray(each), node.clock.now_ms())
    done = asyncio.get_running_loop().create_future()
    target.when_committed(target.log.next_offset, done.set_result)
    assert await done is None


def begin(node: KafkaNode, request: FetchRequest, version: int = VERSION) -> "asyncio.Task[FetchResponse]":
    return asyncio.create_task(ask(node, request, version))


def readers(node: KafkaNode, topic: str = "t", partition: int = 0) -> int:
    return len(node.broker.partition(topic, partition)._readers)


def reason(response: FetchResponse) -> Reason | None:
    return reason_of(fetched(response).error_code)


@pytest.mark.parametrize("version", versions(KEY))
async def test_records_come_in_every_version(node: KafkaNode, version: int) -> None:
    topic = await node.create("t")
    await append(node, "t", batch(b"a", b"b"), batch(b"c"))
    name: Any = topic.topic_id.bytes if version >= BY_ID_FROM else "t"
    response = await ask(node, fetch(name, 0), version)
    [found] = response.responses
    assert (found.topic_id if version >= BY_ID_FROM else found.topic) == name
    [partition] = found.partitions
    assert values(partition.records) == [b"a", b"b", b"c"]
    assert (partition.error_code, partition.high_watermark, partition.last_stable_offset) == (0, 3, 3)
    assert partition.log_start_offset == (0 if version >= 5 else -1)


async def test_an_offset_inside_a_batch_brings_the_whole_batch(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", batch(b"a", b"b", b"c"), batch(b"d"))
    records = opened(fetched(await ask(node, fetch("t", 1))).records)
    assert [(record.offset, record.value) for record in records] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


async def test_offsets_outside_the_log_are_refused(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", *[batch(b"a")] * 5)
    node.broker.partition("t", 0).log.delete_before(2)
    for offset in (-1, 0, 1, 6, 2**62):
        answer = fetched(await ask(node, fetch("t", offset, max_wait_ms=LONG_MS)))
        assert reason_of(answer.error_code) is Reason.OFFSET_OUT_OF_RANGE
        assert not answer.records
    for offset in (2, 5):
        assert reason(await ask(node, fetch("t", offset))) is None


async def test_unknown_topics_partitions_and_ids_are_refused_one_by_one(node: KafkaNode) -> None:
    topic = await node.create("t")
    await append(node, "t", batch(b"a"))
    response = await ask(node, fetch("t", 0, 0, max_wait_ms=LONG_MS))
    good, bad = response.responses[0].partitions
    assert (values(good.records), reason_of(bad.error_code)) == ([b"a"], Reason.UNKNOWN_TOPIC_OR_PARTITION)
    assert reason(await ask(node, fetch("none", 0))) is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert reason(await ask(node, fetch(bytes(15) + b"x", 0), 13)) is Reason.UNKNOWN_TOPIC_ID
    known = fetch(topic.topic_id.bytes, 0, partition=1)
    assert reason(await ask(node, known, 13)) is Reason.UNKNOWN_TOPIC_OR_PARTITION


# How much.


async def test_the_first_batch_comes_whole_above_every_limit_and_the_next_does_not(node: KafkaNode) -> None:
    await node.create("t", 2)
    big = batch(bytes(5000))
    for partition in (0, 1):
        await append(node, "t", big, big, partition=partition)
    for limits in (
        {"partition_max_bytes": 10},
        {"max_bytes": 10},
        {"max_bytes": 0},
        {"partition_max_bytes": 0},
        {"partition_max_bytes": -1},
        {"max_bytes": -1},
        {"max_bytes": 10, "partition_max_bytes": 10},
        {"partition_max_bytes": len(big) + 100, "max_bytes": len(big)},
        {"max_bytes": 2 * len(big) - 1, "partition_max_bytes": len(big)},
    ):
        answers = (await ask(node, fetch("t", 0, 0, **limits))).responses[0].partitions
        assert [len(each.records) for each in answers] == [len(big), 0], limits


async def test_the_total_is_capped_over_all_partitions(node: KafkaNode) -> None:
    await node.create("t", 5)
    one = batch(bytes(1000))
    for partition in range(5):
        await append(node, "t", one, one, one, partition=partition)
    size = len(one)
    answers = (await ask(node, fetch("t", *[0] * 5, max_bytes=7 * size))).responses[0].partitions
    assert [len(each.records) // size for each in answers] == [3, 3, 1, 0, 0]
    answers = (await ask(node, fetch("t", *[0] * 5, partition_max_bytes=2 * size))).responses[0].partitions
    assert [len(each.records) // size for each in answers] == [2, 2, 2, 2, 2]


async def test_the_broker_has_a_limit_of_its_own(node: KafkaNode) -> None:
    await node.create("t")
    one = batch(bytes(1000))
    await append(node, "t", *[one] * 10)
    node.gateway = KafkaGateway(node.broker, node.gateway.turn, LimitSettings(fetch_bytes_max=3 * len(one)))
    assert len(fetched(await ask(node, fetch("t", 0))).records) == 3 * len(one)


# The wait.


async def test_an_append_ends_the_wait(node: KafkaNode) -> None:
    await node.create("t", 2)
    waiting = begin(node, fetch("t", 0, 0, max_wait_ms=LONG_MS))
    await until(lambda: readers(node) == 1 == readers(node, partition=1))
    await append(node, "t", batch(b"a"), partition=1)
    answers = (await waiting).responses[0].partitions
    assert [values(each.records) for each in answers] == [[], [b"a"]]
    await until(lambda: readers(node) == 0 == readers(node, partition=1))


async def test_a_wait_for_many_bytes_ends_when_they_are_there_over_all_partitions(node: KafkaNode) -> None:
    await node.create("t", 2)
    one = batch(bytes(100))
    waiting = begin(node, fetch("t", 0, 0, max_wait_ms=LONG_MS, min_bytes=6 * len(one)))
    await until(lambda: readers(node))
    for number in range(5):
        await append(node, "t", one, partition=number % 2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
    await append(node, "t", one, partition=1)
    answers = (await waiting).responses[0].partitions
    assert [len(values(each.records)) for each in answers] == [3, 3]


@pytest.mark.parametrize(
    ("min_bytes", "limits"),
    [
        pytest.param(1000, {"partition_max_bytes": 1000}, id="partition's limit inside a batch"),
        pytest.param(1000, {"max_bytes": 1000}, id="request's limit inside a batch"),
        pytest.param(5000, {"max_bytes": 1000}, id="more wanted than may come"),
    ],
)
async def test_a_reader_that_may_take_no_more_does_not_wait_for_more(
    node: KafkaNode, min_bytes: int, limits: dict[str, int]
) -> None:
    """Answers end with a whole batch, so they hold less than the limit; enough is there all the same."""
    await node.create("t")
    one = batch(bytes(600))
    await append(node, "t", *[one] * 10)
    request = fetch("t", 0, max_wait_ms=LONG_MS, min_bytes=min_bytes, **limits)
    async with asyncio.timeout(5):
        assert len(fetched(await ask(node, request)).records) == len(one)


async def test_the_end_of_a_segment_does_not_make_a_reader_wait(node: KafkaNode) -> None:
    one = batch(bytes(600))
    await node.create("t", segment_bytes="1500")
    await append(node, "t", *[one] * 10)
    request = fetch("t", 0, max_wait_ms=LONG_MS, min_bytes=4 * len(one))
    async with asyncio.timeout(5):
        assert values(fetched(await ask(node, request)).records)


async def test_the_wait_ends_with_what_is_there_when_the_time_is_up(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", batch(b"a"))
    answer = fetched(await ask(node, fetch("t", 0, max_wait_ms=30, min_bytes=100_000)))
    assert (values(answer.records), answer.error_code) == ([b"a"], 0)
    answer = fetched(await ask(node, fetch("t", 1, max_wait_ms=30)))
    assert (values(answer.records), answer.high_watermark) == ([], 1)
    assert readers(node) == 0


@pytest.mark.parametrize(
    "now",
    [{"max_wait_ms": 0}, {"max_wait_ms": -5}, {"max_wait_ms": LONG_MS, "min_bytes": 0}],
    ids=["no wait", "negative wait", "nothing wanted"],
)
async def test_who_does_not_want_to_wait_does_not(node: KafkaNode, now: dict[str, int]) -> None:
    await node.create("t")
    async with asyncio.timeout(5):
        assert fetched(await ask(node, fetch("t", 0, **now))).high_watermark == 0


async def test_a_request_for_nothing_does_not_wait(node: KafkaNode) -> None:
    async with asyncio.timeout(5):
        assert (await ask(node, fetch("t", max_wait_ms=LONG_MS))).responses == []


@pytest.mark.parametrize("min_bytes", [1, 1000])
@pytest.mark.parametrize("version", [12, 13])
async def test_a_topic_deleted_meanwhile_ends_the_wait(node: KafkaNode, version: int, min_bytes: int) -> None:
    topic = await node.create("t")
    await append(node, "t", batch(b"a"))
    partition = node.broker.partition("t", 0)
    name: Any = topic.topic_id.bytes if version >= BY_ID_FROM else "t"
    waiting = begin(node, fetch(name, 1, max_wait_ms=LONG_MS, min_bytes=min_bytes), version)
    await until(lambda: partition._readers)
    await node.broker.topics.delete("t")
    wanted = Reason.UNKNOWN_TOPIC_ID if version >= BY_ID_FROM else Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert reason(await waiting) is wanted
    assert not partition._readers


@pytest.mark.parametrize("min_bytes", [1, 1000])
async def test_records_deleted_under_a_waiting_reader_end_its_wait(node: KafkaNode, min_bytes: int) -> None:
    await node.create("t")
    await append(node, "t", *[batch(b"a")] * 3)
    waiting = begin(node, fetch("t", 3, max_wait_ms=LONG_MS, min_bytes=min_bytes))
    await until(lambda: readers(node))
    target = node.broker.partition("t", 0)
    target.append(bytearray(batch(b"b")), node.clock.now_ms())
    target.append(bytearray(batch(b"b")), node.clock.now_ms())
    target.log.write_pending()
    target.log.delete_before(4)
    assert reason(await waiting) is Reason.OFFSET_OUT_OF_RANGE


async def test_a_reader_whose_connection_is_gone_is_forgotten(node: KafkaNode) -> None:
    await node.create("t", 2)
    waiting = begin(node, fetch("t", 0, 0, max_wait_ms=LONG_MS))
    await until(lambda: readers(node))
    waiting.cancel()
    await asyncio.wait([waiting])
    await until(lambda: readers(node) == 0 == readers(node, partition=1))
    await append(node, "t", batch(b"a"))


async def test_a_thousand_waiting_readers_are_all_served_by_one_append(node: KafkaNode) -> None:
    await node.create("t")
    waiting = [begin(node, fetch("t", 0, max_wait_ms=LONG_MS)) for _ in range(1000)]
    await until(lambda: readers(node) == 1000)
    await append(node, "t", batch(b"a"))
    assert {bytes(fetched(response).records) for response in await asyncio.gather(*waiting)} == {
        bytes(node.broker.partition("t", 0).read(0, 1000).data)
    }
    await until(lambda: readers(node) == 0)


@pytest.mark.parametrize("min_bytes", [1, 10])
async def test_a_disk_that_does_not_read_is_an_error_of_that_partition(
    node: KafkaNode, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    await node.create("t")
    waiting = begin(node, fetch("t", 0, max_wait_ms=LONG_MS, min_bytes=min_bytes))
    await until(lambda: readers(node))

    def fails(file: RealFile, length: int, position: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(RealFile, "pread", fails)
        await append(node, "t", batch(b"a"))
        assert reason(await waiting) is Reason.STORAGE_ERROR
        assert reason(await ask(node, fetch("t", 0, min_bytes=min_bytes))) is Reason.STORAGE_ERROR
    assert values(fetched(await ask(node, fetch("t", 0))).records) == [b"a"]


# Epochs and isolation.


async def test_followers_of_another_leader_are_refused(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", batch(b"a"))
    node.broker.partition("t", 0).leader_epoch = 5
    for epoch, wanted in ((4, Reason.FENCED_LEADER_EPOCH), (5, None), (6, Reason.UNKNOWN_LEADER_EPOCH), (-1, None)):
        assert reason(await ask(node, fetch("t", 0, leader_epoch=epoch))) is wanted


async def test_a_reader_that_followed_another_history_is_told_where_they_part(node: KafkaNode) -> None:
    """Epoch 0 wrote offsets 0 and 1, epoch 3 wrote 2 and 3, and now epoch 7 leads."""
    await node.create("t")
    partition = node.broker.partition("t", 0)
    await append(node, "t", batch(b"a"), batch(b"b"))
    partition.leader_epoch = 3
    await append(node, "t", batch(b"c"), batch(b"d"))
    partition.leader_epoch = 7
    for offset, epoch, wanted in (
        (2, 0, None),
        (4, 3, None),
        (3, 0, (0, 2)),
        (3, 2, (0, 2)),
        (4, 5, (3, 4)),
        (9, 3, (3, 4)),
        (9, 6, (3, 4)),
        (9, 7, (7, 4)),
    ):
        answer = fetched(
            await ask(node, fetch("t", offset, last_fetched_epoch=epoch, max_wait_ms=LONG_MS, min_bytes=0))
        )
        got = answer.diverging_epoch and (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
        assert (got, answer.error_code) == (wanted, 0), (offset, epoch)
        assert not (wanted and answer.records)


async def test_who_parted_before_the_log_begins_or_comes_from_the_future_is_out_of_range(node: KafkaNode) -> None:
    await node.create("t")
    partition = node.broker.partition("t", 0)
    partition.leader_epoch = 3
    await append(node, "t", *[batch(b"a")] * 4)
    partition.log.delete_before(2)
    for offset, epoch in ((1, 3), (3, 8), (0, 1)):
        answer = fetched(await ask(node, fetch("t", offset, last_fetched_epoch=epoch)))
        assert reason_of(answer.error_code) is Reason.OFFSET_OUT_OF_RANGE
        assert answer.diverging_epoch is None


async def test_only_readers_of_committed_records_get_a_list_of_aborted_ones(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", batch(b"a"))
    for level, aborted in ((0, None), (1, [])):
        answer = fetched(await ask(node, fetch("t", 0, isolation_level=level)))
        assert (values(answer.records), answer.aborted_transactions) == ([b"a"], aborted)
        assert answer.last_stable_offset == answer.high_watermark == 1


@pytest.mark.parametrize("version", [4, 14, 15])
async def test_only_nodes_of_the_cluster_may_fetch_as_followers(node: KafkaNode, version: int) -> None:
    topic = await node.create("t")
    await append(node, "t", batch(b"a"))
    request = fetch(topic.topic_id.bytes if version >= BY_ID_FROM else "t", 0, replica_id=1)
    request.replica_state = FetchRequestReplicaState(replica_id=1)
    response = await ask(node, request, version)
    assert response.responses == []
    if version >= 7:
        assert reason_of(response.error_code) is Reason.CLUSTER_AUTHORIZATION_FAILED


# Sessions.


class Session:
    """A client with a session."""

    def __init__(self, node: KafkaNode, topic: Topic, version: int) -> None:
        self.node = node
        self.version = version
        self.name: Any = topic.topic_id.bytes if version >= BY_ID_FROM else topic.name
        self.id = 0
        self.epoch = 0

    async def ask(
        self, *offsets: int, partition: int = 0, forget: tuple[int, ...] = (), **fields: Any
    ) -> FetchResponse:
        request = fetch(
            self.name, *offsets, partition=partition, session_id=self.id, session_epoch=self.epoch, **fields
        )
        if forget:
            gone = FetchRequestForgottenTopic(partitions=list(forget))
            if isinstance(self.name, bytes):
                gone.topic_id = self.name
            else:
                gone.topic = self.name
            request.forgotten_topics_data = [gone]
        response = await ask(self.node, request, self.version)
        if not response.error_code:
            self.id = response.session_id
            self.epoch += 1
        return response

    @staticmethod
    def told(response: FetchResponse) -> dict[int, FetchResponsePartition]:
        return {each.partition_index: each for topic in response.responses for each in topic.partitions}


@pytest.fixture(params=[7, 12, 13, 18])
async def session(request: pytest.FixtureRequest, node: KafkaNode) -> Session:
    return Session(node, await node.create("t", 3), request.param)


async def test_a_session_tells_only_what_is_new(session: Session) -> None:
    node = session.node
    await append(node, "t", batch(b"a"))
    first = await session.ask(0, 0, 0)
    assert first.session_id > 0
    assert set(session.told(first)) == {0, 1, 2}
    assert set(session.told(await session.ask(1))) == set()
    await append(node, "t", batch(b"b"), partition=2)
    told = session.told(await session.ask())
    assert [(index, values(each.records)) for index, each in told.items()] == [(2, [b"b"])]
    # It did not say that it has read them, so they come again.
    assert set(session.told(await session.ask())) == {2}
    assert set(session.told(await session.ask(1, partition=2))) == set()


async def test_a_session_forgets_and_adds_partitions(session: Session) -> None:
    node = session.node
    await session.ask(0)
    for partition in range(3):
        await append(node, "t", batch(b"a"), partition=partition)
    told = session.told(await session.ask(0, partition=1, forget=(0,)))
    assert set(told) == {1}
    assert set(session.told(await session.ask(0, partition=2, forget=(1,)))) == {2}


async def test_a_session_waits_as_others_do(session: Session) -> None:
    node = session.node
    await session.ask(0, 0, 0)
    waiting = asyncio.create_task(session.ask(max_wait_ms=LONG_MS))
    await until(lambda: readers(node, partition=2))
    await append(node, "t", batch(b"a"), partition=1)
    assert set(session.told(await waiting)) == {1}


async def test_a_session_out_of_step_is_refused(session: Session) -> None:
    await session.ask(0)
    session.epoch += 1
    assert reason_of((await session.ask()).error_code) is Reason.INVALID_FETCH_SESSION_EPOCH
    session.epoch -= 1
    assert (await session.ask()).error_code == 0
    good, session.id = session.id, session.id ^ 0x5555
    assert reason_of((await session.ask()).error_code) is Reason.FETCH_SESSION_ID_NOT_FOUND
    session.id = good
    assert (await session.ask()).error_code == 0


async def test_a_session_ends_when_asked_and_a_new_one_can_begin(session: Session) -> None:
    await session.ask(0)
    old, session.epoch = session.id, -1
    assert (await session.ask(0)).session_id == 0
    session.id, session.epoch = old, 2
    assert reason_of((await session.ask()).error_code) is Reason.FETCH_SESSION_ID_NOT_FOUND
    session.id, session.epoch = 0, 0
    assert (await session.ask(0)).session_id not in (0, old)
    assert len(session.node.gateway.fetch_sessions) == 1


async def test_a_deleted_topic_is_an_error_of_the_session_until_it_is_forgotten(session: Session) -> None:
    node = session.node
    await session.ask(0, 0)
    await node.broker.topics.delete("t")
    by_id = isinstance(session.name, bytes)
    wanted = Reason.UNKNOWN_TOPIC_ID if by_id else Reason.UNKNOWN_TOPIC_OR_PARTITION
    for _ in range(2):
        told = session.told(await session.ask(max_wait_ms=LONG_MS))
        assert {reason_of(each.error_code) for each in told.values()} == {wanted}
        assert set(told) == {0, 1}
    await node.create("t", 3)
    told = session.told(await session.ask())
    # A name means the new topic; an id will never mean anything again.
    assert {reason_of(each.error_code) for each in told.values()} == {wanted if by_id else None}
    assert session.told(await session.ask(forget=(0, 1))) == {}


async def test_a_session_is_of_names_or_of_ids(node: KafkaNode) -> None:
    topic = await node.create("t")
    session = Session(node, topic, 12)
    await session.ask(0)
    session.version, session.name = 13, topic.topic_id.bytes
    assert reason_of((await session.ask(0)).error_code) is Reason.FETCH_SESSION_TOPIC_ID_ERROR


async def test_no_partition_of_a_session_starves(node: KafkaNode) -> None:
    session = Session(node, await node.create("t", 3), 12)
    one = batch(bytes(1000))
    for partition in range(3):
        await append(node, "t", *[one] * 4, partition=partition)
    served = []
    await session.ask(0, 0, 0, max_bytes=10)
    for _ in range(3):
        told = session.told(await session.ask(max_bytes=10))
        served += [index for index, each in told.items() if each.records]
    assert sorted(served) == [0, 1, 2]


async def test_a_topic_named_twice_is_one_wish(node: KafkaNode) -> None:
    await node.create("t")
    await append(node, "t", batch(b"a"))
    request = fetch("t", 0)
    request.topics = [*request.topics, FetchRequestTopic(topic="t", partitions=request.topics[0].partitions)]
    assert values(fetched(await ask(node, request)).records) == [b"a"]
