"""Requests that web pages cause: refused by every path through the gateway. Programs notice nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.address import Address
from penstock.core.security.access import Caller
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server.answers import RawHeaders
from penstock.gateways.http.server.browsers import BrowserGuard, KnownHosts, authority_of
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.settings import ClusterSettings, HttpSettings, ListenerSettings, Settings
from tests.support.http_node import HttpNode, body_of, post, request, status_of

MESSAGES = "/topics/orders/messages"
CROSS = "Sec-Fetch-Site: cross-site"
NAVIGATION = ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")


def hosts(bound: str = "127.0.0.1", **settings: Any) -> KnownHosts:
    return KnownHosts.of(Settings(**settings), bound)


def raw(*headers: str) -> RawHeaders:
    pairs = (header.split(": ", 1) for header in headers)
    return [(name.lower().encode(), value.encode()) for name, value in pairs]


def status(*headers: str, method: str = "POST", path: str = "/topics", known: KnownHosts | None = None) -> int | None:
    refusal = BrowserGuard(known or hosts()).refusal(method, path, raw(*headers))
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.9.9.9:1", "[::1]:8080", "[::ffff:127.0.0.1]"],
)
def test_loopback_is_always_known(host: str) -> None:
    assert status(f"Host: {host}") is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.test", "evil.test:8080", "localhost.evil.test", "127.0.0.1.evil.test", "evillocalhost", "a.localhost"),
        *("10.1.2.3", "[2001:db8::1]", "0.0.0.0", "[::]", "127.1", "0x7f.1", "2130706433"),
        *(
            "",
            "localhost:",
            "localhost:x",
            "localhost:80:80",
            "localhost:123456",
            "user@localhost",
            "localhost/",
            "[::1",
        ),
        *("local host", "localhost,evil.test", "\u212aocalhost", "[localhost]:", "[127.0.0.1", "[fe80::1%lo]"),
    ],
)
def test_other_hosts_are_refused(host: str) -> None:
    # An empty port is valid in a URL, and means the default.
    assert status(f"Host: {host}") == (None if host == "localhost:" else 421)


def test_the_addresses_and_names_of_the_listener_are_known() -> None:
    known = hosts(
        "10.1.2.3",
        listeners=ListenerSettings(http=Address("Broker.Lan", 80), advertised_kafka=Address("kafka.example.com", 9)),
        cluster=ClusterSettings(advertise="node1.example.com"),
        http=HttpSettings(allowed_hosts="api.example.com, .apps.example.com,[2001:DB8::0:1]"),
    )
    for host in (
        *(
            "10.1.2.3",
            "broker.lan",
            "kafka.example.com",
            "node1.example.com:1",
            "api.example.com",
            "a.b.apps.example.com",
        ),
        *("[2001:db8::1]", "localhost"),
    ):
        assert host in known, host
    for host in ("10.1.2.4", "example.com", "apps.example.com", "xapps.example.com", ".apps.example.com:x", "0.0.0.0"):
        assert host not in known, host


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_any_address_is_known_if_the_listener_is_bound_to_all(bound: str) -> None:
    known = hosts(bound)
    assert "10.1.2.3:8080" in known
    assert "[2001:db8::1]" in known
    assert "evil.test" not in known
    # Some systems take it for loopback, so that a page could send requests to it that look like those of a program.
    assert "0.0.0.0:8080" not in known
    assert "[::]" not in known


@pytest.mark.parametrize(
    "entry", ["http://a.example", "a.example:80", "*", "*.example", "a b", "[::1", "a/b", "a..b", "."]
)
def test_allowed_hosts_that_cannot_be_read_stop_the_start(entry: str) -> None:
    with pytest.raises(PenstockError) as refused:
        hosts(http=HttpSettings(allowed_hosts=entry))
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert "without ports" in refused.value.text


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8080", "HTTP://127.0.0.1:8080", "https://127.0.0.1:8080"])
def test_a_page_of_the_broker_may_do_everything(origin: str) -> None:
    assert status("Host: 127.0.0.1:8080", f"Origin: {origin}", "Sec-Fetch-Site: same-origin") is None


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "http://evil.test", "http://127.0.0.1:3000", "http://127.0.0.1", "http://localhost:8080"),
        *(
            "file://",
            "http://127.0.0.1:8080.evil.test",
            "http://127.0.0.1:8080, http://evil.test",
            "ftp://127.0.0.1:8080",
        ),
    ],
)
def test_a_page_of_another_origin_may_do_nothing(origin: str) -> None:
    for site in ((), ("Sec-Fetch-Site: none",), ("Sec-Fetch-Site: same-origin",)):
        assert status("Host: 127.0.0.1:8080", f"Origin: {origin}", *site) == 403
    assert status(f"Origin: {origin}") == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "something-new"])
def test_a_request_of_another_site_is_refused_though_it_has_no_origin(site: str) -> None:
    for path in ("/topics", "/docs", "/v1/consume", "/"):
        assert status("Host: localhost", f"Sec-Fetch-Site: {site}", method="GET", path=path) == 403


def test_what_the_user_typed_is_served() -> None:
    assert status("Host: localhost", "Sec-Fetch-Site: none", *NAVIGATION, method="GET") is None


def test_another_site_may_link_to_the_page_and_nothing_else() -> None:
    link = ("Host: localhost", CROSS, *NAVIGATION)
    assert status(*link, method="GET", path="/docs") is None
    for method, path in (
        ("GET", "/"),
        ("GET", "/v1/consume"),
        ("POST", "/docs"),
        ("GET", "/docs/"),
        ("GET", "/docs/docs.js"),
    ):
        assert status(*link, method=method, path=path) == 403
    frame = ("Host: localhost", CROSS, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe")
    assert status(*frame, method="GET", path="/docs") == 403
    assert status(*link, "Sec-Fetch-Dest: iframe", method="GET", path="/docs") == 403
    assert status(*link, "Origin: null", method="GET", path="/docs") == 403


def test_every_one_of_repeated_headers_is_checked() -> None:
    for repeated in (
        ("Host: localhost", "Host: evil.test"),
        ("Host: localhost", "Origin: http://localhost", "Origin: http://evil.test"),
        ("Host: localhost", "Sec-Fetch-Site: same-origin", CROSS),
    ):
        assert status(*repeated) is not None
        assert status(*reversed(repeated)) is not None


def test_a_client_that_sends_no_host_is_no_browser() -> None:
    assert status() is None


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        *((b"/topics", None), (b"/topics?x=http://a", None), (b"*", None), (b"http://a.test:80/topics", b"a.test:80")),
        *((b"http://a.test", b"a.test"), (b"http://a.test?b/c", b"a.test"), (b"http://", b"")),
    ],
)
def test_the_host_of_a_target(target: bytes, authority: bytes | None) -> None:
    assert authority_of(target) == authority


async def counted(node: HttpNode) -> int:
    found = await node.client.get("/topics/orders/partitions/0/offsets")
    return int(found.json()["high_watermark"])


REFUSED = {
    "a fetch": (403, post(MESSAGES, b'{"value":"x"}', "Origin: http://evil.test", CROSS, "Content-Type: text/plain")),
    "a page of another port": (403, post(MESSAGES, b'{"value":"x"}', "Origin: http://127.0.0.1:3000")),
    "without an origin": (403, post(MESSAGES, b'{"value":"x"}', CROSS)),
    "a rebound name": (421, post(MESSAGES, b'{"value":"x"}').replace(b"127.0.0.1", b"evil.test")),
    "a rebound name in the target": (421, post("http://evil.test" + MESSAGES, b'{"value":"x"}')),
    "under /v1": (403, post("/v1/produce", b'{"topic":"orders","value":"x"}', CROSS)),
    "through ASGI": (403, post(MESSAGES, b'{"value":"x"}\n', CROSS, "Content-Type: application/x-ndjson")),
    "with an upgrade": (403, post(MESSAGES, b'{"value":"x"}', CROSS, "Connection: upgrade", "Upgrade: websocket")),
    "as HTTP/1.0": (403, post(MESSAGES, b'{"value":"x"}', CROSS).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "a stream of events": (403, request("GET", "/topics/orders/tail", headers=[CROSS])),
    "a consumer": (403, request("GET", "/v1/consume?topic=orders&group=g&owner=o", headers=[CROSS])),
    "an image": (
        403,
        request("GET", "/v1/consume?topic=orders&group=g&owner=o", headers=[CROSS, "Sec-Fetch-Dest: image"]),
    ),
    "a preflight": (403, request("OPTIONS", MESSAGES, headers=["Origin: http://evil.test", CROSS])),
    "an unknown path": (403, request("GET", "/nothing", headers=[CROSS])),
    "health": (403, request("GET", "/health", headers=[CROSS])),
    "the metrics of a rebound name": (421, request("GET", "/metrics").replace(b"127.0.0.1", b"evil.test:8080")),
}


@pytest.mark.parametrize("fast_lane", [True, False])
@pytest.mark.parametrize(("expected", "sent"), REFUSED.values(), ids=REFUSED)
async def test_it_holds_wherever_a_request_goes(tmp_path: Path, *, fast_lane: bool, expected: int, sent: bytes) -> None:
    async with HttpNode(tmp_path, HttpBounds(fast_lane=fast_lane)) as node:
        await node.create("orders", 1)
        for _ in range(2):
            raw = await node.connect()
            answer = await raw.ask(sent)
            assert status_of(answer) == expected
            assert b"access-control" not in answer.lower()
            assert set(json.loads(body_of(answer))) == ({"error", "message"} if b" /v1/" in sent else {"error"})
            await raw.close()
        assert await counted(node) == 0
        reason = {403: "permission_denied", 421: "misdirected_request"}[expected]
        assert node.broker.meters.request_errors.get(("http", reason)) == 2


@pytest.mark.parametrize("first", [(), (CROSS,)])
async def test_a_head_that_the_lane_knows_admits_no_other(tmp_path: Path, first: tuple[str, ...]) -> None:
    async with HttpNode(tmp_path) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        expected = 0
        for headers in (first, (CROSS,), (), (CROSS,), ("Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1")):
            answer = await raw.ask(post(MESSAGES, b'{"value":"x"}', *headers))
            assert status_of(answer) == (403 if CROSS in headers else 200)
            expected += CROSS not in headers
        assert await counted(node) == expected


async def test_pipelined_requests_are_refused_one_by_one(tmp_path: Path) -> None:
    async with HttpNode(tmp_path) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        good, bad = post(MESSAGES, b'{"value":"x"}'), post(MESSAGES, b'{"value":"x"}', CROSS)
        await raw.send(good + bad + good + bad + bad + good)
        assert [status_of(await raw.answer()) for _ in range(6)] == [200, 403, 200, 403, 403, 200]
        assert await counted(node) == 3


@pytest.mark.parametrize("length", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
async def test_a_long_body_of_a_refused_request_is_not_received(tmp_path: Path, length: str) -> None:
    async with HttpNode(tmp_path) as node:
        raw = await node.connect()
        answer = await raw.ask(request("POST", MESSAGES, headers=[CROSS, length], length=False))
        assert status_of(answer) == 403
        assert b"connection: close" in answer
        assert await raw.rest() == b""


async def test_programs_are_served_as_before(tmp_path: Path) -> None:
    async with HttpNode(tmp_path) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        without_host = b"GET /topics HTTP/1.0\r\n\r\n"
        assert status_of(await raw.ask(without_host)) == 200
        await raw.close()
        for name in ("localhost", f"127.0.0.1:{node.port}", "[::1]:80"):
            raw = await node.connect()
            assert (
                status_of(await raw.ask(post(MESSAGES, b'{"value":"x"}').replace(b"127.0.0.1", name.encode()))) == 200
            )
            await raw.close()


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_a_client_cannot_choose_its_address(tmp_path: Path, *, fast_lane: bool) -> None:
    """uvicorn believes X-Forwarded-For from loopback, unless it is told not to."""
    async with HttpNode(tmp_path, HttpBounds(fast_lane=fast_lane)) as node:
        await node.create("orders", 1)
        seen: list[str] = []
        publish = node.broker.publisher.publish

        def recorded(caller: Caller, *rest: Any) -> None:
            seen.append(caller.client)
            publish(caller, *rest)

        node.broker.publisher.publish = recorded  # type: ignore[method-assign]
        raw = await node.connect()
        assert status_of(await raw.ask(post(MESSAGES, b'{"value":"x"}', "X-Forwarded-For: 9.9.9.9"))) == 200
        assert seen == ["127.0.0.1"]


NAMES = st.sampled_from([b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"])
VALUES = st.binary(max_size=30) | st.sampled_from(
    [b"localhost", b"[::1]", b"http://localhost", b"same-origin", b"cross-site", b"navigate", b"document"]
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.sampled_from(["/docs", "/topics"]))
def test_whatever_the_headers_have_only_the_broker_and_programs_are_served(sent: RawHeaders, path: str) -> None:
    refusal = BrowserGuard(hosts()).refusal("GET", path, sent)
    if refusal is not None:
        assert refusal.status in (403, 421)
        return
    texts = {name: {value.decode("latin-1").strip().lower() for key, value in sent if key == name} for name, _ in sent}
    assert all(host in hosts() for host in texts.get(b"host", ()))
    assert texts.get(b"sec-fetch-site", set()) <= {"same-origin", "none"} or path == "/docs"
    assert all(origin.endswith("://localhost") or "[::1]" in origin for origin in texts.get(b"origin", ()))
