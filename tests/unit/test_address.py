"""HOST:PORT, as people write it."""

import pytest

from penstock.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("broker.example:0", Address("broker.example", 0)),
        (" localhost:1 ", Address("localhost", 1)),
        ("[::1]:9092", Address("::1", 9092)),
    ],
)
def test_an_address_is_read_and_written_the_same_way(text, address) -> None:
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no port"),
        ("localhost", "no port"),
        (":9092", "no host"),
        ("localhost:", "no port"),
        ("localhost:x", "no port"),
        ("localhost:-1", "no port"),
        ("localhost:65536", "no port"),
        ("localhost:٣", "no port"),
        ("::1:9092", "brackets"),
        ("[::1", "IPv6"),
        ("[::1]9092", "IPv6"),
        ("[::1]:", "no port"),
        ("[]:1", "no host"),
    ],
)
def test_what_is_no_address_is_refused_with_a_reason(text, says) -> None:
    with pytest.raises(ValueError, match=says):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost", Address("localhost", 7)), ("[::1]", Address("::1", 7)), ("a:1", Address("a", 1))],
)
def test_the_port_may_be_left_out_where_there_is_a_default(text, address) -> None:
    assert parse_address(text, 7) == address
