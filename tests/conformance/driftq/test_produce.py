"""What produce promises beyond its texts: envelopes, bytes, keys and partitions, idempotency, the bound on backlogs."""

import base64
from typing import Any

import pytest

from penstock.testing.process import BrokerProcess
from tests.conformance.driftq.client import Driftq

ENVELOPE: dict[str, Any] = {
    "run_id": "r",
    "step_id": "s",
    "parent_step_id": "p",
    "tenant_id": "t",
    "idempotency_key": "i",
    "target_topic": "elsewhere",
    "deadline": "2099-01-31T12:00:00.25+01:00",
    "partition_override": 0,
    "retry_policy": {"max_attempts": 3, "backoff_ms": 10, "max_backoff_ms": 20},
}


def test_the_envelope_comes_out_as_it_went_in(driftq, topic) -> None:
    driftq.produce(topic, "v", **ENVELOPE)
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert record["envelope"] == ENVELOPE


def test_the_envelope_by_query_string_is_the_same(driftq, topic) -> None:
    flat = {name: value for name, value in ENVELOPE.items() if name != "retry_policy"}
    retry = {f"retry_{name}": value for name, value in ENVELOPE["retry_policy"].items()}
    for names in ({}, {"tenant_id": "tenant", "idempotency_key": "idem_key", "deadline": "deadline_rfc3339"}):
        group = f"g{len(names)}"
        fields = {names.get(name, name): value for name, value in flat.items()}
        fields["topic"], fields["value"] = topic, "v"
        answer = driftq.http.post("/v1/produce", params={**fields, **retry})
        assert answer.status_code == 200, answer.text
        records = driftq.lease(topic, "a", group, wait_ms=30_000)
        assert records[0]["envelope"] == ENVELOPE


def test_the_target_topic_is_carried_and_not_followed(driftq, topic) -> None:
    assert driftq.produce(topic, "v", target_topic="elsewhere")["topic"] == topic
    assert "elsewhere" not in driftq.http.get("/v1/topics").json()["topics"]


def test_a_record_without_an_envelope_has_none_in_its_line(driftq, topic) -> None:
    driftq.produce(topic, "v")
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert "envelope" not in record


def test_bytes_go_and_come_as_base64(driftq, topic) -> None:
    raw = bytes(range(256))
    text = base64.b64encode(raw).decode()
    body = {"topic": topic, "key": text, "key_encoding": "base64", "value": text, "encoding": "base64"}
    assert driftq.http.post("/v1/produce", json=body).status_code == 200
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert (record["value"], record["encoding"]) == (text, "base64")
    assert (record["key"], record["key_encoding"]) == (text, "base64")


def test_bytes_that_are_text_come_as_text(driftq, topic) -> None:
    driftq.produce(topic, "Grüße ✓", "ключ")
    (record,) = driftq.lease(topic, "a", wait_ms=30_000)
    assert (record["key"], record["value"]) == ("ключ", "Grüße ✓")
    assert "encoding" not in record


def test_a_partition_override_wins_over_the_key(driftq) -> None:
    topic = driftq.create("overridden", 4)
    places = {driftq.produce(topic, "v", "same", partition_override=index)["partition"] for index in range(4)}
    assert places == {0, 1, 2, 3}
    assert len({driftq.produce(topic, "v", "same")["partition"] for _ in range(5)}) == 1
    assert {driftq.produce(topic, "v")["partition"] for _ in range(4)} == {0, 1, 2, 3}


def test_a_known_idempotency_key_appends_nothing(driftq, topic) -> None:
    first = driftq.produce(topic, "v", idempotency_key="once")
    assert "duplicate" not in first
    assert driftq.produce(topic, "other", idempotency_key="once") == {**first, "duplicate": True}
    assert driftq.produce(topic, "next")["offset"] == 1


def test_an_idempotency_key_is_its_tenants_and_its_topics(driftq, topic) -> None:
    other = driftq.create(f"{topic}-other")
    driftq.produce(topic, "v", idempotency_key="k", tenant_id="a")
    for where, tenant in ((topic, "b"), (topic, None), (other, "a")):
        more = {"tenant_id": tenant} if tenant else {}
        assert "duplicate" not in driftq.produce(where, "v", idempotency_key="k", **more)


@pytest.mark.parametrize("way", ["header", "query", "alias"])
def test_the_idempotency_key_may_come_as_a_header_or_in_the_query(driftq, topic, way) -> None:
    answers = []
    for _ in range(2):
        path = f"/v1/produce?topic={topic}&value=v"
        path += {"header": "", "query": "&idempotency_key=k9", "alias": "&idem_key=k9"}[way]
        header = ["-H", "Idempotency-Key: k9"] if way == "header" else []
        answers.append(driftq.curl("-X", "POST", *header, path).json)
    assert answers[1] == {**answers[0], "duplicate": True}


def test_an_acked_idempotency_key_is_not_delivered_again_in_its_group(driftq, topic) -> None:
    """Two records with one key, the second put there by an API that does not look at keys."""
    driftq.produce(topic, "first", idempotency_key="k")
    driftq.produce(topic, "between")
    with driftq.consume(topic, "a") as stream:
        first, between = stream.take(2)
        driftq.ack(topic, "a", first)
        driftq.ack(topic, "a", between)
        headers = {"penstock.idempotency_key": "k"}
        sent = driftq.http.post(f"/topics/{topic}/messages", json={"value": "second", "headers": headers})
        assert sent.status_code == 200, sent.text
        driftq.produce(topic, "sentinel")
        assert stream.next()["value"] == "sentinel"
    with driftq.consume(topic, "a", "another-group") as stream:
        assert [line["value"] for line in stream.take(2)] == ["first", "between"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("backlog_records_max", "partition_buffer_full"), ("backlog_bytes_max", "partition_buffer_bytes_full")],
)
def test_a_full_backlog_refuses_until_it_is_consumed(tmp_path, setting, reason) -> None:
    bound = 3 if setting == "backlog_records_max" else 1000
    with BrokerProcess(
        tmp_path / "data", {f"queues.{setting}": bound, "log.flush": "os"}, http="127.0.0.1:0"
    ) as broker:
        driftq = Driftq(broker.addresses["http"])
        topic = driftq.create("bounded")
        answers = [driftq.produced(topic, "x" * 400, **({"idempotency_key": "k"} if n == 0 else {})) for n in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        refused = answers[-1]
        body = refused.json()
        assert body.pop("message")
        assert body == {"error": "RESOURCE_EXHAUSTED", "reason": reason, "retry_after_ms": 1000}
        assert refused.headers["retry-after"] == "1"
        # A duplicate takes no room.
        assert driftq.produce(topic, "x", idempotency_key="k")["duplicate"] is True
        assert driftq.produced(topic, "x", idempotency_key="k2").status_code == 429
        records = driftq.lease(topic, "a", max_records=3, wait_ms=30_000)
        assert driftq.settle("ack-cumulative", topic, "a", records[-1]).status_code == 204
        assert driftq.produced(topic, "x").status_code == 200
        driftq.close()
