"""TLS at every door, with real clients: what they get, what they are refused, and what the log says."""

import json
import re
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from grpc_health.v1 import health_pb2, health_pb2_grpc
from kafka import KafkaProducer

from penstock.address import parse_address
from penstock.testing.broker import BrokerThread
from tests.support.certificates import Authority, Pair, client_auth, tls_settings
from tests.support.waiting import eventually

SECONDS_MAX = 60.0
ALL_DOORS = {"listeners.http": "127.0.0.1:0", "listeners.tcp": "127.0.0.1:0", "listeners.grpc": "127.0.0.1:0"}
SOCKET_DOORS = ("kafka", "http", "tcp")
DOORS = (*SOCKET_DOORS, "grpc")


@contextmanager
def serving(folder: Path, settings: dict[str, object]) -> Iterator[BrokerThread]:
    with BrokerThread(folder / "data", {**ALL_DOORS, **settings}) as broker:
        yield broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the broker does not know, and whose certificates clients do not expect."""
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerThread]:
    with serving(tmp_path_factory.mktemp("tls"), tls_settings(authority)) as broker:
        yield broker


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[BrokerThread]:
    """It requires client certificates."""
    settings = tls_settings(authority, **client_auth(authority))
    with serving(tmp_path_factory.mktemp("strict"), settings) as broker:
        yield broker


def connect(address: str, context: ssl.SSLContext, name: str = "127.0.0.1") -> ssl.SSLSocket:
    host, port = parse_address(address)
    sock = socket.create_connection((host, port), timeout=SECONDS_MAX)
    try:
        return context.wrap_socket(sock, server_hostname=name)
    except BaseException:
        sock.close()
        raise


def is_served(address: str, context: ssl.SSLContext) -> bool:
    """Whether the JSON lines door answers."""
    with connect(address, context) as sock:
        sock.sendall(b'{"type":"nothing"}\n')
        return sock.recv(1) == b"{"


def alert(address: str, context: ssl.SSLContext) -> str:
    """Why a client is refused. With TLS 1.3, this arrives after its side of the handshake."""
    with connect(address, context) as sock, pytest.raises(ssl.SSLError) as refused:
        sock.recv(1)
    return str(refused.value.reason)


def call(address: str, authority: Authority, pair: Pair | None = None) -> int:
    """The answer of gRPC's health service."""
    credentials = grpc.ssl_channel_credentials(
        authority.file.read_bytes(),
        pair.key.read_bytes() if pair else None,
        pair.certificate.read_bytes() if pair else None,
    )
    with grpc.secure_channel(address, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS_MAX).status


def kafka_settings(broker: BrokerThread, authority: Authority, pair: Pair | None = None) -> dict[str, Any]:
    """For librdkafka."""
    own = {} if pair is None else {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.file),
        **own,
    }


# Every kind of client gets in.


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_connects_to_every_door(broker: BrokerThread, authority: Authority, door: str, version: str) -> None:
    command = ["openssl", "s_client", version, "-connect", broker.address(door), "-CAfile", str(authority.file)]
    command += ["-verify_return_error", "-alpn", "h2"] if door == "grpc" else ["-verify_return_error"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=SECONDS_MAX, check=False)
    said = done.stdout.decode(errors="replace")
    assert "Verify return code: 0 (ok)" in said, done.stderr
    assert re.search(r"Cipher is (ECDHE-ECDSA-(AES|CHACHA)|TLS_)", said)


@pytest.mark.parametrize("door", SOCKET_DOORS)
def test_old_versions_of_tls_are_refused(broker: BrokerThread, door: str) -> None:
    command = ["openssl", "s_client", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0", "-connect", broker.address(door)]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=SECONDS_MAX, check=False)
    assert b"alert protocol version" in done.stderr


def test_librdkafka_writes_and_reads(broker: BrokerThread, authority: Authority) -> None:
    settings = kafka_settings(broker, authority)
    producer = Producer(settings)
    # More than the shared buffer of all connections, in records and in a request.
    values = [bytes([n % 251]) * 100_000 for n in range(40)]
    for value in values:
        producer.produce("rdkafka", value)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rdkafka"])
    found = [consumer.poll(SECONDS_MAX) for _ in values]
    consumer.close()
    assert [record.value() for record in found if record is not None] == values


def test_kafka_python_writes(broker: BrokerThread, authority: Authority) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, security_protocol="SSL", ssl_cafile=str(authority.file)
    )
    assert producer.send("python", b"value").get(SECONDS_MAX).offset == 0
    producer.close()


async def test_aiokafka_writes(broker: BrokerThread, authority: Authority) -> None:
    context = create_ssl_context(cafile=str(authority.file))
    async with AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, security_protocol="SSL", ssl_context=context
    ) as producer:
        written = await producer.send_and_wait("aio", b"value")
    assert written.offset == 0


def test_kcat_lists_what_the_broker_has(broker: BrokerThread, authority: Authority) -> None:
    command = ["kcat", "-L", "-b", broker.bootstrap, "-X", "security.protocol=ssl"]
    command += ["-X", f"ssl.ca.location={authority.file}", "-J"]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=True)
    assert [each["name"] for each in json.loads(done.stdout)["brokers"]] == [broker.bootstrap]


def test_curl_and_httpx_get_their_answers(broker: BrokerThread, authority: Authority) -> None:
    url = f"https://{broker.address('http')}/readyz"
    done = subprocess.run(
        ["curl", "-sS", "--cacert", authority.file, url], capture_output=True, timeout=SECONDS_MAX, check=True
    )
    assert json.loads(done.stdout) == {"status": "ready"}
    with httpx.Client(verify=authority.context, timeout=SECONDS_MAX) as client:
        published = client.post(
            f"https://{broker.address('http')}/v1/topics/curl/records", json={"records": [{"value": "x" * 200_000}]}
        )
        assert client.get(url).json() == {"status": "ready"}
        assert published.status_code != 500


def test_json_lines_are_answered(broker: BrokerThread, authority: Authority) -> None:
    assert is_served(broker.address("tcp"), authority.context)


def test_grpc_is_served(broker: BrokerThread, authority: Authority) -> None:
    assert call(broker.address("grpc"), authority) == health_pb2.HealthCheckResponse.SERVING


# Names, authorities and dates.


@pytest.mark.parametrize("door", SOCKET_DOORS)
def test_a_certificate_is_good_for_its_names_only(broker: BrokerThread, authority: Authority, door: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(broker.address(door), authority.context, "elsewhere.example")


@pytest.mark.parametrize("door", SOCKET_DOORS)
def test_a_client_that_does_not_know_the_authority_refuses_and_the_log_says_what_to_do(
    broker: BrokerThread, stranger: Authority, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        connect(broker.address(door), stranger.context)
    said = f"listener={door} client=127.0.0.1 reason=the client does not trust the authority"
    eventually(lambda: said in caplog.text)


def test_grpc_clients_refuse_an_unknown_authority(broker: BrokerThread, stranger: Authority) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(broker.address("grpc"), stranger)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_librdkafka_refuses_an_unknown_authority(broker: BrokerThread, stranger: Authority) -> None:
    errors: list[str] = []
    settings = kafka_settings(broker, stranger)
    settings["error_cb"] = lambda error: errors.append(str(error))
    admin = AdminClient(settings)
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=5)
    admin.poll(1)
    assert any("certificate verify failed" in error for error in errors)


def test_clients_refuse_a_certificate_that_has_expired(tmp_path: Path, authority: Authority) -> None:
    pair = authority.server(name="old", expired=True)
    with serving(tmp_path, tls_settings(authority, pair)) as broker:
        for door in SOCKET_DOORS:
            with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
                connect(broker.address(door), authority.context)


# Client certificates.


def test_clients_with_a_certificate_are_served_where_one_is_required(
    strict: BrokerThread, authority: Authority
) -> None:
    pair = authority.client()
    producer = Producer(kafka_settings(strict, authority, pair))
    producer.produce("t", b"v")
    assert producer.flush(SECONDS_MAX) == 0
    with httpx.Client(verify=authority.context_with(pair), timeout=SECONDS_MAX) as client:
        assert client.get(f"https://{strict.address('http')}/readyz").status_code == 200
    assert is_served(strict.address("tcp"), authority.context_with(pair))
    assert call(strict.address("grpc"), authority, pair) == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("door", SOCKET_DOORS)
def test_clients_without_a_certificate_are_refused_where_one_is_required(
    strict: BrokerThread, authority: Authority, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert alert(strict.address(door), authority.context) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    said = f"listener={door} client=127.0.0.1 reason=the client did not present a certificate"
    eventually(lambda: said in caplog.text)


def test_grpc_clients_without_a_certificate_are_refused_where_one_is_required(
    strict: BrokerThread, authority: Authority
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(strict.address("grpc"), authority)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("what", "received", "words"),
    [
        ("expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED", "certificate has expired"),
        ("unknown", "TLSV1_ALERT_UNKNOWN_CA", "unable to get"),
    ],
)
def test_client_certificates_that_are_not_valid_are_refused(
    strict: BrokerThread,
    authority: Authority,
    stranger: Authority,
    what: str,
    received: str,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = authority.client("late", expired=True) if what == "expired" else stranger.client("late")
    assert alert(strict.address("tcp"), authority.context_with(pair)) == received
    eventually(lambda: words in caplog.text)
    with pytest.raises(grpc.RpcError):
        call(strict.address("grpc"), authority, pair)


def test_a_certificate_that_no_rule_names_is_refused_at_every_door(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {"tls.principal_rules": "RULE:^CN=(b.*)$/$1/"}
    settings = tls_settings(authority, **client_auth(authority, "required"), **rules)
    anna, bert = authority.client("anna"), authority.client("bert")
    with serving(tmp_path, settings) as broker:
        with httpx.Client(verify=authority.context_with(anna), timeout=SECONDS_MAX) as client:
            answer = client.get(f"https://{broker.address('http')}/v1/topics")
            assert (answer.status_code, "No rule" in answer.text) == (403, True)
        with connect(broker.address("tcp"), authority.context_with(anna)) as sock:
            assert b"No rule" in sock.recv(1000)
        with connect(broker.address("kafka"), authority.context_with(anna)) as sock:
            assert not next_byte(sock)
        with pytest.raises(grpc.RpcError) as refused:
            call_own(broker.address("grpc"), authority, anna)
        assert "No rule" in str(refused.value.details())
        assert is_served(broker.address("tcp"), authority.context_with(bert))
    assert "subject 'CN=anna'" in caplog.text


def next_byte(sock: ssl.SSLSocket) -> bytes:
    try:
        return sock.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


def call_own(address: str, authority: Authority, pair: Pair) -> bytes:
    """A call of Penstock's own service."""
    credentials = grpc.ssl_channel_credentials(
        authority.file.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
    )
    with grpc.secure_channel(address, credentials) as channel:
        return channel.unary_unary("/mq.MessageQueueService/ListTopics")(b"", timeout=SECONDS_MAX)


# Mistakes are named.


def test_plain_clients_are_told_to_use_tls(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    with httpx.Client(timeout=SECONDS_MAX) as client:
        answer = client.post(f"http://{broker.address('http')}/v1/topics", content=b"x" * 200_000)
        assert (answer.status_code, answer.text) == (400, "This port speaks TLS: use https://\n")
    with socket.create_connection(parse_address(broker.address("tcp")), SECONDS_MAX) as sock:
        sock.sendall(b'{"type":"list"}\n')
        answer = json.loads(sock.makefile().readline())
        assert answer == {"ok": False, "error": "This port speaks TLS: connect with TLS"}
    with socket.create_connection(parse_address(broker.bootstrap), SECONDS_MAX) as sock:
        sock.sendall(b"\x00\x00\x00\x10" + bytes(16))
        assert sock.recv(1) == b""
    for door in SOCKET_DOORS:
        assert f"listener={door} client=127.0.0.1 reason=the client does not use TLS" in caplog.text


def test_clients_that_use_tls_where_there_is_none_are_named_in_the_log(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, {}) as broker:
        for door in SOCKET_DOORS:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                connect(broker.address(door), authority.context)
            eventually(lambda door=door: f"listener={door} client=127.0.0.1 reason=the client uses TLS" in caplog.text)
        text = httpx.get(f"http://{broker.address('http')}/metrics", timeout=SECONDS_MAX).text
        for door in SOCKET_DOORS:
            assert f'penstock_connections_failed_total{{listener="{door}",reason="tls_on_plain"}} 1.0' in text


def test_a_listener_can_stay_plain(tmp_path: Path, authority: Authority) -> None:
    with serving(tmp_path, tls_settings(authority, **{"tls.http.enabled": False})) as broker:
        assert httpx.get(f"http://{broker.address('http')}/readyz", timeout=SECONDS_MAX).status_code == 200
        assert is_served(broker.address("tcp"), authority.context)


# Strangers.


def test_silent_connections_do_not_keep_a_good_client_out(broker: BrokerThread, authority: Authority) -> None:
    for door in SOCKET_DOORS:
        silent = [socket.create_connection(parse_address(broker.address(door)), SECONDS_MAX) for _ in range(200)]
        # Half of a greeting is as silent as none.
        for sock in silent[::2]:
            _send_if_open(sock)
        try:
            connect(broker.address(door), authority.context).close()
            # 50 of one address may stay, so the first ones had to make room.
            assert is_closed(silent[0])
        finally:
            for sock in silent:
                sock.close()


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def _send_if_open(sock: socket.socket) -> None:
    try:
        sock.sendall(b"\x16\x03\x01")
    except ConnectionError:
        return


# Several listeners.


def test_every_listener_answers_with_its_own_addresses(tmp_path: Path, authority: Authority) -> None:
    settings = tls_settings(authority, **{"tls.kafka.enabled": False})
    settings["listeners.outside.address"] = "127.0.0.1:0"
    settings["listeners.outside.advertised"] = "localhost:19094"
    with serving(tmp_path, settings) as broker:
        inside = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=SECONDS_MAX)
        assert [str(node).split("/")[0] for node in inside.brokers.values()] == [broker.bootstrap]
        outside = AdminClient(
            {**kafka_settings(broker, authority), "bootstrap.servers": broker.address("outside")}
        ).list_topics(timeout=SECONDS_MAX)
        assert [str(node).split("/")[0] for node in outside.brokers.values()] == ["localhost:19094"]
