"""What ApiVersions promises is kept: every API in every version listed is really answered."""

import struct
from typing import Any

import pytest

from penstock.gateways.kafka.handlers import HANDLERS
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest
from tests.support.kafka_wire import METADATA, PRODUCE, decode
from tests.unit.wire.kafka.oracle import our_class


def minimal(key: int) -> object:
    """The smallest request of an API: everything at its default."""
    request: Any = our_class(API[key], "request")()
    if key == PRODUCE:
        # At its default of 0 there would be no answer.
        request.acks = 1
    if key == ApiKey.API_VERSIONS:
        request.client_software_name = request.client_software_version = "1"
    return request


@pytest.mark.parametrize("key", sorted(HANDLERS), ids=lambda key: API[key].name)
def test_every_version_that_is_listed_is_answered(connect, key: int) -> None:
    client = connect()
    listed = {
        each.api_key: range(each.min_version, each.max_version + 1)
        for each in client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest(), 0).api_keys
    }
    assert set(listed) == set(map(int, HANDLERS))
    for version in listed[key]:
        sent = client.send(key, minimal(key), version)
        frame = client.receive()
        correlation_id, _ = decode(key, version, frame)
        assert correlation_id == sent
    # Nothing came beside the answers.
    assert client.ask(METADATA, MetadataRequest(), 1).brokers


def test_an_unknown_version_of_api_versions_keeps_the_connection(connect) -> None:
    client = connect()
    client.socket.sendall(struct.pack(">ihhih", 10 + 9, 18, 99, 5, -1) + b"\0\x02a\x021\0..."[:9])
    correlation_id, answer = client.answer(ApiKey.API_VERSIONS, 0)
    assert (correlation_id, answer.error_code) == (5, 35)
    assert answer.api_keys
    assert client.ask(ApiKey.API_VERSIONS, ApiVersionsRequest("a", "1"), 3).error_code == 0
