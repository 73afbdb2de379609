"""The queue client against a broker in a process of its own, which is killed when a test says so."""

import itertools
from contextlib import closing

import pytest

from penstock.client import (
    Admin,
    CannotConnect,
    Cluster,
    ConnectionLost,
    Producer,
    QueueAdmin,
    QueueClient,
    RequestRefused,
)
from penstock.testing.process import BrokerProcess
from tests.integration.conftest import SETTINGS
from tests.support.waiting import eventually

numbers = itertools.count()
GROUP = "workers"


@pytest.fixture
def http(broker_process):
    return broker_process.addresses["http"]


@pytest.fixture
def topic(broker_process):
    name = f"queue-client-{next(numbers)}"
    with Cluster(broker_process.bootstrap) as cluster:
        Admin(cluster).create_topic(name, partitions=2)
    return name


@pytest.fixture
def client(http):
    with QueueClient(http, owner="me") as client:
        yield client


def test_a_record_is_leased_with_all_that_it_has_and_finished(client, topic) -> None:
    placed = client.produce(topic, b"\xff\x00", key=b"\xfe", partition=1, tenant_id="acme", max_attempts=3)
    assert (placed.topic, placed.partition, placed.offset, placed.duplicate) == (topic, 1, 0, False)
    (record,) = client.lease(topic, GROUP, max_records=5, wait_ms=1_000)
    assert (record.id, record.key, record.value, record.attempts) == (f"{topic}/1@0", b"\xfe", b"\xff\x00", 1)
    assert (record.group, record.owner, record.last_error) == (GROUP, "me", "")
    assert record.envelope["tenant_id"] == "acme"
    assert record.lease_until_ms is not None
    client.extend(record, 60_000)
    client.ack(record)
    assert client.lease(topic, GROUP) == []


def test_headers_of_a_kafka_producer_are_there(client, topic, broker_process) -> None:
    with Cluster(broker_process.bootstrap) as cluster, Producer(cluster) as producer:
        producer.send(topic, b"v", headers=[("text", b"red"), ("bytes", b"\xff"), ("null", None)])
    (record,) = client.lease(topic, GROUP, wait_ms=1_000)
    assert dict(record.headers) == {"text": b"red", "bytes": b"\xff", "null": None}
    assert record.key == b""


def test_what_failed_comes_again_with_its_reason(client, topic) -> None:
    client.produce(topic, b"v")
    (record,) = client.lease(topic, GROUP)
    client.nack(record, "no stock")
    (again,) = client.lease(topic, GROUP, wait_ms=1_000)
    assert (again.attempts, again.last_error) == (2, "no stock")


def test_a_stream_of_records_and_several_acks_at_once(client, topic) -> None:
    for number in range(6):
        client.produce(topic, b"%d" % number, partition=number % 2)
    with closing(client.consume(topic, GROUP)) as records:
        taken = list(itertools.islice(records, 6))
        client.ack(*taken)
    assert sorted(record.value for record in taken) == [b"%d" % number for number in range(6)]
    assert client.lease(topic, GROUP) == []


def test_a_stream_that_is_closed_keeps_its_leases_and_its_owner_gets_the_records_again(client, topic, http) -> None:
    client.produce(topic, b"v")
    with closing(client.consume(topic, GROUP, lease_ms=600_000)) as records:
        first = next(records)
    with QueueClient(http) as other:
        assert other.lease(topic, GROUP) == []
    with closing(client.consume(topic, GROUP, lease_ms=600_000)) as records:
        again = next(records)
        assert (again.offset, again.attempts) == (first.offset, first.attempts) == (0, 1)
        client.ack(again)


def test_a_stream_that_is_to_release_its_records_gives_them_back_at_once(client, topic, http) -> None:
    client.produce(topic, b"v")
    with closing(client.consume(topic, GROUP, lease_ms=600_000, release_on_disconnect=True)) as records:
        next(records)
    with QueueClient(http) as other:
        (record,) = eventually(lambda: other.lease(topic, GROUP), what="the lease is released")
    assert record.attempts == 1


def test_refusals_have_a_status_a_word_and_a_sentence(client, topic) -> None:
    client.produce(topic, b"v")
    (record,) = client.lease(topic, GROUP)
    with pytest.raises(RequestRefused, match=r"not owner") as refused:
        client.ack_offsets(topic, GROUP, record.partition, [record.offset], owner="somebody else")
    assert (refused.value.status, refused.value.code, refused.value.retriable) == (409, "FAILED_PRECONDITION", False)
    with pytest.raises(RequestRefused) as refused:
        client.produce("no-such-topic", b"v")
    assert refused.value.is_not_found


def test_an_idempotency_key_makes_sending_again_safe(client, topic) -> None:
    first = client.produce(topic, b"v", idempotency_key="order-1")
    again = client.produce(topic, b"v", idempotency_key="order-1")
    other = client.produce(topic, b"v", idempotency_key="order-1", tenant_id="acme")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (again.partition, again.offset) == (first.partition, first.offset)


def test_keys_leases_and_finished_records_outlive_a_kill(tmp_path) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS, http="127.0.0.1:0") as broker:
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic("t", partitions=1)
        with QueueClient(broker.addresses["http"], owner="me") as client:
            places = [client.produce("t", b"%d" % number, idempotency_key=f"k{number}") for number in range(3)]
            first, second = client.lease("t", GROUP, max_records=2, lease_ms=600_000)
            client.ack(first)
            broker.kill()
            with pytest.raises((ConnectionLost, CannotConnect)):
                client.produce("t", b"lost")
            broker.start()
            again = [client.produce("t", b"%d" % number, idempotency_key=f"k{number}") for number in range(3)]
            assert [(each.offset, each.duplicate) for each in again] == [(each.offset, True) for each in places]
            (third,) = client.lease("t", GROUP, max_records=5, wait_ms=1_000)
            assert third.value == b"2"
            client.ack(second, third)
        with QueueAdmin(broker.addresses["http"]) as admin:
            assert admin.queue("t", GROUP).lag == 0


def test_a_backlog_that_is_full_says_when_to_come_again(tmp_path) -> None:
    settings = {**SETTINGS, "queues.backlog_records_max": 2}
    with BrokerProcess(tmp_path / "data", settings, http="127.0.0.1:0") as broker:
        with Cluster(broker.bootstrap) as cluster:
            Admin(cluster).create_topic("t", partitions=1)
        with QueueClient(broker.addresses["http"]) as client:
            client.produce("t", b"1", idempotency_key="k")
            client.produce("t", b"2")
            for options in ({}, {"idempotency_key": "new"}):
                with pytest.raises(RequestRefused) as refused:
                    client.produce("t", b"3", **options)
                assert (refused.value.status, refused.value.reason) == (429, "partition_buffer_full")
                assert refused.value.retriable
                assert refused.value.retry_after_ms == 1_000
            assert client.produce("t", b"1", idempotency_key="k").duplicate
            client.ack(*client.lease("t", GROUP, max_records=1))
            eventually(lambda: produced(client), what="there is room again")


def produced(client):
    try:
        return client.produce("t", b"3")
    except RequestRefused:
        return None
