"""Logging in to a Kafka listener: the exchange, what a refusal says, and doing it again in time."""

import base64
import hashlib
import hmac
import math

import pytest

from penstock.address import Address
from penstock.client import connection as connection_module
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import AuthenticationFailed, AuthenticationRequired, ConnectionLost
from penstock.client.security import ClientSecurity, Mechanism
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataResponse
from penstock.wire.kafka.sasl_authenticate_generated import SaslAuthenticateResponse
from penstock.wire.kafka.sasl_handshake_generated import SaslHandshakeResponse
from tests.support.scripted_broker import CLOSE, ScriptedBroker

PASSWORD = "s3cr3t-mark"
ANNA = ClientSecurity(user="anna", password=PASSWORD, mechanism=Mechanism.PLAIN)
TOKEN = ClientSecurity(token="t0ken-mark")


def connect(broker, security, **options):
    return Connection(Address("127.0.0.1", broker.port), security=security, timeout_ms=60_000, **options)


def welcome(mechanisms=("PLAIN",)):
    return lambda _: SaslHandshakeResponse(error_code=0, mechanisms=list(mechanisms))


def accepted(**fields):
    return lambda _: SaslAuthenticateResponse(**fields)


def test_plain_is_announced_then_sent_once() -> None:
    with ScriptedBroker({ApiKey.SASL_HANDSHAKE: welcome(), ApiKey.SASL_AUTHENTICATE: accepted()}) as broker:
        connect(broker, ANNA).close()
    assert [key for key, _ in broker.requests] == [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert broker.requests_of(ApiKey.SASL_HANDSHAKE)[0].mechanism == "PLAIN"
    assert broker.requests_of(ApiKey.SASL_AUTHENTICATE)[0].auth_bytes == f"\0anna\0{PASSWORD}".encode()


class ScramServer:
    """The other half, for one user."""

    def __init__(self, password, *, forged=False) -> None:
        self._salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
        self._forged = forged
        self._bare = self._first = ""

    def answer(self, request):
        text = request.auth_bytes.decode()
        if text.startswith("n,,"):
            self._bare = text.removeprefix("n,,")
            nonce = self._bare.partition(",r=")[2]
            self._first = f"r={nonce}server,s={base64.b64encode(b'salt').decode()},i=4096"
            return SaslAuthenticateResponse(auth_bytes=self._first.encode())
        final, _, proof = text.rpartition(",p=")
        transcript = f"{self._bare},{self._first},{final}".encode()
        stored = hashlib.sha256(hmac.digest(self._salted, b"Client Key", "sha256")).digest()
        signature = hmac.digest(stored, transcript, "sha256")
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.sha256(key).digest() != stored and not self._forged:
            return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed.")
        server_key = hmac.digest(self._salted, b"Server Key", "sha256")
        proved = b"v=" + base64.b64encode(hmac.digest(server_key, transcript, "sha256"))
        return SaslAuthenticateResponse(auth_bytes=proved)


def scram_broker(server):
    return ScriptedBroker({ApiKey.SASL_HANDSHAKE: welcome(["SCRAM-SHA-256"]), ApiKey.SASL_AUTHENTICATE: server.answer})


def test_scram_is_what_a_password_uses_and_never_sends_it() -> None:
    with scram_broker(ScramServer("pencil")) as broker:
        connect(broker, ClientSecurity(user="anna", password="pencil")).close()
    assert broker.requests_of(ApiKey.SASL_HANDSHAKE)[0].mechanism == "SCRAM-SHA-256"
    sent = b"".join(request.auth_bytes for request in broker.requests_of(ApiKey.SASL_AUTHENTICATE))
    assert b"pencil" not in sent


def test_a_wrong_password_is_told_without_it() -> None:
    says = r"refused user 'anna': Authentication failed; check the credentials"
    with scram_broker(ScramServer("pencil")) as broker, pytest.raises(AuthenticationFailed, match=says) as refused:
        connect(broker, ClientSecurity(user="anna", password=PASSWORD))
    assert PASSWORD not in str(refused.value)


def test_a_server_that_accepts_every_password_is_not_trusted() -> None:
    server = ScramServer("another", forged=True)
    with scram_broker(server) as broker, pytest.raises(AuthenticationFailed, match="did not prove that it knows"):
        connect(broker, ClientSecurity(user="anna", password=PASSWORD))


def test_a_server_that_says_nothing_in_the_room_of_its_proof_is_not_trusted() -> None:
    handlers = {ApiKey.SASL_HANDSHAKE: welcome(["SCRAM-SHA-256"]), ApiKey.SASL_AUTHENTICATE: accepted()}
    with ScriptedBroker(handlers) as broker, pytest.raises(AuthenticationFailed, match="is not SCRAM"):
        connect(broker, ClientSecurity(user="anna", password=PASSWORD))


def test_a_refused_token_is_told_with_the_reason_of_the_broker() -> None:
    def authenticate(request):
        if request.auth_bytes == b"\x01":
            return SaslAuthenticateResponse(error_code=58, error_message="invalid_token")
        return SaslAuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')

    handlers = {ApiKey.SASL_HANDSHAKE: welcome(["OAUTHBEARER"]), ApiKey.SASL_AUTHENTICATE: authenticate}
    with ScriptedBroker(handlers) as broker, pytest.raises(AuthenticationFailed, match="the token: invalid") as refused:
        connect(broker, TOKEN)
    assert "t0ken-mark" not in str(refused.value)


def test_an_unsupported_mechanism_is_told_with_those_that_are_supported() -> None:
    def refuse(_):
        return SaslHandshakeResponse(error_code=33, mechanisms=["SCRAM-SHA-256", "OAUTHBEARER"])

    says = r"does not support PLAIN: choose .*--sasl-mechanism \(SCRAM-SHA-256, OAUTHBEARER\)"
    with ScriptedBroker({ApiKey.SASL_HANDSHAKE: refuse}) as broker, pytest.raises(AuthenticationFailed, match=says):
        connect(broker, ANNA)
    assert not broker.requests_of(ApiKey.SASL_AUTHENTICATE)


def test_a_listener_without_authentication_is_told_and_gets_no_password() -> None:
    def refuse(_):
        return SaslHandshakeResponse(error_code=34)

    says = "does not expect a login: remove the credentials"
    with ScriptedBroker({ApiKey.SASL_HANDSHAKE: refuse}) as broker, pytest.raises(AuthenticationFailed, match=says):
        connect(broker, ANNA)


def test_a_broker_that_knows_no_login_is_told() -> None:
    with ScriptedBroker({}) as broker, pytest.raises(AuthenticationFailed, match="does not support authentication"):
        connect(broker, ANNA)


def test_a_refusal_is_not_tried_again(pauses) -> None:
    refuse = accepted(error_code=58, error_message="no")
    handlers = {ApiKey.SASL_HANDSHAKE: welcome(), ApiKey.SASL_AUTHENTICATE: refuse}
    with (
        ScriptedBroker(handlers) as broker,
        Cluster(broker.bootstrap, security=ANNA) as cluster,
        pytest.raises(AuthenticationFailed),
    ):
        cluster.describe()
    assert len(broker.requests_of(ApiKey.SASL_AUTHENTICATE)) == 1
    assert not pauses


def test_a_missing_login_is_told_at_once(pauses) -> None:
    handlers = {
        ApiKey.METADATA: lambda _: CLOSE,
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(error_code=33, mechanisms=["PLAIN"]),
    }
    says = "requires authentication: specify --user and --password-file"
    with (
        ScriptedBroker(handlers) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(AuthenticationRequired, match=says),
    ):
        cluster.describe()
    assert not pauses


def test_a_broker_that_hangs_up_and_expects_no_login_is_lost() -> None:
    handlers = {
        ApiKey.METADATA: lambda _: CLOSE,
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(error_code=34),
    }
    with ScriptedBroker(handlers) as broker:
        connection = connect(broker, ClientSecurity())
        with pytest.raises(ConnectionLost):
            connection.call(MetadataRequest(), MetadataResponse)


def test_a_connection_that_was_answered_once_is_lost_later_without_a_question() -> None:
    answers = [MetadataResponse(), CLOSE]
    handlers = {
        ApiKey.METADATA: lambda _: answers.pop(0),
        ApiKey.SASL_HANDSHAKE: lambda _: SaslHandshakeResponse(error_code=33),
    }
    with ScriptedBroker(handlers) as broker:
        connection = connect(broker, ClientSecurity())
        connection.call(MetadataRequest(), MetadataResponse)
        with pytest.raises(ConnectionLost):
            connection.call(MetadataRequest(), MetadataResponse)
    assert not broker.requests_of(ApiKey.SASL_HANDSHAKE)


@pytest.fixture
def clock(monkeypatch):
    """The time of connections, in seconds."""
    now = [0.0]
    monkeypatch.setattr(connection_module, "monotonic", lambda: now[0])
    return now


def test_a_login_is_renewed_before_its_time_is_over_and_after_what_is_in_flight(clock) -> None:
    handlers = {
        ApiKey.SASL_HANDSHAKE: welcome(),
        ApiKey.SASL_AUTHENTICATE: accepted(session_lifetime_ms=100_000),
        ApiKey.METADATA: lambda _: MetadataResponse(cluster_id="one"),
    }
    with ScriptedBroker(handlers) as broker:
        connection = connect(broker, ANNA)
        clock[0] = 84.0
        early = connection.send(MetadataRequest())
        clock[0] = 96.0
        late = connection.send(MetadataRequest())
        assert connection.receive(late, MetadataResponse).cluster_id == "one"
        assert connection.receive(early, MetadataResponse).cluster_id == "one"
        clock[0] = 96.0 + 84.0
        connection.call(MetadataRequest(), MetadataResponse)
        connection.close()
    login = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert [key for key, _ in broker.requests] == [*login, ApiKey.METADATA, *login, ApiKey.METADATA, ApiKey.METADATA]


def test_a_login_without_an_end_is_not_renewed(clock) -> None:
    handlers = {
        ApiKey.SASL_HANDSHAKE: welcome(),
        ApiKey.SASL_AUTHENTICATE: accepted(session_lifetime_ms=0),
        ApiKey.METADATA: lambda _: MetadataResponse(),
    }
    with ScriptedBroker(handlers) as broker:
        connection = connect(broker, ANNA)
        clock[0] = 1e12
        connection.call(MetadataRequest(), MetadataResponse)
        connection.close()
    assert len(broker.requests_of(ApiKey.SASL_HANDSHAKE)) == 1
    assert clock[0] < math.inf


def test_a_renewal_that_is_refused_ends_the_connection(clock) -> None:
    answers = [SaslAuthenticateResponse(session_lifetime_ms=100_000), SaslAuthenticateResponse(error_code=58)]
    handlers = {ApiKey.SASL_HANDSHAKE: welcome(), ApiKey.SASL_AUTHENTICATE: lambda _: answers.pop(0)}
    with ScriptedBroker({**handlers, ApiKey.METADATA: lambda _: MetadataResponse()}) as broker:
        connection = connect(broker, ANNA)
        clock[0] = 100.0
        with pytest.raises(AuthenticationFailed):
            connection.call(MetadataRequest(), MetadataResponse)
        assert not connection.is_open
    assert not broker.requests_of(ApiKey.METADATA)
