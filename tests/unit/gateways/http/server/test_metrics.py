"""GET /metrics, as Prometheus asks for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from penstock.operations.operation import Action
from tests.support.access import Guard
from tests.support.http_node import HttpNode


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[HttpNode]:
    async with HttpNode(tmp_path) as started:
        yield started


async def test_what_came_through_http_is_counted(node: HttpNode) -> None:
    await node.create("t")
    for value in ("a", "b"):
        assert (await node.client.post("/topics/t/messages", json={"value": value})).status_code == 200
    assert (await node.client.get("/topics/nothing")).status_code == 404
    answer = await node.client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "x-request-id" in answer.headers
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in parse_text(answer.text)
        for sample in family.samples
    }
    assert samples["penstock_records_in_total", "http", "t"] == 2
    assert samples["penstock_request_seconds_count", "POST /topics/{topic}/messages", "http"] == 2
    assert samples["penstock_request_errors_total", "http", "not_found"] == 1


async def test_a_scraper_that_asks_for_openmetrics_gets_it(node: HttpNode) -> None:
    answer = await node.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert "penstock_topics" in {family.name for family in parse_openmetrics(answer.text)}


async def test_numbers_are_for_those_who_may_describe_the_cluster(node: HttpNode) -> None:
    access = node.broker.access = Guard()
    answer = await node.client.get("/metrics")
    assert answer.status_code == 403
    assert "has no right to describe the cluster" in answer.json()["error"]
    assert access.asked == [(Action.DESCRIBE, "cluster")]
