"""Prometheus' text: every metric that is documented, nothing else, valid for a real parser, and bounded."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock.errors import Reason
from penstock.meters import Counts
from penstock.observe import metrics
from penstock.observe.declared import METRICS, MetricKind
from penstock.observe.metrics import MetricsText
from penstock.operations.queues import Ack, Lease, Nack
from penstock.types import Gateway, GroupId
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_wire import until

DOCUMENT = Path(__file__).parents[3] / "docs" / "observability.md"

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[KafkaNode]:
    async with KafkaNode(tmp_path) as started:
        yield started


async def scrape(made: MetricsText) -> Values:
    text, content_type = await made.text()
    assert content_type.startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(text.decode())
        for sample in family.samples
    }


def value(found: Values, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def labels_of(found: Values, name: str) -> list[dict[str, str]]:
    return [dict(labels) for found_name, labels in found if found_name == name]


def touch_everything(node: KafkaNode) -> None:
    meters = node.broker.meters
    for counts in vars(meters).values():
        if isinstance(counts, Counts):
            counts.add(("x",) * len(counts.names))
    meters.took_in("t", Gateway.KAFKA, 3, 300)
    meters.gave_out("t", Gateway.HTTP, 2, 200)
    meters.latency(Gateway.KAFKA, "Produce").observe(0.003)
    meters.sync_seconds.observe(0.02)
    meters.connections["kafka"] = lambda: 4


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_a_real_parser_finds_every_documented_metric_as_it_is_documented(node: KafkaNode, accept: str) -> None:
    await node.create("t")
    await node.append("t", 0, 3)
    await node.commit("g", "t", 0, 1)
    touch_everything(node)
    text, content_type = await MetricsText(node.broker).text(accept)
    assert content_type.split(";", maxsplit=1)[0] == (accept or "text/plain").split(";", maxsplit=1)[0]
    families = {family.name: family for family in (parse_openmetrics if accept else parse_text)(text.decode())}
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.kind is MetricKind.COUNTER else metric.name
        family = families[name]
        assert family.type == metric.kind.value, name
        assert family.documentation == metric.help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), name
    known = {metric.name.removesuffix("_total") for metric in METRICS}
    assert {name for name in families if not name.startswith("process_")} == known


async def test_the_numbers_are_those_of_the_node(node: KafkaNode) -> None:
    await node.create("t", 3)
    partition = await node.append("t", 0, 5)
    await node.commit("g", "t", 0, 2)
    node.clock.advance(7000)
    touch_everything(node)
    node.broker.meters.acks.add(("t", "g"), 9)
    node.broker.meters.nacks.add(("t", "g", 'it "broke"\n\\'), 2)
    found = await scrape(MetricsText(node.broker))
    assert value(found, "penstock_records_in_total", topic="t", gateway="kafka") == 3
    assert value(found, "penstock_bytes_out_total", topic="t", gateway="http") == 200
    assert value(found, "message_acks_total", topic="t", group="g") == 9
    assert value(found, "message_nacks_total", topic="t", group="g", reason='it "broke"\n\\') == 2
    assert value(found, "consumer_lag", topic="t", group="g", partition="0") == 3
    assert value(found, "penstock_group_lag_records", topic="t", group="g") == 3
    assert value(found, "penstock_group_lag_seconds", topic="t", group="g") == 7
    assert value(found, "penstock_log_bytes", topic="t") == partition.log.size_bytes
    assert value(found, "penstock_groups", state="Empty") == 1
    assert value(found, "penstock_connections", gateway="kafka") == 4
    assert value(found, "penstock_partitions") == node.broker.topics.partition_count
    assert value(found, "penstock_request_seconds_bucket", gateway="kafka", api="Produce", le="0.0025") == 0
    assert value(found, "penstock_request_seconds_bucket", gateway="kafka", api="Produce", le="0.005") == 1
    assert value(found, "penstock_request_seconds_count", gateway="kafka", api="Produce") == 1
    assert value(found, "penstock_sync_seconds_sum") == pytest.approx(0.02)
    assert [labels["node_id"] for labels in labels_of(found, "penstock_build_info")] == ["7"]
    assert value(found, "penstock_disk_free_bytes") > 0
    assert value(found, "process_resident_memory_bytes") > 0


async def test_a_queue_is_told_by_its_own_numbers(node: KafkaNode) -> None:
    await node.create("t", 2)
    await node.append("t", 0, 5)
    queues, taken = node.broker.queues, []
    queues.lease(Lease("t", "g", "w", 3, 60_000, 0), taken.extend)
    await until(lambda: taken)
    acked: list[Reason | None] = []
    # Finished above the floor: it is no lag any more, though the floor stands where it stood.
    queues.ack(Ack("t", "g", "w", 0, [1]), acked.append)
    queues.nack(Nack("t", "g", "w", 0, [2], "bad luck"), acked.append)
    await until(lambda: len(acked) == 2)
    node.clock.advance(4000)
    found = await scrape(MetricsText(node.broker))
    assert value(found, "inflight_messages", topic="t", group="g", partition="0") == 1
    assert value(found, "consumer_lag", topic="t", group="g", partition="0") == 4
    assert value(found, "penstock_group_lag_seconds", topic="t", group="g") == 4
    assert value(found, "message_acks_total", topic="t", group="g") == 1
    assert value(found, "message_nacks_total", topic="t", group="g", reason="bad luck") == 1
    assert value(found, "penstock_leases_total", topic="t", group="g") == 3
    assert value(found, "penstock_queue_records", topic="t", group="g", state="leased") == 1
    assert value(found, "penstock_queue_records", topic="t", group="g", state="ready") == 1


async def test_a_direction_that_nothing_went_has_no_series(node: KafkaNode) -> None:
    node.broker.meters.took_in("t", Gateway.KAFKA, 3, 300)
    found = await scrape(MetricsText(node.broker))
    assert labels_of(found, "penstock_records_in_total") == [{"topic": "t", "gateway": "kafka"}]
    assert labels_of(found, "penstock_records_out_total") == []


async def test_a_deleted_topic_and_a_deleted_group_have_no_series(node: KafkaNode) -> None:
    await node.create("t")
    await node.append("t", 0, 1)
    await node.commit("g", "t", 0, 0)
    node.broker.meters.took_in("t", Gateway.KAFKA, 3, 300)
    node.broker.meters.acks.add(("t", "g"))
    node.broker.meters.acks.add(("u", "g"))
    made = MetricsText(node.broker)
    assert "t" in {dict(labels).get("topic") for _, labels in await scrape(made)}
    await node.broker.topics.delete("t")
    found = await scrape(made)
    assert "t" not in {dict(labels).get("topic") for _, labels in found}
    assert "g" in {dict(labels).get("group") for _, labels in found}
    deleted: list[object] = []
    node.broker.groups.delete_groups([GroupId("g")], deleted.append)
    await until(lambda: deleted)
    assert "g" not in {dict(labels).get("group") for _, labels in await scrape(made)}


async def test_no_log_is_opened_for_a_scrape(tmp_path: Path) -> None:
    async with KafkaNode(tmp_path) as node:
        await node.create("t", 2)
        await node.append("t", 0, 1)
        await node.append("t", 1, 1)
        await node.commit("g", "t", 0, 0)
        await node.commit("g", "t", 1, 0)
    async with KafkaNode(tmp_path) as node:
        made = MetricsText(node.broker)
        before = len(list(node.broker.open_logs()))
        found = await scrape(made)
        assert labels_of(found, "consumer_lag") == []
        assert len(list(node.broker.open_logs())) == before
        node.broker.partition("t", 1)
        found = await scrape(made)
        assert labels_of(found, "consumer_lag") == [{"topic": "t", "group": "g", "partition": "1"}]


async def test_series_past_the_limit_are_left_out_and_counted(node: KafkaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 3)
    await node.create("t", 5)
    for index in range(5):
        await node.append("t", index, 1)
        for group in ("g", "h", "i"):
            await node.commit(group, "t", index, 0)
    for number in range(10):
        node.broker.meters.acks.add((f"t{number}", "g"))
    found = await scrape(MetricsText(node.broker))
    assert len(labels_of(found, "message_acks_total")) == 3
    assert value(found, "penstock_series_left_out", metric="message_acks_total") == 7
    assert len(labels_of(found, "consumer_lag")) == 3
    # Five partitions of the first group, of which two are too many, and two groups that were not looked at.
    assert value(found, "penstock_series_left_out", metric="consumer_lag") == 4


async def test_the_time_of_a_record_is_read_once(node: KafkaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.create("t", 3)
    for index in range(3):
        await node.append("t", index, 2)
        await node.commit("g", "t", index, 0)
    read: list[int] = []
    real = metrics._time_at
    monkeypatch.setattr(metrics, "_time_at", lambda partition, offset: read.append(offset) or real(partition, offset))
    monkeypatch.setattr(metrics, "TIMES_READ_MAX", 2)
    made = MetricsText(node.broker)
    await scrape(made)
    assert len(read) == 2
    # What there was no time for comes with the next scrape, and then all is known.
    await scrape(made)
    assert len(read) == 3
    node.clock.advance(9000)
    found = await scrape(made)
    assert len(read) == 3
    assert value(found, "penstock_group_lag_seconds", topic="t", group="g") == 9
    await node.commit("g", "t", 0, 1)
    await scrape(made)
    assert len(read) == 4


async def test_those_who_ask_together_share_one_collection(node: KafkaNode, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MetricsText(node.broker)
    count = 0
    real = made._collector.steps

    def steps() -> object:
        nonlocal count
        count += 1
        return real()

    monkeypatch.setattr(made._collector, "steps", steps)
    asking = [asyncio.create_task(made.text()) for _ in range(5)]
    await asyncio.sleep(0)
    asking[0].cancel()
    texts = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(texts[0], asyncio.CancelledError)
    assert len({text for text in texts[1:] if isinstance(text, tuple)}) == 1
    assert count == 1
    await made.text()
    assert count == 2


def test_the_document_has_a_row_for_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| `\w+` \| \w+ \| .* \|$", DOCUMENT.read_text(), re.MULTILINE)
    table = [
        f"| `{metric.name}` | {metric.kind.value} | {', '.join(metric.labels)} | {metric.help} |" for metric in METRICS
    ]
    assert rows == table, "the table is:\n" + "\n".join(table)
