"""Records handed out one by one: from an offset, and live."""

import pytest

from penstock.core.partitions.reading import Tail, read_from
from penstock.errors import PenstockError, Reason
from penstock.records.batch import Compression, read_header
from penstock.records.builder import BatchBuilder, build_batch, seal
from penstock.records.records import Record
from tests.support.kafka_node import KafkaNode


@pytest.fixture
async def node(tmp_path):
    async with KafkaNode(tmp_path / "data") as node:
        yield node


async def append(node, topic, partition, values, *, per_batch=3):
    target = node.broker.partition(topic, partition)
    now_ms = node.clock.now_ms()
    for at in range(0, len(values), per_batch):
        target.append(build_batch(Record(0, now_ms, None, value) for value in values[at : at + per_batch]), now_ms)
    await node.committed(target)
    return target


async def test_reading_begins_inside_a_batch_and_stops_at_the_bounds(node) -> None:
    await node.create("t")
    values = [b"%02d" % n for n in range(20)]
    partition = await append(node, "t", 0, values)
    assert [record.value for record in read_from(partition, 4, 5, 1 << 20)] == values[4:9]
    assert [record.offset for record in read_from(partition, 18, 100, 1 << 20)] == [18, 19]
    assert len(read_from(partition, 0, 100, 1)) == 1
    assert len(read_from(partition, 0, 100, 100)) == 3
    assert read_from(partition, 20, 100, 100) == []


@pytest.mark.parametrize("offset", [-1, 21])
async def test_outside_the_log_there_is_nothing_to_read(node, offset) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"v"] * 20)
    with pytest.raises(PenstockError) as raised:
        read_from(partition, offset, 1, 1)
    assert raised.value.reason is Reason.OFFSET_OUT_OF_RANGE


async def test_control_batches_are_passed_over(node) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"a"])
    marker = BatchBuilder()
    marker.add(node.clock.now_ms(), b"\0\0\0\0", b"")
    control = marker.build(control=True)
    partition.log.append(control, read_header(control), 0)
    node.flusher.dirty(partition.log)
    await append(node, "t", 0, [b"b"])
    assert [record.value for record in read_from(partition, 0, 10, 1000)] == [b"a", b"b"]
    tail = Tail([(partition, 0)], lambda: None)
    assert [record.value for _, record in tail.take(10, 1000)] == [b"a", b"b"]


async def test_a_tail_gives_what_is_there_then_wakes_once_when_there_is_more(node) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"a", b"b"])
    woken = []
    tail = Tail([(partition, 1)], lambda: woken.append(1))
    assert [record.value for _, record in tail.take(10, 1000)] == [b"b"]
    assert tail.take(10, 1000) == []
    assert woken == []
    await append(node, "t", 0, [b"c"])
    await append(node, "t", 0, [b"d"])
    assert woken == [1]
    assert [record.value for _, record in tail.take(10, 1000)] == [b"c", b"d"]


async def test_a_tail_wakes_for_what_came_between_a_take_and_the_next(node) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"a"])
    tail = Tail([(partition, 0)], lambda: None)
    tail.take(1, 1000)
    await append(node, "t", 0, [b"b"])
    assert [record.value for _, record in tail.take(1, 1000)] == [b"b"]


async def test_a_tail_is_fair_and_bounded(node) -> None:
    await node.create("t", 2)
    first = await append(node, "t", 0, [b"x"] * 1000, per_batch=500)
    second = await append(node, "t", 1, [b"y"] * 10)
    tail = Tail([(first, 0), (second, 0)], lambda: None)
    taken = tail.take(300, 1 << 20)
    assert len(taken) == 300
    assert sum(record.value == b"y" for _, record in taken) == 10
    assert len(tail.take(10_000, 100)) == 4
    offsets = [record.offset for partition, record in [*taken, *tail.take(10_000, 1 << 20)] if partition is first]
    assert offsets == sorted(set(offsets))


async def test_a_tail_before_the_log_start_goes_on_at_the_oldest_record(node) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"a", b"b", b"c"], per_batch=1)
    tail = Tail([(partition, 0)], lambda: None)
    partition.log.delete_before(2)
    assert [record.value for _, record in tail.take(10, 1000)] == [b"c"]


async def test_a_tail_behind_the_end_waits_until_the_log_is_there(node) -> None:
    await node.create("t")
    partition = await append(node, "t", 0, [b"a"])
    tail = Tail([(partition, 2)], lambda: None)
    assert tail.take(10, 1000) == []
    await append(node, "t", 0, [b"b", b"c"])
    assert [record.value for _, record in tail.take(10, 1000)] == [b"c"]


async def test_a_deleted_partition_wakes_and_is_told(node) -> None:
    await node.create("t", 2)
    partitions = [node.broker.partition("t", index) for index in range(2)]
    woken = []
    tail = Tail([(partition, 0) for partition in partitions], lambda: woken.append(1))
    assert tail.take(1, 1) == []
    await node.broker.topics.delete("t")
    assert woken == [1]
    assert tail.take(1, 1) == []
    assert tail.gone == partitions


async def test_partitions_come_and_go(node) -> None:
    await node.create("t", 2)
    first = await append(node, "t", 0, [b"a", b"b"])
    second = await append(node, "t", 1, [b"x"])
    tail = Tail([(first, 0)], lambda: None)
    tail.take(1, 1000)
    assert tail.next_offset(first) == 1
    tail.remove(first)
    tail.add(second, 0)
    assert [record.value for _, record in tail.take(10, 1000)] == [b"x"]
    tail.add(first, 0)
    assert [record.value for _, record in tail.take(10, 1000)] == [b"a", b"b"]
    tail.close()
    await append(node, "t", 0, [b"c"])
    assert tail.take(10, 1000) == []


async def append_damaged(node, topic, values):
    """Records, a batch whose checksum is right and whose records are none, and one record more."""
    partition = await append(node, topic, 0, values)
    header = read_header(build_batch([Record(0, node.clock.now_ms(), None, b"v")]))
    partition.append(seal(b"\xff" * 50, header, Compression.NONE), node.clock.now_ms())
    await append(node, topic, 0, [b"behind"])
    return partition


async def test_what_comes_before_a_batch_that_cannot_be_opened_is_read(node) -> None:
    await node.create("t")
    partition = await append_damaged(node, "t", [b"a", b"b"])
    assert [record.value for record in read_from(partition, 0, 10, 1000)] == [b"a", b"b"]
    with pytest.raises(PenstockError) as raised:
        read_from(partition, 2, 10, 1000)
    assert raised.value.reason is Reason.CORRUPT_RECORDS
    assert [record.value for record in read_from(partition, 3, 10, 1000)] == [b"behind"]


async def test_a_tail_gives_what_comes_before_a_batch_that_cannot_be_opened_and_never_passes_it(node) -> None:
    await node.create("t")
    partition = await append_damaged(node, "t", [b"a", b"b"])
    for begin, values in ((0, [b"a", b"b"]), (2, [])):
        tail = Tail([(partition, begin)], lambda: None)
        if values:
            assert [record.value for _, record in tail.take(10, 1000)] == values
        for _ in range(2):
            with pytest.raises(PenstockError) as raised:
                tail.take(10, 1000)
            assert raised.value.reason is Reason.CORRUPT_RECORDS
