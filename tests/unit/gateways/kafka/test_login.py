"""The login of a Kafka connection: its steps in their order, and nothing else before it is done."""

import asyncio
import base64
import hashlib
import hmac
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from penstock.gateways.kafka.connection import KafkaConnection
from penstock.limits import LOGIN_FRAME_BYTES_MAX, LOGIN_MS_MAX
from penstock.settings import Authentication, OauthSettings, SecuritySettings
from penstock.wire.kafka.api_versions_generated import ApiVersionsRequest
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateRequest, SaslAuthenticateResponse
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.kafka_wire import METADATA, PRODUCE, WireClient, WireNode, batch, encode, produce, produced, until
from tests.support.tokens import AUDIENCE, ISSUER, Provider
from tests.unit.gateways.kafka.test_connection import waits

HANDSHAKE, AUTHENTICATE, VERSIONS = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS
RIGHT = b"\0anna\0right"
FAILED = "Authentication failed: check the user and the password, or the API key or token"


class SecuredNode(WireNode):
    """Requires a login. Its users are anna, an administrator, and bert."""

    provider = Provider()

    def __init__(self, folder: Path, **security: Any) -> None:
        chosen = SecuritySettings(
            authentication=Authentication.REQUIRED, super_users="User:bert,User:token,User:CN=anna", **security
        )
        oauth = OauthSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example.com/")
        super().__init__(folder, security=chosen, oauth=oauth)

    async def __aenter__(self) -> "SecuredNode":
        await super().__aenter__()
        authenticator = self.broker.authenticator

        async def fetch() -> bytes:
            return self.provider.key_set()

        authenticator.tokens.fetch = fetch
        self.clock.advance(60_000)
        for name, password in (("anna", "right"), ("bert", "other")):
            scram = await authenticator.hashed(password)
            await authenticator.users.create(name, scram, 0, admin=name == "anna")
        await self.create("t", 2)
        return self

    def token(self, **claims: Any) -> str:
        return self.provider.token(now=self.clock.now_ms() / 1000, **{"sub": "token", **claims})


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[SecuredNode]:
    async with SecuredNode(tmp_path) as started:
        yield started


async def begin(client: WireClient, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
    found: SaslHandshakeResponse = await client.ask(HANDSHAKE, SaslHandshakeRequest(mechanism), version)
    return found


async def step(client: WireClient, data: bytes, version: int = 2) -> SaslAuthenticateResponse:
    found: SaslAuthenticateResponse = await client.ask(AUTHENTICATE, SaslAuthenticateRequest(data), version)
    return found


async def log_in(client: WireClient, data: bytes = RIGHT) -> SaslAuthenticateResponse:
    assert (await begin(client)).error_code == 0
    answer = await step(client, data)
    assert answer.error_code == 0, answer.error_message
    return answer


async def is_served(client: WireClient) -> bool:
    answer = await client.ask(METADATA, MetadataRequest(topics=[]), 12)
    return bool(answer.brokers)


async def test_the_usual_login(node: SecuredNode) -> None:
    client = await node.connect()
    shown = await client.ask(VERSIONS, ApiVersionsRequest("a", "1"), 3)
    assert {17, 36} <= {each.api_key for each in shown.api_keys}
    offered = await begin(client)
    assert offered.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    answer = await step(client, RIGHT)
    assert (answer.error_code, answer.error_message, answer.session_lifetime_ms) == (0, None, 0)
    assert await is_served(client)
    [connection] = node.connections()
    assert (connection.caller.principal, connection.caller.method) == ("User:anna", "plain")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_each_version_of_the_messages(node: SecuredNode, version: int) -> None:
    client = await node.connect()
    await begin(client)
    assert (await step(client, RIGHT, version)).error_code == 0
    assert await is_served(client)


async def test_after_a_handshake_of_version_0_bare_tokens_follow_however_short(node: SecuredNode) -> None:
    await node.broker.authenticator.users.create("a", await node.broker.authenticator.hashed("b"), 0, admin=True)
    client = await node.connect()
    await begin(client, version=0)
    client.writer.write(struct.pack(">i", 4) + b"\0a\0b")
    assert await client.receive() == b""
    assert await is_served(client)
    wrong = await node.connect()
    await begin(wrong, version=0)
    wrong.writer.write(struct.pack(">i", 4) + b"\0a\0x")
    assert await wrong.closed_by_peer()


async def test_scram_over_the_wire(node: SecuredNode) -> None:
    client = await node.connect()
    await begin(client, "SCRAM-SHA-512")
    bare = "n=anna,r=abc"
    first = (await step(client, f"n,,{bare}".encode())).auth_bytes.decode()
    fields = dict(part.split("=", 1) for part in first.split(","))
    salted = hashlib.pbkdf2_hmac("sha512", b"right", base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", "sha512")
    rest = f"c=biws,r={fields['r']}"
    message = f"{bare},{first},{rest}".encode()
    signature = hmac.digest(hashlib.sha512(key).digest(), message, "sha512")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    final = await step(client, f"{rest},p={proof}".encode())
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    assert final.auth_bytes == b"v=" + base64.b64encode(server)
    assert await is_served(client)


def bearer(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


async def test_a_token_over_the_wire_tells_how_long_the_session_lasts(node: SecuredNode) -> None:
    client = await node.connect()
    await begin(client, "OAUTHBEARER")
    answer = await step(client, bearer(node.token()))
    assert answer.error_code == 0
    assert 300_000 <= answer.session_lifetime_ms <= 330_000
    assert await is_served(client)


async def test_a_wrong_token_takes_another_round_before_it_fails(node: SecuredNode) -> None:
    client = await node.connect()
    await begin(client, "OAUTHBEARER")
    answer = await step(client, bearer(node.token(aud="other")))
    assert (answer.error_code, answer.auth_bytes) == (0, b'{"status":"invalid_token"}')
    failed = await step(client, b"\x01")
    assert (failed.error_code, failed.error_message) == (58, FAILED)
    assert await client.closed_by_peer()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,auth=Bearer a.b.c",
    ],
)
async def test_a_malformed_bearer_message_is_refused(node: SecuredNode, data: bytes) -> None:
    client = await node.connect()
    await begin(client, "OAUTHBEARER")
    assert (await step(client, data)).error_code == 58
    assert await client.closed_by_peer()


@pytest.mark.parametrize(
    "data",
    [
        b"\0anna\0wrong",
        b"\0nobody\0right",
        b"bert\0anna\0right",
        b"\0anna\0right\0",
        b"anna\0right",
        b"\0\0right",
        b"\0anna\0",
        b"",
        b"\0\xff\0right",
    ],
)
async def test_a_wrong_password_is_answered_and_the_connection_closed(node: SecuredNode, data: bytes) -> None:
    client = await node.connect()
    await begin(client)
    answer = await step(client, data)
    assert (answer.error_code, answer.error_message, answer.auth_bytes) == (58, FAILED, b"")
    assert await client.closed_by_peer()


async def test_the_answer_to_a_wrong_password_is_late(node: SecuredNode) -> None:
    late: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pauses: list[int] = []

    async def pause(milliseconds: int) -> None:
        pauses.append(milliseconds)
        await late

    node.broker.authenticator.attempts.pause = pause
    client = await node.connect()
    await begin(client)
    sent = client.send(AUTHENTICATE, SaslAuthenticateRequest(b"\0anna\0wrong"), 2)
    await until(lambda: pauses)
    [connection] = node.connections()
    assert connection._answers[0].parts is None
    # Nothing is read meanwhile, however long the broker takes.
    node.clock.advance(2 * LOGIN_MS_MAX)
    connection.look_after(node.clock.monotonic_ms())
    late.set_result(None)
    assert (await client.answer(AUTHENTICATE, 2))[0] == sent
    assert pauses == [100]


async def test_an_unknown_mechanism_gets_the_list_and_is_closed(node: SecuredNode) -> None:
    client = await node.connect()
    answer = await begin(client, "GSSAPI")
    assert (answer.error_code, answer.mechanisms[0]) == (33, "PLAIN")
    assert await client.closed_by_peer()


@pytest.mark.parametrize("key", [METADATA, PRODUCE, ApiKey.FETCH, 999])
async def test_any_other_request_before_the_login_is_closed_without_an_answer(node: SecuredNode, key: int) -> None:
    for handshake in (False, True):
        client = await node.connect()
        if handshake:
            await begin(client)
        frame = encode(METADATA, MetadataRequest(topics=[]), 12)
        client.writer.write(frame[:4] + struct.pack(">h", key) + frame[6:])
        assert await client.closed_by_peer()
    assert not node.broker.meters.operations.get(("DescribeTopics", "kafka"))


async def test_a_request_that_follows_the_handshake_in_the_same_packet_is_not_served(node: SecuredNode) -> None:
    client = await node.connect()
    client.send_all([(HANDSHAKE, SaslHandshakeRequest("PLAIN"), 1), (PRODUCE, produce("t", batch(b"x")), 9)])
    await client.answer(HANDSHAKE, 1)
    assert await client.closed_by_peer()
    assert node.broker.partition("t", 0).log.next_offset == 0


async def test_requests_that_follow_a_right_password_in_the_same_packet_are_served(node: SecuredNode) -> None:
    client = await node.connect()
    client.send_all(
        [
            (HANDSHAKE, SaslHandshakeRequest("PLAIN"), 1),
            (AUTHENTICATE, SaslAuthenticateRequest(RIGHT), 2),
            (PRODUCE, produce("t", batch(b"x")), 9),
        ]
    )
    await client.answer(HANDSHAKE, 1)
    await client.answer(AUTHENTICATE, 2)
    assert produced((await client.answer(PRODUCE, 9))[1]).error_code == 0


async def test_requests_that_follow_a_wrong_password_in_the_same_packet_are_not(node: SecuredNode) -> None:
    client = await node.connect()
    client.send_all(
        [
            (HANDSHAKE, SaslHandshakeRequest("PLAIN"), 1),
            (AUTHENTICATE, SaslAuthenticateRequest(b"\0anna\0wrong"), 2),
            (PRODUCE, produce("t", batch(b"x")), 9),
        ]
    )
    await client.answer(HANDSHAKE, 1)
    assert (await client.answer(AUTHENTICATE, 2))[1].error_code == 58
    assert await client.closed_by_peer()
    assert node.broker.partition("t", 0).log.next_offset == 0


async def test_authenticate_without_a_handshake_and_a_second_handshake_are_out_of_order(node: SecuredNode) -> None:
    client = await node.connect()
    assert (await step(client, RIGHT)).error_code == 34
    assert await client.closed_by_peer()
    client = await node.connect()
    await begin(client)
    assert (await begin(client)).error_code == 34
    assert await client.closed_by_peer()


async def test_versions_are_told_once_but_an_unknown_version_can_be_repeated(node: SecuredNode) -> None:
    client = await node.connect()
    for _ in range(2):
        client.writer.write(struct.pack(">ihhih", 10, int(VERSIONS), 99, 7, -1))
        assert (await client.answer(VERSIONS, 0))[1].error_code == 35
    assert (await client.ask(VERSIONS, ApiVersionsRequest(), 0)).error_code == 0
    client.send(VERSIONS, ApiVersionsRequest(), 0)
    assert await client.closed_by_peer()


async def test_a_long_frame_before_the_login_closes_the_connection_and_after_it_does_not(node: SecuredNode) -> None:
    client = await node.connect()
    client.writer.write(struct.pack(">i", LOGIN_FRAME_BYTES_MAX + 1))
    assert await client.closed_by_peer()
    client = await node.connect()
    await log_in(client)
    large = batch(b"x" * (2 * LOGIN_FRAME_BYTES_MAX))
    assert produced(await client.ask(PRODUCE, produce("t", large), 9)).error_code == 0


async def test_a_client_that_does_not_log_in_is_closed_in_time(node: SecuredNode) -> None:
    silent, done = await node.connect(), await node.connect()
    await log_in(done)
    await until(lambda: len(node.connections()) == 2)
    node.clock.advance(LOGIN_MS_MAX + 1)
    for connection in node.connections():
        connection.look_after(node.clock.monotonic_ms())
    assert await silent.closed_by_peer()
    assert await is_served(done)


async def test_after_the_login_both_requests_are_out_of_order_and_the_connection_stays(node: SecuredNode) -> None:
    client = await node.connect()
    await log_in(client)
    assert (await begin(client)).error_code == 34
    assert (await step(client, RIGHT)).error_code == 34
    assert await is_served(client)


async def test_without_authentication_both_are_refused_and_everything_else_is_served(wire: WireNode) -> None:
    client = await wire.connect()
    assert (await begin(client)).error_code == 34
    assert (await step(client, RIGHT)).error_code == 34
    assert await is_served(client)


# Sessions that end.


async def test_a_session_that_ended_closes_with_the_next_request(tmp_path: Path) -> None:
    async with SecuredNode(tmp_path, session_ms_max=60_000) as node:
        client = await node.connect()
        assert (await log_in(client)).session_lifetime_ms == 60_000
        assert await is_served(client)
        node.clock.advance(60_000)
        client.send(METADATA, MetadataRequest(topics=[]), 12)
        assert await client.closed_by_peer()


async def test_a_session_is_renewed_on_its_connection(tmp_path: Path) -> None:
    async with SecuredNode(tmp_path, session_ms_max=60_000) as node:
        client = await node.connect()
        await log_in(client)
        node.clock.advance(55_000)
        assert (await log_in(client)).session_lifetime_ms == 60_000
        node.clock.advance(55_000)
        assert await is_served(client)
        # Even when it has ended just before.
        node.clock.advance(10_000)
        await log_in(client)
        assert await is_served(client)
        # Not more than once a second.
        assert (await begin(client)).error_code == 34
        assert await is_served(client)


async def test_a_session_is_renewed_by_its_principal_alone(tmp_path: Path) -> None:
    async with SecuredNode(tmp_path, session_ms_max=60_000) as node:
        client = await node.connect()
        await log_in(client)
        node.clock.advance(10_000)
        await begin(client)
        answer = await step(client, b"\0bert\0other")
        assert (answer.error_code, answer.error_message) == (
            58,
            "A session can be renewed only by the principal that began it",
        )
        assert await client.closed_by_peer()


async def test_a_renewal_replaces_the_whole_identity(node: SecuredNode) -> None:
    client = await node.connect()
    await begin(client, "OAUTHBEARER")
    await step(client, bearer(node.token(groups=["one"])))
    [connection] = node.connections()
    assert connection.caller.groups == ("one",)
    node.clock.advance(10_000)
    await begin(client, "OAUTHBEARER")
    await step(client, bearer(node.token()))
    assert connection.caller.groups == ()


async def test_lanes_forget_what_they_knew_of_the_last_caller(tmp_path: Path) -> None:
    async with SecuredNode(tmp_path, session_ms_max=60_000) as node:
        client = await node.connect()
        await log_in(client)
        await client.ask(PRODUCE, produce("t", batch(b"x")), 9)
        [connection] = node.connections()
        lane: Any = connection._lanes[int(PRODUCE)]
        assert lane._shape is not None
        node.clock.advance(10_000)
        await log_in(client)
        assert lane._shape is None


async def test_the_connections_of_a_deleted_user_are_closed_and_no_others(node: SecuredNode) -> None:
    anna, bert = await node.connect(), await node.connect()
    await log_in(anna)
    await log_in(bert, b"\0bert\0other")
    await node.broker.authenticator.users.delete("bert", spare_last_admin=True)
    assert await bert.closed_by_peer()
    assert await is_served(anna)


async def test_a_fetch_that_waits_ends_with_its_user(node: SecuredNode) -> None:
    client = await node.connect()
    await log_in(client)
    client.send(ApiKey.FETCH, waits(min_bytes=10_000), 12)
    await until(lambda: node.broker.partition("t", 0)._readers)
    await node.broker.authenticator.users.set_password("anna", await node.broker.authenticator.hashed("new"))
    assert await client.closed_by_peer()


async def test_the_connections_of_a_revoked_key_are_closed(node: SecuredNode) -> None:
    keys = node.broker.authenticator.keys
    key_id, key = await keys.create("anna", "", 0, None)
    by_key, by_password = await node.connect(), await node.connect()
    await log_in(by_key, b"\0anna\0" + key.encode())
    await log_in(by_password)
    await keys.revoke(key_id, "anna")
    assert await by_key.closed_by_peer()
    assert await is_served(by_password)


# Client certificates.


async def test_a_client_certificate_is_a_login_which_sasl_may_replace(
    node: SecuredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = KafkaConnection._open

    def with_certificate(self: KafkaConnection, *arguments: Any) -> Any:
        found = opened(self, *arguments)
        self.certificate = "CN=anna"
        return found

    monkeypatch.setattr(KafkaConnection, "_open", with_certificate)
    client = await node.connect()
    assert await is_served(client)
    [connection] = node.connections()
    assert (connection.caller.principal, connection.caller.method) == ("User:CN=anna", "certificate")
    await log_in(client)
    assert connection.caller.principal == "User:anna"
    assert await is_served(client)
