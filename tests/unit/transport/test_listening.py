"""Taking a port: one address, free or refused, and nothing left behind."""

import socket

import pytest

from penstock.address import Address
from penstock.transport.listening import address_of, bind, host_of


def test_a_name_of_several_addresses_is_bound_once_where_every_client_finds_it() -> None:
    with bind(Address("localhost", 0)) as listener:
        assert listener.family == socket.AF_INET
        assert address_of(listener).host == "127.0.0.1"
        assert address_of(listener).port > 0


def test_a_port_that_is_taken_is_refused() -> None:
    with bind(Address("127.0.0.1", 0)) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bind(address_of(first))


@pytest.mark.parametrize(
    ("where", "host"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::1"),
        (("::ffff:0:1", 1, 0, 0), "::ffff:0:1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1"),
    ],
)
def test_an_address_has_one_form_whatever_the_listener(where: tuple[object, ...], host: str) -> None:
    assert host_of(where) == host
