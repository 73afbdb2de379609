"""What is there after kill -9: finished records, attempts, running leases, idempotency keys, dead letters."""

from tests.conformance.driftq.client import Driftq
from tests.support.waiting import eventually


def killed_and_started(broker, driftq: Driftq) -> Driftq:
    driftq.close()
    broker.restart()
    return Driftq(broker.addresses["http"])


def test_an_acked_record_stays_finished_below_and_above_the_floor(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("acked")
    for number in range(5):
        driftq.produce(topic, f"work {number}")
    records = driftq.lease(topic, "a", max_records=5, wait_ms=30_000)
    for number in (0, 1, 3):
        driftq.ack(topic, "a", records[number])
    driftq = killed_and_started(own_broker, driftq)
    (partition,) = driftq.status(topic)["partitions"]
    assert (partition["floor"], partition["finished_above_floor"], partition["leased"]) == (2, 1, 2)
    # The leases that ran are honoured: nobody gets those records, and their owner can still ack by name.
    driftq.produce(topic, "new")
    assert [record["value"] for record in driftq.lease(topic, "b", max_records=9)] == ["new"]
    driftq.ack(topic, "a", records[2])
    assert driftq.status(topic)["partitions"][0]["floor"] == 4
    driftq.close()


def test_attempts_are_not_reset(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("attempted")
    driftq.produce(topic, "work")
    for _ in range(2):
        (record,) = driftq.lease(topic, "a", wait_ms=30_000)
        driftq.nack(topic, "a", record, "boom")
    driftq = killed_and_started(own_broker, driftq)
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert (record["attempts"], record["last_error"]) == (3, "boom")
    driftq.close()


def test_a_lease_that_ran_out_while_the_broker_was_down_is_redelivered(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("expired")
    driftq.produce(topic, "work")
    driftq.lease(topic, "a", lease_ms=100, wait_ms=30_000)
    driftq = killed_and_started(own_broker, driftq)
    with driftq.consume(topic, "b") as stream:
        line = stream.next()
        assert (line["attempts"], line["last_error"]) == (2, "ack_timeout")
    driftq.close()


def test_idempotency_keys_are_remembered(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("once")
    first = driftq.produce(topic, "v", idempotency_key="k", tenant_id="t")
    driftq = killed_and_started(own_broker, driftq)
    assert driftq.produce(topic, "v", idempotency_key="k", tenant_id="t") == {**first, "duplicate": True}
    driftq.close()


def test_a_dead_letter_is_there_once(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("deadly")
    driftq.produce(topic, "poison", retry_policy={"max_attempts": 1})
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    driftq.nack(topic, "a", record, "boom")
    # Answered means decided; whether it was moved already makes no difference.
    driftq = killed_and_started(own_broker, driftq)
    eventually(lambda: driftq.status(topic)["partitions"][0]["floor"] == 1)
    with driftq.consume(f"dlq.{topic}", "operator") as stream:
        assert stream.next()["original_offset"] == 0
    offsets = driftq.http.get(f"/topics/dlq.{topic}/partitions/0/offsets").json()
    assert offsets["high_watermark"] == 1
    driftq.close()


def test_an_empty_topic_stays(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("empty", 2)
    driftq = killed_and_started(own_broker, driftq)
    assert driftq.http.get("/v1/topics").json()["topics"] == [topic]
    driftq.close()


def test_streams_end_whole_when_the_broker_stops(own_broker) -> None:
    driftq = Driftq(own_broker.addresses["http"])
    topic = driftq.create("stopping")
    driftq.produce(topic, "v")
    with driftq.consume(topic, "a") as stream:
        assert stream.next()["value"] == "v"
        assert own_broker.stop() == 0
        # A stream that was cut off raises here instead.
        assert list(stream.lines) == []
    driftq.close()
