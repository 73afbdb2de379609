"""Every request is authenticated by its head: before its path, before its body, in the lane and through ASGI."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.security.access import Principal
from penstock.core.security.identity import NOBODY, Bearer, Certificate, Credential, Identity, Password
from penstock.errors import PenstockError, Reason
from penstock.gateways.http.server import lane
from penstock.gateways.http.server.answers import RawHeaders
from penstock.gateways.http.server.connection import HttpConnection
from penstock.gateways.http.server.gateway import HttpBounds
from penstock.gateways.http.server.logins import REMEMBERED_MS, credential_of, without_credential
from tests.support.http_node import HttpNode, RawHttp, becomes, body_of, post, request, status_of

MESSAGES = "/topics/orders/messages"
RECORD = b'{"value":"x"}'
SECRET = "s3cr3t-that-nobody-may-see"


def basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


ANNA = basic("anna", SECRET)


class Users:
    """Passwords, tokens and what they prove; the door of the real authenticator."""

    is_required = True

    def __init__(self) -> None:
        self.version = 0
        self.on_changed: list[Callable[[], None]] = []
        self.now_ms = 0
        self.passwords = {"anna": SECRET, "bert": "b"}
        self.tokens: dict[str, Identity] = {}
        self.asked: list[tuple[Credential, str, bool]] = []
        self._remembered: dict[tuple[str, bytes], Identity] = {}
        self.gone: set[Principal] = set()

    def identity_of(self, credential: Credential) -> Identity | None:
        if isinstance(credential, Certificate):
            return Identity(Principal(f"User:{credential.name}"), (), "certificate")
        if isinstance(credential, Bearer):
            return self.tokens.get(credential.token.reveal().decode())
        if self.passwords.get(credential.user) == credential.password.reveal().decode():
            return Identity(Principal(f"User:{credential.user}"), (), "plain")
        return None

    @staticmethod
    def _key(credential: Credential) -> tuple[str, bytes]:
        if isinstance(credential, Password):
            return credential.user, credential.password.reveal()
        assert isinstance(credential, Bearer)
        return "", credential.token.reveal()

    async def authenticate(self, credential: Credential, client: str, *, is_private: bool) -> Identity:
        self.asked.append((credential, client, is_private))
        await asyncio.sleep(0)
        found = self.identity_of(credential)
        if found is None or not is_private or not self.is_current(found):
            raise PenstockError(Reason.AUTHENTICATION_FAILED, "Authentication failed: check the user and the password")
        if not isinstance(credential, Certificate):
            self._remembered[self._key(credential)] = found
        return found

    def remembered(self, credential: Credential, *, is_private: bool) -> Identity | None:
        found = self._remembered.get(self._key(credential)) if is_private else None
        return found if found is not None and self.is_current(found) else None

    def is_current(self, identity: Identity) -> bool:
        expired = identity.expires_ms is not None and self.now_ms >= identity.expires_ms
        return identity.principal not in self.gone and not expired

    def remove(self, user: str) -> None:
        self.gone.add(Principal(f"User:{user}"))
        self.change()

    def forget(self) -> None:
        self._remembered.clear()

    def change(self) -> None:
        self.version += 1
        self.forget()
        for hook in self.on_changed:
            hook()


class SecuredNode(HttpNode):
    def __init__(self, data_dir: Path, bounds: HttpBounds | None = None, **settings: Any) -> None:
        super().__init__(data_dir, bounds, **settings)
        self.users = Users()

    def before_http(self) -> None:
        self.broker.authenticator = self.users  # type: ignore[misc, assignment]

    async def value_count(self) -> int:
        found = await self.client.get("/topics/orders/partitions/0/offsets", headers=headers(ANNA))
        return int(found.json()["high_watermark"])


def headers(line: str) -> dict[str, str]:
    name, _, value = line.partition(": ")
    return {name: value}


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[SecuredNode]:
    async with SecuredNode(tmp_path) as node:
        await node.create("orders", 1)
        yield node


def raw(*values: bytes) -> RawHeaders:
    return [(b"host", b"x"), *((b"authorization", value) for value in values)]


# Credentials.


@pytest.mark.parametrize(
    ("value", "user", "password"),
    [
        (b"Basic YTpi", "a", b"b"),
        (b"basic   YTpi", "a", b"b"),
        (b"BASIC YTpiOmM=", "a", b"b:c"),
        (b"Basic OmI=", "", b"b"),
        (b"Basic YTo=", "a", b""),
        (b"Basic w6Q6w7w=", "\u00e4", "\u00fc".encode()),
        (b"Basic YTr/", "a", b"\xff"),
    ],
)
def test_a_password(value: bytes, user: str, password: bytes) -> None:
    found = credential_of(raw(value))
    assert isinstance(found, Password)
    assert (found.user, found.password.reveal()) == (user, password)


@pytest.mark.parametrize("value", [b"Bearer abc.DEF-123_~+/==", b"bearer abc.DEF-123_~+/=="])
def test_a_token(value: bytes) -> None:
    found = credential_of(raw(value))
    assert isinstance(found, Bearer)
    assert found.token.reveal() == b"abc.DEF-123_~+/=="


@pytest.mark.parametrize(
    "values",
    [
        *(
            (b"",),
            (b"Basic",),
            (b"Basic YTpi!",),
            (b"Basic YWI=",),
            (b"Basic /zpi",),
            (b"Basic YTpi YTpi",),
            (b"Basic YTp",),
        ),
        *((b"Bearer",), (b"Bearer a b",), (b"Bearer a\xff",), (b"Bearer =",), (b"Digest a",), (b"Negotiate YTpi",)),
        *((b"Basic YTpi", b"Basic YTpi"), (b"Bearer a", b"Basic YTpi")),
    ],
)
def test_a_header_that_cannot_be_read_is_refused_and_not_shown(values: tuple[bytes, ...]) -> None:
    with pytest.raises(PenstockError) as refused:
        credential_of(raw(*values))
    assert refused.value.reason is Reason.AUTHENTICATION_FAILED
    assert "YTp" not in refused.value.text


def test_no_header_is_no_credential() -> None:
    assert credential_of(raw()) is None
    assert without_credential(raw(b"Basic YTpi")) == raw()


# Requests without a valid credential.

SENT = {
    "a hot call": post(MESSAGES, RECORD),
    "under /v1": post("/v1/produce", b'{"topic":"orders","value":"x"}'),
    "lines": post(MESSAGES, RECORD + b"\n", "Content-Type: application/x-ndjson"),
    "a list": request("GET", "/topics"),
    "a stream": request("GET", "/topics/orders/tail"),
    "the service": request("GET", "/"),
    "the page": request("GET", "/docs"),
    "a file of the page": request("GET", "/docs/docs.js"),
    "the document": request("GET", "/openapi.json"),
    "metrics": request("GET", "/metrics"),
    "health": request("GET", "/health"),
    "an unknown path": request("GET", "/nothing"),
    "an unknown method": request("PATCH", "/topics"),
    "a path like an open one": request("GET", "/livez/"),
    "another path like an open one": request("GET", "//livez"),
    "another method of an open one": post("/livez", b""),
    "options": request("OPTIONS", "/topics"),
}


@pytest.mark.parametrize(
    "authorization", [None, basic("anna", "wrong"), basic("nobody", SECRET), "Authorization: Bearer x"]
)
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_it_is_401_whatever_is_asked(node: SecuredNode, sent: bytes, authorization: str | None) -> None:
    if authorization is not None:
        sent = sent.replace(b"\r\nHost:", f"\r\n{authorization}\r\nHost:".encode())
    raw = await node.connect()
    for _ in range(2):
        answer = await raw.ask(sent)
        assert status_of(answer) == 401
        assert b'\r\nwww-authenticate: Basic realm="penstock", Bearer\r\n' in answer
        body = json.loads(body_of(answer))
        assert body["error"] == "UNAUTHENTICATED" if b" /v1/" in sent else set(body) == {"error"}
    assert await node.value_count() == 0
    assert node.http.lane.known == {}


async def test_a_body_is_not_awaited(node: SecuredNode) -> None:
    """A stranger gets its answer after the head."""
    for length in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        raw = await node.connect()
        answer = await raw.ask(request("POST", MESSAGES, headers=[length], length=False))
        assert status_of(answer) == 401
        assert b"connection: close" in answer
        assert await raw.rest() == b""
        await raw.close()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_health_is_one_word_for_strangers(node: SecuredNode, path: str) -> None:
    assert (await node.client.get(path)).json() in ({"status": "alive"}, {"status": "ready"})
    assert (await node.client.head(path)).status_code == 200
    node.http.problem = lambda: "etcd does not answer"  # type: ignore[misc]
    stranger, friend = await node.client.get(path), await node.client.get(path, headers=headers(ANNA))
    assert len(stranger.json()) == 1
    assert len(friend.json()) == 2
    assert (await node.client.get(path, headers=headers(basic("anna", "wrong")))).status_code == 401


# Requests with one.


@pytest.mark.parametrize("fast_lane", [True, False])
async def test_the_caller_is_whom_the_credential_proves(tmp_path: Path, *, fast_lane: bool) -> None:
    async with SecuredNode(tmp_path, HttpBounds(fast_lane=fast_lane)) as node:
        await node.create("orders", 1)
        callers = seen_callers(node)
        node.users.tokens["tok"] = Identity(Principal("User:carl"), ("ops",), "token")
        raw = await node.connect()
        for _ in range(3):
            for authorization in (ANNA, basic("bert", "b"), "Authorization: Bearer tok"):
                assert status_of(await raw.ask(post(MESSAGES, RECORD, authorization))) == 200
        assert [(caller.principal, caller.groups, caller.method) for caller in callers[-3:]] == [
            ("User:anna", (), "plain"),
            ("User:bert", (), "plain"),
            ("User:carl", ("ops",), "token"),
        ]
        assert {caller.client for caller in callers} == {"127.0.0.1"}
        assert len(callers) == 9
        assert node.through_asgi == (3 if fast_lane else 9)


def seen_callers(node: SecuredNode) -> list[Any]:
    callers: list[Any] = []
    publish = node.broker.publisher.publish

    def recorded(caller: Any, *rest: Any) -> None:
        callers.append(caller)
        publish(caller, *rest)

    node.broker.publisher.publish = recorded  # type: ignore[method-assign]
    return callers


async def test_the_lane_takes_what_was_checked_once_over_all_connections(node: SecuredNode) -> None:
    first, second = await node.connect(), await node.connect()
    sent = post(MESSAGES, RECORD, ANNA)
    assert status_of(await first.ask(sent)) == 200
    assert node.through_asgi == 1
    await first.send(sent * 10)
    assert [status_of(await first.answer()) for _ in range(10)] == [200] * 10
    assert status_of(await second.ask(sent)) == 200
    assert node.through_asgi == 1
    assert len(node.users.asked) == 1


async def test_the_table_has_no_credential_in_it(node: SecuredNode) -> None:
    raw = await node.connect()
    token = "e" * 2000
    node.users.tokens[token] = Identity(Principal("User:carl"), (), "token")
    for authorization in (ANNA, f"Authorization: Bearer {token}"):
        for _ in range(2):
            assert status_of(await raw.ask(post(MESSAGES, RECORD, authorization))) == 200
    assert len(node.http.lane.known) == 2
    for key, call in node.http.lane.known.items():
        assert len(key) == 32
        assert call is not None
        assert all(name != b"authorization" for name, _ in call.headers)


async def test_a_head_without_its_credential_is_another_head(node: SecuredNode) -> None:
    raw = await node.connect()
    for _ in range(2):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    assert status_of(await raw.ask(post(MESSAGES, RECORD))) == 401
    assert status_of(await raw.ask(post(MESSAGES, RECORD, basic("anna", "wrong")))) == 401
    assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    assert await node.value_count() == 3


async def test_a_deleted_user_is_refused_at_once_in_the_lane_too(node: SecuredNode) -> None:
    raw = await node.connect()
    bert = post(MESSAGES, RECORD, basic("bert", "b"))
    for _ in range(3):
        assert status_of(await raw.ask(bert)) == 200
    node.users.remove("bert")
    for _ in range(3):
        assert status_of(await raw.ask(bert)) == 401
    assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    assert await node.value_count() == 4


async def test_another_change_of_users_takes_a_credential_out_of_the_lane_for_one_request(node: SecuredNode) -> None:
    raw = await node.connect()
    for _ in range(2):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    node.users.change()
    before = node.through_asgi
    for _ in range(3):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    assert node.through_asgi == before + 1


async def test_the_authenticator_is_asked_again_after_a_minute(node: SecuredNode) -> None:
    node.users.tokens["tok"] = Identity(Principal("User:carl"), (), "token")
    raw = await node.connect()
    sent = post(MESSAGES, RECORD, "Authorization: Bearer tok")
    for _ in range(2):
        assert status_of(await raw.ask(sent)) == 200
    node.users.forget()
    del node.users.tokens["tok"]
    assert status_of(await raw.ask(sent)) == 200
    node.clock.advance(REMEMBERED_MS)
    assert status_of(await raw.ask(sent)) == 401


async def test_an_expired_token_is_refused_in_the_lane_too(node: SecuredNode) -> None:
    now_ms = node.clock.now_ms()
    node.users.now_ms = now_ms
    node.users.tokens["tok"] = Identity(Principal("User:carl"), (), "token", expires_ms=now_ms + 1000)
    raw = await node.connect()
    sent = post(MESSAGES, RECORD, "Authorization: Bearer tok")
    for _ in range(3):
        assert status_of(await raw.ask(sent)) == 200
    node.clock.advance(1000)
    node.users.now_ms += 1000
    assert status_of(await raw.ask(sent)) == 401
    assert await node.value_count() == 3


async def test_what_others_can_read_is_refused_in_the_lane_too(node: SecuredNode) -> None:
    raw, other = await node.connect(), await node.connect()
    for _ in range(2):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    await becomes(lambda: node.http.connection_count == 2)
    public = next(each for each in connections(node) if each.transport.get_extra_info("peername") == port_of(other))
    public.is_private = False
    assert status_of(await other.ask(post(MESSAGES, RECORD, ANNA))) == 401
    assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200


def connections(node: HttpNode) -> list[HttpConnection]:
    return list(node.http._server.server_state.connections)  # type: ignore[arg-type]


def port_of(raw: RawHttp) -> tuple[str, int]:
    found: tuple[str, int] = raw.writer.get_extra_info("sockname")
    return found


async def test_a_certificate_counts_unless_the_head_has_a_credential(node: SecuredNode) -> None:
    callers = seen_callers(node)
    raw = await node.connect()
    await becomes(lambda: node.http.connection_count == 1)
    (connection,) = connections(node)
    connection.certificate = "CN=carl"
    for _ in range(3):
        assert status_of(await raw.ask(post(MESSAGES, RECORD))) == 200
    assert node.through_asgi == 1
    for _ in range(2):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    assert status_of(await raw.ask(post(MESSAGES, RECORD, basic("anna", "wrong")))) == 401
    assert [caller.principal for caller in callers] == ["User:CN=carl"] * 3 + ["User:anna"] * 2
    stranger = await node.connect()
    assert status_of(await stranger.ask(post(MESSAGES, RECORD))) == 401
    node.users.remove("CN=carl")
    assert status_of(await raw.ask(post(MESSAGES, RECORD))) == 401


async def test_strangers_displace_nothing_in_the_table(node: SecuredNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "HEADS_MAX", 2)
    raw = await node.connect()
    for _ in range(2):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, ANNA))) == 200
    known = dict(node.http.lane.known)
    assert len(known) == 1
    for number in range(5):
        assert status_of(await raw.ask(post(MESSAGES, RECORD, f"X-Number: {number}"))) == 401
        assert status_of(await raw.ask(post(MESSAGES, RECORD, basic("anna", str(number))))) == 401
        assert status_of(await raw.ask(request("GET", f"/topics?{number}", headers=[ANNA]))) == 200
    assert node.http.lane.known == known


async def test_heads_with_long_tokens_are_remembered_within_bounds(
    node: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "ALL_HEADS_BYTES_MAX", 8000)
    raw = await node.connect()
    for number in range(10):
        token = str(number) * 3000
        node.users.tokens[token] = Identity(Principal(f"User:{number}"), (), "token")
        for _ in range(2):
            assert status_of(await raw.ask(post(MESSAGES, RECORD, f"Authorization: Bearer {token}"))) == 200
        assert 1 <= len(node.http.lane.known) <= 2


async def test_the_document_says_how_to_authenticate(node: SecuredNode) -> None:
    document = (await node.client.get("/openapi.json", headers=headers(ANNA))).json()
    assert document["security"] == [{"basic": []}, {"bearer": []}]
    schemes = document["components"]["securitySchemes"]
    assert {name: schemes[name]["scheme"] for name in schemes} == {"basic": "basic", "bearer": "bearer"}


# Streams.


async def test_a_stream_of_a_deleted_user_ends_and_others_go_on(node: SecuredNode) -> None:
    anna, bert = await node.connect(), await node.connect()
    for raw, authorization in ((anna, ANNA), (bert, basic("bert", "b"))):
        await raw.send(request("GET", "/topics/orders/tail", headers=[authorization, "Connection: close"]))
    await becomes(lambda: len(node.http.streams) == 2)
    node.users.remove("bert")
    assert (await bert.rest()).endswith(b"0\r\n\r\n")
    assert len(node.http.streams) == 1
    assert node.users.is_current(next(iter(node.http.streams.values())))


async def test_a_stream_ends_when_its_token_expires(node: SecuredNode) -> None:
    node.users.tokens["tok"] = Identity(Principal("User:carl"), (), "token", expires_ms=1000)
    raw = await node.connect()
    consume = "/v1/consume?topic=orders&group=g&owner=o"
    await raw.send(request("GET", consume, headers=["Authorization: Bearer tok", "Connection: close"]))
    await becomes(lambda: len(node.http.streams) == 1)
    node.http.look_after()
    assert len(node.http.streams) == 1
    node.users.now_ms = 1000
    node.http.look_after()
    assert (await raw.rest()).endswith(b"0\r\n\r\n")
    assert node.http.streams == {}


async def test_lines_of_a_deleted_user_are_refused_one_by_one(node: SecuredNode) -> None:
    raw = await node.connect()
    chunked = ["Content-Type: application/x-ndjson", "Transfer-Encoding: chunked", basic("bert", "b")]
    await raw.send(request("POST", MESSAGES, headers=chunked, length=False))
    line = b'e\r\n{"value":"x"}\n\r\n'
    await raw.send(line)
    async with asyncio.timeout(20):
        await raw.reader.readuntil(b'"offset":0')
        node.users.remove("bert")
        await raw.send(line + b"0\r\n\r\n")
        rest = await raw.reader.readuntil(b"0\r\n\r\n")
    assert b"no longer valid" in rest
    assert await node.value_count() == 1


# Strangers.


async def test_a_stranger_has_ten_seconds_for_a_head(tmp_path: Path) -> None:
    async with SecuredNode(tmp_path) as node:
        silent, slow, friend = [await node.connect() for _ in range(3)]
        await slow.send(b"GET /topics HTTP/1.1\r\n")
        assert status_of(await friend.ask(request("GET", "/topics", headers=[ANNA]))) == 200
        await becomes(lambda: node.http.connection_count == 3)
        node.clock.advance(10_000)
        node.http.look_after()
        assert node.http.connection_count == 3
        await slow.send(b"X-More: x\r\n")
        node.clock.advance(1)
        node.http.look_after()
        assert await silent.rest() == b""
        assert await slow.rest() == b""
        assert status_of(await friend.ask(request("GET", "/topics", headers=[ANNA]))) == 200


async def test_no_secret_is_in_a_log_or_an_answer(node: SecuredNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fail = node.broker.publisher.publish

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    raw = await node.connect()
    encoded = ANNA.rpartition(" ")[2]
    answers = b""
    for sent in (
        post(MESSAGES, RECORD, ANNA),
        post(MESSAGES, RECORD, basic("anna", SECRET + "x")),
        post(MESSAGES, RECORD, f"Authorization: Bearer {SECRET}"),
        post(MESSAGES, RECORD, f"Authorization: Basic {SECRET}"),
        request("GET", "/topics", headers=[ANNA]),
    ):
        answers += await raw.ask(sent)
    node.broker.publisher.publish = broken  # type: ignore[method-assign]
    answers += await raw.ask(post(MESSAGES, RECORD, ANNA))
    node.broker.publisher.publish = fail  # type: ignore[method-assign]
    assert "a bug" in caplog.text
    for text in (caplog.text, answers.decode()):
        assert SECRET not in text
        assert encoded not in text


async def test_nothing_is_asked_when_authentication_is_off(tmp_path: Path) -> None:
    async with HttpNode(tmp_path) as node:
        await node.create("orders", 1)
        raw = await node.connect()
        for sent in (post(MESSAGES, RECORD), post(MESSAGES, RECORD, ANNA), post(MESSAGES, RECORD, "Authorization: ?")):
            assert status_of(await raw.ask(sent)) == 200
        assert node.through_asgi == 0
        assert "version" in (await node.client.get("/livez")).json()
        assert "security" not in (await node.client.get("/openapi.json")).json()
        assert node.http.logins.is_current(NOBODY)


@given(st.binary(max_size=80) | st.builds(lambda rest: b"Basic " + rest, st.binary(max_size=40).map(base64.b64encode)))
def test_whatever_the_header_has_it_is_a_credential_or_refused(value: bytes) -> None:
    try:
        found = credential_of(raw(value))
    except PenstockError as refused:
        assert refused.reason is Reason.AUTHENTICATION_FAILED
    else:
        assert isinstance(found, Password | Bearer)
