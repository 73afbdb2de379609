"""What the consumer makes of what a broker sends."""

import pytest

from penstock.client import BrokerRefused, ClientError, Cluster, Consumer, OutOfRange, open_records
from penstock.records.batch import set_offset
from penstock.records.builder import BatchBuilder
from penstock.types import TimestampType
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import FetchResponse, FetchResponsePartition, FetchResponseTopic
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER = 1, 3, 6


def batch(base_offset, *values, control=False):
    builder = BatchBuilder()
    for value in values:
        builder.add(1000, None, value)
    built = builder.build(control=control)
    set_offset(built, base_offset, 0)
    return bytes(built)


class Fetches:
    """Answers fetches: each with the next of the given (error code, bytes), and then with nothing."""

    def __init__(self, *plan) -> None:
        self._plan = list(plan)
        self.offsets = []

    def __call__(self, request):
        (topic,) = request.topics
        answered = []
        for asked in topic.partitions:
            self.offsets.append(asked.fetch_offset)
            code, data = self._plan.pop(0) if self._plan else (0, b"")
            answered.append(FetchResponsePartition(asked.partition, code, high_watermark=100, records=data))
        return FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=answered)])


def starts(offset):
    parts = [ListOffsetsResponsePartition(partition_index=0, offset=offset)]
    return lambda _: ListOffsetsResponse(topics=[ListOffsetsResponseTopic(name="t", partitions=parts)])


@pytest.fixture
def consume(scripted):
    clusters = []

    def start(fetches, *, at=0, earliest=0, **options):
        broker = scripted({ApiKey.FETCH: fetches, ApiKey.LIST_OFFSETS: starts(earliest)})
        cluster = Cluster(broker.bootstrap, timeout_ms=60_000)
        clusters.append(cluster)
        consumer = Consumer(cluster, **options)
        consumer.assign({("t", 0): at})
        return consumer

    yield start
    for cluster in clusters:
        cluster.close()


def offsets(records):
    return [record.offset for record in records]


def test_the_position_moves_behind_what_was_given_out(consume) -> None:
    fetches = Fetches((0, batch(0, b"a", b"b") + batch(2, b"c")), (0, batch(3, b"d")))
    consumer = consume(fetches)
    assert [record.value for record in consumer.poll()] == [b"a", b"b", b"c"]
    assert consumer.positions == {("t", 0): 3}
    assert offsets(consumer.poll()) == [3]
    assert fetches.offsets == [0, 3]
    assert consumer.high_watermarks == {("t", 0): 100}


def test_a_record_says_all_there_is(consume) -> None:
    (record,) = consume(Fetches((0, batch(5, b"a"))), at=5).poll()
    assert record == ("t", 0, 5, 1000, TimestampType.CREATE_TIME, None, b"a", ())


def test_a_batch_that_begins_before_the_offset_asked_for_gives_only_what_comes_after(consume) -> None:
    assert offsets(consume(Fetches((0, batch(0, b"a", b"b", b"c"))), at=2).poll()) == [2]


def test_a_batch_that_the_answer_cuts_is_read_next_time(consume) -> None:
    whole, cut = batch(0, b"a"), batch(1, b"b")
    fetches = Fetches((0, whole + cut[:-1]), (0, cut))
    consumer = consume(fetches)
    assert offsets(consumer.poll()) == [0]
    assert offsets(consumer.poll()) == [1]


def test_the_brokers_own_markers_are_passed_over(consume) -> None:
    consumer = consume(Fetches((0, batch(0, b"\0\0\0\0", control=True) + batch(1, b"a"))))
    assert offsets(consumer.poll()) == [1]


def test_gaps_that_compaction_left_are_no_trouble(consume) -> None:
    consumer = consume(Fetches((0, batch(10, b"a") + batch(50, b"b"))))
    assert offsets(consumer.poll()) == [10, 50]
    assert consumer.positions == {("t", 0): 51}


def test_a_damaged_batch_is_told_with_its_offset_and_the_position_stays(consume) -> None:
    damaged = bytearray(batch(7, b"abc"))
    damaged[-2] ^= 1
    consumer = consume(Fetches((0, bytes(damaged))), at=7)
    with pytest.raises(ClientError, match="t/0 at offset 7: the checksum does not match"):
        consumer.poll()
    assert consumer.positions == {("t", 0): 7}


def test_an_old_record_format_is_told(consume) -> None:
    old = bytearray(batch(0, b"a"))
    old[16] = 1
    with pytest.raises(ClientError, match="record format 1"):
        consume(Fetches((0, bytes(old)))).poll()


def test_an_offset_that_is_gone_is_an_error_unless_told_otherwise(consume) -> None:
    with pytest.raises(BrokerRefused, match=r"t/0 at offset 3.*OFFSET_OUT_OF_RANGE"):
        consume(Fetches((OFFSET_OUT_OF_RANGE, b"")), at=3).poll()


def test_an_offset_that_is_gone_can_mean_go_on_with_the_first(consume) -> None:
    fetches = Fetches((OFFSET_OUT_OF_RANGE, b""), (0, batch(40, b"a")))
    consumer = consume(fetches, at=3, earliest=40, out_of_range=OutOfRange.EARLIEST)
    assert offsets(consumer.poll()) == [40]
    assert fetches.offsets == [3, 40]


@pytest.mark.parametrize("code", [NOT_LEADER, UNKNOWN_TOPIC], ids=["moved", "has not heard of it yet"])
def test_a_leader_that_is_not_ready_is_asked_for_again(consume, code) -> None:
    consumer = consume(Fetches((code, b""), (0, batch(0, b"a"))))
    assert offsets(consumer.poll()) == [0]


def test_nothing_in_time_is_an_empty_list(consume) -> None:
    assert consume(Fetches()).poll(timeout_ms=0) == []


def test_nothing_assigned_is_nothing_read(scripted) -> None:
    with Cluster(scripted({}).bootstrap) as cluster:
        assert Consumer(cluster).poll(timeout_ms=10_000) == []


def test_whole_batches_can_be_had_unopened(consume) -> None:
    data = batch(0, b"a", b"b")
    (fetched,) = consume(Fetches((0, data)), at=1).fetch()
    ((header, view),) = fetched.batches
    assert (bytes(view), header.record_count, fetched.from_offset) == (data, 2, 1)
    assert offsets(open_records(fetched)) == [1]


class Cleaned:
    """Partitions of one record each, at the given offsets, and an end: 100, or half of it for readers of committed records."""

    def __init__(self, *records, throttled=(), ends=()) -> None:
        self._records = records
        self._throttled = list(throttled)
        self._ends = list(ends)
        self.asked = []

    def __call__(self, request):
        (topic,) = request.topics
        self.asked.append([(asked.partition, asked.fetch_offset) for asked in topic.partitions])
        end = self._ends.pop(0) if self._ends else 100
        answered = []
        for asked in topic.partitions:
            at = self._records[asked.partition]
            data = batch(at, b"v") if asked.fetch_offset <= at else b""
            part = FetchResponsePartition(asked.partition, 0, high_watermark=end, records=data)
            part.last_stable_offset = end // 2
            answered.append(part)
        throttled = self._throttled.pop(0) if self._throttled else 0
        return FetchResponse(throttle_time_ms=throttled, responses=[FetchResponseTopic(topic="t", partitions=answered)])


@pytest.mark.parametrize(("read_committed", "end"), [(False, 100), (True, 50)])
def test_a_tail_that_was_compacted_away_is_passed_over(consume, read_committed, end) -> None:
    cleaned = Cleaned(0)
    consumer = consume(cleaned, read_committed=read_committed)
    assert offsets(consumer.poll()) == [0]
    assert consumer.poll(timeout_ms=0) == []
    assert consumer.positions == {("t", 0): 1}
    assert consumer.poll(timeout_ms=0) == []
    assert consumer.positions == {("t", 0): end}
    consumer.poll(timeout_ms=0)
    assert consumer.positions == {("t", 0): end}
    assert cleaned.asked == [[(0, 0)], [(0, 1)], [(0, 1)], [(0, end)]]


def test_only_what_ended_before_the_last_look_is_passed_over(consume) -> None:
    """What came between the two answers is behind the end that the first one told."""
    consumer = consume(Cleaned(0, ends=[3, 9]), at=1)
    consumer.poll(timeout_ms=0)
    consumer.poll(timeout_ms=0)
    assert consumer.positions == {("t", 0): 3}


def test_a_record_that_comes_between_two_empty_answers_is_read(consume) -> None:
    consumer = consume(Fetches((0, b""), (0, batch(7, b"late"))), at=7)
    assert consumer.poll(timeout_ms=0) == []
    assert offsets(consumer.poll(timeout_ms=0)) == [7]
    assert consumer.poll(timeout_ms=0) == []
    assert consumer.positions == {("t", 0): 8}


def test_nothing_from_a_broker_that_holds_back_passes_nothing_over(consume) -> None:
    consumer = consume(Cleaned(0, throttled=[0, 10, 0, 10, 0]), at=1)
    for _ in range(5):
        consumer.poll(timeout_ms=0)
    assert consumer.positions == {("t", 0): 1}


def test_a_seek_between_two_empty_answers_begins_anew(consume) -> None:
    consumer = consume(Cleaned(0), at=1)
    consumer.poll(timeout_ms=0)
    consumer.seek(("t", 0), 2)
    consumer.poll(timeout_ms=0)
    assert consumer.positions == {("t", 0): 2}


def test_a_partition_that_another_left_no_room_for_is_not_passed_over(scripted) -> None:
    """It stands behind records in the answer, which may have been all that could be sent; then it is asked for first."""
    busy = batch(0, b"a"), batch(1, b"b"), batch(2, b"c")
    asked = []

    def answer(request):
        (topic,) = request.topics
        asked.append([(part.partition, part.fetch_offset) for part in topic.partitions])
        parts = []
        for part in topic.partitions:
            has = part.partition == 0 and part.fetch_offset < len(busy)
            data = busy[part.fetch_offset] if has else b""
            parts.append(FetchResponsePartition(part.partition, 0, high_watermark=3, records=data))
        return FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=parts)])

    with Cluster(scripted({ApiKey.FETCH: answer}, partitions=2).bootstrap) as cluster:
        consumer = Consumer(cluster)
        consumer.assign({("t", 0): 0, ("t", 1): 0})
        consumer.poll()
        assert consumer.positions == {("t", 0): 1, ("t", 1): 0}
        consumer.poll()
        assert consumer.positions == {("t", 0): 2, ("t", 1): 3}
        assert asked == [[(0, 0), (1, 0)], [(1, 0), (0, 1)]]
