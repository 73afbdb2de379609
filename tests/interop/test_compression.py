"""All four codecs, by every client, read by every client; and a topic's own compression.type."""

import shutil

import kafka
import pytest

from tests.support.clients import CONSUMERS, PRODUCERS, PYTHON_CLIENTS, Record

CODECS = ("gzip", "snappy", "lz4", "zstd")

# Any codec makes a tenth of this or less, and no batch of it uncompressed is that small.
TEXT = b"the same words again and again, " * 30
RECORDS = [Record(TEXT + b"%d" % n, b"key %d" % n) for n in range(200)]
PLAIN_BYTES = sum(len(record.value or b"") for record in RECORDS)


def log_bytes(bootstrap: str, topic: str) -> int:
    """What the topic takes on the broker's disk, as the broker says."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        answers = admin.describe_log_dirs([topic])
    finally:
        admin.close()
    sizes = [
        partition["partition_size"]
        for answer in answers
        for folder in answer["log_dirs"]
        for entry in folder["topics"]
        if entry["name"] == topic
        for partition in entry["partitions"]
    ]
    assert sizes, f"no log dir of {topic} in {answers}"
    return sum(sizes)


def consumers_here() -> list[str]:
    return [name for name in CONSUMERS if name != "kcat" or shutil.which("kcat")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_what_one_client_compressed_every_client_reads(request, bootstrap, new_topic, producer, codec) -> None:
    if producer == "kcat":
        request.getfixturevalue("kcat")
    topic = new_topic()

    PRODUCERS[producer](bootstrap, topic, RECORDS, compression=codec)

    for consumer in consumers_here():
        got = CONSUMERS[consumer](bootstrap, topic, len(RECORDS))
        assert [(r.key, r.value) for r in got] == [(r.key, r.value) for r in RECORDS], consumer
    # The broker kept what it was sent: a client that silently stops compressing shows here.
    assert log_bytes(bootstrap, topic) < PLAIN_BYTES / 4


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
def test_a_topic_with_a_codec_compresses_what_comes_plain(bootstrap, new_topic, producer, codec) -> None:
    topic = new_topic(**{"compression.type": codec})

    PRODUCERS[producer](bootstrap, topic, RECORDS, compression="none")

    for consumer in consumers_here():
        got = CONSUMERS[consumer](bootstrap, topic, len(RECORDS))
        assert [(r.offset, r.key, r.value) for r in got] == [(n, r.key, r.value) for n, r in enumerate(RECORDS)], (
            consumer
        )
    assert log_bytes(bootstrap, topic) < PLAIN_BYTES / 4


@pytest.mark.parametrize("codec", CODECS)
def test_an_uncompressed_topic_opens_what_comes_compressed(bootstrap, new_topic, codec) -> None:
    topic = new_topic(**{"compression.type": "uncompressed"})
    PRODUCERS["confluent"](bootstrap, topic, RECORDS, compression=codec)
    got = CONSUMERS["kafka-python"](bootstrap, topic, len(RECORDS))
    assert [(r.key, r.value) for r in got] == [(r.key, r.value) for r in RECORDS]
    assert log_bytes(bootstrap, topic) > PLAIN_BYTES


def test_an_idempotent_producer_may_write_to_a_topic_that_recompresses(bootstrap, new_topic) -> None:
    topic = new_topic(**{"compression.type": "zstd"})
    for _ in range(2):
        PRODUCERS["confluent"](bootstrap, topic, RECORDS, compression="lz4", idempotent=True)
    got = CONSUMERS["confluent"](bootstrap, topic, 2 * len(RECORDS))
    assert [r.value for r in got] == [r.value for r in RECORDS] * 2


def test_a_compressed_record_of_a_megabyte_passes(bootstrap, new_topic) -> None:
    topic = new_topic()
    sent = [Record(b"a" * 1_000_000), Record(b"b" * 1_000_000)]
    PRODUCERS["confluent"](bootstrap, topic, sent, compression="zstd")
    assert [r.value for r in CONSUMERS["aiokafka"](bootstrap, topic, 2)] == [r.value for r in sent]
