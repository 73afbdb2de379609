"""The client against a real broker with TLS on its listeners."""

import pytest

from penstock.client import (
    Admin,
    At,
    CannotConnect,
    ClientSecurity,
    Cluster,
    Consumer,
    Producer,
    QueueClient,
    SinkClient,
    TlsFailed,
    http_addresses,
    list_offsets,
)
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
