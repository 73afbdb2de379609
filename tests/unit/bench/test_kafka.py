"""Frames and layouts against kio, which knows the protocol from its schemas; batches against the readers of other clients."""

import datetime as dt
import importlib
import io
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kafka.record import MemoryRecords
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from penstock.bench import kafka
from penstock.bench.faults import BenchError
from penstock.wire.kafka.apis import ApiKey

TOPIC = "bench-topic"
BATCH = bytes(kafka.batch_of([b"v" * 100] * 3))
PRODUCE_VERSIONS = (kafka.PRODUCE_VERSION_MAX, 7)
FETCH_VERSIONS = (kafka.FETCH_VERSION_MAX, 11)


def parse_request(frame: bytes, api: ApiKey, version: int):
    size = int.from_bytes(frame[:4], "big")
    assert size == len(frame) - 4
    schema = load_request_schema(int(api), version)
    header, header_bytes = entity_reader(schema.__header_schema__)(frame, 4)
    body, body_bytes = entity_reader(schema)(frame, 4 + header_bytes)
    assert 4 + header_bytes + body_bytes == len(frame)
    assert header.request_api_key == api
    assert header.request_api_version == version
    assert header.client_id == kafka.CLIENT_ID
    return header, body


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize(("acks", "number"), [("1", 1), ("all", -1)])
def test_a_produce_frame_says_what_was_asked(version, acks, number) -> None:
    frame = kafka.produce_request(version, 77, TOPIC, 3, acks, BATCH)
    header, body = parse_request(frame, ApiKey.PRODUCE, version)
    assert header.correlation_id == 77
    assert body.transactional_id is None
    assert body.acks == number
    (topic,) = body.topic_data
    assert topic.name == TOPIC
    (partition,) = topic.partition_data
    assert partition.index == 3
    assert bytes(partition.records) == BATCH


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_frame_asks_for_the_patched_offset(version) -> None:
    request = kafka.fetch_request(version, TOPIC, 2, bytes_max=4321, wait_ms_max=250)
    frame = bytearray(request.frame)
    frame[request.offset_at : request.offset_at + 8] = (99_000_000_001).to_bytes(8, "big")
    _, body = parse_request(bytes(frame), ApiKey.FETCH, version)
    assert body.min_bytes == 1
    assert body.max_bytes == 4321
    assert (body.session_id, body.session_epoch) == (0, -1)
    (topic,) = body.topics
    (partition,) = topic.partitions
    assert topic.topic == TOPIC
    assert (partition.partition, partition.fetch_offset) == (2, 99_000_000_001)
    assert partition.partition_max_bytes == 4321
    assert partition.log_start_offset == -1
    assert body.forgotten_topics_data == ()


def answer_frame(schema, body, correlation_id=7) -> bytes:
    buffer = io.BytesIO()
    header_schema = schema.__header_schema__
    entity_writer(header_schema)(buffer, header_schema(correlation_id=correlation_id))
    entity_writer(schema)(buffer, body)
    data = buffer.getvalue()
    return len(data).to_bytes(4, "big") + data


def produce_answer_of(version: int, error: ErrorCode) -> bytes:
    schema: Any = load_response_schema(int(ApiKey.PRODUCE), version)
    module = importlib.import_module(schema.__module__)
    fields: dict[str, Any] = {
        "index": 3,
        "error_code": error,
        "base_offset": 1 << 40,
        "log_append_time": None,
        "log_start_offset": 1 << 33,
    }
    if version >= 8:
        fields["record_errors"] = ()
    partition = module.PartitionProduceResponse(**fields)
    topic = module.TopicProduceResponse(name=TOPIC, partition_responses=(partition,))
    return answer_frame(schema, schema(responses=(topic,), throttle_time=dt.timedelta(0)))


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_produce_answer_has_the_length_and_the_error_where_the_layout_says(version) -> None:
    layout = kafka.produce_layout(version, TOPIC)
    for error in (ErrorCode.none, ErrorCode.kafka_storage_error):
        frame = produce_answer_of(version, error)
        assert len(frame) == layout.frame_bytes
        assert int.from_bytes(frame[layout.error_at : layout.error_at + 2], "big") == error.value


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("records", [BATCH, BATCH * 200])
@pytest.mark.parametrize("aborted", [None, ()])
def test_a_fetch_answer_has_its_records_where_the_layout_says(version, records, aborted) -> None:
    schema: Any = load_response_schema(int(ApiKey.FETCH), version)
    module = importlib.import_module(schema.__module__)
    partition = module.PartitionData(
        partition_index=2,
        error_code=ErrorCode.not_leader_or_follower,
        high_watermark=10,
        last_stable_offset=10,
        log_start_offset=0,
        aborted_transactions=aborted,
        records=records,
    )
    topic = module.FetchableTopicResponse(topic=TOPIC, partitions=(partition,))
    body = schema(
        throttle_time=dt.timedelta(0), error_code=ErrorCode.unknown_server_error, session_id=0, responses=(topic,)
    )
    frame = answer_frame(schema, body)
    layout = kafka.fetch_layout(version, TOPIC)
    found = [int.from_bytes(frame[at : at + 2], "big", signed=True) for at in layout.errors_at]
    assert found == [-1, 6]
    at, size = layout.records_span(frame)
    assert frame[at : at + size] == records


def read_by_aiokafka(data: bytes):
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return list(batch)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_other_readers_find_the_same_records(count) -> None:
    values = [bytes([index % 256]) * (index % 150) for index in range(count)]
    data = bytes(kafka.batch_of(values, 1_700_000_000_123))
    records = read_by_aiokafka(data)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(count))
    assert {record.timestamp for record in records} == {1_700_000_000_123}
    assert all(record.key is None and not record.headers for record in records)
    memory = MemoryRecords(data)
    batch = memory.next_batch()
    assert batch.validate_crc()
    assert [record.value for record in batch] == values
    assert memory.next_batch() is None


def test_a_filled_batch_is_as_large_as_allowed_and_no_larger() -> None:
    for limit in (200, 16 << 10, 1 << 20):
        data, count = kafka.batch_filling(limit, b"v" * 100, 0)
        assert len(data) <= limit < len(kafka.batch_of([b"v" * 100] * (count + 1)))
        assert len(read_by_aiokafka(bytes(data))) == count
    assert kafka.batch_filling(0, b"v" * 100, 0)[1] == 1


def test_a_record_too_large_for_its_batch_is_refused() -> None:
    with pytest.raises(BenchError, match="use smaller values"):
        kafka.batch_filling(100, b"v" * 100, 0)
