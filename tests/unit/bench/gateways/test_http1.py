"""Requests as bytes, and answers cut from what a connection received."""

import pytest

from penstock.address import Address
from penstock.bench.faults import BenchError
from penstock.bench.gateways import http1

HERE = Address("127.0.0.1", 8080)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\nx-request-id: 1\r\n\r\n"


def test_a_request_says_the_length_of_its_body() -> None:
    assert http1.request("POST", "/v1/ack", HERE, b"{}") == (
        b"POST /v1/ack HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert http1.request("GET", "/x", HERE) == b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"


def test_a_request_has_the_credentials_that_it_is_given() -> None:
    assert http1.request("GET", "/x", HERE, authorization="Bearer key") == (
        b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAuthorization: Bearer key\r\n\r\n"
    )


def test_a_chunk_says_its_length_in_hexadecimal() -> None:
    assert http1.chunk(b"v" * 26) == b"1a\r\n" + b"v" * 26 + b"\r\n"
    assert http1.chunk(b"") == b"0\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 45, 46, 1000])
def test_answers_are_told_apart_however_they_are_cut(piece) -> None:
    reader = http1.ResponseReader()
    data = OK + EMPTY + OK.replace(b"hello", b"world") + OK.replace(b"Content-Length", b"content-length")
    bodies = []
    for at in range(0, len(data), piece):
        bodies += reader.feed(memoryview(data)[at : at + piece])
    assert bodies == [b"hello", b"", b"world", b"hello"]


@pytest.mark.parametrize("status", [b"404 Not Found", b"500 Internal Server Error", b"302 Found"])
def test_an_answer_that_says_no_ends_the_measurement(status) -> None:
    with pytest.raises(BenchError, match=status.decode()):
        http1.ResponseReader().feed(memoryview(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"))


def test_an_answer_without_a_length_cannot_be_read() -> None:
    with pytest.raises(BenchError, match="length"):
        http1.ResponseReader().feed(memoryview(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
