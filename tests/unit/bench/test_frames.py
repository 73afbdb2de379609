"""The hand-packed frames against kio, which knows the protocol from its schemas."""

import datetime as dt
import importlib
import io
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from penstock.bench import batches, frames
from penstock.bench.frames import Acks, Api

TOPIC = "bench-topic"
BATCH = batches.batch_of([b"v" * 100] * 3, 0)


def parse_request(frame: bytes, api: Api, version: int):
    size = int.from_bytes(frame[:4], "big")
    assert size == len(frame) - 4
    schema = load_request_schema(int(api), version)
    header, header_bytes = entity_reader(schema.__header_schema__)(frame, 4)
    body, body_bytes = entity_reader(schema)(frame, 4 + header_bytes)
    assert 4 + header_bytes + body_bytes == len(frame)
    assert header.request_api_key == api
    assert header.request_api_version == version
    assert header.client_id == frames.CLIENT_ID.decode()
    return header, body


@pytest.mark.parametrize("version", frames.PRODUCE_VERSIONS)
@pytest.mark.parametrize("acks", list(Acks))
def test_a_produce_frame_says_what_was_asked(version, acks) -> None:
    frame = frames.produce_request(version, 77, TOPIC, 3, acks, BATCH, timeout_ms=1234)
    header, body = parse_request(frame, Api.PRODUCE, version)
    assert header.correlation_id == 77
    assert body.transactional_id is None
    assert body.acks == acks
    (topic,) = body.topic_data
    assert topic.name == TOPIC
    (partition,) = topic.partition_data
    assert partition.index == 3
    assert bytes(partition.records) == BATCH
    tail = frames.produce_tail_bytes(version)
    assert frame[len(frame) - tail - len(BATCH) : len(frame) - tail] == BATCH


@pytest.mark.parametrize("version", frames.FETCH_VERSIONS)
def test_a_fetch_frame_asks_for_the_patched_offset(version) -> None:
    request = frames.fetch_request(version, 5, TOPIC, 2, answer_bytes_max=4321, wait_ms_max=250)
    frame = bytearray(request.frame)
    frame[request.offset_at : request.offset_at + 8] = (99_000_000_001).to_bytes(8, "big")
    _, body = parse_request(bytes(frame), Api.FETCH, version)
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
    schema: Any = load_response_schema(int(Api.PRODUCE), version)
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


@pytest.mark.parametrize("version", frames.PRODUCE_VERSIONS)
def test_a_produce_answer_has_the_length_and_the_error_where_the_layout_says(version) -> None:
    layout = frames.produce_answer(version, TOPIC)
    for error in (ErrorCode.none, ErrorCode.kafka_storage_error):
        frame = produce_answer_of(version, error)
        assert len(frame) == layout.frame_bytes
        assert int.from_bytes(frame[layout.error_at : layout.error_at + 2], "big") == error.value


@pytest.mark.parametrize("version", frames.FETCH_VERSIONS)
@pytest.mark.parametrize("records", [BATCH, BATCH * 200])
@pytest.mark.parametrize("aborted", [None, ()])
def test_a_fetch_answer_has_its_records_where_the_layout_says(version, records, aborted) -> None:
    schema: Any = load_response_schema(int(Api.FETCH), version)
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
    layout = frames.fetch_answer(version, TOPIC)
    assert int.from_bytes(frame[layout.top_error_at : layout.top_error_at + 2], "big", signed=True) == -1
    assert int.from_bytes(frame[layout.partition_error_at : layout.partition_error_at + 2], "big") == 6
    at, size = frames.records_span(layout, frame)
    assert frame[at : at + size] == records


def test_topics_are_created_with_the_replicas_that_the_broker_gives_and_the_given_partitions() -> None:
    _, body = parse_request(frames.create_topics_request(1, [("a", 3), ("b", 5)]), Api.CREATE_TOPICS, 4)
    assert [(topic.name, topic.num_partitions, topic.replication_factor) for topic in body.topics] == [
        ("a", 3, -1),
        ("b", 5, -1),
    ]
    assert body.validate_only is False


def test_the_other_requests_are_whole() -> None:
    _, body = parse_request(frames.delete_topics_request(1, ["a", "b"]), Api.DELETE_TOPICS, 3)
    assert body.topic_names == ("a", "b")
    _, body = parse_request(frames.metadata_request(1, ["a"]), Api.METADATA, 4)
    assert body.allow_auto_topic_creation is False
    _, body = parse_request(frames.list_offsets_request(1, "a", [0, 1]), Api.LIST_OFFSETS, 1)
    assert [partition.partition_index for partition in body.topics[0].partitions] == [0, 1]
    parse_request(frames.api_versions_request(1), Api.API_VERSIONS, 0)
