"""The codec against kafka-python, which reads the schemas by code of its own: a second opinion, and on names too."""

import importlib
import io
import random
import uuid
from typing import Any

import msgspec
import pytest
from kafka.protocol.api_message import ApiMessage

from penstock.wire.kafka.apis import API, Api, ApiKey
from penstock.wire.kafka.describe_configs_generated import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
)
from penstock.wire.kafka.produce_generated import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from tests.unit.wire.kafka import oracle

BITFIELDS = {"authorized_operations", "cluster_authorized_operations", "topic_authorized_operations"}
"""kafka-python hands these out as sets; the bytes are compared anyway."""


def kafka_python_classes() -> dict[tuple[int, str], Any]:
    for module in ("admin", "consumer", "metadata", "producer", "sasl"):
        importlib.import_module(f"kafka.protocol.{module}")
    found, waiting = {}, [ApiMessage]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        schema = cls.__dict__.get("_json")
        if schema is not None and cls._class_version is None:
            found[schema["apiKey"], schema["type"]] = cls
    return found


CLASSES = kafka_python_classes()


def cases() -> list[tuple[Api, int, str]]:
    shared = []
    for api, version, kind in oracle.cases():
        cls = CLASSES.get((api.key, kind))
        if cls is not None and cls.valid_versions[0] <= version <= cls.valid_versions[1]:
            shared.append((api, version, kind))
    return shared


def assert_same(ours: object, theirs: Any) -> None:
    if isinstance(ours, msgspec.Struct):
        for name in set(ours.__struct_fields__) - BITFIELDS:
            assert_same(getattr(ours, name), getattr(theirs, name))
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for our_element, their_element in zip(ours, theirs, strict=True):
            assert_same(our_element, their_element)
    elif isinstance(theirs, uuid.UUID):
        assert ours == theirs.bytes
    elif ours == bytes(16):
        assert theirs is None
    else:
        assert ours == theirs


def test_kafka_python_covers_most_of_the_codec() -> None:
    assert len({api.key for api, _version, _kind in cases()}) >= len(API) - 1


@pytest.mark.parametrize(("api", "version", "kind"), cases(), ids=oracle.case_id)
def test_kafka_python_reads_the_same_names_and_values_and_writes_the_same_bytes(api, version, kind) -> None:
    encode = (api.encode_request_table if kind == "request" else api.encode_response_table)[version]
    decode = (api.decode_request_table if kind == "request" else api.decode_response_table)[version]
    for number in range(3):
        rng = random.Random(f"{api.name} {version} {kind} {number}")
        ours: Any = oracle.to_ours(
            oracle.random_message(oracle.kio_class(api, version, kind), rng), oracle.our_class(api, kind)
        )
        if api.key == ApiKey.API_VERSIONS and kind == "response":
            ours.error_code = 0  # after an error kafka-python reads the rest as version 0, whatever was asked
        data = b"".join(encode(ours))
        theirs = CLASSES[api.key, kind].decode(data, version=version)
        assert_same(decode(data, 0), theirs)
        theirs._header = None
        assert theirs.encode(version=version) == data


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_before_version_3_is_as_kafka_python_had_it(version) -> None:
    old = importlib.import_module("kafka.protocol.old.produce")
    request = ProduceRequest(
        None, 1, 700, [ProduceRequestTopic(name="t", partition_data=[ProduceRequestPartition(4, b"xyz")])]
    )
    data = b"".join(API[ApiKey.PRODUCE].encode_request(request, version))
    theirs = getattr(old, f"ProduceRequest_v{version}")(1, 700, [("t", [(4, b"xyz")])])
    assert data == theirs.encode()
    assert API[ApiKey.PRODUCE].decode_request(data, 0, version) == request

    partition = ProduceResponsePartition(4, 7, 1234, log_append_time_ms=99 if version >= 2 else -1)
    response = ProduceResponse([ProduceResponseTopic(name="t", partition_responses=[partition])], 5 if version else 0)
    data = b"".join(API[ApiKey.PRODUCE].encode_response(response, version))
    decoded = getattr(old, f"ProduceResponse_v{version}").decode(io.BytesIO(data))
    assert decoded.responses == [("t", [(4, 7, 1234, 99) if version >= 2 else (4, 7, 1234)])]
    assert API[ApiKey.PRODUCE].decode_response(data, 0, version) == response


def test_describe_configs_version_0_is_as_kafka_python_had_it() -> None:
    old = importlib.import_module("kafka.protocol.old.admin")
    api = API[ApiKey.DESCRIBE_CONFIGS]
    request = DescribeConfigsRequest([DescribeConfigsRequestResource(2, "t", ["retention.ms"])])
    data = b"".join(api.encode_request(request, 0))
    assert data == old.DescribeConfigsRequest_v0([(2, "t", ["retention.ms"])]).encode()
    assert api.decode_request(data, 0, 0) == request

    config = DescribeConfigsResponseConfig("retention.ms", "5", read_only=False, is_default=True)
    response = DescribeConfigsResponse(7, [DescribeConfigsResponseResult(0, None, 2, "t", [config])])
    data = b"".join(api.encode_response(response, 0))
    decoded = old.DescribeConfigsResponse_v0.decode(io.BytesIO(data))
    assert decoded.results == [(0, None, 2, "t", [("retention.ms", "5", False, True, False)])]
    assert api.decode_response(data, 0, 0) == response
