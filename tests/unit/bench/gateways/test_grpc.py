"""How the records of a subscription are counted."""

from penstock.bench.gateways.grpc import MARK, BatchSubscription
from tests.unit.bench.gateways.scripted import scripted_server


def test_records_of_a_subscription_are_counted_once_wherever_a_frame_is_cut() -> None:
    with scripted_server(lambda: lambda data: b"") as address:
        data = (b"v" * 10 + MARK) * 20
        for piece in (1, 3, len(MARK), 17, 1000):
            subscription = BatchSubscription(address, "t", 20)
            for at in range(0, len(data), piece):
                subscription._take_data(data[at : at + piece])
            assert subscription._count == 20
            subscription.channels[0].sock.close()
