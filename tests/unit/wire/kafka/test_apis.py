import subprocess
import sys

import pytest

from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.apis import API, FLEXIBLE_NEVER, ApiKey
from penstock.wire.kafka.fetch_generated import (
    DECODE_RESPONSE,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
)
from penstock.wire.kafka.metadata_generated import MetadataRequest
from penstock.wire.kafka.produce_generated import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic

SERVED = {
    # key: oldest, newest, first flexible version
    0: (0, 13, 9), 1: (4, 18, 12), 2: (1, 11, 6), 3: (0, 13, 9), 8: (2, 10, 8), 9: (1, 10, 6), 10: (0, 6, 3),
    11: (0, 9, 6), 12: (0, 4, 4), 13: (0, 5, 4), 14: (0, 5, 4), 15: (0, 6, 5), 16: (0, 5, 3), 18: (0, 4, 3),
    19: (2, 7, 5), 20: (1, 6, 4), 21: (0, 2, 2), 22: (0, 5, 2), 23: (2, 4, 4), 32: (0, 4, 4), 33: (0, 2, 2),
    35: (1, 5, 2), 37: (0, 3, 2), 42: (0, 2, 2), 44: (0, 1, 1), 47: (0, 0, FLEXIBLE_NEVER), 60: (0, 2, 0), 75: (0, 0, 0),
    29: (1, 3, 2), 34: (1, 2, 2), 55: (0, 2, 0), 68: (0, 1, 0), 74: (0, 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("key", SERVED)
def test_the_codec_covers_the_versions_a_broker_serves(key) -> None:
    api = API[key]
    assert (api.min_version, api.max_version, api.first_flexible) == SERVED[key]


@pytest.mark.parametrize("api", API.values(), ids=repr)
def test_every_table_has_every_version(api) -> None:
    versions = list(range(api.min_version, api.max_version + 1))
    for table in (
        api.decode_request_table,
        api.encode_request_table,
        api.decode_response_table,
        api.encode_response_table,
    ):
        assert list(table) == versions
    assert api.covers(api.max_version)
    assert not api.covers(api.max_version + 1)


def test_header_versions_follow_flexibility_except_for_api_versions() -> None:
    produce, api_versions = API[ApiKey.PRODUCE], API[ApiKey.API_VERSIONS]
    assert [produce.response_header_version(version) for version in (8, 9)] == [0, 1]
    assert [api_versions.response_header_version(version) for version in (2, 3)] == [0, 0]


@pytest.mark.parametrize("version", [-1, 3, 19])
def test_a_version_the_codec_does_not_have_is_a_protocol_violation(version) -> None:
    with pytest.raises(ProtocolViolation, match="use 4 to 18"):
        API[ApiKey.FETCH].decode_request(b"", 0, version)
    with pytest.raises(ProtocolViolation, match="use 4 to 18"):
        API[ApiKey.FETCH].decode_response(b"", 0, version)


@pytest.mark.parametrize("version", [3, 9, 13])
def test_decoded_records_are_a_view_of_the_input(version) -> None:
    request = ProduceRequest(
        topic_data=[ProduceRequestTopic(name="t", partition_data=[ProduceRequestPartition(0, b"r" * 9000)])]
    )
    api = API[ApiKey.PRODUCE]
    data = bytearray(b"".join(api.encode_request(request, version)))
    records = api.decode_request(data, 0, version).topic_data[0].partition_data[0].records
    data[data.index(b"rrr")] = ord("X")
    assert isinstance(records, memoryview)
    assert bytes(records[:3]) == b"Xrr"


@pytest.mark.parametrize("version", [4, 12, 18])
@pytest.mark.parametrize("size", [0, 4000, 4095, 4096, 4097, 100_000])
def test_records_of_any_size_come_back_from_a_fetch_answer(version, size) -> None:
    partitions = [FetchResponsePartition(0, records=memoryview(bytes(size))), FetchResponsePartition(1, records=None)]
    response = FetchResponse(responses=[FetchResponseTopic(partitions=partitions)])
    decoded = DECODE_RESPONSE[version](b"".join(API[ApiKey.FETCH].encode_response(response, version)), 0)
    assert [partition.records for partition in decoded.responses[0].partitions] == [bytes(size), None]


def test_null_that_the_version_cannot_say_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match=r"MetadataRequest\.topics"):
        API[ApiKey.METADATA].encode_request(MetadataRequest(topics=None), 0)


def test_codec_modules_are_imported_when_first_used() -> None:
    program = (
        "import sys, penstock.wire.kafka.headers\n"
        "print(sorted(name for name in sys.modules if name.endswith('_generated')))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['penstock.wire.kafka.api_table_generated']"
