"""Every client's records reach every client as they were sent: keys, values, nulls, headers, timestamps, sizes, order."""

import os

import pytest

from tests.support.clients import CONSUMERS, PRODUCERS, PYTHON_CLIENTS, Record

MEGABYTE = 1_000_000


def needs(request: pytest.FixtureRequest, *clients: str) -> None:
    """Skip, with the reason, where one of the clients is kcat and kcat is not there."""
    if "kcat" in clients:
        request.getfixturevalue("kcat")


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_records_of_one_client_reach_another_in_order(request, bootstrap, new_topic, producer, consumer) -> None:
    needs(request, producer, consumer)
    topic = new_topic(partitions=2)
    headers = (("trace", b"abc"), ("kind", b"order"))
    sent = [Record(f"value {n}".encode(), f"key {n % 7}".encode(), headers, partition=1) for n in range(500)]

    PRODUCERS[producer](bootstrap, topic, sent)
    got = CONSUMERS[consumer](bootstrap, topic, 500, partition=1)

    assert [(r.key, r.value, r.headers) for r in got] == [(r.key, r.value, r.headers) for r in sent]
    assert [r.offset for r in got] == list(range(500))


@pytest.mark.parametrize("consumer", PYTHON_CLIENTS)
@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
def test_null_and_empty_are_two_things(bootstrap, new_topic, producer, consumer) -> None:
    topic = new_topic()
    sent = [
        Record(None, b"tombstone", timestamp_ms=1_700_000_000_001),
        Record(b"", b"", timestamp_ms=1_700_000_000_002),
        Record(b"no key", None, timestamp_ms=1_700_000_000_003),
        Record(b"\x00\xff", "ключ".encode(), (("h", b""), ("h", b"twice")), timestamp_ms=1_700_000_000_005),
    ]

    PRODUCERS[producer](bootstrap, topic, sent)

    assert CONSUMERS[consumer](bootstrap, topic, len(sent)) == sent


def test_a_null_header_value_stays_null(bootstrap, new_topic) -> None:
    # The time is long ago: retention would delete the record whenever the broker looks.
    topic = new_topic(**{"retention.ms": "-1"})
    sent = [Record(b"v", None, (("none", None), ("some", b"x")), timestamp_ms=1_700_000_000_000)]
    PRODUCERS["confluent"](bootstrap, topic, sent)
    assert CONSUMERS["confluent"](bootstrap, topic, 1) == sent
    assert CONSUMERS["kafka-python"](bootstrap, topic, 1) == sent


@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
def test_records_of_a_megabyte_reach_every_client(request, bootstrap, new_topic, producer) -> None:
    topic = new_topic()
    sent = [Record(os.urandom(MEGABYTE), b"%d" % n) for n in range(3)]
    PRODUCERS[producer](bootstrap, topic, sent)
    for consumer in PYTHON_CLIENTS:
        got = CONSUMERS[consumer](bootstrap, topic, 3)
        assert [(r.key, r.value) for r in got] == [(r.key, r.value) for r in sent], consumer


def test_kcat_reads_records_of_a_megabyte(kcat, bootstrap, new_topic) -> None:
    topic = new_topic()
    sent = [Record(os.urandom(MEGABYTE)) for _ in range(2)]
    PRODUCERS["confluent"](bootstrap, topic, sent)
    assert [r.value for r in CONSUMERS["kcat"](bootstrap, topic, 2)] == [r.value for r in sent]


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_topic_is_made_when_a_producer_first_names_it(request, bootstrap, unique, producer) -> None:
    needs(request, producer)
    topic = unique("auto")
    PRODUCERS[producer](bootstrap, topic, [Record(b"first", b"k")])
    assert [r.value for r in CONSUMERS["confluent"](bootstrap, topic, 1)] == [b"first"]


@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
def test_ten_thousand_records_over_three_partitions_keep_their_order(bootstrap, new_topic, producer) -> None:
    topic = new_topic(partitions=3)
    sent = [Record(b"%d" % n, partition=n % 3) for n in range(9_999)]
    PRODUCERS[producer](bootstrap, topic, sent)
    for partition in range(3):
        got = CONSUMERS["confluent"](bootstrap, topic, 3_333, partition=partition)
        assert [r.value for r in got] == [r.value for r in sent if r.partition == partition]


@pytest.mark.parametrize("consumer", CONSUMERS)
def test_reading_may_start_in_the_middle_of_a_batch(request, bootstrap, new_topic, consumer) -> None:
    needs(request, consumer)
    topic = new_topic()
    PRODUCERS["confluent"](bootstrap, topic, [Record(b"%d" % n) for n in range(100)])
    got = CONSUMERS[consumer](bootstrap, topic, 37, offset=63)
    assert [(r.offset, r.value) for r in got] == [(n, b"%d" % n) for n in range(63, 100)]


@pytest.mark.parametrize("producer", PYTHON_CLIENTS)
def test_an_idempotent_producer_writes_everything_once_and_in_order(bootstrap, new_topic, producer) -> None:
    topic = new_topic(partitions=2)
    sent = [Record(b"%d" % n, partition=n % 2) for n in range(5_000)]
    PRODUCERS[producer](bootstrap, topic, sent, idempotent=True)
    for partition in range(2):
        got = CONSUMERS["confluent"](bootstrap, topic, 2_500, partition=partition)
        assert [r.value for r in got] == [r.value for r in sent if r.partition == partition]
        assert [r.offset for r in got] == list(range(2_500))
