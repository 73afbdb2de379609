from pathlib import Path

import pytest

from penstock.address import Address
from penstock.settings import TlsSettings
from penstock.transport.listener import Arrival, Listener
from penstock.transport.tls import ServerTls
from tests.support.certificates import Authority


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_only_loopback_is_private_without_tls(tmp_path: Path, host: str, is_loopback: bool) -> None:
    listener = Listener("kafka", Address(host, 9092))
    assert (listener.is_loopback, listener.is_private) == (is_loopback, is_loopback)
    pair = Authority(tmp_path).server()
    tls = ServerTls(TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key)), lambda _: "")
    assert Listener("kafka", Address(host, 9092), tls=tls).is_private


def test_an_arrival_is_counted_off_once() -> None:
    left: list[Arrival] = []

    class Desk:
        def left(self, arrival: Arrival) -> None:
            left.append(arrival)

        def failed(self, arrival: Arrival, failure: object) -> None:
            raise AssertionError

    arrival = Arrival(Listener("kafka", Address("127.0.0.1", 1)), "127.0.0.1", Desk(), is_stranger=True)
    arrival.known()
    arrival.known()
    assert left == [arrival]
