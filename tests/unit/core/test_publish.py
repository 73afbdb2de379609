"""Records that come one by one: where they go, what each is told, and what is refused."""

import asyncio
import gc
import weakref

import pytest

from penstock.core.partitions.reading import read_from
from penstock.core.publish import NewRecord, Placed, Results, record_id
from penstock.core.security.access import ANONYMOUS, Caller
from penstock.errors import PenstockError, Reason
from penstock.limits import MIB, RECORD_HEADERS_MAX
from penstock.operations.operation import Action
from penstock.records.batch import read_header
from penstock.records.builder import build_batch
from penstock.records.partitioner import partition_for_key
from penstock.records.records import Record
from penstock.types import Acks, Gateway
from tests.support.access import Guard
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until

CALLER = Caller(ANONYMOUS, Gateway.HTTP)


@pytest.fixture
async def node(tmp_path):
    async with KafkaNode(tmp_path / "data") as node:
        yield node


async def publish(node: KafkaNode, topic: str, records, acks=Acks.ALL) -> Results:
    done: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    node.broker.publisher.publish(CALLER, topic, records, acks, done.set_result)
    return await done


def values(node, topic, partition):
    return [record.value for record in read_from(node.broker.partition(topic, partition), 0, 1000, 1 << 20)]


async def test_each_record_is_told_its_place_in_the_order_of_the_call(node) -> None:
    await node.create("t", 3)
    results = await publish(node, "t", [NewRecord(None, b"%d" % n, partition=n % 3) for n in range(7)])
    now_ms = node.clock.now_ms()
    assert results == [Placed(n % 3, n // 3, now_ms) for n in range(7)]
    assert values(node, "t", 0) == [b"0", b"3", b"6"]


@pytest.mark.parametrize("acks", Acks)
async def test_every_level_of_acks_is_answered(node, acks) -> None:
    await node.create("t")
    assert await publish(node, "t", [NewRecord(None, b"v")], acks) == [Placed(0, 0, node.clock.now_ms())]


async def test_a_batch_that_was_built_here_is_not_checked_once_more(node, monkeypatch) -> None:
    """Each record was checked on its own, and nobody could have damaged the batch since."""
    checked: list[object] = []
    for name in ("read_produced", "check_produced", "check_keys"):
        monkeypatch.setattr(f"penstock.core.partitions.partition.{name}", lambda *asked: checked.append(asked))
    await node.create("t", cleanup_policy="compact")
    assert await publish(node, "t", [NewRecord(b"k", b"v")]) == [Placed(0, 0, node.clock.now_ms())]
    assert not checked


class Records(list[NewRecord]):
    """A list whose end can be seen."""


@pytest.mark.parametrize("partitions", [1, 3])
async def test_records_that_wait_for_their_commit_are_not_kept_in_memory(node, partitions) -> None:
    await node.create("t", partitions)
    for index in range(partitions):
        node.broker.partition("t", index)._sync = True  # as on a disk whose sync does not end
    records = Records(NewRecord(None, b"%d" % n) for n in range(6))
    records.append(NewRecord(None, b"nowhere", partition=partitions))
    kept = weakref.ref(records)
    answers: list[Results] = []
    node.broker.publisher.publish(CALLER, "t", records, Acks.ALL, answers.append)
    del records
    await until(lambda: all(node.broker.partition("t", index).log.written_offset for index in range(partitions)))
    gc.collect()
    assert kept() is None
    assert not answers


async def test_a_key_goes_where_every_kafka_client_puts_it_and_no_key_goes_in_turn(node) -> None:
    await node.create("t", 5)
    keyed = await publish(node, "t", [NewRecord(key, b"v") for key in (b"a", b"long" * 100, b"a")])
    assert [placed.partition for placed in keyed] == [partition_for_key(k, 5) for k in (b"a", b"long" * 100, b"a")]
    unkeyed = await publish(node, "t", [NewRecord(key, b"v") for key in (None, b"", None)])
    assert [placed.partition for placed in unkeyed] == [0, 1, 2]
    assert (await publish(node, "t", [NewRecord(None, b"v")]))[0].partition == 3


async def test_a_partition_that_is_not_there_refuses_its_record_alone(node) -> None:
    await node.create("t", 2)
    records = [
        NewRecord(None, b"0", partition=0),
        NewRecord(None, b"x", partition=2),
        NewRecord(None, b"1", partition=1),
    ]
    first, wrong, last = await publish(node, "t", records)
    assert isinstance(first, Placed)
    assert isinstance(last, Placed)
    assert isinstance(wrong, PenstockError)
    assert wrong.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION
    assert "0 to 1" in wrong.text


async def test_records_beyond_one_batch_are_split_and_a_record_that_fits_in_none_is_refused(node) -> None:
    await node.create("t", 1, max_message_bytes="1000")
    records = [NewRecord(None, b"%03d" % n * 100) for n in range(9)]
    records.insert(4, NewRecord(None, b"x" * 2000))
    results = await publish(node, "t", records)
    refused = results.pop(4)
    assert isinstance(refused, PenstockError)
    assert refused.reason is Reason.RECORDS_TOO_LARGE
    assert [placed.offset for placed in results] == list(range(9))
    assert values(node, "t", 0) == [b"%03d" % n * 100 for n in range(9)]


async def test_a_record_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(node) -> None:
    await node.create("t", 1, max_message_bytes="1000")
    sizes = range(880, 960)
    results = [(await publish(node, "t", [NewRecord(None, b"x" * size)]))[0] for size in sizes]
    taken = [size for size, result in zip(sizes, results, strict=True) if isinstance(result, Placed)]
    assert taken == list(range(880, taken[-1] + 1))
    for size in (taken[-1], taken[-1] + 1):
        alone = build_batch([Record(0, 0, None, b"x" * size)])
        assert (len(alone) <= 1000) == (size == taken[-1])


async def test_a_record_that_no_reader_would_open_for_its_headers_is_refused(node) -> None:
    await node.create("t", 1, max_message_bytes=str(8 * MIB))
    many = (("", b""),) * (RECORD_HEADERS_MAX + 1)
    refused, placed = await publish(node, "t", [NewRecord(None, b"x", many), NewRecord(None, b"y", many[1:])])
    assert (refused.reason, placed.offset) == (Reason.INVALID_RECORD, 0)
    assert values(node, "t", 0) == [b"y"]


async def test_what_comes_in_one_turn_is_one_batch_whoever_sent_it(node) -> None:
    await node.create("t")
    done = [asyncio.get_running_loop().create_future() for _ in Acks]
    for acks, future in zip(Acks, done, strict=True):
        caller = Caller(ANONYMOUS, Gateway.TCP if acks is Acks.ALL else Gateway.HTTP)
        records = [NewRecord(None, acks.value.encode()) for _ in range(5)]
        node.broker.publisher.publish(caller, "t", records, acks, future.set_result)
    places = [[placed.offset for placed in await future] for future in done]
    assert places == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    partition = node.broker.partition("t", 0)
    assert read_header(partition.read(0, 1 << 20).data).record_count == 15
    flows = {gateway: node.broker.meters.flow("t", gateway) for gateway in (Gateway.TCP, Gateway.HTTP)}
    assert {gateway: flow.records_in for gateway, flow in flows.items()} == {Gateway.TCP: 5, Gateway.HTTP: 10}


async def test_one_bad_record_does_not_take_others_of_its_turn_with_it(node) -> None:
    await node.create("t", cleanup_policy="compact")
    far_ms = node.clock.now_ms() + 10**12
    records = [NewRecord(b"k", b"v"), NewRecord(None, b"v"), NewRecord(b"k", b"v", timestamp_ms=far_ms)]
    first, keyless, late = await publish(node, "t", [*records])
    assert isinstance(first, Placed)
    assert isinstance(keyless, PenstockError)
    assert keyless.reason is Reason.INVALID_RECORD
    assert isinstance(late, PenstockError)
    assert late.reason is Reason.INVALID_TIMESTAMP


async def test_a_topic_deleted_in_the_same_turn_refuses(node) -> None:
    await node.create("t")
    done: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
    node.broker.publisher.publish(CALLER, "t", [NewRecord(None, b"v")], Acks.ALL, done.set_result)
    node.broker.topics._drop_topic("t")
    [refused] = await done
    assert isinstance(refused, PenstockError)
    assert refused.reason is Reason.UNKNOWN_TOPIC_OR_PARTITION


async def test_headers_and_given_times_are_kept_unless_the_topic_stamps(node) -> None:
    await node.create("t")
    await node.create("stamped", message_timestamp_type="LogAppendTime")
    given_ms = node.clock.now_ms() - 1000
    record = NewRecord(b"k", b"v", (("h", b"1"), ("none", None)), timestamp_ms=given_ms)
    assert (await publish(node, "t", [record]))[0].timestamp_ms == given_ms
    assert (await publish(node, "stamped", [record]))[0].timestamp_ms == node.clock.now_ms()
    [stored] = read_from(node.broker.partition("t", 0), 0, 10, 1 << 20)
    assert (stored.timestamp, stored.headers) == (given_ms, (("h", b"1"), ("none", None)))
    [stored] = read_from(node.broker.partition("stamped", 0), 0, 10, 1 << 20)
    assert stored.timestamp == node.clock.now_ms()


async def test_one_given_time_among_many_records_is_told_for_that_record_alone(node) -> None:
    await node.create("t")
    given_ms, now_ms = node.clock.now_ms() - 1000, node.clock.now_ms()
    records = [NewRecord(None, b"%d" % n, timestamp_ms=given_ms if n == 1 else None) for n in range(3)]
    assert [placed.timestamp_ms for placed in await publish(node, "t", records)] == [now_ms, given_ms, now_ms]
    stored = read_from(node.broker.partition("t", 0), 0, 10, 1 << 20)
    assert [record.timestamp for record in stored] == [now_ms, given_ms, now_ms]


async def test_calls_of_one_turn_that_fill_a_batch_go_on_in_the_next_and_keep_their_places(node) -> None:
    await node.create("t", 1, max_message_bytes="1000")
    done = [asyncio.get_running_loop().create_future() for _ in range(4)]
    for number, future in enumerate(done):
        headers = (("h", b"x" * 50),) if number == 2 else ()
        records = [NewRecord(None, b"%d%d" % (number, n) * 50, headers) for n in range(3)]
        node.broker.publisher.publish(CALLER, "t", records, Acks.ALL, future.set_result)
    assert [placed.offset for future in done for placed in await future] == list(range(12))
    assert values(node, "t", 0) == [b"%d%d" % (number, n) * 50 for number in range(4) for n in range(3)]


async def test_a_topic_s_compression_is_used(node) -> None:
    await node.create("t", compression_type="zstd")
    await publish(node, "t", [NewRecord(None, b"same" * 1000) for _ in range(50)])
    assert node.broker.partition("t", 0).log.size_bytes < 5000
    assert values(node, "t", 0) == [b"same" * 1000] * 50


@pytest.mark.parametrize(
    ("topic", "reason"),
    [("missing", Reason.UNKNOWN_TOPIC_OR_PARTITION), ("__consumer_offsets", Reason.INVALID_TOPIC)],
)
async def test_a_topic_that_cannot_be_published_to_refuses_the_whole_call(node, topic, reason) -> None:
    with pytest.raises(PenstockError) as raised:
        await publish(node, topic, [NewRecord(None, b"v")])
    assert raised.value.reason is reason


async def test_too_few_replicas_refuse_all_but_let_the_leader_alone_answer(node) -> None:
    await node.create("t", min_insync_replicas="2")
    with pytest.raises(PenstockError) as raised:
        await publish(node, "t", [NewRecord(None, b"v")])
    assert raised.value.reason is Reason.NOT_ENOUGH_REPLICAS
    assert "acks=leader" in raised.value.text
    assert values(node, "t", 0) == []
    assert isinstance((await publish(node, "t", [NewRecord(None, b"v")], Acks.LEADER))[0], Placed)


async def test_the_caller_is_checked_before_anything_is_done(node) -> None:
    await node.create("t")
    access = node.broker.access = Guard()
    with pytest.raises(PenstockError) as raised:
        await publish(node, "t", [NewRecord(None, b"v")])
    assert raised.value.reason is Reason.TOPIC_AUTHORIZATION_FAILED
    assert (access.callers, access.asked) == ({CALLER}, [(Action.WRITE, "topic t")])
    assert node.broker.partition("t", 0).log.next_offset == 0


async def test_what_came_in_is_counted_by_topic_and_gateway(node) -> None:
    await node.create("t", 2)
    await publish(node, "t", [NewRecord(None, b"v") for _ in range(10)])
    flow = node.broker.meters.flow("t", Gateway.HTTP)
    assert flow.records_in == 10
    assert flow.bytes_in == sum(node.broker.partition("t", index).log.size_bytes for index in range(2))


def test_a_record_has_a_name_that_people_can_type() -> None:
    assert record_id("orders", 0, 42) == "orders/0@42"
