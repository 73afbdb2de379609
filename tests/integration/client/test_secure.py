"""The client against a real broker with TLS on its listeners."""

import pytest

from penstock.address import parse_address
from penstock.client import (
    Admin,
    At,
    AuthenticationFailed,
    AuthenticationRequired,
    CannotConnect,
    ClientSecurity,
    Cluster,
    Consumer,
    Mechanism,
    Producer,
    QueueClient,
    RequestRefused,
    SinkClient,
    TlsFailed,
    http_addresses,
    list_offsets,
)
from penstock.client import connection as connection_module
from penstock.client.connection import Connection
from penstock.testing.secure import SecureBroker
from penstock.wire.kafka.metadata_generated import MetadataRequest, MetadataResponse
from tests.support.pki import Authority


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(penstock_broker_factory, ca):
    """TLS on every listener, and the certificate of a client is required."""
    pair = ca.sign("server")
    return penstock_broker_factory(
        {
            "listeners.http": "127.0.0.1:0",
            "tls.cert_file": pair.cert,
            "tls.key_file": pair.key,
            "tls.ca_file": ca.file,
            "tls.client_auth": "required",
        }
    )


@pytest.fixture(scope="module")
def security(ca):
    mine = ca.sign("anna")
    return ClientSecurity(ca_file=ca.file, cert_file=mine.cert, key_file=mine.key)


def test_records_are_written_and_read(broker, security) -> None:
    large = bytes(range(256)) * 2_000
    values = [large, b"small"] * 20
    with Cluster(broker.bootstrap, security=security) as cluster:
        Admin(cluster).create_topic("secure", partitions=1)
        with Producer(cluster) as producer:
            for value in values:
                producer.send("secure", value)
        start = list_offsets(cluster, {("secure", 0): At.EARLIEST})["secure", 0].offset
        consumer = Consumer(cluster)
        consumer.assign({("secure", 0): start})
        read = []
        while len(read) < len(values):
            read += [record.value for record in consumer.poll(timeout_ms=60_000)]
    assert read == values


def test_the_http_api_is_found_with_its_scheme_and_used(broker, security) -> None:
    with Cluster(broker.bootstrap, security=security) as cluster:
        address = http_addresses(cluster)
        assert address == f"https://{broker.address('http')}"
        with SinkClient(address, security=cluster.security) as sinks:
            assert sinks.list() == []
    with QueueClient(broker.address("http"), security=security) as queue:
        queue.create_topic("tasks")
        queue.produce("tasks", b"one")
        (leased,) = queue.lease("tasks", "workers", wait_ms=60_000)
        consumed = QueueClient(f"https://{broker.address('http')}", security=security).consume("tasks", "others")
        assert next(consumed).value == leased.value == b"one"
        consumed.close()
        queue.ack(leased)


def test_clients_without_tls_or_a_certificate_learn_what_is_missing(broker, ca, penstock_broker) -> None:
    for address in (broker.bootstrap, broker.address("http")):
        is_kafka = address == broker.bootstrap

        def ask(security, address=address, is_kafka=is_kafka):
            if is_kafka:
                with Cluster(address, security=security) as cluster:
                    cluster.describe()
            else:
                with SinkClient(address, away_ms=0, security=security) as sinks:
                    sinks.list()

        with pytest.raises(TlsFailed, match="uses TLS: connect with --tls"):
            ask(ClientSecurity())
        with pytest.raises(TlsFailed, match="is not signed by a CA that this client trusts"):
            ask(ClientSecurity(tls=True))
        with pytest.raises(TlsFailed, match="requires a client certificate"):
            ask(ClientSecurity(ca_file=ca.file))
    with (
        Cluster(penstock_broker.bootstrap, security=ClientSecurity(ca_file=ca.file)) as cluster,
        pytest.raises(CannotConnect, match="not use TLS"),
    ):
        cluster.describe()


SECRET_FORMS = (
    {"user": "admin", "mechanism": Mechanism.SCRAM_SHA_256},
    {"user": "admin", "mechanism": Mechanism.SCRAM_SHA_512},
    {"user": "admin", "mechanism": Mechanism.PLAIN},
)


@pytest.mark.parametrize("form", SECRET_FORMS, ids=lambda form: form["mechanism"].value)
def test_a_user_logs_in_with_a_password(penstock_secure_broker, form) -> None:
    broker = penstock_secure_broker
    given = {"ca_file": str(broker.ca_file), "password_file": str(broker.password_file), **form}
    topic = f"login-{form['mechanism'].value}"
    with Cluster(broker.bootstrap, security=ClientSecurity(**given)) as cluster:
        Admin(cluster).create_topic(topic)
        assert topic in {each.name for each in Admin(cluster).topics()}


def test_a_wrong_password_is_refused_at_once_and_not_shown(penstock_secure_broker) -> None:
    broker = penstock_secure_broker
    for mechanism in (Mechanism.SCRAM_SHA_256, Mechanism.PLAIN):
        for user in ("admin", "nobody"):
            security = ClientSecurity(
                ca_file=str(broker.ca_file), user=user, password="s3cr3t-mark", mechanism=mechanism
            )
            with (
                Cluster(broker.bootstrap, security=security) as cluster,
                pytest.raises(AuthenticationFailed, match=f"refused user '{user}'") as refused,
            ):
                cluster.describe()
            assert "s3cr3t-mark" not in str(refused.value)


def test_a_client_without_credentials_learns_that_they_are_required(penstock_secure_broker) -> None:
    broker = penstock_secure_broker
    security = ClientSecurity(ca_file=str(broker.ca_file))
    with (
        Cluster(broker.bootstrap, security=security) as cluster,
        pytest.raises(AuthenticationRequired, match="requires authentication"),
    ):
        cluster.describe()
    with (
        SinkClient(broker.address("http"), security=security, away_ms=0) as sinks,
        pytest.raises(RequestRefused) as refused,
    ):
        sinks.list()
    assert refused.value.status == 401


def test_the_http_api_takes_the_same_user(penstock_secure_broker) -> None:
    broker = penstock_secure_broker
    with Cluster(broker.bootstrap, security=broker.security) as cluster:
        address = http_addresses(cluster)
    with QueueClient(address, security=broker.security) as queue:
        queue.create_topic("secure-tasks")
        queue.produce("secure-tasks", b"one")
        (leased,) = queue.lease("secure-tasks", "workers", wait_ms=60_000)
        queue.ack(leased)


def test_credentials_for_a_broker_that_expects_none_are_not_sent(penstock_broker) -> None:
    with (
        Cluster(penstock_broker.bootstrap, security=ClientSecurity(user="a", password="b")) as cluster,
        pytest.raises(AuthenticationFailed, match="does not expect a login"),
    ):
        cluster.describe()


def test_a_login_that_ends_is_renewed_on_the_same_connection(tmp_path, monkeypatch) -> None:
    with SecureBroker(tmp_path, {"security.session_ms_max": 60_000}) as broker:
        now = [0.0]
        monkeypatch.setattr(connection_module, "monotonic", lambda: now[0])
        connection = Connection(parse_address(broker.bootstrap), security=broker.security)
        logins = []
        monkeypatch.setattr(connection, "_log_in", lambda: logins.append(1) or Connection._log_in(connection))
        connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert not logins
        now[0] = 58.0
        connection.call(MetadataRequest(topics=[]), MetadataResponse)
        assert connection.is_open
        assert len(logins) == 1
        connection.close()
