import struct

import pytest
from kafka.protocol.api_header import RequestHeader as KafkaPythonHeader

from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, ApiKey
from penstock.wire.kafka.fetch_generated import FetchResponse, FetchResponsePartition, FetchResponseTopic
from penstock.wire.kafka.headers import (
    RequestHeader,
    decode_frame_size,
    decode_request_header,
    decode_response_header,
    frame,
    frame_request,
)


@pytest.mark.parametrize(
    ("api_key", "version", "client_id"),
    [(ApiKey.PRODUCE, 8, "é-client"), (ApiKey.PRODUCE, 9, "é-client"), (ApiKey.FETCH, 12, None), (ApiKey.FETCH, 4, "")],
)
def test_a_request_frame_round_trips_and_kafka_python_agrees(api_key, version, client_id) -> None:
    header = RequestHeader(api_key, version, -7, client_id)
    data = b"".join(frame_request(header, [b"the ", b"body"]))
    assert decode_frame_size(data, 0, 1000) == len(data) - 4
    decoded, pos = decode_request_header(data, 4)
    assert decoded == header
    assert data[pos:] == b"the body"
    theirs = KafkaPythonHeader(
        request_api_key=api_key, request_api_version=version, correlation_id=-7, client_id=client_id
    )
    assert data[4:pos] == theirs.encode(flexible=version >= API[api_key].first_flexible)


def test_the_client_id_is_never_compact() -> None:
    flexible = b"".join(frame_request(RequestHeader(ApiKey.METADATA, 12, 1, "abc"), [b""]))
    assert flexible[12:] == b"\0\x03abc" + b"\0"


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    data = struct.pack(">hhih", ApiKey.METADATA, 12, 1, 1) + b"c" + b"\x01\x05\x02xy" + b"body"
    header, pos = decode_request_header(data)
    assert header.client_id == "c"
    assert data[pos:] == b"body"


def test_the_header_of_an_unknown_api_can_be_read() -> None:
    header, pos = decode_request_header(struct.pack(">hhih", 999, 3, 5, -1))
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (999, 3, 5, None)
    assert pos == 10


def test_the_header_of_an_api_versions_request_from_the_future_can_be_read() -> None:
    header, pos = decode_request_header(struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 5, 2) + b"me\0rest")
    assert (header.api_version, header.client_id, pos) == (99, "me", 13)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        struct.pack(">hhih", 0, 9, 1, 5) + b"abc",
        struct.pack(">hhih", 0, 8, 1, 5) + b"abc",
        struct.pack(">hhih", 0, 9, 1, 1) + b"a",
        struct.pack(">hhih", 0, 9, 1, 2) + b"\xc3\x28\0",
        struct.pack(">hhih", 0, 9, 1, 0) + b"\x01\x00\x7f",
    ],
)
def test_a_broken_request_header_is_refused(data) -> None:
    with pytest.raises(ProtocolViolation):
        decode_request_header(data)


@pytest.mark.parametrize("header_version", [0, 1])
def test_a_response_frame_round_trips(header_version) -> None:
    data = b"".join(frame(77, header_version, [b"body"]))
    assert decode_frame_size(data, 0, 100) == len(data) - 4 == 8 + header_version
    correlation_id, pos = decode_response_header(data, 4, header_version)
    assert (correlation_id, data[pos:]) == (77, b"body")


def test_tagged_fields_of_a_response_header_are_skipped() -> None:
    assert decode_response_header(struct.pack(">i", 3) + b"\x01\x00\x01x" + b"body", 0, 1) == (3, 8)


@pytest.mark.parametrize(("data", "version"), [(b"\0\0\0", 0), (b"\0\0\0\0", 1), (b"\0\0\0\0\x01\0\x09", 1)])
def test_a_broken_response_header_is_refused(data, version) -> None:
    with pytest.raises(ProtocolViolation):
        decode_response_header(data, 0, version)


@pytest.mark.parametrize("size", [-1, 101, 2**31 - 1])
def test_a_frame_size_that_is_negative_or_over_the_limit_is_refused(size) -> None:
    assert decode_frame_size(struct.pack(">i", 100), 0, 100) == 100
    with pytest.raises(ProtocolViolation, match="at most 100"):
        decode_frame_size(struct.pack(">i", size), 0, 100)


def test_framing_leaves_large_records_where_they_are() -> None:
    records = [memoryview(bytes(5000)), memoryview(bytes(6000)), b"small"]
    partitions = [FetchResponsePartition(index, records=data) for index, data in enumerate(records)]
    response = FetchResponse(responses=[FetchResponseTopic(topic="t", partitions=partitions)])
    parts = frame(1, 1, API[ApiKey.FETCH].encode_response(response, 12))
    assert [part for part in parts if part is records[0] or part is records[1]] == records[:2]
    assert len(parts) == 5
    assert struct.unpack(">i", b"".join(parts)[:4])[0] == sum(map(len, parts)) - 4
