"""Counters of the producing rows."""

from penstock.bench.gateways.consume import MARK, BatchSubscription
from penstock.bench.gateways.produce import GroupCounter
from penstock.bench.raw_client import TokenCounter
from tests.unit.bench.gateways.scripted import scripted_server


def test_a_group_counts_when_its_last_answer_is_there() -> None:
    counter = GroupCounter(TokenCounter(b'"offset":', ()), 3)
    line = b'{"offset":1}\n'
    assert [counter.feed(memoryview(line * times)) for times in (2, 1, 7, 1, 1)] == [0, 1, 2, 0, 1]


def test_records_of_a_subscription_are_counted_once_wherever_a_frame_is_cut() -> None:
    with scripted_server(lambda: lambda data: b"") as address:
        data = (b"v" * 10 + MARK) * 20
        for piece in (1, 3, len(MARK), 17, 1000):
            subscription = BatchSubscription(address, "t", 20)
            for at in range(0, len(data), piece):
                subscription._take_data(data[at : at + piece])
            assert subscription._count == 20
            subscription.channels[0].sock.close()
