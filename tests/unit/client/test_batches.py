"""Ready-made batches: numbered, sent in order, and told where each of them went, whatever the broker says meanwhile."""

import itertools
import threading

import pytest

from penstock.client import Acks, BatchSender, BatchTooLarge, BrokerRefused, Cluster, Producer
from penstock.client.sending import BATCH_BYTES_MAX
from penstock.limits import REQUEST_BYTES_MAX
from penstock.records.batch import check_produced, read_header
from penstock.records.builder import build_batch
from penstock.records.records import Record
from penstock.wire.kafka.apis import ApiKey
from tests.support.scripted_broker import CLOSE
from tests.unit.client.test_producer import NOT_LEADER, OUT_OF_ORDER, TOO_LARGE, Log


def batch(*values: bytes) -> bytearray:
    return build_batch([Record(number, 1, None, value) for number, value in enumerate(values)])


def too_large() -> bytearray:
    return batch(bytes(REQUEST_BYTES_MAX + 1))


def cluster_of(broker):
    return Cluster(broker.bootstrap, timeout_ms=60_000)


def test_batches_are_numbered_by_their_records_and_told_in_order(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log}, partitions=2)) as cluster:
        sender = BatchSender(cluster)
        sender.send("t", 0, batch(b"1", b"2"), 2)
        sender.send("t", 1, batch(b"3"), 1)
        sender.send("t", 0, batch(b"4"), 1)
        told = sender.flush()
    assert [(each.partition, each.base_offset, each.record_count) for each in told] == [(0, 1, 2), (1, 2, 1), (0, 3, 1)]
    headers = [read_header(data) for _, data, _ in log.batches]
    assert [(header.producer_id, header.producer_epoch, header.base_sequence) for header in headers] == [
        (7, 0, 0),
        (7, 0, 0),
        (7, 0, 2),
    ]
    for _, data, _ in log.batches:
        check_produced(bytearray(data), read_header(data))
    assert sender.records_sent == 4


def test_a_flush_tells_of_what_came_since_the_last_one(scripted) -> None:
    with cluster_of(scripted({ApiKey.PRODUCE: Log()})) as cluster:
        sender = BatchSender(cluster)
        sender.send("t", 0, batch(b"1"), 1)
        assert len(sender.flush()) == 1
        assert sender.flush() == []
        sender.send("t", 0, batch(b"2"), 1)
        assert [each.base_offset for each in sender.flush()] == [2]


@pytest.mark.parametrize("trouble", [[NOT_LEADER, OUT_OF_ORDER, OUT_OF_ORDER], [CLOSE]])
def test_batches_that_are_sent_again_keep_their_numbers_and_their_order(scripted, trouble) -> None:
    log = Log(*trouble)
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        sender = BatchSender(cluster)
        for number in range(3):
            sender.send("t", 0, batch(b"%d" % number), 1)
        told = sender.flush()
    assert log.sequences(0) == [0, 1, 2]
    assert log.values() == [b"0", b"1", b"2"]
    assert [each.base_offset for each in told] == sorted(each.base_offset for each in told)
    assert len(told) == 3


@pytest.mark.parametrize(
    ("stored", "sequences"),
    [(False, [0, 1, 2]), (True, [0, 1, 1, 2])],
    ids=["before it is stored", "after it is stored"],
)
def test_nothing_overtakes_a_batch_whose_connection_breaks(scripted, stored, sequences) -> None:
    log, produces, arrived = Log(), itertools.count(), threading.Event()

    def produce(request):
        if next(produces) != 1:
            return log(request)
        if stored:
            log(request)
        arrived.set()
        return CLOSE

    with cluster_of(scripted({ApiKey.PRODUCE: produce})) as cluster:
        sender = BatchSender(cluster)
        sender.send("t", 0, batch(b"0"), 1)
        sender.flush()
        sender.send("t", 0, batch(b"1"), 1)
        # The broker serves each connection in its own thread: without this the batch could arrive after it was sent again.
        assert arrived.wait(60)
        # Another user of the connection notices first that it is broken.
        cluster.any_connection().close()
        sender.send("t", 0, batch(b"2"), 1)
        assert len(sender.flush()) == 2
    assert log.sequences(0) == sequences


def test_a_refusal_is_raised(scripted) -> None:
    with cluster_of(scripted({ApiKey.PRODUCE: Log(TOO_LARGE)})) as cluster:
        sender = BatchSender(cluster)
        sender.send("t", 0, batch(b"1"), 1)
        with pytest.raises(BrokerRefused) as refused:
            sender.flush()
        assert refused.value.code == TOO_LARGE


def test_so_many_requests_are_under_way_and_no_more(scripted) -> None:
    with cluster_of(scripted({ApiKey.PRODUCE: Log()})) as cluster:
        for most in (1, 3):
            sender = BatchSender(cluster, in_flight_max=most)
            for _ in range(6):
                sender.send("t", 0, batch(b"1"), 1)
                assert len(sender._in_flight) <= most
            sender.flush()
        with pytest.raises(ValueError, match="From 1 to 5"):
            BatchSender(cluster, in_flight_max=6)


def test_without_acknowledgements_a_batch_has_no_number(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster, BatchSender(cluster, Acks.LEADER) as sender:
        sender.send("t", 0, batch(b"1"), 1)
    assert [read_header(data).base_sequence for _, data, _ in log.batches] == [-1]


def test_a_wrong_count_is_a_mistake_that_is_found_here(scripted) -> None:
    with cluster_of(scripted({ApiKey.PRODUCE: Log()})) as cluster:
        sender = BatchSender(cluster)
        for data, count in ((batch(b"1"), 2), (bytearray(10), 0)):
            with pytest.raises(ValueError, match="Not a batch"):
                sender.send("t", 0, data, count)


def test_a_partition_that_is_not_there_takes_no_number(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        sender = BatchSender(cluster)
        with pytest.raises(BrokerRefused):
            sender.send("t", 5, batch(b"1"), 1)
        sender.send("t", 0, batch(b"1"), 1)
        assert len(sender.flush()) == 1
    assert log.sequences(0) == [0]


def test_what_no_request_can_carry_is_refused_at_once_and_takes_no_number(scripted) -> None:
    log = Log()
    with cluster_of(scripted({ApiKey.PRODUCE: log})) as cluster:
        sender, producer = BatchSender(cluster), Producer(cluster)
        with pytest.raises(BatchTooLarge, match=r"t/0: a record of 104,\d+,\d+ bytes .* write smaller records"):
            sender.send("t", 0, too_large(), 1)
        with pytest.raises(BatchTooLarge, match="t/0: a record of"):
            producer.send("t", bytes(BATCH_BYTES_MAX + 1), partition=0)
        sender.send("t", 0, batch(b"1"), 1)
        assert len(sender.flush()) == 1
        producer.flush()
    assert log.sequences(0) == [0]
