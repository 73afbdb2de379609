"""TLS from the client's side: over Kafka and HTTP, and what each mistake says."""

import http.server
import socket
import ssl
import threading
from contextlib import closing, contextmanager
from itertools import pairwise

import msgspec
import pytest

from penstock.address import Address
from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import CannotConnect, InvalidSecurity, RequestRefused, TlsFailed
from penstock.client.http import HttpSession
from penstock.client.security import ClientSecurity
from penstock.client.sockets import JOINED_BYTES_MAX, connect, pieces
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataResponse
from tests.support.pki import Authority
from tests.support.scripted_broker import ScriptedBroker

METADATA = {ApiKey.METADATA: lambda _: MetadataResponse(cluster_id="one")}
MARK = "s3cr3t-mark"


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def pair(ca):
    return ca.sign("server")


def server_context(pair, *, clients=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def ask(broker, security):
    connection = Connection(Address("127.0.0.1", broker.port), security=security, timeout_ms=60_000)
    try:
        return connection.call(MetadataRequest(), MetadataResponse).cluster_id
    finally:
        connection.close()


def test_a_request_and_its_answer_are_encrypted(ca, pair) -> None:
    with ScriptedBroker(METADATA, tls=server_context(pair)) as broker:
        assert ask(broker, ClientSecurity(ca_file=ca.file)) == "one"


def test_a_ca_may_be_given_as_text(ca, pair) -> None:
    with open(ca.file, encoding="ascii") as file:
        security = ClientSecurity(ca_pem=file.read())
    with ScriptedBroker(METADATA, tls=server_context(pair)) as broker:
        assert ask(broker, security) == "one"


def test_a_large_request_arrives_whole(ca, pair) -> None:
    name = "n" * 30_000
    seen = []

    def metadata(request):
        seen.append([topic.name for topic in request.topics])
        return MetadataResponse()

    with (
        ScriptedBroker({ApiKey.METADATA: metadata}, tls=server_context(pair)) as broker,
        Cluster(broker.bootstrap, security=ClientSecurity(ca_file=ca.file)) as cluster,
    ):
        cluster.describe([f"{name}{index}" for index in range(100)])
    assert seen == [[f"{name}{index}" for index in range(100)]]


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [10, 20], [JOINED_BYTES_MAX, 1], [1, JOINED_BYTES_MAX], [5, 10**6, 7, 8, 2 * 10**6], [50_000] * 9],
)
def test_small_buffers_are_joined_and_large_ones_are_not_copied(sizes) -> None:
    buffers = [memoryview(bytes([index]) * size) for index, size in enumerate(sizes)]
    joined = pieces(list(buffers))
    assert b"".join(joined) == b"".join(buffers)
    assert all(any(piece is large for piece in joined) for large in buffers if len(large) > JOINED_BYTES_MAX)
    assert all(len(a) + len(b) > JOINED_BYTES_MAX for a, b in pairwise(joined))


def test_an_unknown_ca_is_told(pair, stranger) -> None:
    says = "is not signed by a CA that this client trusts: specify the CA's certificate with --tls-ca"
    for security in (ClientSecurity(ca_file=stranger.file), ClientSecurity(tls=True)):
        with ScriptedBroker(METADATA, tls=server_context(pair)) as broker, pytest.raises(TlsFailed, match=says):
            ask(broker, security)
        assert not broker.requests


def test_another_name_is_told_and_may_be_given(ca) -> None:
    pair = ca.sign("inside", hosts=("broker.internal",))
    with ScriptedBroker(METADATA, tls=server_context(pair)) as broker:
        with pytest.raises(TlsFailed, match=r"is not valid for '127\.0\.0\.1': .*--tls-server-name"):
            ask(broker, ClientSecurity(ca_file=ca.file))
        with pytest.raises(TlsFailed, match=r"is not valid for 'other\.internal'"):
            ask(broker, ClientSecurity(ca_file=ca.file, server_name="other.internal"))
        assert ask(broker, ClientSecurity(ca_file=ca.file, server_name="broker.internal")) == "one"
        assert ask(broker, ClientSecurity(ca_file=ca.file, verify_name=False)) == "one"


def test_an_expired_certificate_is_told(ca) -> None:
    pair = ca.sign("old", ended_days_ago=2)
    with ScriptedBroker(METADATA, tls=server_context(pair)) as broker, pytest.raises(TlsFailed, match="has expired"):
        ask(broker, ClientSecurity(ca_file=ca.file))


def test_a_certificate_of_the_future_is_told(ca) -> None:
    pair = ca.sign("young", ended_days_ago=-40)
    with ScriptedBroker(METADATA, tls=server_context(pair)) as broker, pytest.raises(TlsFailed, match="not valid yet"):
        ask(broker, ClientSecurity(ca_file=ca.file))


def test_a_client_certificate_is_shown_if_it_is_required(ca, pair) -> None:
    mine = ca.sign("anna")
    encrypted = ca.sign("bert", password=MARK)
    with ScriptedBroker(METADATA, tls=server_context(pair, clients=ca.file)) as broker:
        assert ask(broker, ClientSecurity(ca_file=ca.file, cert_file=mine.cert, key_file=mine.key)) == "one"
        assert (
            ask(
                broker,
                ClientSecurity(ca_file=ca.file, cert_file=encrypted.cert, key_file=encrypted.key, key_password=MARK),
            )
            == "one"
        )
        with open(mine.cert, encoding="ascii") as cert, open(mine.key, encoding="ascii") as key:
            inline = ClientSecurity(ca_file=ca.file, cert_pem=cert.read(), key_pem=key.read())
        assert ask(broker, inline) == "one"


def test_a_missing_or_foreign_client_certificate_is_told(ca, pair, stranger) -> None:
    foreign = stranger.sign("mallory")
    with ScriptedBroker(METADATA, tls=server_context(pair, clients=ca.file)) as broker:
        with pytest.raises(TlsFailed, match="requires a client certificate: specify it with --tls-cert"):
            ask(broker, ClientSecurity(ca_file=ca.file))
        with pytest.raises(TlsFailed, match=r"refused this client's certificate \(unknown ca\)"):
            ask(broker, ClientSecurity(ca_file=ca.file, cert_file=foreign.cert, key_file=foreign.key))
        assert not broker.requests


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ca_file": "missing.pem"}, r"Cannot read the CA file missing\.pem: No such file"),
        ({"ca_file": "KEY"}, "contains no certificate in PEM form"),
        ({"ca_pem": "not PEM"}, "The CA contains no certificate in PEM form"),
        ({"cert_file": "missing.pem"}, r"Cannot read the certificate file missing\.pem"),
        ({"cert_file": "CERT", "key_file": "missing.key"}, r"Cannot read the key file missing\.key"),
        ({"cert_file": "CERT"}, "it is not PEM, or has no key"),
        ({"cert_file": "CERT", "key_file": "OTHER"}, "the private key does not belong to the certificate"),
        ({"cert_file": "LOCKED", "key_file": "LOCKED_KEY"}, "is encrypted, and no password for it was given"),
        (
            {"cert_file": "LOCKED", "key_file": "LOCKED_KEY", "key_password": "no"},
            "password of the private key is wrong",
        ),
        ({"cert_pem": "x", "key_pem": MARK}, "The client's certificate cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_told_before_anything_is_sent(ca, given, says) -> None:
    pair, other, locked = ca.sign("a"), ca.sign("b"), ca.sign("c", password=MARK)
    names = {
        "CERT": pair.cert, "KEY": pair.key, "OTHER": other.key, "LOCKED": locked.cert, "LOCKED_KEY": locked.key
    }  # fmt: skip
    security = ClientSecurity(**{name: names.get(value, value) for name, value in given.items()})
    with ScriptedBroker(METADATA) as broker, pytest.raises(InvalidSecurity, match=says) as refused:
        ask(broker, security)
    assert MARK not in str(refused.value)
    assert not broker._connections


def test_tls_to_a_plain_broker_is_told(ca) -> None:
    security = ClientSecurity(ca_file=ca.file)
    says = r"it may not use TLS\. Connect without --tls"
    with listening(lambda connection: connection.recv(1)) as address, pytest.raises(CannotConnect, match=says):
        Connection(address, security=security)
    with ScriptedBroker(METADATA) as broker, pytest.raises(CannotConnect, match=f"in time: {says}"):
        Connection(Address("127.0.0.1", broker.port), security=security, connect_timeout_ms=100)


def test_a_plain_client_of_a_tls_broker_is_told(pair, pauses) -> None:
    with (
        ScriptedBroker(METADATA, tls=server_context(pair)) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(TlsFailed, match="uses TLS: connect with --tls"),
    ):
        cluster.describe()
    assert not pauses


@contextmanager
def listening(serve):
    """A server that gives each connection to ``serve`` and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError:
                        continue

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_tls_listener_that_hangs_up_on_plain_clients_is_told(pair, pauses) -> None:
    context = server_context(pair)

    def serve(connection) -> None:
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            context.wrap_socket(connection, server_side=True).close()

    with listening(serve) as address:
        with Cluster([address]) as cluster, pytest.raises(TlsFailed, match="uses TLS"):
            cluster.describe()
        with pytest.raises(TlsFailed, match=r"uses TLS: connect with --tls"):
            HttpSession(str(address)).get("/x", Said)
    assert not pauses


class Said(msgspec.Struct):
    said: str
    authorization: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        authorization = self.headers.get("Authorization", "")
        body = msgspec.json.encode({"said": self.path, "authorization": authorization, "error": "refused"}) + b"\n"
        self.send_response(401 if self.path == "/no" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self, context) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.connections = 0
        self._context = context

    def get_request(self):
        connection, address = super().get_request()
        self.connections += 1
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        return connection, address


@contextmanager
def https(context=None):
    server = Server(context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_https_uses_one_connection_for_many_requests(ca, pair) -> None:
    with https(server_context(pair)) as (address, server):
        session = HttpSession(address, security=ClientSecurity(ca_file=ca.file))
        session.connect()
        assert [session.get(f"/{n}", Said).said for n in range(5)] == [f"/{n}" for n in range(5)]
        session.close()
        assert server.connections == 1


def test_credentials_are_sent_in_a_header(ca, pair, tmp_path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    with https(server_context(pair)) as (address, _):
        session = HttpSession(address, security=ClientSecurity(ca_file=ca.file, token_file=str(token)))
        for written in ("one", "two"):
            token.write_text(written)
            assert session.get("/x", Said).authorization == f"Bearer {written}"
        session.close()
        session = HttpSession(address, security=ClientSecurity(ca_file=ca.file, user="anna", password="x"))
        assert session.get("/x", Said).authorization == "Basic YW5uYTp4"
        session.close()


def test_the_scheme_of_an_address_decides_over_the_default(ca, pair) -> None:
    with https(server_context(pair)) as (address, _):
        with pytest.raises(TlsFailed, match="not signed by a CA"):
            HttpSession(f"https://{address}").get("/x", Said)
        with pytest.raises(TlsFailed, match="uses TLS: connect with --tls"):
            HttpSession(f"http://{address}", security=ClientSecurity(ca_file=ca.file)).get("/x", Said)
    with https() as (address, _):
        session = HttpSession(f"http://{address}/", security=ClientSecurity(ca_file=ca.file))
        assert session.get("/x", Said).said == "/x"
        session.close()
        with pytest.raises(CannotConnect, match="not use TLS"):
            HttpSession(address, security=ClientSecurity(ca_file=ca.file)).get("/x", Said)
    with pytest.raises(ValueError, match="must begin with https"):
        HttpSession("ftp://127.0.0.1:1")


def test_a_stream_is_encrypted_too(ca, pair) -> None:
    with https(server_context(pair)) as (address, _):
        session = HttpSession(address, security=ClientSecurity(ca_file=ca.file))
        with closing(session.stream("GET", "/x", Said)) as lines:
            assert next(lines).said == "/x"
        with pytest.raises(RequestRefused):
            next(session.stream("GET", "/no", Said))


def test_a_password_is_not_sent_to_another_machine_without_tls(monkeypatch) -> None:
    monkeypatch.setattr("penstock.client.sockets._is_loopback", lambda _: False)
    security = ClientSecurity(user="anna", password=MARK)
    with ScriptedBroker(METADATA) as broker:
        with pytest.raises(InvalidSecurity, match="is not encrypted, so no password or token is sent") as refused:
            ask(broker, security)
        assert MARK not in str(refused.value)
        with pytest.raises(InvalidSecurity, match="is not encrypted"):
            HttpSession(broker.bootstrap, security=security).get("/x", Said)
        allowed = ClientSecurity(user="anna", password=MARK, may_send_unencrypted=True)
        connect(Address("127.0.0.1", broker.port), allowed, timeout_ms=60_000).close()


def test_loopback_is_known_by_the_address_that_was_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        security = ClientSecurity(user="anna", password=MARK)
        connect(Address("localhost", listener.getsockname()[1]), security, timeout_ms=60_000).close()
