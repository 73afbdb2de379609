"""HTTP clients and the users, keys, tokens and certificates of a broker: curl and httpx, over real connections."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from penstock.core.security.certificates import PrincipalRules
from penstock.limits import JWKS_RETRY_MS
from penstock.settings import Authentication, ClientAuth, OauthSettings, SecuritySettings, TlsSettings
from penstock.transport.listener import Listener
from penstock.transport.tls import ServerTls
from tests.support.http_node import HttpNode
from tests.support.kafka_wire import until
from tests.support.listeners import encrypted
from tests.support.pki import Authority
from tests.support.tokens import AUDIENCE, ISSUER, Provider

MESSAGES = "/topics/orders/messages"
PASSWORD = "correct horse: battery \u00fc"
REQUIRED = SecuritySettings(
    authentication=Authentication.REQUIRED, super_users="User:anna,User:robot,User:CN=carl", session_ms_max=0
)
OAUTH = OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example.com/keys")


class SecuredNode(HttpNode):
    """With a user, a program with an API key, and a provider of tokens."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, security=REQUIRED, oauth=OAUTH, **settings)
        self.provider = Provider()

    async def furnish(self) -> None:
        authenticator = self.broker.authenticator

        async def fetch() -> bytes:
            return self.provider.key_set()

        authenticator.tokens.fetch = fetch
        # The start has just tried, without this source.
        self.clock.advance(JWKS_RETRY_MS)
        await authenticator.tokens.load()
        await authenticator.users.create("anna", await authenticator.hashed(PASSWORD), self.clock.now_ms())
        await authenticator.users.create("robot", {}, self.clock.now_ms())
        self.key_id, self.key = await authenticator.keys.create("robot", "tests", self.clock.now_ms(), None)
        await self.create("orders", 1)

    def token(self, algorithm: str = "RS256", **claims: Any) -> str:
        return self.provider.token(algorithm, now=self.clock.now_ms() / 1000, **claims)

    async def post(self, **options: Any) -> int:
        return (await self.client.post(MESSAGES, json={"value": "x"}, **options)).status_code

    async def count(self) -> int:
        answer = await self.client.get("/topics/orders/partitions/0/offsets", auth=("anna", PASSWORD))
        return int(answer.json()["high_watermark"])


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[SecuredNode]:
    async with SecuredNode(tmp_path / "data") as node:
        await node.furnish()
        yield node


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def curl(node: HttpNode, path: str, *options: str) -> tuple[int, str, str]:
    """Status, body and challenge. The options go through a file, as people should do it."""
    lines = [
        f'url = "http://127.0.0.1:{node.port}{path}"',
        *options,
        'write-out = "%{stderr}%{http_code} %header{www-authenticate}"',
    ]
    process = await asyncio.create_subprocess_exec(
        *("curl", "-s", "-K", "-"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    body, told = await process.communicate("\n".join(lines).encode())
    status, _, challenge = told.decode().partition(" ")
    return int(status), body.decode(), challenge


async def test_curl_with_a_right_and_a_wrong_password(node: SecuredNode) -> None:
    quoted = PASSWORD.replace('"', '\\"')
    status, body, _ = await curl(node, "/topics", f'user = "anna:{quoted}"')
    assert status == 200
    assert "orders" in body
    for options in ((), ('user = "anna:wrong"',), ('user = "nobody:wrong"',)):
        status, body, challenge = await curl(node, "/topics", *options)
        assert status == 401
        assert "orders" not in body
        assert challenge.startswith('Basic realm="penstock"')


async def test_curl_with_a_key(node: SecuredNode) -> None:
    assert (await curl(node, "/topics", f'header = "Authorization: Bearer {node.key}"'))[0] == 200
    assert (await curl(node, "/topics", f'user = "{node.key_id}:{node.key}"'))[0] == 200
    assert (await curl(node, "/topics", f'header = "Authorization: Bearer {node.key[:-1]}"'))[0] == 401
    assert json.loads((await curl(node, "/livez"))[1]) == {"status": "alive"}


async def test_curl_does_not_send_a_large_body_that_is_refused(node: SecuredNode, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 10_000_000)
    status, _, _ = await curl(node, MESSAGES, f'upload-file = "{tmp_path / "large"}"', "request = POST")
    assert status == 401
    assert node.http.held_bytes == 0


async def test_httpx_with_a_right_and_a_wrong_password(node: SecuredNode) -> None:
    for _ in range(3):
        assert await node.post(auth=("anna", PASSWORD)) == 200
        assert await node.post(auth=("anna", "wrong")) == 401
        assert await node.post() == 401
    assert await node.count() == 3


async def test_a_deleted_user_and_a_new_password_count_at_once(node: SecuredNode) -> None:
    users, hashed = node.broker.authenticator.users, node.broker.authenticator.hashed
    for _ in range(2):
        assert await node.post(auth=("anna", PASSWORD)) == 200
    await users.set_password("anna", await hashed("another password"))
    assert await node.post(auth=("anna", PASSWORD)) == 401
    assert await node.post(auth=("anna", "another password")) == 200
    await users.delete("anna", spare_last_admin=False)
    assert await node.post(auth=("anna", "another password")) == 401


async def test_a_revoked_key_is_refused_and_its_streams_end(node: SecuredNode) -> None:
    for _ in range(3):
        assert await node.post(headers=bearer(node.key)) == 200
    async with node.client.stream("GET", "/topics/orders/tail", headers=bearer(node.key)) as tail:
        lines = tail.aiter_lines()
        assert await anext(lines) == ": tail of orders"
        await node.broker.authenticator.keys.revoke(node.key_id, "robot")
        assert [line async for line in lines if line.startswith("data")] == []
    assert await node.post(headers=bearer(node.key)) == 401
    assert node.http.streams == {}


@pytest.mark.parametrize("in_lane", [True, False], ids=["lane", "asgi"])
async def test_a_lease_that_waits_gives_nothing_to_a_key_that_was_revoked(node: SecuredNode, in_lane: bool) -> None:
    if in_lane:
        assert await node.post(headers=bearer(node.key)) == 200
    asked = {"topic": "orders", "group": "g", "owner": "o", "lease_ms": 60_000, "wait_ms": 50_000}
    if in_lane:
        seen = (await node.client.post("/v1/lease", json=asked | {"max_records": 10}, headers=bearer(node.key))).json()
        assert len(seen["records"]) == 1
    waiting = asyncio.ensure_future(node.client.post("/v1/lease", json=asked, headers=bearer(node.key)))
    await until(lambda: (queue := node.broker.queues.get("orders", "g")) is not None and queue.takers)
    await node.broker.authenticator.keys.revoke(node.key_id, "robot")
    assert await node.post(auth=("anna", PASSWORD)) == 200
    answer = await waiting
    assert (answer.status_code, "records" in answer.json()) == (401, False)


async def test_a_token_counts_until_it_expires(node: SecuredNode) -> None:
    token = node.token()
    for _ in range(3):
        assert await node.post(headers=bearer(token)) == 200
    async with node.client.stream("GET", "/topics/orders/tail", headers=bearer(token)) as tail:
        lines = tail.aiter_lines()
        assert await anext(lines) == ": tail of orders"
        node.clock.advance(400_000)
        node.http.look_after()
        assert [line async for line in lines if line.startswith("data")] == []
    assert await node.post(headers=bearer(token)) == 401
    assert await node.post(headers=bearer(node.token())) == 200


@pytest.mark.parametrize(
    "claims",
    [{"iss": "https://other.example.com"}, {"aud": "others"}, {"exp": 1}, {"sub": None}, {"nbf": 2**40}],
    ids=str,
)
async def test_a_token_that_is_not_for_us_is_refused(node: SecuredNode, claims: dict[str, Any]) -> None:
    assert await node.post(headers=bearer(node.token(**claims))) == 401


async def test_a_token_without_a_signature_is_refused(node: SecuredNode) -> None:
    head, claims, _ = node.token().split(".")
    none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0"
    for token in (f"{none}.{claims}.", f"{none}.{claims}", f"{head}.{claims}.AAAA", Provider(number=1).token()):
        assert await node.post(headers=bearer(token)) == 401
    assert await node.count() == 0


async def test_a_user_without_rights_is_403(node: SecuredNode) -> None:
    authenticator = node.broker.authenticator
    await authenticator.users.create("bert", await authenticator.hashed("a long password"), 0)
    for _ in range(2):
        assert await node.post(auth=("bert", "a long password")) == 403
    assert (await node.client.get("/metrics", auth=("bert", "a long password"))).status_code == 403
    assert (await node.client.get("/docs", auth=("bert", "a long password"))).status_code == 200
    assert await node.count() == 0


class EncryptedNode(SecuredNode):
    """Its clients may present certificates."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        super().__init__(folder)
        pair = authority.sign("broker")
        settings = TlsSettings(
            cert_file=pair.cert, key_file=pair.key, ca_file=authority.file, client_auth=ClientAuth.REQUESTED
        )
        self.tls = ServerTls(settings, PrincipalRules("DEFAULT").name_of_certificate)

    def http_listener(self) -> Listener:
        return encrypted("http", self.tls)


async def test_a_client_certificate_counts_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("carl")
    trusting = ssl.create_default_context(cafile=authority.file)
    presenting = ssl.create_default_context(cafile=authority.file)
    presenting.load_cert_chain(pair.cert, pair.key)
    async with EncryptedNode(tmp_path / "data", authority) as node:
        await node.furnish()
        url = f"https://127.0.0.1:{node.port}{MESSAGES}"
        record = {"value": "x"}
        async with httpx.AsyncClient(verify=presenting) as carl, httpx.AsyncClient(verify=trusting) as other:
            for _ in range(3):
                assert (await carl.post(url, json=record)).status_code == 200
                assert (await other.post(url, json=record)).status_code == 401
                assert (await other.post(url, json=record, auth=("anna", PASSWORD))).status_code == 200
            assert (await carl.post(url, json=record, auth=("anna", "wrong"))).status_code == 401
        assert node.broker.partition("orders", 0).log.next_offset == 6
