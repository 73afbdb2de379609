"""One partition in bulk, the next answer on its way."""

import pytest

from penstock.client import BrokerRefused, Cluster
from penstock.client.errors import CannotConnect, ConnectionLost, RequestTimeout
from penstock.client.read_ahead import ReadAhead
from penstock.records.batch import set_offset
from penstock.records.builder import BatchBuilder
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.fetch_generated import (
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponsePartition,
    FetchResponseTopic,
)
from tests.support.scripted_broker import CLOSE
from tests.support.waiting import eventually

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER = 1, 3, 6


def batch(base_offset, count=1):
    builder = BatchBuilder()
    for _ in range(count):
        builder.add(1000, None, b"v")
    built = builder.build()
    set_offset(built, base_offset, 0)
    return bytes(built)


class Log:
    """A partition of batches of two records each. What is planned happens instead of an answer."""

    def __init__(self, records, *, batches_an_answer=1, plan=(), aborted=(), end=None, throttled=0) -> None:
        self._records = records
        self._end = records if end is None else end
        self._throttled = throttled
        self._each = batches_an_answer
        self._plan = list(plan)
        self._aborted = [FetchResponseAbortedTransaction(*each) for each in aborted]
        self.asked = []

    def __call__(self, request):
        (topic,) = request.topics
        (asked,) = topic.partitions
        self.asked.append(asked.fetch_offset)
        planned = self._plan.pop(0) if self._plan else None
        if planned is CLOSE:
            return CLOSE
        first = asked.fetch_offset - asked.fetch_offset % 2
        ends = min(self._records, first + 2 * self._each)
        data = b"".join(batch(at, 2) for at in range(first, ends, 2)) if planned is None else b""
        part = FetchResponsePartition(
            0,
            planned or 0,
            high_watermark=self._end,
            last_stable_offset=self._end,
            records=data,
            aborted_transactions=self._aborted,
        )
        answered = [FetchResponseTopic(topic="t", partitions=[part])]
        return FetchResponse(throttle_time_ms=self._throttled, responses=answered)


@pytest.fixture
def read(scripted):
    clusters = []

    def start(log, first, end, **options):
        broker = scripted({ApiKey.FETCH: log})
        cluster = Cluster(broker.bootstrap, timeout_ms=60_000)
        clusters.append(cluster)
        return ReadAhead(cluster, "t", 0, first, end, wait_ms_max=0, **options)

    yield start
    for cluster in clusters:
        cluster.close()


def spans(fetched):
    return [(each.batches[0][0].base_offset, each.batches[-1][0].next_offset) for each in fetched]


def test_a_range_is_read_to_its_end_and_no_further(read) -> None:
    log = Log(100, batches_an_answer=2)
    assert spans(read(log, 0, 10)) == [(0, 4), (4, 8), (8, 12)]
    assert log.asked == [0, 4, 8]


def test_an_empty_range_asks_for_nothing(read) -> None:
    log = Log(100)
    assert list(read(log, 5, 5)) == []
    assert log.asked == []


def test_the_next_answer_is_asked_for_before_this_one_is_given_out(read) -> None:
    log = Log(100)
    answers = iter(read(log, 0, 6))
    next(answers)
    eventually(lambda: log.asked == [0, 2])
    next(answers)
    eventually(lambda: log.asked == [0, 2, 4])


def test_a_start_inside_a_batch_is_known_to_the_caller(read) -> None:
    (fetched,) = read(Log(100), 3, 4)
    assert fetched.from_offset == 3
    assert fetched.batches[0][0].base_offset == 2


@pytest.mark.parametrize("trouble", [CLOSE, NOT_LEADER, UNKNOWN_TOPIC])
def test_a_lost_connection_or_another_leader_costs_a_second_try_and_no_batch(read, trouble) -> None:
    log = Log(100, plan=[None, trouble])
    assert spans(read(log, 0, 6)) == [(0, 2), (2, 4), (4, 6)]
    assert log.asked.count(2) == 2


def test_a_range_that_is_gone_is_an_error(read) -> None:
    with pytest.raises(BrokerRefused, match="t/0 at offset 0"):
        list(read(Log(100, plan=[OFFSET_OUT_OF_RANGE]), 0, 6))


def test_records_that_do_not_come_are_an_error_that_names_them(read) -> None:
    with pytest.raises(RequestTimeout, match=r"t/0 has no record at offset 4 .* up to 10; its end is 4"):
        list(read(Log(4), 0, 10, timeout_ms=1))


@pytest.mark.parametrize("read_committed", [False, True])
def test_a_range_whose_rest_was_compacted_away_is_read(read, read_committed) -> None:
    log = Log(4, end=100)
    reader = read(log, 0, 90, read_committed=read_committed)
    assert [fetched.from_offset for fetched in reader] == [0, 2]
    assert reader.position == 90
    assert log.asked == [0, 2, 4, 4]


def test_nothing_from_a_broker_that_holds_back_is_not_the_end(read) -> None:
    with pytest.raises(RequestTimeout, match="no record at offset 4"):
        list(read(Log(4, end=100, throttled=1), 0, 90, timeout_ms=100))


def test_a_reader_that_stops_early_leaves_no_answer_for_the_next_one(read) -> None:
    log = Log(100)
    reader = read(log, 0, 10)
    answers = iter(reader)
    next(answers)
    answers.close()
    again = ReadAhead(reader._cluster, "t", 0, 6, 8, wait_ms_max=0)
    assert spans(again) == [(6, 8)]


def test_aborted_transactions_are_handed_on(read) -> None:
    (fetched,) = read(Log(100, aborted=[(7, 1)]), 0, 2, read_committed=True)
    assert list(fetched.aborted) == [(7, 1)]


@pytest.mark.parametrize("error", [ConnectionLost("it broke"), CannotConnect("nobody is there"), BrokerRefused(5)])
def test_a_leader_that_died_behind_its_last_answer_is_waited_for(read, monkeypatch, error) -> None:
    """The next answer is asked for ahead of time, outside of what is tried again: a failure there is none yet."""
    send, failures = ReadAhead._send, [None, error]

    def send_or_fail(self):
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        return send(self)

    monkeypatch.setattr(ReadAhead, "_send", send_or_fail)
    fetched = list(read(Log(6), 0, 6))
    assert [each.batches[0][0].base_offset for each in fetched] == [0, 2, 4]
    assert not failures


def test_answers_that_are_held_keep_their_bytes_while_later_ones_come(scripted) -> None:
    """Memory is used again for later answers, and must not be while somebody looks at an earlier one."""
    large = 200_000

    def answer(request):
        asked = request.topics[0].partitions[0].fetch_offset
        builder = BatchBuilder()
        for _ in range(2):
            builder.add(1000, None, bytes([asked]) * large)
        built = builder.build()
        set_offset(built, asked, 0)
        part = FetchResponsePartition(0, 0, high_watermark=20, last_stable_offset=20, records=bytes(built))
        return FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=[part])])

    broker = scripted({ApiKey.FETCH: answer})
    with Cluster(broker.bootstrap) as cluster:
        held = list(ReadAhead(cluster, "t", 0, 0, 20))
        values = [bytes(read[1][-1 - large : -1]) for fetched in held for read in fetched.batches]
        assert values == [bytes([offset]) * large for offset in range(0, 20, 2)]
        memory = {id(read[1].obj) for fetched in held for read in fetched.batches}
        assert len(memory) == len(held)
        # Those that are let go are not: the same memory again and again.
        owners = {id(fetched.batches[0][1].obj) for fetched in ReadAhead(cluster, "t", 0, 0, 20)}
        assert len(owners) <= 3
