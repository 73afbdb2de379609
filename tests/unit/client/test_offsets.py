"""Asking leaders for offsets, of topics that come and go meanwhile."""

import pytest

from penstock.client import Admin, BrokerRefused, Cluster, watermarks
from penstock.client.offsets import At, list_offsets
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_records_generated import (
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
)
from penstock.wire.kafka.list_offsets_generated import (
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from penstock.wire.kafka.metadata_generated import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

UNKNOWN_TOPIC = 3


def offsets(*codes):
    """Answers with the next of the error codes, and then with offset 7."""
    left = list(codes)

    def answer(request):
        (topic,) = request.topics
        parts = [
            ListOffsetsResponsePartition(asked.partition_index, left.pop(0) if left else 0, offset=7)
            for asked in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsResponseTopic(name="t", partitions=parts)])

    return answer


def test_a_leader_that_has_not_heard_of_a_new_topic_yet_is_asked_again(scripted) -> None:
    broker = scripted({ApiKey.LIST_OFFSETS: offsets(UNKNOWN_TOPIC, 0, UNKNOWN_TOPIC)}, partitions=2)
    with Cluster(broker.bootstrap, timeout_ms=10_000) as cluster:
        assert watermarks(cluster, [("t", 0), ("t", 1)]) == {("t", 0): (7, 7), ("t", 1): (7, 7)}
    assert len(broker.requests_of(ApiKey.LIST_OFFSETS)) == 4


def test_records_are_deleted_though_the_leader_has_not_heard_of_the_topic_yet(scripted) -> None:
    codes = [UNKNOWN_TOPIC, 0]

    def delete(_):
        parts = [DeleteRecordsResponsePartition(0, low_watermark=5, error_code=codes.pop(0))]
        return DeleteRecordsResponse(topics=[DeleteRecordsResponseTopic(name="t", partitions=parts)])

    with Cluster(scripted({ApiKey.DELETE_RECORDS: delete}).bootstrap, timeout_ms=10_000) as cluster:
        assert Admin(cluster).delete_records({("t", 0): 5}) == {("t", 0): 5}
    assert codes == []


def test_a_topic_that_is_deleted_meanwhile_is_told_by_the_next_metadata(scripted) -> None:
    answers = [0, UNKNOWN_TOPIC]

    def metadata(_):
        code = answers.pop(0)
        parts = [] if code else [MetadataResponsePartition(partition_index=0, leader_id=1)]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, "127.0.0.1", broker.port)],
            topics=[MetadataResponseTopic(name="t", error_code=code, partitions=parts)],
        )

    broker = scripted({ApiKey.METADATA: metadata, ApiKey.LIST_OFFSETS: offsets(*[UNKNOWN_TOPIC] * 9)})
    with (
        Cluster(broker.bootstrap, timeout_ms=10_000) as cluster,
        pytest.raises(BrokerRefused, match="topic 't': there is no such topic"),
    ):
        list_offsets(cluster, {("t", 0): At.LATEST})
    assert answers == []
    assert len(broker.requests_of(ApiKey.LIST_OFFSETS)) == 1


def test_a_leader_that_never_hears_of_it_is_told_when_the_time_is_over(scripted, pauses) -> None:
    broker = scripted({ApiKey.LIST_OFFSETS: offsets(*[UNKNOWN_TOPIC] * 99)})
    with (
        Cluster(broker.bootstrap, timeout_ms=10_000) as cluster,
        pytest.raises(BrokerRefused, match="t/0: there is no such topic or partition"),
    ):
        list_offsets(cluster, {("t", 0): At.LATEST})
